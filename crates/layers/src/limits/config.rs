//! What a crash may take of a stack, as its configuration says.

use std::time::Duration;

use spillway_core::block::DEVICE_BYTES_MAX;
use spillway_core::{Error, Preset, Type, Unit};

use crate::options::options;

options! {
    /// What a configuration says about a stack's limits.
    pub struct Config;
    /// The limits in force.
    pub(super) struct Settings: Settings::fits;
    Live at_risk_bytes_max: Option<u64> = Type::Number(4096, DEVICE_BYTES_MAX),
        "Maximum bytes that are acknowledged and not durable: dirty in the page cache or uncommitted in the write cache. Half of it starts a flush; a \
         write that would exceed it waits"
        .unit(Unit::Bytes).preset(Preset::Words("none")).or_none().option("at-risk-bytes-max");
    Live at_risk_seconds_max: Option<u64> = Type::Number(1, 86_400),
        "Maximum time for which acknowledged writes are not durable. Half of it starts a flush; while a write is older, new ones wait"
        .unit(Unit::Seconds).preset(Preset::Words("none")).or_none().option("at-risk-seconds-max");
    .. besides {
        /// Nothing of the stack is ever durable.
        volatile: bool,
    }
}

impl Settings {
    fn fits(&self) -> Result<(), Error> {
        if self.volatile && self.is_any() {
            return Err(Error::invalid(
                "this device keeps its content in memory only: all of it is at risk, and no limit can be kept. Leave out at_risk_bytes_max \
                 and at_risk_seconds_max",
            ));
        }
        Ok(())
    }

    pub(super) fn is_any(&self) -> bool {
        self.at_risk_bytes_max.get().is_some() || self.at_risk_seconds_max.get().is_some()
    }

    pub(super) fn seconds(&self) -> Option<Duration> {
        self.at_risk_seconds_max.get().map(Duration::from_secs)
    }
}
