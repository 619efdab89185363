//! How a cache is used: options with the names, ranges and defaults of dm-writecache, and some of our own.

use std::path::PathBuf;

use serde::Deserialize;
use spillway_core::sync::{AtomicU64, Ordering};
use spillway_core::{BlockSize, Error};

use crate::config::{Setting, Size, about, choose, name_of};

/// Milliseconds of a day: the most that `max_age` may be.
const AGE_MS_MAX: u64 = 86_400_000;

/// What a configuration says about a write cache.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The cache device: a file or block device.
    pub path: PathBuf,
    /// Whether it is formatted at the start although it holds something that is not recognised, or an empty cache.
    pub create: bool,
    /// With `create`: whatever it holds. Also takes an origin that holds a cache. For one start, so never in a file.
    #[serde(skip)]
    pub force: bool,
    /// Whether of two versions that cannot be told apart the one in the later block is taken, and entries ahead of the superblock
    /// are dropped, instead of refusing the cache.
    pub recover: bool,
    /// `s` (an SSD, by I/O) or `p` (persistent memory, through a mapping); `s` by default.
    pub mode: String,
    /// Only in mode `p`: whether copies are written to the origin with FUA (the default there), or plainly with a flush after them.
    pub fua: Option<bool>,
    /// Bytes of a block: a power of two from 512 to 65536, 4096 by default.
    pub block_size: Size,
    /// Where the cache begins on its device, in sectors of 512 bytes; 0 by default.
    pub start_sector: u64,
    /// Copying to the origin begins when so many percent of the blocks are used; 0 to 100, 50 by default.
    pub high_watermark: u64,
    /// Copying ends when fewer percent than this are used; 0 to the high one, 45 by default.
    pub low_watermark: u64,
    /// Blocks that are copied at a time; 0 is as many as memory for copies allows, 65536 by default.
    pub writeback_jobs: u64,
    /// A commit begins after so many uncommitted blocks; 0 to 2^32 - 1, 65536 by default, 64 in mode `p`.
    pub autocommit_blocks: Option<u64>,
    /// Milliseconds after which something that was written is committed; 0 to 3,600,000, 1000 by default.
    pub autocommit_time: u64,
    /// Milliseconds after which a block is copied to the origin; 0 to 86,400,000, none by default.
    pub max_age: Option<u64>,
    /// Whether everything is copied, and nothing new enters the cache.
    pub cleaner: bool,
    /// Whether only metadata of file systems enters the cache. NBD does not tell what is metadata: nothing new enters then.
    pub metadata_only: bool,
    /// Milliseconds since the last direct write to the origin before copies begin; 0 to 60,000, 3000 by default. Not in mode `p`.
    pub pause_writeback: Option<u64>,
    /// When a write is acknowledged: `received` (by the cache device) or `committed` (it survives a crash).
    pub ack: String,
    /// How free blocks are chosen: `best_fit`, or `next_fit` as the kernel does.
    pub allocation: String,
    /// Whether blocks that follow each other are written to the cache as one I/O.
    pub large_writes: bool,
    /// Whether flushes that wait at the same time share a commit.
    pub group_commit: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            mode: "s".into(),
            fua: None,
            create: false,
            force: false,
            recover: false,
            block_size: Size::Bytes(4096),
            start_sector: 0,
            high_watermark: 50,
            low_watermark: 45,
            writeback_jobs: 65536,
            autocommit_blocks: None,
            autocommit_time: 1000,
            max_age: None,
            cleaner: false,
            metadata_only: false,
            pause_writeback: None,
            ack: "received".into(),
            allocation: "best_fit".into(),
            large_writes: true,
            group_commit: true,
        }
    }
}

impl Config {
    /// Whether the cache device is reached through a mapping.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mode == "p"
    }

    /// The mode, with the options that belong to the other one refused.
    fn checked_mode(&self) -> Result<bool, Error> {
        let mapped = choose("mode", &self.mode, MODES)?;
        if !mapped && self.fua.is_some() {
            return Err(Error::invalid("fua and nofua are for mode p: leave them out in mode s"));
        }
        if mapped && self.pause_writeback.is_some() {
            return Err(Error::invalid("pause_writeback is for mode s: leave it out in mode p"));
        }
        Ok(mapped)
    }
}

const MODES: &[(bool, &str)] = &[(false, "s"), (true, "p")];
const ACKS: &[(bool, &str)] = &[(false, "received"), (true, "committed")];
const ALLOCATIONS: &[(bool, &str)] = &[(false, "best_fit"), (true, "next_fit")];
const SWITCH: &[(bool, &str)] = &[(false, "0"), (true, "1")];

/// A [`Config`] that was found to be good; what may change while the cache is in use does so here.
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) mapped: bool,
    /// Whether copies are written with FUA, and need no flush of the origin.
    pub(super) fua: bool,
    pub(super) create: bool,
    pub(super) force: bool,
    pub(super) recover: bool,
    pub(super) block_size: BlockSize,
    pub(super) start_sector: u64,
    pub(super) ack_committed: bool,
    pub(super) next_fit: bool,
    pub(super) large_writes: bool,
    pub(super) group_commit: bool,
    pub(super) high_watermark: Setting,
    pub(super) low_watermark: Setting,
    pub(super) writeback_jobs: Setting,
    pub(super) autocommit_blocks: Setting,
    pub(super) autocommit_time: Setting,
    pub(super) max_age: Age,
    pub(super) cleaner: Setting,
    pub(super) metadata_only: Setting,
    pub(super) pause_writeback: Setting,
}

impl Settings {
    /// [`spillway_core::Kind::Invalid`] names the option, the value and what is allowed.
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let block = config.block_size.bytes("block_size")?;
        let block_size = BlockSize::new(u32::try_from(block).unwrap_or(u32::MAX));
        let mapped = config.checked_mode()?;
        let settings = Self {
            path: config.path.clone(),
            mapped,
            fua: config.fua.unwrap_or(mapped),
            create: config.create,
            force: config.force,
            recover: config.recover,
            block_size: block_size.map_err(|error| about("block_size", &error))?,
            start_sector: config.start_sector,
            ack_committed: choose("ack", &config.ack, ACKS)?,
            next_fit: choose("allocation", &config.allocation, ALLOCATIONS)?,
            large_writes: config.large_writes,
            group_commit: config.group_commit,
            high_watermark: Setting::new("high_watermark", config.high_watermark, 0..=100)?,
            low_watermark: Setting::new("low_watermark", config.low_watermark, 0..=100)?,
            writeback_jobs: Setting::new("writeback_jobs", config.writeback_jobs, 0..=u64::from(u32::MAX))?,
            autocommit_blocks: Setting::new(
                "autocommit_blocks",
                config.autocommit_blocks.unwrap_or(if mapped { 64 } else { 65536 }),
                0..=u64::from(u32::MAX),
            )?,
            autocommit_time: Setting::new("autocommit_time", config.autocommit_time, 0..=3_600_000)?,
            max_age: Age::new(config.max_age)?,
            cleaner: Setting::new("cleaner", u64::from(config.cleaner), 0..=1)?,
            metadata_only: Setting::new("metadata_only", u64::from(config.metadata_only), 0..=1)?,
            pause_writeback: Setting::new(
                "pause_writeback",
                config.pause_writeback.unwrap_or(if mapped { 0 } else { 3000 }),
                0..=60_000,
            )?,
        };
        in_order(config.low_watermark, config.high_watermark)?;
        Ok(settings)
    }

    /// Whether blocks that are not in the cache go to the origin.
    pub(super) fn bypasses(&self) -> bool {
        self.cleaner.get() == 1 || self.metadata_only.get() == 1
    }

    pub(super) fn store_high(&self, text: &str) -> Result<(), Error> {
        store_ordered(&self.high_watermark, text, |high| in_order(self.low_watermark.get(), high))
    }

    pub(super) fn store_low(&self, text: &str) -> Result<(), Error> {
        store_ordered(&self.low_watermark, text, |low| in_order(low, self.high_watermark.get()))
    }

    pub(super) fn mode(&self) -> &'static str {
        name_of(self.mapped, MODES)
    }

    pub(super) fn ack(&self) -> &'static str {
        name_of(self.ack_committed, ACKS)
    }

    pub(super) fn allocation(&self) -> &'static str {
        name_of(self.next_fit, ALLOCATIONS)
    }
}

fn store_ordered(
    setting: &Setting,
    text: &str,
    check: impl FnOnce(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let before = setting.get();
    setting.store(text)?;
    check(setting.get()).inspect_err(|_| setting.set(before).expect("it was set before"))
}

fn in_order(low: u64, high: u64) -> Result<(), Error> {
    if low <= high {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "low_watermark {low} is above high_watermark {high}: give percentages from 0 to 100, the low one not above the high"
    )))
}

/// The name of a switch's state.
pub(super) fn switch(on: bool) -> String {
    name_of(on, SWITCH).to_owned()
}

/// Milliseconds, or none.
pub(super) struct Age(AtomicU64);

impl Age {
    const NONE: u64 = u64::MAX;

    fn new(value: Option<u64>) -> Result<Self, Error> {
        let age = Self(AtomicU64::new(Self::NONE));
        age.set(value)?;
        Ok(age)
    }

    fn set(&self, value: Option<u64>) -> Result<(), Error> {
        if let Some(value) = value.filter(|&value| value > AGE_MS_MAX) {
            return Err(refused(&value.to_string()));
        }
        self.0.store(value.unwrap_or(Self::NONE), Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&value| value != Self::NONE)
    }

    pub(super) fn show(&self) -> String {
        self.get().map_or("none".into(), |age| age.to_string())
    }

    pub(super) fn store(&self, text: &str) -> Result<(), Error> {
        match text.trim() {
            "none" => self.set(None),
            number => self.set(Some(number.parse().map_err(|_| refused(&format!("{text:?}")))?)),
        }
    }
}

fn refused(value: &str) -> Error {
    Error::invalid(format!("max_age cannot be {value}: give milliseconds from 0 to {AGE_MS_MAX}, or none"))
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
        assert!(refusal(|config| config.high_watermark = 101).contains("high_watermark cannot be 101"));
        assert!(refusal(|config| config.high_watermark = 44).contains("low_watermark 45 is above"));
        assert!(refusal(|config| config.autocommit_time = 3_600_001).contains("3600000"));
        assert!(refusal(|config| config.max_age = Some(86_400_001)).contains("86400000, or none"));
        assert!(refusal(|config| config.pause_writeback = Some(60_001)).contains("60000"));
        assert!(refusal(|config| config.writeback_jobs = 1 << 32).contains("4294967295"));
        assert!(refusal(|config| config.mode = "q".into()).contains("s, p"));
        assert!(refusal(|config| config.fua = Some(false)).contains("mode p"));
        assert!(
            refusal(|config| (config.mode, config.pause_writeback) = ("p".into(), Some(1)))
                .contains("mode s")
        );
        assert!(refusal(|config| config.ack = "soon".into()).contains("received, committed"));
        assert!(refusal(|config| config.allocation = "worst".into()).contains("best_fit, next_fit"));
        assert!(refusal(|config| config.block_size = Size::Bytes(3000)).contains("block_size"));
        assert!(refusal(|config| config.block_size = Size::Bytes(1 << 40)).contains("block_size"));
    }

    #[test]
    fn the_watermarks_stay_in_order_while_they_change() {
        let settings = Settings::new(&Config::default()).unwrap();
        assert!(settings.store_high("44").is_err() && settings.store_low("51").is_err());
        assert_eq!((settings.low_watermark.get(), settings.high_watermark.get()), (45, 50));
        settings.store_low("0").and_then(|()| settings.store_high("0")).unwrap();
        settings.max_age.store("60000").unwrap();
        assert_eq!(settings.max_age.show(), "60000");
        settings.max_age.store("none\n").unwrap();
        assert_eq!((settings.max_age.get(), settings.max_age.show().as_str()), (None, "none"));
    }
}
