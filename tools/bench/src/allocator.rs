//! The allocator of this program: the system's, and while it is asked to, a count of the bytes in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static COUNTED: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);

fn note(bytes: i64) {
    if COUNTED.load(Ordering::Relaxed) {
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came; counting touches no memory of either side.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, new_size) }
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
        super::count_from_now();
        let kept = std::hint::black_box(vec![1u8; 10 << 20]);
        drop(std::hint::black_box(vec![1u8; 20 << 20]));
        let bytes = super::counted();
        // Other tests run meanwhile.
        assert!((9 << 20..12 << 20).contains(&bytes), "{bytes} bytes beside {}", kept.len());
    }
}
