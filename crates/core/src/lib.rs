//! Vocabulary and seam of Spillway.
//!
//! This crate says what a block device is, what a request is, who owns a buffer, how memory is charged and how an
//! attribute is read; it performs no I/O, reads no clock and contains no `unsafe`. Every other crate speaks these words.
//!
//! | module | holds |
//! | --- | --- |
//! | [`block`] | sectors, blocks and byte ranges as distinct types |
//! | [`buffer`] | [`IoBuf`]: page-aligned buffers that travel with their request; [`Workspace`]: a layer's own |
//! | [`request`], [`device`] | [`Request`], [`Reply`], [`BlockDevice`], [`Submission`]: the data path |
//! | [`seam`], [`align`] | the checks between two layers, and byte ranges turned into whole blocks |
//! | [`budget`], [`reclaim`], [`relief`] | the memory promise: charged before a write is acknowledged; memory freed for who was refused |
//! | [`attribute`], [`size`] | the control plane's one table, and the numbers people type |
//! | [`mod@env`], [`job`] | time, chance, tasks and memory as a layer may have them; work whose outcome is waited for |
//! | [`storage`] | the calls on a file or block device, real or simulated |
//! | [`shutdown`], [`suspend`] | how tasks end; how a part ends, where that takes more than being dropped |
//! | [`grow`], [`at_risk`] | how a part becomes larger; what a crash would take |
//! | [`session`], [`exchange`], [`shared_memory`] | a conversation on a byte stream, without the stream; one in whole messages; queues in memory that is shared |
//! | [`stats`], [`latency`], [`sync`] | counters summed when read; how long requests take; the only door to locks |
//! | [`progress`] | progress of long work, with an estimate |
//! | [`work`] | how much a task does before others get their turn |
//! | [`mod@error`] | what can go wrong in operation, as values |
//! | [`random`] | numbers that follow from a seed |
//! | [`contract`], [`mutant`], [`test_clock`] | what every device must do, as a suite; deliberate defects to see that tests bite; a clock for tests |
#![forbid(unsafe_code)]

pub mod block;
mod block_device;
mod control;
pub mod env;
pub mod error;
pub mod job;
pub mod latency;
mod memory;
#[cfg(feature = "shuttle")]
pub mod models;
pub mod mutant;
pub mod progress;
mod protocol;
pub mod random;
pub mod shutdown;
pub mod size;
pub mod sync;
pub mod test_clock;
#[cfg(all(test, feature = "shuttle"))]
mod threads;
pub mod work;

pub use block::{BlockSize, ByteRange, SECTOR};
pub use block_device::align::Aligned;
pub use block_device::at_risk::AtRisk;
pub use block_device::device::{Answer, BlockDevice, Extent, Geometry, Submission, Writers};
pub use block_device::grow::Grow;
pub use block_device::request::{Flags, Op, Reply, Request};
pub use block_device::seam::Seam;
pub use block_device::storage::{FallocateMode, OpenStorage, Storage};
pub use block_device::suspend::Suspend;
pub use block_device::{align, at_risk, contract, device, grow, health, request, seam, storage, suspend};
pub use control::attribute::{
    Attribute, Attributes, Column, Excerpt, Preset, Role, Spec, Switch, Table, Type, Unit, Value, When,
};
pub use control::{attribute, stats};
pub use env::{Env, LocalFuture, Place, Region, Regions, Slab, Task, task};
pub use error::{Error, Kind};
pub use job::{Job, Report, block_on};
pub use latency::{Latencies, OperationLatency, Sampler};
pub use memory::budget::{Budget, Charge};
pub use memory::buffer::{IoBuf, Workspace};
pub use memory::reclaim::{Attempt, Attempts, Reclaimer};
pub use memory::relief::Relief;
pub use memory::{budget, buffer, reclaim, relief};
pub use progress::{Progress, Registry, WorkKind, Works};
pub use protocol::{exchange, session, shared_memory};
pub use shutdown::{Phase, Shutdown};
