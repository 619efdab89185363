//! Freed memory goes back to the system. A file of its own: the settings are the whole process's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Barrier;

use spillway_core::IoBuf;

const THREADS: usize = 4;

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn large_buffers_leave_nothing_behind_on_any_thread() {
    spillway_io::memory::return_what_is_freed();
    let before = resident();
    let (freed, seen) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..4 {
                    let mut bufs = [IoBuf::new(32 << 20), IoBuf::new(8 << 20)];
                    bufs.iter_mut().for_each(|buf| buf.fill(1));
                }
                freed.wait();
                seen.wait();
            });
        }
        freed.wait();
        let kept = resident().saturating_sub(before);
        seen.wait();
        assert!(kept < 16 << 20, "{kept} bytes stay in memory after {THREADS} threads freed everything");
    });
}
