//! Origin `file`: a file or block device of the system, real or simulated.
//!
//! Promises: what a flush or a FUA write has acknowledged is durable as far as the system and the drive tell the truth; a
//! flush that failed once fails for ever, because the system forgets what it could not write, and reports that once (see
//! `syncs`); unless the storage remembers that. A FUA write that failed counts as such a flush. A request that is dropped
//! while the system has it finishes on its own, and a later request that overlaps it waits for that. What such requests hold
//! is charged, and bounded in number.
//!
//! It has the size that its storage had when it was opened, until it is asked to grow.
//!
//! Needs: [`Storage`](spillway_core::Storage), which makes the calls, and [`Env::spawn_here`](spillway_core::Env::spawn_here) for what a dropped request leaves behind.
//!
//! ```text
//!   submit -> InFlight: waits for detached requests in the way -> works -> reply
//!                \ dropped at work: the work becomes a task, its range is held until it is done
//! ```
//!
//! Memory that is not aligned well enough for the storage goes through a buffer that is, charged when the file is opened and
//! lent in turn. Locks: the timeout as it is shown, then those of the storage; the set of detached ranges and those of syncs are leaves.

mod config;
mod device;
mod growing;
mod latency;
mod syncs;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use device::File;
