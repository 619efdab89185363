//! What a configuration says about a zram device.

use spillway_core::{Preset, Type, Unit};

use super::codec;
use super::page::DISKSIZE_MAX;
use super::streams::STREAMS_MAX;
use crate::options::options;

options! {
    /// How a device begins.
    pub struct Config;
    Live disksize: u64 = Type::Number(1, DISKSIZE_MAX),
        "Size of the device, rounded up to 4096. A device in use only grows; reset takes its size away"
        .unit(Unit::Bytes).kernel().preset(Preset::Words("none until it is set")).option("size");
    BeforeInit comp_algorithm: &'static str = Type::Choice(&codec::NAMES), "Compression algorithm"
        .kernel().preset(Preset::Choice(codec::NAMES[0])).option("algorithm");
    BeforeInit algorithm_params: Option<String> = Type::Text,
        "Parameters of the algorithm: level=N, with algo=NAME or priority=0 if you like. lz4: acceleration, 1 to 65537; zstd: \
         -131072 to 22. Each call starts from the defaults"
        .preset(Preset::Words("those of the algorithm"));
    Live max_comp_streams: usize = Type::Number(1, STREAMS_MAX as u64), "Compression streams: how many writers compress at once"
        .preset(Preset::Words("number of cores")).option("streams");
    Live mem_limit: u64 = Type::COUNT,
        "Memory that pool and table may take, rounded up to 4096; 0 is no limit but --memory. A write over it fails with ENOSPC and \
         leaves the old data"
        .unit(Unit::Bytes).kernel().preset(Preset::Number(0));
}

impl Config {
    /// The number of streams where none is given: one for each core.
    pub fn default_streams() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from).min(STREAMS_MAX)
    }
}
