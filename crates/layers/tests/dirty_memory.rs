//! The memory that dirty regions take: no more than a page cache charges for them, whatever becomes dirty and clean.
//!
//! An allocator counts.

use spillway_counting::{Bytes, Counting};
use spillway_policy::dirty_regions::{BatchEnd, DirtyRegions, RegionNumber, Stamp};

#[global_allocator]
static MEMORY: Counting<Bytes> = Counting(Bytes::new());

/// What the allocator keeps of each chunk is charged, and not seen here.
fn charged(regions: u64) -> usize {
    (regions * DirtyRegions::BYTES_A_REGION + DirtyRegions::BYTES_SPARE) as usize
}

/// So many regions, far from each other and in no order.
fn scattered(count: u64) -> impl Iterator<Item = RegionNumber> {
    (0..count).map(move |nth| RegionNumber((nth * 48_271 % 1_000_003) << 20))
}

/// One test, because the allocator counts for the whole process.
#[test]
fn dirty_regions_take_what_is_charged_for_them() {
    let before = MEMORY.0.live();
    for count in [1, 33, 1000, 80_000, 70] {
        let mut dirty = DirtyRegions::default();
        for (stamp, region) in (1..).zip(scattered(count)) {
            dirty.dirtied(region, 1, Stamp(stamp));
            let taken = MEMORY.0.live() - before;
            assert!(taken <= charged(stamp) + HARNESS, "{taken} bytes for {stamp} of {count} regions");
        }
        for (left, region) in (0..count).rev().zip(scattered(count)) {
            dirty.take(region);
            dirty.ended(region, BatchEnd::Landed, 0);
            let (taken, most) = (MEMORY.0.live() - before, charged(left) + BATCH + HARNESS);
            assert!(taken <= most, "{taken} bytes where {left} of {count} regions are left, with one batch");
        }
    }
}

/// What a batch under way takes.
const BATCH: usize = 1024;

/// What the thread that waits for the test may take meanwhile: the allocator counts all of them.
const HARNESS: usize = 1024;
