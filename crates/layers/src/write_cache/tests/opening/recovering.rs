//! The order of recovery's own writes.

use super::*;
use crate::write_cache::format::{Entry, Layout};

/// A server that was killed may have left a superblock in the disk's cache: were older versions cleared for its sake, and then the
/// power lost, neither would be there.
#[test]
fn what_was_read_is_durable_before_anything_is_cleared_and_that_before_it_is_used() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    for value in [1, 2] {
        house.write(&cache, 0, value, 1);
        house.flush(&cache);
    }
    let house = house.again();
    let layout = Layout::largest(1 << 20, 0, spillway_core::BlockSize::PAGE).unwrap();
    let older = Entry { original_sector: 0, seq_count: 0 };
    house.put(1, layout.entry_offset(100), &older.encode());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let device = by_way_of(house.device(1), move |below, request| {
        noted.lock().push(request.op);
        below.submit(request)
    });
    let (cache, found) = house.open_over(&config(), house.device(0), device).unwrap();
    assert!(found.contains(" entries cleared") && !found.contains(" 0 entries cleared"), "{found}");
    let changes: Vec<Op> = asked.lock().iter().copied().filter(|&op| op != Op::Read).collect();
    assert_eq!(changes, [Op::Flush, Op::Write, Op::Flush]);
    assert_eq!(house.read(cache, 0, 4096), [2; 4096]);
}
