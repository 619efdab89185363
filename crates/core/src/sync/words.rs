//! Words that threads share, so many that they need memory of their own.

use std::ops::Range;

use super::primitives::AtomicU64;

/// Words of a page of the system. In a model a page has few, for each costs time there.
pub const WORDS_A_PAGE: usize = if cfg!(feature = "shuttle") { 8 } else { 512 };

/// Words in memory obtained from [`crate::Regions`], zero at first, given back on drop.
///
/// In the product they lie in a mapping that costs nothing until touched; in models they are a plain vector, for the checker's
/// words are larger than the system's.
pub trait Words: Send + Sync {
    /// All of them.
    fn all(&self) -> &[AtomicU64];

    /// Gives the memory of whole pages of words back to the system; they are zero afterwards. Other threads may load words of the
    /// range meanwhile, and see each as it was or as zero. They change none: a change may be lost, now or a little later, until
    /// this has returned. Panics where the range is not whole pages of these words.
    fn release(&self, range: Range<usize>);
}
