//! Origins of large units.

use spillway_core::sync::Mutex;
use spillway_core::{Geometry, Op};

use super::*;

/// Bytes of an object of a cluster.
const OBJECT: u64 = 4 << 20;

#[test]
fn blocks_that_follow_each_other_are_written_back_up_to_an_object_and_never_across_one() {
    let mut house = House::slow(64 << 20, 64 << 20);
    let (below, written) = (house.device(0), Arc::new(Mutex::new(Vec::new())));
    let (geometry, noted) = (Geometry { optimal_io: OBJECT as u32, ..below.geometry() }, written.clone());
    let origin = by_way_as(geometry, below, move |below, request| {
        if request.op == Op::Write {
            noted.lock().push(request.range);
        }
        below.submit(request)
    });
    let late = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let (small, _) = house.open_over(&late, origin.clone(), house.device(1)).unwrap();
    assert_eq!(small.core.batch_bytes(), 1 << 20, "there is memory for one object");
    drop(small);
    house.budget = Budget::new(1 << 30);
    let (cache, _) = house.open_over(&late, origin, house.device(1)).unwrap();
    let block = BLOCK as u64;
    // It begins within an object.
    (0..40).for_each(|mib| house.write(&cache, 100 + mib * 256, 1, 256));
    assert_eq!(cache.core.batch_bytes(), OBJECT);
    set(&cache, "drain", "1").unwrap();
    house.wait_for("a drain", || number(&cache, "dirty_blocks") == 0);
    let mut written = written.lock();
    written.sort_unstable_by_key(|range| range.offset);
    let mut at = 100 * block;
    for range in written.iter() {
        assert_eq!(range.offset, at, "{written:?}");
        assert_eq!(range.offset / OBJECT, (range.offset + range.len - 1) / OBJECT, "{written:?}");
        at += range.len;
    }
    assert_eq!(at, 100 * block + (40 << 20));
    assert!(written.iter().any(|range| range.len > 1 << 20), "{written:?}");
}
