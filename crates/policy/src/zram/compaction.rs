//! When moving objects of a pool is worth it.
//!
//! Overhead is what the pool and its table take beyond the bytes of the objects. While clients write, freed cells are soon
//! used again, so only a pool that has grown loose is touched, and only by emptying sparse spans into fuller ones of the
//! same class. Once writes have stopped, what is left in the last, partly filled span of each class is packed together
//! with that of the other classes.

/// What a compactor knows of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLoad {
    /// Bytes of the objects.
    pub object_bytes: u64,
    /// Bytes taken from the system for them, table and bookkeeping included.
    pub taken_bytes: u64,
    /// Whether clients have written since the last look.
    pub busy: bool,
}

/// What is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    /// Nothing.
    Rest,
    /// Empty sparse spans into fuller ones of their class.
    Merge,
    /// Merge, then pack the last span of each class and everything sparse together.
    Pack,
}

/// Overhead in thousandths above which a pool at rest is packed.
pub const PACK_ABOVE_PERMILLE: u64 = 25;

/// Overhead in thousandths above which a pool in use is merged.
pub const MERGE_ABOVE_PERMILLE: u64 = 70;

/// Overhead in bytes that is never worth any work.
pub const SPARE_BYTES: u64 = 256 << 10;

/// Decides from `load`.
pub fn next_compaction(load: PoolLoad) -> Compaction {
    let overhead = load.taken_bytes.saturating_sub(load.object_bytes);
    let above =
        |permille: u64| u128::from(overhead) * 1000 > u128::from(load.object_bytes) * u128::from(permille);
    if overhead <= SPARE_BYTES {
        return Compaction::Rest;
    }
    match load.busy {
        true if above(MERGE_ABOVE_PERMILLE) => Compaction::Merge,
        false if above(PACK_ABOVE_PERMILLE) => Compaction::Pack,
        _ => Compaction::Rest,
    }
}

/// Bytes that objects of `object_bytes` may take while clients write: nobody moves them together before they take more.
pub fn taken_in_use(object_bytes: u64) -> u64 {
    let overhead = u128::from(object_bytes) * u128::from(MERGE_ABOVE_PERMILLE) / 1000;
    object_bytes.saturating_add(u64::try_from(overhead).unwrap_or(u64::MAX).max(SPARE_BYTES))
}

/// Whether a class with `free_cells` free in partly filled spans of `cells` can give a whole span back.
pub fn can_free_a_span(free_cells: usize, cells: usize) -> bool {
    free_cells >= cells
}

/// Whether a packed span of `live` and `dead` units is worth rewriting: more than an eighth is dead.
pub fn worth_rewriting(live: usize, dead: usize) -> bool {
    dead * 8 > live + dead
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(object: u64, taken: u64, busy: bool) -> Compaction {
        next_compaction(PoolLoad { object_bytes: object << 20, taken_bytes: taken << 20, busy })
    }

    #[test]
    fn what_may_be_taken_in_use_is_what_is_left_alone() {
        for object_bytes in [0, 1 << 20, 4 << 20, 5 << 30] {
            let taken_bytes = taken_in_use(object_bytes);
            let next = |more| {
                next_compaction(PoolLoad { object_bytes, taken_bytes: taken_bytes + more, busy: true })
            };
            assert_eq!((next(0), next(2)), (Compaction::Rest, Compaction::Merge), "{object_bytes}");
        }
    }

    #[test]
    fn a_pool_in_use_is_left_alone_until_it_is_loose() {
        assert_eq!(next(100, 106, true), Compaction::Rest);
        assert_eq!(next(100, 110, true), Compaction::Merge);
    }

    #[test]
    fn a_pool_at_rest_is_packed_until_it_is_tight() {
        assert_eq!(next(100, 106, false), Compaction::Pack);
        assert_eq!(next(100, 102, false), Compaction::Rest);
        assert_eq!(next(0, 0, false), Compaction::Rest);
    }
}
