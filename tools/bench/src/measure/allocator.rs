//! The allocator of this program: the system's, and while it is asked to, a count of the bytes in use.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use spillway_counting::{Counting, Tally};

struct Switched;

#[global_allocator]
static ALLOCATOR: Counting<Switched> = Counting(Switched);

static COUNTED: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);

fn note(bytes: i64) {
    if COUNTED.load(Ordering::Relaxed) {
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Tally for Switched {
    fn took(&self, bytes: usize) {
        note(bytes as i64);
    }

    fn gave(&self, bytes: usize) {
        note(-(bytes as i64));
    }

    fn resized(&self, from: usize, to: usize) {
        note(to as i64 - from as i64);
    }
}

/// From now on bytes are counted, by all threads.
pub(crate) fn count_from_now() {
    BYTES.store(0, Ordering::Relaxed);
    COUNTED.store(true, Ordering::Relaxed);
}

/// Bytes allocated and not freed since [`count_from_now`]; nothing is counted any more.
pub(crate) fn counted() -> i64 {
    COUNTED.store(false, Ordering::Relaxed);
    BYTES.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_kept_is_counted_and_what_is_freed_is_not() {
        const KEPT: i64 = 1 << 30;
        const OTHERS: i64 = 256 << 20; // other tests run meanwhile and take some tens of MiB
        super::count_from_now();
        // Zeroed memory that nobody touches costs addresses only.
        let kept = std::hint::black_box(vec![0u8; KEPT as usize]);
        drop(std::hint::black_box(vec![0u8; 2 * KEPT as usize]));
        let bytes = super::counted();
        assert!((bytes - KEPT).abs() < OTHERS, "{bytes} bytes beside {}", kept.len());
    }
}
