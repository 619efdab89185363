//! What a configuration says about a zram device.

use std::path::PathBuf;

use spillway_core::{Error, Preset, Type, Unit};

use super::codec;
use super::codec::streams::STREAMS_MAX;
use super::page::DISKSIZE_MAX;
use crate::open_context::BackingDevice;
use crate::options::{choices, options, unrelated};
use crate::spill::Keep;
use crate::spill::format::SEGMENT_SHIFT;

choices! {
    /// Which read of a page that lies in the spill file brings it back to memory.
    pub enum Promotion {
        /// One that comes soon after another.
        Second = "second",
        /// Each.
        Always = "always",
        /// None.
        Never = "never",
    }
}

options! {
    /// How a device begins.
    pub struct Config;
    /// A [`Config`] that was found to be good; what may change while the device is in use does so here.
    pub(crate) struct Settings: unrelated;
    .. by hand {
        Live disksize: u64 = Type::Number(1, DISKSIZE_MAX),
            "Size of the device, rounded up to 4096. A device in use only grows; reset takes its size away"
            .unit(Unit::Bytes).kernel().preset(Preset::Words("none until it is set")).option("size");
        BeforeInit comp_algorithm: &'static str = Type::Choice(&codec::NAMES), "Compression algorithm"
            .kernel().preset(Preset::Choice(codec::NAMES[0])).option("algorithm");
        BeforeInit recomp_algorithm: Option<String> = Type::Text,
            "Algorithms that pages are recompressed with: algo=NAME priority=N, 1 to 3, the strongest last; several with commas between"
            .preset(Preset::Words("none"));
        BeforeInit algorithm_params: Option<String> = Type::Text,
            "Parameters of an algorithm: level=N, with algo=NAME or priority=N for another than comp_algorithm; several with commas between. lz4: \
             acceleration, 1 to 65537; lz4hc: 1 to 12; zstd: -131072 to 22; deflate: 1 to 9. Each call starts from the defaults"
            .preset(Preset::Words("those of the algorithm"));
        Live max_comp_streams: usize = Type::Number(1, STREAMS_MAX as u64), "Compression streams: how many writers compress at once"
            .preset(Preset::Words("number of cores")).option("streams");
        Live mem_limit: u64 = Type::COUNT,
            "Memory that pool and table may take, rounded up to 4096; 0 is no limit but --memory. A write over it fails with ENOSPC and \
             leaves the old data, unless pages can be spilled"
            .unit(Unit::Bytes).kernel().preset(Preset::Number(0));
        Live deferred_bytes_max: u64 = Type::COUNT,
            "Deferred compression: up to so many bytes of recently written pages stay raw, charged at full size, and are compressed in the \
             background; 0 is none"
            .unit(Unit::Bytes).preset(Preset::Number(0)).option("deferred-bytes-max");
        Start spill: Option<PathBuf> = Type::Path,
            "File or block device that pages are spilled to. A missing file is created, sparse"
            .preset(Preset::Words("none")).option("spill");
        Start spill_size: u64 = Type::Number(32 << 20, 64 << 40), "Maximum size of the spill file, which grows as it fills and does not shrink"
            .unit(Unit::Bytes).preset(Preset::Words("1.1 times disksize plus 16M")).option("spill-size");
        Live writeback_limit: u64 = Type::COUNT, "Pages that may still be written back, while writeback_limit_enable is on"
            .unit(Unit::Pages).preset(Preset::Number(0));
        BeforeInit compressed_writeback: bool = Type::Switch, "Whether pages are spilled compressed and packed, or as whole pages"
            .kernel().preset(Preset::Switch(true));
        Once force: bool = Type::Switch, "Use a spill file that is refused otherwise, and discard its contents"
            .preset(Preset::Switch(false)).option("force");
    }
    Start spill_retake: bool = Type::Switch,
        "Reuse a spill file that this device left in a crash, and discard its contents. No other machine may use the file"
        .preset(Preset::Switch(false)).option("spill-retake");
    Start keep: bool = Type::Switch,
        "Keep the content over a stop: it is written to the spill file, and is there at the next start. After a crash the device \
         starts empty, and the log says so"
        .preset(Preset::Switch(false)).option("keep");
    Start require_kept: bool = Type::Switch,
        "Like keep, and refuse to start if the content was not kept, as after a crash"
        .preset(Preset::Switch(false)).option("require-kept");
    Live recompress_age: u64 = Type::Number(0, (1 << 24) - 1),
        "Pages that were not accessed for so long are recompressed with the strongest of recomp_algorithm; 0: by command alone"
        .unit(Unit::Seconds).preset(Preset::Number(0)).option("recompress-age");
    Live writeback_limit_enable: bool = Type::Switch, "Whether writeback_limit counts"
        .kernel().preset(Preset::Switch(false));
    Live writeback_batch_size: u64 = Type::Number(1, u32::MAX as u64),
        "Maximum pages that are spilled in one I/O, as far as they fit 1 MiB; with 1, one I/O at a time"
        .unit(Unit::Pages).preset(Preset::Number(256));
    Start writeback_depth: usize = Type::Number(1, 32), "I/Os of write-back in flight, each with a MiB of memory"
        .unit(Unit::Requests).preset(Preset::Number(4));
    Live bring_back: Promotion = Type::Choice(Promotion::NAMES),
        "Which read of a spilled page promotes it to memory, if there is room; second is the second within bring_back_age"
        .preset(Preset::Choice("second"));
    Live bring_back_age: u64 = Type::Number(0, (1 << 24) - 1), "See bring_back"
        .unit(Unit::Seconds).preset(Preset::Number(60));
    Live spill_high_watermark: u64 = Type::Number(0, 100),
        "Spill cold pages once this share of mem_limit or --memory, whichever is nearer, is in use; writers that find no memory wait \
         for spilling in any case"
        .unit(Unit::Percent).preset(Preset::Number(90)).option("spill-high-watermark");
    Live spill_low_watermark: u64 = Type::Number(0, 100), "Stop spilling at this share, or at spill_high_watermark if that is lower"
        .unit(Unit::Percent).preset(Preset::Number(80)).option("spill-low-watermark");
    Live spill_age: u64 = Type::Number(0, 1 << 22),
        "Spill pages not accessed for so long, however much memory is free; 0 is never"
        .unit(Unit::Seconds).preset(Preset::Number(0)).option("spill-age");
    Live spill_daily_bytes: u64 = Type::COUNT,
        "Maximum bytes written to the spill file in 24 hours, at most a 24th of them at once; then automatic spilling waits. 0 is no \
         limit. writeback does not wait, but counts"
        .unit(Unit::Bytes).preset(Preset::Number(0)).option("spill-daily-bytes");
    .. besides {
        /// Bytes of a segment of the spill file as a power of two, where it is not the usual one: small disks are simulated.
        segment_shift: Option<u32>,
    }
}

/// Bytes of a spill file that is made, until it needs more: as few as one may have.
pub(super) const MADE_BYTES: u64 = 32 << 20;

/// Bytes of a segment of a spill file.
const SEGMENT: u64 = 1 << SEGMENT_SHIFT;

impl Settings {
    /// Whether the file of the configuration keeps what the device stores.
    pub(crate) fn keeps(&self) -> Keep {
        Keep::of(self.keep, self.require_kept)
    }

    /// Whether a read brings a page back that was read before, so many seconds ago, or was not.
    pub(crate) fn brings_back(&self, read_before: Option<u32>) -> bool {
        match self.bring_back.get() {
            Promotion::Never => false,
            Promotion::Always => true,
            Promotion::Second => read_before.is_some_and(|age| u64::from(age) <= self.bring_back_age.get()),
        }
    }
}

impl Config {
    /// The number of streams where none is given: one for each core.
    pub fn default_streams() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from).min(STREAMS_MAX)
    }

    /// The spill file; [`spillway_core::Kind::Invalid`] where nothing says how large it may become, or what it keeps has no place.
    pub(super) fn backing(&self) -> Result<Option<BackingDevice>, Error> {
        let keeps = Keep::of(self.keep, self.require_kept);
        if keeps != Keep::Never && (self.spill.is_none() || self.disksize == 0) {
            let words = "keep and require_kept need a spill file and a size: give --spill and --size";
            return Err(Error::invalid(words));
        }
        match self.spill.clone() {
            // One that has to be there is not made.
            Some(path) if keeps == Keep::Always => Ok(Some(spill_device(path, None))),
            Some(path) => Ok(Some(spill_device(path, Some(self.spill_bytes()?.min(MADE_BYTES))))),
            None if self.spill_size == 0 => Ok(None),
            None => Err(Error::invalid(
                "spill_size says how large a spill file is, and spill is missing: give a path",
            )),
        }
    }

    /// Bytes that the spill file may have; errors as of [`Config::backing`].
    pub(super) fn spill_bytes(&self) -> Result<u64, Error> {
        match (self.spill_size, self.disksize) {
            (0, 0) => Err(Error::invalid(
                "spill_size is missing: a device without disksize has no other; give --spill-size, or --size",
            )),
            (0, disksize) => Ok(default_spill_size(disksize)),
            (size, _) => Ok(size),
        }
    }
}

/// Bytes that the spill file of a device of so many may have.
pub(super) fn default_spill_size(disksize: u64) -> u64 {
    let wanted = disksize.saturating_add(disksize / 10).next_multiple_of(SEGMENT) + 4 * SEGMENT;
    wanted.max(MADE_BYTES)
}

/// The spill file at `path`, which is made that long where `create` says how long.
pub(super) fn spill_device(path: PathBuf, create: Option<u64>) -> BackingDevice {
    BackingDevice { role: "spill", path, create, ..BackingDevice::default() }
}
