//! A spill file: a log of segments to which pages go in large batches, and from which they come back one by one or in runs.
//!
//! It knows slots as numbers. Which slot names which record is its [`Owner`]'s; the file knows how much of each segment is named, and
//! who reads it.
//!
//! *Promises upwards*: what was written and is named is read as it was written, or answered with an error; never anything else, for
//! each record has a checksum over its bytes, its slot, and the number of its segment in the order of all. A segment is reused once nobody
//! names or reads it, and was punched. A full file says so, after cleaning, and goes on as soon as something is released. What it takes in
//! memory is charged when it is opened: spilling needs none. After a clean stop the file says which records are live.
//! *Needs below*: a block device whose requests, once dropped, are ordered before later ones that overlap them; it may fail, lie, and run
//! out of room. [`Env`](spillway_core::Env) for a background task.
//!
//! *States of a segment*: free -> open -> sealed -> closed -> freeing -> punched and free; see `segments`.
//!
//! ```text
//!   batch: push, push ... -> claim a stretch of the open segment -> I/O -> publish each -> the claim ends
//!                              |-> none fits: seal it, take the next ----> make room: clean what has least live
//!   upkeep: closes what is sealed and has no claims; writes ends again that found no room; punches what nobody names or reads
//! ```
//!
//! *Lock order*: the locks of open segments, of free segments and of the bitmaps are leaves. Who opens the next segment of a stream
//! holds that stream's turn, then for cleaning the cleaner's, then the turn of the cleaner's stream, and last that of lengthening the file; these
//! are held across awaits.

mod batch;
mod cleaner;
pub mod format;
mod length;
mod opening;
mod reading;
mod segments;
mod settings;
mod stopping;
mod store;
mod upkeep;

pub use batch::Batch;
pub use reading::Pinned;
pub use settings::{Keep, Settings};
pub use stopping::WholeDevice;
pub use store::{Count, Location, Owner, Spilled, Store};

#[cfg(test)]
pub(crate) mod tests;
#[cfg(all(test, feature = "shuttle"))]
pub(crate) mod threads;
