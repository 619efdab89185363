//! How a cache is used: options with the names, ranges and defaults of dm-writecache, and some of our own.

use std::path::PathBuf;

use spillway_core::{BlockSize, Error, Preset, Switch, Type, Unit};
use spillway_policy::free_runs::{FreeRuns, Run};

use crate::open_context::BackingDevice;
use crate::options::{choices, in_order, options};
use crate::sizes;

choices! {
    /// How the cache device is reached.
    pub enum Mode {
        /// By I/O: an SSD.
        Ssd = "s",
        /// Through a mapping: persistent memory, or tmpfs.
        PersistentMemory = "p",
    }
}

choices! {
    /// How writes to the origin become durable.
    pub enum OriginWrites {
        /// Each is written with FUA.
        Fua = "fua",
        /// A flush follows them.
        NoFua = "nofua",
    }
}

choices! {
    /// When a write is acknowledged.
    pub enum Ack {
        /// Once the cache device has received it.
        Received = "received",
        /// Once it survives a crash.
        Committed = "committed",
    }
}

choices! {
    /// What becomes of a cache device that is not blank.
    pub enum OldCache {
        /// Its cache is opened.
        Open = "open",
        /// A new cache takes its place.
        Create = "create",
        /// Its cache is opened although its origin was moved or shrank, or it contradicts itself.
        Recover = "recover",
    }
}

/// Takes free blocks that follow each other, up to so many, for a write; `None` where nothing is free. No option: benchmarks compare.
#[derive(Clone, Copy, Debug)]
pub struct Placement(pub fn(&mut FreeRuns, u32) -> Option<Run>);

impl Default for Placement {
    fn default() -> Self {
        Self(FreeRuns::take_fit)
    }
}

impl PartialEq for Placement {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

const PERCENT: Type = Type::Number(0, 100);
const BLOCKS: Type = Type::Number(0, u32::MAX as u64);

options! {
    /// What a configuration says about a write cache.
    pub struct Config;
    /// A [`Config`] that was found to be good; what may change while the cache is in use does so here.
    pub(super) struct Settings: Settings::fits;
    Start path: PathBuf = Type::Path, "The cache device: a file or block device, fast and safe against crashes"
        .preset(Preset::Required).option("cache");
    Start mode: Mode = Type::Choice(Mode::NAMES),
        "How the cache device is accessed: s by I/O, p through a mapping, for persistent memory and tmpfs"
        .preset(Preset::Choice("s")).option("mode");
    Start origin_writes: Option<OriginWrites> = Type::Choice(OriginWrites::NAMES),
        "Mode p only. How blocks are written back: fua writes each with FUA, nofua flushes the origin afterwards"
        .preset(Preset::Words("fua in mode p, nofua in mode s")).option("origin-writes");
    Start block_size: u64 = sizes::BLOCK,
        "Unit of the cache, not below the block of either device. The kernel opens caches up to its page size"
        .unit(Unit::Bytes).preset(Preset::Number(4096)).option("block-size");
    Start start_sector: u64 = Type::COUNT, "Where the cache begins on its device"
        .unit(Unit::Sectors).preset(Preset::Number(0)).option("start-sector");
    Live high_watermark: u64 = PERCENT, "Start writing back when this share of the blocks is used; not below low_watermark"
        .unit(Unit::Percent).preset(Preset::Number(50)).option("high-watermark");
    Live low_watermark: u64 = PERCENT, "Stop writing back below this share; not above high_watermark"
        .unit(Unit::Percent).preset(Preset::Number(45)).option("low-watermark");
    Live writeback_jobs: u64 = BLOCKS,
        "Maximum blocks being written back at a time; 0 for as many as the memory for that holds (4 to 16 MiB), or the origin writes in \
         half a second if that is less"
        .unit(Unit::Blocks).preset(Preset::Number(65536)).option("writeback-jobs");
    Live autocommit_blocks: Option<u64> = BLOCKS, "Commit after this many uncommitted blocks"
        .unit(Unit::Blocks).preset(Preset::Words("65536, 64 in mode p")).option("autocommit-blocks");
    Live autocommit_time: u64 = Type::Number(0, 3_600_000), "Commit writes within this time"
        .unit(Unit::Milliseconds).preset(Preset::Number(1000)).option("autocommit-time");
    Live max_age: Option<u64> = Type::Number(0, 86_400_000),
        "Write back blocks this long after the first write that the origin does not have, from 15/16 of it on"
        .unit(Unit::Milliseconds).preset(Preset::Words("none")).or_none().option("max-age");
    Live cleaner: bool = Type::Switch, "Write back everything, and admit no new blocks"
        .preset(Preset::Switch(false)).option("cleaner");
    Live metadata_only: bool = Type::Switch,
        "Admit only metadata of file systems. NBD does not mark metadata, so no new blocks are admitted"
        .preset(Preset::Switch(false)).option("metadata-only");
    Live pause_writeback: Option<u64> = Type::Number(0, 60_000),
        "Mode s only. Pause writing back for this long after a write that bypassed the cache, while blocks are free and cleaner is off"
        .unit(Unit::Milliseconds).preset(Preset::Words("3000, 0 in mode p")).option("pause-writeback");
    Start ack: Ack = Type::Choice(Ack::NAMES),
        "When a write is acknowledged: received by the cache device, or committed, so that it survives a crash without a flush"
        .preset(Preset::Choice("received")).option("ack");
    Start old_cache: OldCache = Type::Choice(OldCache::NAMES),
        "What to do with a cache device that is not blank; open refuses one that holds no cache"
        .preset(Preset::Choice("open")).switches(&[
            Switch {
                name: "create",
                help: "Format the cache device although it is not blank, unless it holds dirty blocks or something that is recognised",
            },
            Switch {
                name: "recover",
                help: "Open a cache that is refused because its origin was moved, became smaller, or was written to by another host (what \
                       the cache holds counts), because two versions of a block are equally new (the later one counts), or because \
                       entries are ahead of the superblock (they are dropped)",
            },
        ]);
    Once force: bool = Type::Switch,
        "With create: format the cache device whatever it holds. Also accept an origin that holds a write cache"
        .preset(Preset::Switch(false)).option("force");
    .. besides {
        /// Which free blocks a write gets.
        placement: Placement,
    }
}

impl Config {
    fn is_mapped(&self) -> bool {
        self.mode == Mode::PersistentMemory
    }

    /// The cache device.
    pub(super) fn backing(&self) -> BackingDevice {
        let (path, mapped) = (self.path.clone(), self.is_mapped());
        BackingDevice { role: "cache", path, mapped, ..BackingDevice::default() }
    }

    /// With the defaults that depend on the mode, and the options that belong to the other mode refused.
    fn resolved(&self) -> Result<Self, Error> {
        let mapped = self.is_mapped();
        if !mapped && self.origin_writes.is_some() {
            return Err(Error::invalid("origin_writes is for mode p: leave it out in mode s"));
        }
        if mapped && self.pause_writeback.is_some() {
            return Err(Error::invalid("pause_writeback is for mode s: leave it out in mode p"));
        }
        let origin_writes = if mapped { OriginWrites::Fua } else { OriginWrites::NoFua };
        Ok(Self {
            origin_writes: self.origin_writes.or(Some(origin_writes)),
            autocommit_blocks: self.autocommit_blocks.or(Some(if mapped { 64 } else { 65536 })),
            pause_writeback: self.pause_writeback.or(Some(if mapped { 0 } else { 3000 })),
            ..self.clone()
        })
    }
}

const RESOLVED: &str = "defaults that depend on the mode were resolved";

impl Settings {
    /// [`spillway_core::Kind::Invalid`] names the option, the value and what is allowed.
    pub(super) fn of(config: &Config) -> Result<Self, Error> {
        Self::new(&config.resolved()?)
    }

    pub(super) fn block_size(&self) -> BlockSize {
        sizes::block(self.block_size)
    }

    /// Whether blocks are written back with FUA, and need no flush of the origin.
    pub(super) fn fua(&self) -> bool {
        self.origin_writes.expect(RESOLVED) == OriginWrites::Fua
    }

    pub(super) fn acks_committed(&self) -> bool {
        self.ack == Ack::Committed
    }

    pub(super) fn autocommit_blocks(&self) -> u64 {
        self.autocommit_blocks.get().expect(RESOLVED)
    }

    /// In milliseconds.
    pub(super) fn pause_writeback(&self) -> u64 {
        self.pause_writeback.get().expect(RESOLVED)
    }

    /// Whether blocks that are not in the cache go to the origin.
    pub(super) fn bypasses(&self) -> bool {
        self.cleaner.get() || self.metadata_only.get()
    }

    fn fits(&self) -> Result<(), Error> {
        let (low, high) = (self.low_watermark.get(), self.high_watermark.get());
        in_order(("low_watermark", low), ("high_watermark", high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        Settings::of(&config).err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn values_out_of_range_are_named() {
        assert_eq!(refusal(|_| {}), "");
        assert!(refusal(|config| config.high_watermark = 101).contains("high_watermark cannot be 101"));
        assert!(refusal(|config| config.high_watermark = 44).contains("low_watermark 45 is above"));
        assert!(refusal(|config| config.autocommit_time = 3_600_001).contains("3600000"));
        assert!(refusal(|config| config.max_age = Some(86_400_001)).contains("86400000, or none"));
        assert!(refusal(|config| config.pause_writeback = Some(60_001)).contains("60000"));
        assert!(refusal(|config| config.writeback_jobs = 1 << 32).contains("4294967295"));
        assert!(refusal(|config| config.autocommit_blocks = Some(1 << 32)).contains("4294967295"));
        assert!(refusal(|config| config.origin_writes = Some(OriginWrites::NoFua)).contains("mode p"));
        assert!(
            refusal(|config| (config.mode, config.pause_writeback) = (Mode::PersistentMemory, Some(1)))
                .contains("mode s")
        );
        assert!(refusal(|config| config.block_size = 3000).contains("block_size cannot be 3000"));
        assert!(refusal(|config| config.block_size = 1 << 40).contains("from 512 to 65536"));
    }

    #[test]
    fn defaults_follow_the_mode() {
        let settings = |mode| Settings::of(&Config { mode, ..Config::default() }).unwrap();
        let facts = |mode| {
            let settings = settings(mode);
            (settings.fua(), settings.autocommit_blocks(), settings.pause_writeback())
        };
        assert_eq!(facts(Mode::Ssd), (false, 65536, 3000));
        assert_eq!(facts(Mode::PersistentMemory), (true, 64, 0));
    }
}
