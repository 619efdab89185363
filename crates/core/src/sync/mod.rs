//! The only door to locks and atomics shared between threads.
//!
//! Everything that locks takes its lock from here, so that a model checker can be put behind the same names. The parts below
//! are leaves: none takes another lock, or wakes anybody, with its own held. Which lock of a layer comes before which is said
//! at the head of the layer, and for all of them in ARCHITECTURE.md. No lock is held across an await or across I/O.
//!
//! | part | for |
//! | --- | --- |
//! | [`Semaphore`] | units that are taken and given back, first come, first served |
//! | [`Watermark`] | a number that only grows, and who waits for one |
//! | [`GroupFlush`] | one flush for all who ask meanwhile |
//! | [`RangeSet`] | ranges that are held, and turns of those who need one clear |
//! | [`StickyError`] | the first failure |
//! | [`Work`] | a job of which one run is under way at a time |
//! | [`WordLocks`] | a lock in two bits of each of many words |
//! | [`Words`] | many words in memory of their own |
//! | [`Marks`] | a set of numbers, changed without a lock and walked in order by one |
//! | [`Changes`] | looks of which each follows a change |
//! | [`Room`] | the same for tasks in line, of which the first one looks |
//! | [`WaitList`] | any other condition |

mod changes;
mod group_flush;
mod marks;
#[cfg(feature = "shuttle")]
pub mod models;
mod primitives;
mod range_set;
mod room;
mod semaphore;
mod sticky_error;
mod wait_list;
mod watermark;
mod word_locks;
mod words;
mod work;

pub use changes::Changes;
pub use group_flush::GroupFlush;
pub use marks::Marks;
pub use primitives::*;
pub use range_set::{HeldRange, RangeSet, RangeTurn};
pub use room::Room;
pub use semaphore::{Permit, Semaphore};
pub use sticky_error::StickyError;
pub use wait_list::WaitList;
pub use watermark::Watermark;
pub use word_locks::WordLocks;
pub use words::{WORDS_A_PAGE, Words};
pub use work::{Called, Work};
