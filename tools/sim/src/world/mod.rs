//! What stacks and their clients run in, beyond what `spillway_sim` has: what goes wrong with disks, machines that lose their
//! power, an origin behind a network, and the ways by which clients reach a device.
//!
//! It needs no stack: a caller says what matters of one.

pub(crate) mod faults;
pub mod network;
pub(crate) mod power;
pub(crate) mod remote;
