//! Options of a volatile drive cache.

use spillway_core::{Preset, Type, Unit};

use crate::options::{options, unrelated};

/// Up to a terabyte.
const BYTES_MAX: Type = Type::Number(0, 1 << 40);

options! {
    /// What a configuration says about a volatile cache.
    pub struct Config;
    pub(super) struct Settings: unrelated;
    Live volatile_bytes_max: u64 = BYTES_MAX,
        "Maximum unflushed bytes in the cache. A full cache, or a full memory budget, evicts random blocks to the device below; 0 writes \
         through"
        .unit(Unit::Bytes).preset(Preset::Number(16 << 20));
    Live lost_percent: u64 = Type::Number(0, 100), "Share of the unflushed data that a power cut loses, drawn for each unit by itself"
        .unit(Unit::Percent).preset(Preset::Number(50));
    Live torn: bool = Type::Switch, "The unit that a power cut loses: 1 for a sector of 512 bytes, which tears blocks, 0 for a whole block"
        .preset(Preset::Switch(true));
}
