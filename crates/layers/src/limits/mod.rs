//! Limits of what a crash may take of a stack: acknowledged bytes that are not durable, summed over its parts, and for how long they are not.
//!
//! ```text
//!   write -> fits, and nothing is too old ------------------------> the parts
//!         -> else held, first come first served, until a flush ends
//!   half of a limit is reached -> the stack is flushed, by a task of its own
//! ```
//!
//! Promises: where all are within the limits a write passes. A write that would exceed the bytes, or that comes while the oldest one is older than the limit,
//! is held, which the log says; it fails where flushes do. When its turn comes it is held against the limits that are in force then. What is larger
//! than the limit of bytes is written with FUA once those before it have had their turn, and so is never at risk. Stands on the topmost part alone: a limit further down would hold write-back, and with it what makes room.
//!
//! What counts: each part says for itself what it has acknowledged and not made durable (`AtRisk`). Data that moves from one part to the next counts
//! twice for a moment. Parts cannot tell what of it is still to be acknowledged: while writes with FUA are under way, no more counts than what was
//! acknowledged without, since the last flush. Age is that of the oldest write that no flush of the stack has covered, whatever the parts have written back meanwhile.
//!
//! Needs: the seam above, which checks, and a device that never shrinks: a held write is checked once. Only what is volatile can be reset.
//!
//! Locks: what is exposed; a leaf, held while the parts' counts are read. Without a limit a write costs four loads, and one that is
//! pending an allocation: where a limit is set before it ends, it counts.

mod admission;
mod config;
mod device;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;

pub use config::Config;
pub use device::declarations;
pub(crate) use device::{Limits, attributes};
