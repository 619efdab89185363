//! Pure decisions: no I/O, no clock, no randomness, no state shared between threads. What is decided here is tested by
//! exhausting small worlds.
//!
//! | module | decides |
//! | --- | --- |
//! | [`size_classes`] | how objects of any length are packed into spans of pages |
//! | [`compaction`] | when moving objects is worth it, and which |
//! | [`free_runs`] | which free blocks of a cache a write takes, so that they follow each other |
//! | [`quarantine`] | when a block that could not be written is tried again |
//! | [`watermarks`] | when write-back begins and ends, and what it is after |
//! | [`zones`] | in which zone of memory a folio is placed that is about to be dirtied |
//! | [`lap`] | in which order dirty blocks are written back |
//! | [`islands`] | which leave out of turn, so that free ones follow each other |
//! | [`ages`] | what is too old, from the times of commits |
//! | [`bandwidth`] | how much of a device's time may be in flight |
//! | [`depth`] | how many batches may be, beside clients that wait |
//! | [`window`] | who may write beside a cache, in the order of arrival |
//! | [`backoff`] | how long to wait after failures |
//! | [`merge`] | how scattered pieces become few I/Os |
//! | [`spill`] | which pages leave memory, and when |
//! | [`folio`] | which blocks of a folio are valid, dirty, or on their way |
//! | [`buddy`] | which memory a folio gets |
//! | [`dirty_regions`] | which region of a page cache is written back next |
//! | [`eviction`] | which folio leaves a full cache |
//! | [`readahead`] | what is read before it is asked for |
//! | [`allowance`] | how many bytes a day a device that wears out is written |
//! | [`throttle`] | how fast writers may fill memory that writing back empties |
//! | [`exposure`] | since when writes are acknowledged that no flush has covered |
//! | [`commits`] | whether the committer commits or clears next |
//!
//! [`chunked`] decides nothing: it is a vector for slots; nor does `bits`, the bitmap under several of these.
#![forbid(unsafe_code)]

mod bits;
pub mod chunked;
mod page_cache;
mod write_cache;
mod writeback;
mod zram;

pub use page_cache::{buddy, dirty_regions, eviction, folio, readahead, zones};
pub use write_cache::{commits, free_runs, islands, lap, merge, quarantine, window};
pub use writeback::{ages, backoff, bandwidth, depth, exposure, throttle, watermarks};
pub use zram::{allowance, compaction, size_classes, spill};
