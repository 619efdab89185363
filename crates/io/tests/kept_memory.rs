//! Large blocks are reused once Ceph's library is loaded. A file of its own: the settings are the whole process's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use spillway_core::IoBuf;
use spillway_io::memory::{keep_blocks_of_ceph, return_what_is_freed};

const BLOCKS: usize = 100;

/// Page faults of this thread so far that read nothing: the tenth word of its status.
fn faults() -> usize {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Those of blocks of a MiB, one after the other.
fn faults_of_blocks() -> usize {
    let before = faults();
    (0..BLOCKS).for_each(|block| IoBuf::new(1 << 20).fill(block as u8));
    faults() - before
}

#[test]
fn large_blocks_are_reused_without_page_faults() {
    return_what_is_freed();
    let given_back = faults_of_blocks();
    keep_blocks_of_ceph();
    let kept = faults_of_blocks();
    assert!(10 * kept < given_back, "{kept} page faults instead of {given_back}");
}
