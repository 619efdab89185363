//! The end of a cache that is dirty and being written back.

use super::*;

/// Ends a cache as a server does.
fn end(house: &House, cache: &Arc<WriteCache>) {
    let cache = cache.clone();
    house.world.run(Answer::pending(async move {
        cache.suspend().await.unwrap();
        Seam::new(cache.clone()).flush().await.unwrap();
        cache.close().await;
    }));
}

/// Its disks are free for another server at once.
#[test]
fn a_cache_that_has_ended_does_nothing_more() {
    for (option, value) in [("cleaner", "1"), ("drain", "1"), ("high_watermark", "45")] {
        let house = House::slow(1 << 26, 1 << 26);
        let cache = house.open(&config()).unwrap();
        (0..200).for_each(|run| house.write(&cache, 80 * run, 1, 50));
        set(&cache, option, value).unwrap();
        house.wait_for("write-back", || number(&cache, "writeback_blocks") > 0);
        end(&house, &cache);
        assert_eq!(number(&cache, "writeback_blocks"), 0, "{option}");
        assert!(number(&cache, "dirty_blocks") > 0, "{option}: it has ended in the middle");
        assert_ne!(show(&cache, "drain_state"), "running");
        drop(cache);
        assert_eq!(house.disks.each_ref().map(Arc::strong_count), [1; 2], "{option}: something holds them");
        let calls = house.disks.each_ref().map(|disk| disk.calls());
        while house.world.go_on() {}
        assert_eq!(house.disks.each_ref().map(|disk| disk.calls()), calls, "{option}");
    }
}
