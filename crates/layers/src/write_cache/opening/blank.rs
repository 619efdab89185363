//! What the two devices hold before a cache is formatted or used: nothing is destroyed that nobody gave up.
//!
//! A device is blank where the whole area of the metadata, and the first and the last MiB of the device, read as zeroes; or where
//! formatting was begun and did not end, which the superblock's padding says. Anything else is named, and formatted only with
//! `create`; what is recognised only with `force` as well.

use std::ops::Range;

use spillway_core::{Error, Kind, Request};

use crate::blank::{self, PIECE_BYTES};
use crate::signatures::{Scan, WINDOW};

use crate::write_cache::config::OldCache;
use crate::write_cache::device::result_of;
use crate::write_cache::format::{Found, Layout, OriginMark, SUPERBLOCK_LEN, Superblock};
use crate::write_cache::opening::Opening;

impl Opening {
    /// [`Kind::Invalid`] unless the cache device may be formatted as `layout`.
    pub(crate) async fn check_blank(&self, layout: &Layout) -> Result<(), Error> {
        let scan = self.scan(layout).await?;
        let Some(byte) = scan.nonzero else { return Ok(()) };
        let names = scan.names.join(", ");
        let replaces = self.settings.old_cache == OldCache::Create;
        if replaces && self.settings.force {
            let what = if names.is_empty() { "something not recognised" } else { &names };
            tracing::warn!("write cache: formatting over {what}, which is destroyed");
            return Ok(());
        }
        let (found, option) = match names.is_empty() {
            true if replaces => return Ok(()),
            true => (
                format!("is not blank: byte {byte} is not zero, and nothing is recognised there"),
                "--create",
            ),
            false => (format!("holds something else: {names}"), "--create --force"),
        };
        Err(Error::invalid(format!(
            "the cache device {found}; to make it a cache anyway, which destroys that, use {option}"
        )))
    }

    /// Both ends of the cache device, and the area of the metadata up to the first byte that is not zero.
    async fn scan(&self, layout: &Layout) -> Result<Scan, Error> {
        let geometry = self.cache.geometry();
        let mut scan = Scan::new(geometry.size);
        let (ends, metadata) = areas(layout, geometry.size, geometry.block_size.bytes());
        for range in ends {
            self.scan_range(&mut scan, range).await?;
        }
        let mut at = metadata.start;
        while at < metadata.end && scan.nonzero.is_none() {
            let end = metadata.end.min(at + PIECE_BYTES);
            self.scan_range(&mut scan, at..end).await?;
            at = end;
        }
        Ok(scan)
    }

    async fn scan_range(&self, scan: &mut Scan, range: Range<u64>) -> Result<(), Error> {
        let looked = blank::look(&self.cache, &self.workspaces.pieces, scan, range).await;
        looked.map_err(|kind| unreadable(kind, "the cache device"))
    }

    /// [`Kind::Invalid`] where the origin is a cache itself, as it is where the two were swapped, unless `cache` was
    /// made for this origin: what clients write to a device is theirs to choose.
    pub(crate) async fn check_origin(&self, cache: Option<&Superblock>) -> Result<(), Error> {
        let belongs = |cache: &Superblock| {
            OriginMark::decode(&cache.padding).is_some_and(|mark| mark.is(&self.origin_mark()))
        };
        if self.settings.force || cache.is_some_and(belongs) {
            return Ok(());
        }
        for at in [0, self.settings.start_sector.saturating_mul(spillway_core::SECTOR)] {
            match self.holds_superblock(at).await {
                // What a cache holds has to get out, also where the origin cannot be read.
                Ok(false) => {}
                Err(error) if cache.is_some() => tracing::warn!("write cache: {error}"),
                Err(error) => return Err(error),
                Ok(true) => {
                    return Err(Error::invalid(format!(
                        "the origin holds a write cache at byte {at}: are origin and cache swapped? \
                         If a client has written that, use --force"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether the origin holds a cache's superblock at this byte.
    async fn holds_superblock(&self, at: u64) -> Result<bool, Error> {
        let geometry = self.origin.geometry();
        let block = geometry.block_size.bytes();
        let first = at / block * block;
        if at.checked_add(SUPERBLOCK_LEN as u64).is_none_or(|end| end > geometry.size) {
            return Ok(false);
        }
        let buf = self.workspaces.pieces.take(block as usize).await;
        let reply = self.origin.submit(Request::read(first, buf)).await;
        let bytes = result_of(reply).map_err(|kind| unreadable(kind, "the origin"))?;
        let head = &bytes[(at - first) as usize..][..SUPERBLOCK_LEN];
        let found = Superblock::decode(head.try_into().expect("the length of a superblock"));
        Ok(matches!(found, Found::Cache(_) | Found::Unfinished))
    }
}

fn unreadable(kind: Kind, what: &str) -> Error {
    Error::new(kind, format!("{what} cannot be read, to see whether it is blank or a cache"))
}

/// The two ends of a device, and what of the metadata they do not cover; in whole blocks of the device.
fn areas(layout: &Layout, size: u64, block: u64) -> ([Range<u64>; 2], Range<u64>) {
    let [head, tail] = blank::ends(size, block);
    let end = (layout.start + layout.metadata_bytes().max(WINDOW)).next_multiple_of(block);
    let start = (layout.start / block * block).clamp(head.end, tail.start);
    let metadata = start..end.clamp(start, tail.start);
    assert!(head.end <= metadata.start && metadata.end <= tail.start, "{head:?} {metadata:?} {tail:?}");
    ([head, tail], metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::BlockSize;

    const MIB: u64 = 1 << 20;

    fn check(size: u64, start_sector: u64, block: u64) {
        let cache = BlockSize::new(4096.max(block as u32)).unwrap();
        let layout = Layout::largest(size, start_sector, cache).unwrap();
        let (ends, metadata) = areas(&layout, size, block);
        let ranges: Vec<_> = ends.into_iter().chain([metadata]).collect();
        for range in &ranges {
            assert!(range.start % block == 0 && range.end % block == 0, "{range:?} of {size} in {block}");
            assert!(range.is_empty() || range.end <= size);
        }
        for sector in 0..size / 512 {
            let at = sector * 512;
            let count = ranges.iter().filter(|range| range.contains(&at)).count();
            assert!(count <= 1, "byte {at} of {size} is read twice");
            let needed = at < MIB
                || at >= size.saturating_sub(MIB)
                || (layout.start..layout.start + layout.metadata_bytes().max(MIB)).contains(&at);
            assert!(count == 1 || !needed, "byte {at} of {size} from sector {start_sector} on is not read");
        }
    }

    /// Over the ends that meet, the metadata that is longer than the first window, and a start within and behind it.
    #[test]
    fn all_that_matters_is_looked_at_once() {
        for size in [64 << 10, MIB, MIB + 4096, 2 * MIB - 4096, 2 * MIB, 2 * MIB + 4096, 3 * MIB, 400 * MIB] {
            for start in [0, 8, 2048, 4096].into_iter().filter(|start| (start + 64) * 512 < size) {
                check(size, start, 512);
                check(size, start, 4096);
            }
        }
        check(64 * MIB, 3, 512);
        check(64 * MIB, 3, 4096);
    }
}
