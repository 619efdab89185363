//! The system's allocator, which tells a [`Tally`] of each allocation: for tests that hold what is allocated against what is charged.
//!
//! ```
//! use spillway_counting::{Bytes, Counting};
//!
//! #[global_allocator]
//! static MEMORY: Counting<Bytes> = Counting(Bytes::new());
//!
//! let before = MEMORY.0.live();
//! let kept = vec![0u8; 1 << 20];
//! assert!(MEMORY.0.live() >= before + kept.len());
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Called for each allocation, on the thread that makes it. It may allocate itself where it ends in time.
pub trait Tally: Sync {
    /// So many bytes are about to be allocated.
    fn took(&self, bytes: usize);

    /// So many bytes are about to be freed.
    fn gave(&self, bytes: usize);

    /// An allocation changes its size; at worst, and unless this says otherwise, both are there for a moment.
    fn resized(&self, from: usize, to: usize) {
        self.took(to);
        self.gave(from);
    }
}

/// The allocator.
pub struct Counting<T>(pub T);

// SAFETY: every call goes to the system's allocator as it came; what is reported is a number.
unsafe impl<T: Tally> GlobalAlloc for Counting<T> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.took(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.0.took(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.0.gave(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.0.resized(layout.size(), new_size);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, new_size) }
    }
}

/// Bytes that are allocated now, and the most at once.
#[derive(Debug, Default)]
pub struct Bytes {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl Bytes {
    /// Nothing is allocated yet.
    pub const fn new() -> Self {
        Self { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Bytes allocated now.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Most bytes at once since [`Bytes::restart_peak`], or ever.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// The peak is what is allocated now; returns it.
    pub fn restart_peak(&self) -> usize {
        let live = self.live();
        self.peak.store(live, Ordering::Relaxed);
        live
    }
}

impl Tally for Bytes {
    fn took(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    fn gave(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn each_way_to_allocate_is_counted_and_the_peak_sees_both_sizes() {
        let memory = Counting(Bytes::new());
        let layout = |bytes| Layout::from_size_align(bytes, 64).unwrap();
        // SAFETY: the layouts have a size, and each block is freed once with the layout it has.
        unsafe {
            let plain = memory.alloc(layout(MIB));
            let zeroed = memory.alloc_zeroed(layout(2 * MIB));
            assert!((0..2 * MIB).step_by(4096).all(|at| *zeroed.add(at) == 0));
            assert_eq!((memory.0.live(), memory.0.peak()), (3 * MIB, 3 * MIB));
            let grown = memory.realloc(plain, layout(MIB), 4 * MIB);
            assert_eq!((memory.0.live(), memory.0.peak()), (6 * MIB, 7 * MIB));
            memory.dealloc(zeroed, layout(2 * MIB));
            assert_eq!((memory.0.restart_peak(), memory.0.peak()), (4 * MIB, 4 * MIB));
            memory.dealloc(grown, layout(4 * MIB));
        }
        assert_eq!((memory.0.live(), memory.0.peak()), (0, 4 * MIB));
    }
}
