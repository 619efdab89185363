//! How a page cache is used: its options, with the kernel's names where the kernel has them.

use spillway_core::block::DEVICE_BYTES_MAX;
use spillway_core::{BlockSize, Error, Geometry, Preset, Type, Unit};

use crate::options::{choices, in_order, options};
use crate::sizes;

choices! {
    /// When a write is acknowledged.
    pub enum Mode {
        /// Once it is in memory.
        Writeback = "writeback",
        /// Once the device below has received it.
        Writethrough = "writethrough",
    }
}

/// How the cache is cut; 0 is what follows from its size. No options: simulation needs many parts of little, and benchmarks as many as they have threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of a region, which is written back at once: a power of two, not below a folio.
    pub region_bytes: u64,
    /// Shards: a power of two.
    pub shards: u64,
}

/// The parts of the cache that work as in Linux 3.1: see `of_2011`.
#[cfg(feature = "of-2011")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Of2011 {
    /// The dirty limit holds for all memory together: a zone has no share of it, and may become dirty altogether.
    pub scope: bool,
    /// Writers run freely until they stop at the limit.
    pub throttling: bool,
    /// Zones keep as little free as on the source's machine, and requests leave a part of that.
    pub watermarks: bool,
    /// Reclaim writes the dirty blocks of each folio that it meets, alone, wherever the device below then is, and looks for a clean
    /// one meanwhile. Requests wait for reclaim in the background and evict nothing themselves.
    pub reclaim: bool,
}

#[cfg(feature = "of-2011")]
impl Of2011 {
    /// Linux 3.1 as it was.
    pub const ALL: Self = Self { scope: true, throttling: true, watermarks: true, reclaim: true };
}

/// How memory is divided into zones. No options: experiments compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// The parts of the zones, in the order in which they are asked for memory; with none, there is a zone for each NUMA node, and all are
    /// asked in turn.
    pub zones: Vec<u64>,
    /// Memory of the machine's NUMA nodes; with none, there is one.
    pub nodes: Vec<u64>,
    /// The parts of the cache that work as the kernel's did in 2011.
    #[cfg(feature = "of-2011")]
    pub of_2011: Of2011,
}

impl Division {
    /// The parts of the zones.
    pub(super) fn parts(&self) -> &[u64] {
        if self.zones.is_empty() { &self.nodes } else { &self.zones }
    }

    /// Zones, at most.
    pub(super) fn count(&self) -> u64 {
        self.parts().len().max(1) as u64
    }
}

const PERCENT: Type = Type::Number(0, 100);

/// Largest window of readahead.
const READAHEAD_MAX: u64 = 64 << 20;

/// The same where none is given.
const READAHEAD: u64 = 1 << 20;

/// The same over a device that prefers larger requests, at most: an object of a cluster.
const READAHEAD_LARGE: u64 = 4 << 20;

/// Smallest folio, unless blocks are larger.
const FOLIO_MIN: u64 = 4096;

/// Largest folio.
pub(super) const FOLIO_MAX: u64 = 2 << 20;

options! {
    /// What a configuration says about a page cache.
    pub struct Config;
    /// A [`Config`] that was found to be good; what may change while the cache is in use does so here.
    pub(super) struct Settings: Settings::fits;
    Start mode: Mode = Type::Choice(Mode::NAMES),
        "When a write is acknowledged: writeback once it is in memory, writethrough once the device below has received it"
        .preset(Preset::Choice("writeback"));
    Start page_cache_bytes_max: Option<u64> = Type::Number(0, DEVICE_BYTES_MAX),
        "Memory of the page cache, all that it keeps included"
        .unit(Unit::Bytes).preset(Preset::Words("three quarters of what the memory budget has left")).option("page-cache-bytes-max");
    Start block_size: Option<u64> = sizes::BLOCK,
        "Unit of reading, writing and dirtying; not below the block of the device below"
        .unit(Unit::Bytes).preset(Preset::Words("4096, where the device below allows it"));
    Start folio_size: Option<u64> = Type::PowerOfTwo(FOLIO_MIN, FOLIO_MAX),
        "Size of all folios, the units of memory; each block of one is read and written separately"
        .unit(Unit::Bytes).preset(Preset::Words("4 KiB to 2 MiB, by what is accessed"));
    Live dirty_background_ratio: u64 = PERCENT, "Start writing back above this share of dirty blocks; not above dirty_ratio"
        .unit(Unit::Percent).preset(Preset::Number(10));
    Live dirty_ratio: u64 = PERCENT, "Maximum share of blocks that are dirty or being written back. Writes that need more wait"
        .unit(Unit::Percent).preset(Preset::Number(20));
    Live dirty_expire: u64 = Type::Number(1, 86_400_000), "Write back blocks this long after they became dirty, from 15/16 of it on"
        .unit(Unit::Milliseconds).preset(Preset::Number(30_000));
    Live readahead_bytes_max: Option<u64> = Type::Number(0, READAHEAD_MAX), "Largest window that is read ahead of a stream of reads; 0 for none"
        .unit(Unit::Bytes).preset(Preset::Words("1M, or what the device below prefers if that is more, up to 4M"));
    .. besides {
        /// How the cache is cut.
        cut: Cut,
        /// How memory is divided.
        division: Division,
    }
}

/// Bytes of a block where the device below allows it.
const BLOCK: u64 = 4096;

impl Config {
    /// The same with a block and a window of readahead that fit the device below, where none is given.
    pub(super) fn over(&self, below: &Geometry) -> Self {
        let whole = 1 << (below.size | BLOCK).trailing_zeros();
        let block = below.block_size.bytes().max(whole);
        let window = u64::from(below.optimal_io).clamp(READAHEAD, READAHEAD_LARGE);
        Self {
            block_size: self.block_size.or(Some(block)),
            readahead_bytes_max: self.readahead_bytes_max.or(Some(window)),
            ..self.clone()
        }
    }
}

impl Settings {
    pub(super) fn block_size(&self) -> BlockSize {
        sizes::block(self.block_size.unwrap_or(BLOCK))
    }

    /// Bytes of the smallest folio.
    pub(super) fn folio_min(&self) -> u64 {
        self.folio_size.unwrap_or(self.block_size().bytes().max(FOLIO_MIN))
    }

    /// Bytes of the largest window of readahead.
    pub(super) fn readahead_bytes_max(&self) -> u64 {
        self.readahead_bytes_max.get().unwrap_or(READAHEAD)
    }

    fn fits(&self) -> Result<(), Error> {
        let (background, limit) = (self.dirty_background_ratio.get(), self.dirty_ratio.get());
        in_order(("dirty_background_ratio", background), ("dirty_ratio", limit))?;
        let block = self.block_size().bytes();
        match self.folio_size {
            Some(folio) if block > folio => Err(Error::invalid(format!(
                "block_size {block} is above folio_size {folio}: a folio is one block or more"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        Settings::new(&config).err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn values_out_of_range_are_named() {
        assert_eq!(refusal(|_| {}), "");
        assert!(refusal(|config| config.dirty_ratio = 101).contains("dirty_ratio cannot be 101"));
        assert!(
            refusal(|config| config.dirty_ratio = 9)
                .contains("dirty_background_ratio 10 is above dirty_ratio 9")
        );
        assert!(refusal(|config| config.folio_size = Some(3000)).contains("folio_size cannot be 3000"));
        assert!(refusal(|config| config.folio_size = Some(4 << 20)).contains("folio_size"));
        assert!(
            refusal(|config| (config.block_size, config.folio_size) = (Some(65536), Some(16384)))
                .contains("block_size 65536 is above folio_size 16384")
        );
        assert!(refusal(|config| config.dirty_expire = 0).contains("dirty_expire cannot be 0"));
    }
}
