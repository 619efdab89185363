//! The end of a cache that is dirty and being written back.

use super::*;

/// Ends a cache as a server does.
fn end(house: &House, cache: &Arc<WriteCache>) {
    let cache = cache.clone();
    house.world.run(Answer::pending(async move {
        cache.suspend().await.unwrap();
        Seam::new(cache.clone()).flush().await.unwrap();
        cache.close().await.unwrap();
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
        while house.world.go_on() {}
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

/// People learn that the cache device is still needed, and for how much.
#[test]
fn what_stays_on_the_cache_device_is_counted() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    assert_eq!(cache.core.what_stays(), None);
    house.write(&cache, 3, 9, 5);
    assert_eq!(cache.core.what_stays().unwrap(), "at most 5 dirty blocks of 4096 bytes");
    house.flush(&cache);
    assert_eq!(cache.core.what_stays().unwrap(), "5 dirty blocks of 4096 bytes");
    set(&cache, "message", "flush_on_suspend").unwrap();
    end(&house, &cache);
    assert_eq!(cache.core.what_stays(), None);
}

/// What was flushed is on the cache device: an origin that is away keeps nobody.
#[test]
fn a_cache_over_an_origin_that_does_not_answer_ends() {
    for (option, value) in [("cleaner", "1"), ("drain", "1")] {
        let house = House::slow(1 << 26, 1 << 26);
        let origin = by_way_of(house.device(0), |below, request| match request.op {
            Op::Write => Answer::pending(std::future::pending()),
            _ => below.submit(request),
        });
        let (cache, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
        (0..40).for_each(|run| house.write(&cache, 100 * run, 1, 50));
        set(&cache, option, value).unwrap();
        house.wait_for("write-back", || number(&cache, "writeback_blocks") > 0);
        let before = house.world.now();
        end(&house, &cache);
        assert!(house.world.now() - before < Duration::from_secs(5), "{option}");
        assert_eq!((number(&cache, "writeback_blocks"), number(&cache, "dirty_blocks")), (0, 40 * 50));
    }
}
