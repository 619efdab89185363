//! Origins and layers. A layer sees the world through `spillway_core` only: it can make no system call, so the code that
//! passes in simulation is the code that ships.
//!
//! Every kind has a `Config` (what a configuration file says) that opens its device and checks itself by that, and a table of
//! attributes whose names are the configuration's keys. [`stack`] is the table of kinds.

mod blank;
mod decisions;
mod fenced;
pub mod file;
pub mod limits;
pub mod open_context;
pub mod options;
pub mod page_cache;
pub mod passed;
mod signatures;
mod sizes;
mod slice;
pub mod small;
pub mod spill;
pub mod stack;
#[cfg(test)]
mod watched;
pub mod write_cache;
mod writeback;
pub mod zram;

use spillway_core::Error;

/// `error` with the place it is about in front.
fn about(place: &str, error: &Error) -> Error {
    Error::new(error.kind, format!("{place}: {}", error.message()))
}
