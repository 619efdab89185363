//! The metadata on its way to the cache device and back, in whole blocks of the cache.

use std::num::NonZeroU64;
use std::ops::Range;

use futures_util::future::join_all;
use spillway_core::buffer::ALIGNMENT;
use spillway_core::{Charge, Error, Geometry, IoBuf, Kind, Request, mutant};

use super::block::EPOCHS;
use super::cache::Drain;
use super::cache::{Core, Opened};
use super::format::{
    ENTRY_LEN, Entry, Found, Layout, MAGIC, OriginMark, PADDING_LEN, SUPERBLOCK_LEN, Superblock, VERSION,
};
use super::index::Index;
use super::pieces::BATCH_BYTES;
use super::recovery::{Recovered, Recovery};
use super::times::CommitTimes;

/// Bytes of metadata that are read or written at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Seq_counts that a cache may begin with: as many are left for commits.
const SEQ_COUNTS: u64 = EPOCHS / 2;

/// Bytes of magic and version: a word, which memory stores whole.
const MAGIC_LEN: usize = 8;

/// How far reading is, is told each time so much was read.
const TOLD_BYTES: u64 = 64 << 20;

/// Runs of entries that are written at the same time, as far as they fit in a batch.
const RUNS_AT_A_TIME: usize = 32;

/// Entries that are written down before others have their turn.
const ENTRIES_AT_A_TIME: usize = 8192;

/// Blocks of metadata between two that are to be written are written too where they are not more than this.
const GAP_BYTES: u64 = 8 << 10;

impl Core {
    /// Opens the cache: recovers what it holds, or formats a blank one.
    pub(super) async fn read_metadata(&self) -> Result<Opened, Error> {
        let (device, start) = (self.cache.geometry().size, self.settings.start_sector);
        let block_size = self.settings.block_size;
        let largest = Layout::largest(device, start, block_size)?;
        let found = {
            let first = self.read_meta(&largest, 0, block_size.bytes()).await?;
            Superblock::decode(
                first[..SUPERBLOCK_LEN].try_into().expect("a block is longer than a superblock"),
            )
        };
        match found {
            Found::Cache(superblock) => {
                self.check_origin(Some(&superblock)).await?;
                match self.settings.create {
                    true => self.format_again(&superblock, largest).await,
                    false => {
                        self.recover(superblock.accept(device, start, Some(block_size))?, superblock).await
                    }
                }
            }
            Found::Foreign { magic: MAGIC, version } if !self.settings.create => {
                Err(Error::invalid(format!(
                    "the cache device holds a write cache of version {version}, but only version {VERSION} is known here"
                )))
            }
            found => {
                self.check_origin(None).await?;
                if found != Found::Unfinished {
                    self.check_blank(&largest).await?;
                }
                self.format(largest).await
            }
        }
    }

    /// Formats a cache. What it holds that the origin does not, or may hold, is lost only if that was said.
    async fn format_again(&self, superblock: &Superblock, layout: Layout) -> Result<Opened, Error> {
        let held = self.held(superblock).await;
        match held {
            Ok(0) => {}
            _ if self.settings.force => {
                let what =
                    held.map_or_else(|error| error.to_string(), |blocks| format!("{blocks} dirty blocks"));
                tracing::warn!("write cache: formatting over a cache, which is destroyed: {what}");
            }
            Ok(blocks) => {
                return Err(Error::new(
                    Kind::Busy,
                    format!(
                        "the cache holds {blocks} blocks that the origin does not have: open it without --create and drain it; \
                         or destroy them by --create --force"
                    ),
                ));
            }
            Err(error) => {
                return Err(Error::new(
                    error.kind,
                    format!(
                        "--create would destroy a cache that may hold blocks which the origin does not have ({}): \
                         if that is wanted, use --create --force",
                        error.message()
                    ),
                ));
            }
        }
        self.format(layout).await
    }

    /// Blocks that a cache holds for its origin.
    async fn held(&self, superblock: &Superblock) -> Result<u32, Error> {
        // What is formatted anew may have had other blocks.
        let layout = superblock.accept(self.cache.geometry().size, self.settings.start_sector, None)?;
        let _charge = self.charge(&layout, Index::bytes(count(&layout)?))?;
        Ok(self.read_entries(&layout, superblock).await?.index.used())
    }

    async fn read_meta(&self, layout: &Layout, at: u64, len: u64) -> Result<IoBuf, Error> {
        let buf = self.workspaces.pieces.take(len as usize).await;
        let reply = self.cache.submit(Request::read(layout.start + at, buf)).await;
        super::cache::result_of(reply)
            .map_err(|kind| Error::new(kind, "the metadata of the cache cannot be read"))
    }

    async fn recover(&self, layout: Layout, superblock: Superblock) -> Result<Opened, Error> {
        let charge = self.charge(&layout, Index::bytes(count(&layout)?))?;
        let Recovered { index, stale } = self.read_entries(&layout, &superblock).await?;
        let live = index.used();
        let text = format!(
            "cache of {} blocks of {} bytes, {live} of them dirty, {stale} entries cleared, seq_count {}",
            layout.n_blocks,
            layout.block_size.bytes(),
            superblock.seq_count,
        );
        tracing::info!("write cache: found a {text}");
        let mut opened = self.opened(layout, index, charge, text);
        opened.padding = self.padding(&superblock, live > 0)?;
        // What was read may not be durable, where a server was killed. After a power cut an entry that it cleared would come back,
        // and its block hold something else by then; or a superblock would not, for whose sake older versions had been cleared.
        let durable = !mutant::on("write_cache: rely on what a killed server left unflushed");
        if durable {
            self.flush_cache().await.map_err(unwritable)?;
        }
        if stale > 0 && !mutant::on("write_cache: leave stale entries at recovery") {
            self.clear_found(&opened).await.map_err(unwritable)?;
            if durable {
                self.flush_cache().await.map_err(unwritable)?;
            }
        }
        opened.index.end_recovery();
        Ok(opened)
    }

    /// Frees on the device what recovery found to be stale, a piece of the metadata at a time.
    async fn clear_found(&self, opened: &Opened) -> Result<(), Kind> {
        let (layout, seq_count) = (&opened.layout, opened.index.committed);
        let entries = opened.index.blocks.len() as u32;
        let step = (PIECE_BYTES / ENTRY_LEN as u64) as usize;
        for first in (0..entries).step_by(step) {
            let stale: Vec<u32> =
                opened.index.being_cleared(first..entries.min(first + step as u32)).collect();
            for blocks in meta_runs(layout, &stale) {
                let all = mutant::on("write_cache: clear too much at recovery");
                let buf = self.meta_blocks(opened, blocks.clone(), if all { 0 } else { seq_count }).await;
                self.write_meta(opened, blocks.start, buf, false).await?;
            }
        }
        Ok(())
    }

    /// The origin as a cache remembers it.
    pub(super) fn origin_mark(&self) -> OriginMark {
        let Geometry { size, identity, .. } = self.origin.geometry();
        OriginMark { bytes: size, identity: identity.map_or(0, NonZeroU64::get) }
    }

    /// The padding to be written from now on. A cache that holds something is used with its own origin only.
    fn padding(&self, superblock: &Superblock, holds: bool) -> Result<[u8; PADDING_LEN], Error> {
        let mark = self.origin_mark();
        let found = OriginMark::decode(&superblock.padding);
        match found.filter(|found| found.differs(&mark) && holds && !self.settings.recover) {
            Some(found) => Err(Error::invalid(format!(
                "the cache holds blocks of another origin, of {} bytes: give that one; if this is the same one, moved or copied, \
                 --recover takes it",
                found.bytes
            ))),
            // Somebody else's bytes are left as they are.
            None if found.is_none() && superblock.padding != [0; PADDING_LEN] => Ok(superblock.padding),
            None => Ok(mark.encode()),
        }
    }

    async fn read_entries(&self, layout: &Layout, superblock: &Superblock) -> Result<Recovered, Error> {
        if superblock.seq_count >= SEQ_COUNTS {
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "the cache's superblock is damaged: seq_count {} cannot come from commits, which are below {SEQ_COUNTS}",
                    superblock.seq_count
                ),
            ));
        }
        let origin_blocks = self.geometry.size / layout.block_size.bytes();
        let (blocks, recover) = (count(layout)?, self.settings.recover);
        let mut recovery = Recovery::new(*layout, blocks, superblock.seq_count, origin_blocks, recover);
        let (total, mut at, mut index) = (layout.metadata_bytes(), 0, 0);
        while at < total {
            let len = PIECE_BYTES.min(total - at);
            let bytes = self.read_meta(layout, at, len).await?;
            let skip = if at == 0 { SUPERBLOCK_LEN } else { 0 };
            for chunk in bytes[skip..].chunks_exact(ENTRY_LEN) {
                if index < layout.n_blocks {
                    let forgotten =
                        at > 0 && mutant::on("write_cache: forget entries behind the first piece");
                    let entry = Entry::decode(chunk.try_into().expect("chunks are entries"));
                    recovery.take(if forgotten { Entry::BLANK } else { entry })?;
                    index += 1;
                }
            }
            at += len;
            if at % TOLD_BYTES == 0 {
                tracing::info!("write cache: {} % of {total} bytes of metadata read", at * 100 / total);
            }
        }
        recovery.finish()
    }

    fn charge(&self, layout: &Layout, bytes: u64) -> Result<Charge, Error> {
        self.budget.hold(bytes).map_err(|kind| {
            let (limit, used) = (self.budget.limit(), self.budget.used());
            let enough = enough(limit, used, bytes) >> 20;
            Error::new(
                kind,
                format!(
                    "the index of {} blocks of {} bytes takes {bytes} bytes of memory, but of the {limit} allowed {used} are in use: \
                     give --memory {enough}M or more, or use larger blocks",
                    layout.n_blocks,
                    layout.block_size.bytes(),
                ),
            )
        })
    }

    fn opened(&self, layout: Layout, mut index: Index, charge: Charge, found: String) -> Opened {
        index.next_fit = self.settings.next_fit;
        let commit_times = CommitTimes::new(self.env.coarse_now(), index.committed);
        let padding = self.origin_mark().encode();
        Opened {
            layout,
            padding,
            index,
            drain: Drain::Off,
            found,
            aged: None,
            aged_again: None,
            commit_times,
            _charge: charge,
        }
    }

    /// Writes the entries first and the superblock last: a crash in between leaves a device whose formatting did not end.
    async fn format(&self, layout: Layout) -> Result<Opened, Error> {
        let charge = self.charge(&layout, Index::bytes(count(&layout)?))?;
        let block = layout.block_size.bytes();
        let text = format!("new cache of {} blocks of {block} bytes", layout.n_blocks);
        let opened = self.opened(layout, Index::new(count(&layout)?), charge, text);
        let blocks = layout.metadata_bytes() / block;
        // What was there before is not to be taken for a cache, nor for what it was; a crash leaves a device that may be formatted.
        let (begun, until_last) = match mutant::on("write_cache: forget that formatting has begun") {
            true => ([0; SUPERBLOCK_LEN], SUPERBLOCK_LEN),
            false => (Superblock::unfinished(), MAGIC_LEN),
        };
        let mut first = self.workspaces.pieces.take(block as usize).await;
        first.fill(0);
        first[..SUPERBLOCK_LEN].copy_from_slice(&begun);
        self.write_meta(&opened, 0, first, true).await.map_err(unwritable)?;
        let mut from = 0;
        while from < blocks {
            let to = blocks.min(from + (PIECE_BYTES / block).max(1));
            let mut buf = self.meta_blocks(&opened, from..to, 0).await;
            if from == 0 {
                // Memory may tear between words: the one with the magic and the version comes last.
                buf[..until_last].copy_from_slice(&begun[..until_last]);
            }
            self.write_meta(&opened, from, buf, false).await.map_err(unwritable)?;
            from = to;
        }
        self.flush_cache().await.map_err(unwritable)?;
        let first = self.meta_blocks(&opened, 0..1, 0).await;
        self.write_meta(&opened, 0, first, true).await.map_err(unwritable)?;
        tracing::info!("write cache: formatted, {} blocks of {block}", layout.n_blocks);
        Ok(opened)
    }

    /// The bytes of these blocks of metadata, of a cache that is not open yet.
    async fn meta_blocks(&self, opened: &Opened, blocks: Range<u64>, seq_count: u64) -> IoBuf {
        let mut buf = self.workspaces.pieces.take(run_bytes(&opened.layout, &blocks)).await;
        fill_meta(opened, blocks, seq_count, &mut buf);
        buf
    }

    async fn write_meta(&self, opened: &Opened, block: u64, buf: IoBuf, fua: bool) -> Result<(), Kind> {
        let at = opened.layout.start + block * opened.layout.block_size.bytes();
        let mut request = Request::write(at, buf);
        request.flags.fua = fua;
        self.cache.submit(request).await.result
    }

    /// Writes the entries of an open cache. They say what is committed once the superblock has `shown`; the superblock itself
    /// keeps `seq_count`.
    pub(super) async fn write_open_entries(
        &self,
        entries: &[u32],
        shown: u64,
        seq_count: u64,
    ) -> Result<(), Kind> {
        let layout = self.with(|opened| opened.layout);
        let runs = meta_runs(&layout, entries);
        let first = mutant::on("write_cache: write only the first run of metadata");
        let mut runs = if first { &runs[..runs.len().min(1)] } else { &runs[..] };
        while !runs.is_empty() {
            let (some, rest) = runs.split_at(batch(&layout, runs));
            self.write_runs_of_entries(&layout, some, shown, seq_count).await?;
            runs = rest;
        }
        Ok(())
    }

    /// Writes these blocks of metadata at the same time.
    async fn write_runs_of_entries(
        &self,
        layout: &Layout,
        runs: &[Range<u64>],
        shown: u64,
        seq_count: u64,
    ) -> Result<(), Kind> {
        let lens: Vec<usize> = runs.iter().map(|run| run_bytes(layout, run)).collect();
        let mut answers = Vec::with_capacity(runs.len());
        let mut entries = 0;
        for (blocks, mut buf) in runs.iter().zip(self.workspaces.pieces.take_each(&lens).await) {
            let at = layout.start + blocks.start * layout.block_size.bytes();
            self.with(|opened| {
                fill_meta(opened, blocks.clone(), shown, &mut buf);
                if blocks.start == 0 {
                    set_superblock(opened, &mut buf, seq_count);
                }
            });
            entries += buf.len() / ENTRY_LEN;
            answers.push(self.cache.submit(Request::write(at, buf)));
            if entries >= ENTRIES_AT_A_TIME {
                self.give_way().await;
                entries = 0;
            }
        }
        join_all(answers).await.into_iter().try_for_each(|reply| reply.result)
    }

    /// Writes the superblock: from now on everything below `seq_count` is committed.
    pub(super) async fn write_superblock(&self, seq_count: u64) -> Result<(), Kind> {
        let layout = self.with(|opened| opened.layout);
        let mut buf = self.workspaces.pieces.take(run_bytes(&layout, &(0..1))).await;
        self.with(|opened| fill_meta(opened, 0..1, seq_count, &mut buf));
        let mut request = Request::write(layout.start, buf);
        request.flags.fua = !mutant::on("write_cache: write the superblock without FUA");
        self.cache.submit(request).await.result
    }

    pub(super) async fn flush_cache(&self) -> Result<(), Kind> {
        self.cache.submit(Request::flush()).await.result
    }
}

/// A limit at which `bytes` more fit, in whole MiB. What a server takes for buffers and connections grows with the limit, by less than a
/// fifth.
fn enough(limit: u64, used: u64, bytes: u64) -> u64 {
    let missing = used.saturating_add(bytes).saturating_sub(limit);
    limit.saturating_add(missing / 4 * 5).saturating_add(1 << 20).next_multiple_of(1 << 20)
}

fn unwritable(kind: Kind) -> Error {
    Error::new(kind, "the metadata of the cache cannot be written")
}

/// Blocks of a cache as the index counts them.
fn count(layout: &Layout) -> Result<u32, Error> {
    u32::try_from(layout.n_blocks).ok().filter(|&count| count < u32::MAX).ok_or_else(|| {
        Error::invalid(format!(
            "a cache of {} blocks is too large here: choose larger blocks",
            layout.n_blocks
        ))
    })
}

/// The blocks of metadata that hold these entries, in runs of at most [`PIECE_BYTES`].
fn meta_runs(layout: &Layout, entries: &[u32]) -> Vec<Range<u64>> {
    let block = layout.block_size.bytes();
    let mut blocks: Vec<u64> =
        entries.iter().map(|&entry| (layout.entry_offset(u64::from(entry)) - layout.start) / block).collect();
    blocks.sort_unstable();
    let mut runs: Vec<Range<u64>> = Vec::new();
    for at in blocks {
        match runs.last_mut() {
            Some(run) if at < run.end => {}
            Some(run)
                if (at - run.end) * block <= GAP_BYTES && (at + 1 - run.start) * block <= PIECE_BYTES =>
            {
                run.end = at + 1;
            }
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Bytes of a run of blocks of metadata.
fn run_bytes(layout: &Layout, run: &Range<u64>) -> usize {
    ((run.end - run.start) * layout.block_size.bytes()) as usize
}

/// How many of `runs` are written at the same time.
fn batch(layout: &Layout, runs: &[Range<u64>]) -> usize {
    let mut bytes = 0;
    let fits = |run: &&Range<u64>| {
        bytes += run_bytes(layout, run).next_multiple_of(ALIGNMENT);
        bytes <= BATCH_BYTES
    };
    runs.iter().take(RUNS_AT_A_TIME).take_while(fits).count()
}

/// Writes down these blocks of metadata, as they are once the superblock has `seq_count`.
fn fill_meta(opened: &Opened, blocks: Range<u64>, seq_count: u64, buf: &mut IoBuf) {
    let layout = &opened.layout;
    let block = layout.block_size.bytes();
    buf.fill(0);
    let sectors = layout.block_size.bytes() / spillway_core::SECTOR;
    let head = SUPERBLOCK_LEN as u64;
    for (slot, chunk) in buf.chunks_exact_mut(ENTRY_LEN).enumerate() {
        let at = blocks.start * block + (slot * ENTRY_LEN) as u64;
        let Some(offset) = at.checked_sub(head) else { continue };
        let index = offset / ENTRY_LEN as u64;
        if index < layout.n_blocks {
            chunk.copy_from_slice(&opened.index.entry(index as u32, seq_count, sectors).encode());
        }
    }
    if blocks.start == 0 {
        set_superblock(opened, buf, seq_count);
    }
}

fn set_superblock(opened: &Opened, buf: &mut IoBuf, seq_count: u64) {
    let superblock = Superblock { seq_count, padding: opened.padding, ..Superblock::fresh(&opened.layout) };
    buf[..SUPERBLOCK_LEN].copy_from_slice(&superblock.encode(true));
}
