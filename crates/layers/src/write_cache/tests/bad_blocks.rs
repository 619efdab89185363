//! Blocks of the cache that cannot be written.

use spillway_sim::disk::{Call, Effect, Fault};

use super::*;

/// A device that fails to write a part of it.
fn bad(below: Arc<dyn BlockDevice>, at: ByteRange, kind: Kind) -> Arc<dyn BlockDevice> {
    by_way_of(below, move |below, request| {
        let end = |range: ByteRange| range.offset + range.len;
        let hit = request.range.offset < end(at) && at.offset < end(request.range);
        match request.op == Op::Write && hit {
            true => Answer::Done(request.answer(Err(kind))),
            false => below.submit(request),
        }
    })
}

/// A cache of 254 blocks whose first 16 cannot be written; best fit takes blocks in order.
fn damaged(house: &House, kind: Kind) -> Arc<WriteCache> {
    let at = ByteRange::new(8192, 16 * BLOCK as u64);
    house.open_over(&config(), house.device(0), bad(house.device(1), at, kind)).unwrap().0
}

fn try_write(house: &House, cache: &Arc<WriteCache>, block: u64) -> Result<(), Kind> {
    let buf = IoBuf::copy_of(&[5; BLOCK]);
    house.ask(cache.clone(), Request::write(block * BLOCK as u64, buf)).result
}

#[test]
fn a_block_that_cannot_be_written_is_not_handed_out_again() {
    let house = House::new(4 << 20, 1 << 20);
    let cache = damaged(&house, Kind::Io);
    let failures = (0..100).filter(|&block| try_write(&house, &cache, block).is_err()).count();
    assert_eq!((failures, show(&cache, "bad_blocks")), (16, "16".into()), "each fails once");
    assert_eq!(show(&cache, "status").chars().next(), Some('0'), "an error of the client's own");
    house.flush(&cache);
    assert_eq!(show(&cache, "free_blocks"), (254 - 16 - 84).to_string());
}

#[test]
fn it_is_tried_again_later_and_by_the_next_server() {
    let house = House::new(4 << 20, 1 << 20);
    let cache = damaged(&house, Kind::Io);
    assert_eq!(try_write(&house, &cache, 0), Err(Kind::Io));
    house.world.advance(Duration::from_secs(601));
    assert_eq!(try_write(&house, &cache, 0), Err(Kind::Io), "it is chosen again, being the first");
    assert_eq!(show(&cache, "bad_blocks"), "1");
    let again = house.open(&config()).unwrap();
    assert_eq!(show(&again, "free_blocks"), "254");
}

/// Want of room says nothing of the block.
#[test]
fn only_an_error_of_the_device_sets_blocks_aside() {
    let house = House::new(4 << 20, 1 << 20);
    let cache = damaged(&house, Kind::NoSpace);
    assert_eq!(try_write(&house, &cache, 0), Err(Kind::NoSpace));
    assert_eq!(show(&cache, "bad_blocks"), "0");
}

/// With no block left that can be written, clients are served by the origin, and nobody waits for ever.
#[test]
fn a_cache_of_bad_blocks_only_is_bypassed() {
    let house = House::new(4 << 20, 1 << 20);
    let fault = Fault { call: Some(Call::Write), nth: 0, effect: Effect::Fail(Kind::Io), sticky: true };
    house.open(&config()).unwrap();
    let plan = Plan { faults: vec![fault], ..Plan::default() };
    let dead = Arc::new(Disk::new(house.world.clone(), house.survivor(1), BlockSize::PAGE, plan, 7));
    let device = Arc::new(File::new(dead, house.world.clone()));
    let (cache, _) = house.open_over(&config(), house.device(0), device).unwrap();
    (0..254).for_each(|block| assert_eq!(try_write(&house, &cache, block), Err(Kind::Io)));
    (0..254).for_each(|block| assert_eq!(try_write(&house, &cache, block), Ok(())));
    house.flush(&cache);
    assert_eq!((show(&cache, "bad_blocks"), show(&cache, "writes_around")), ("254".into(), "254".into()));
}

/// The origin fails for good, the cache's device is well: a client that has not flushed yet loses nothing.
#[test]
fn a_cache_over_an_origin_that_fails_still_commits_what_it_acknowledged() {
    let house = House::new(4 << 20, 1 << 20);
    let at = ByteRange::new(0, 4 << 20);
    let origin = bad(house.device(0), at, Kind::NoSpace);
    let (cache, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
    house.write(&cache, 0, 1, 8);
    house.flush(&cache);
    house.write(&cache, 4, 2, 8);
    let committed = cache.core.journal.committed();
    set(&cache, "cleaner", "1").unwrap();
    house.wait_for("the failure", || show(&cache, "status").starts_with('1'));
    assert_eq!(cache.core.journal.committed(), committed, "the failure comes first");
    assert_eq!(house.ask(cache.clone(), Request::flush()).result, Err(Kind::NoSpace), "it is said");
    assert_eq!(try_write(&house, &cache, 20), Err(Kind::NoSpace));
    let again = house.again();
    let kept = again.read(again.open(&config()).unwrap(), 0, 12 * BLOCK);
    let uniform = |block: &[u8]| block.iter().all(|&byte| byte == block[0]).then_some(block[0]);
    let blocks: Vec<_> = kept.chunks(BLOCK).map(uniform).collect();
    assert_eq!(blocks, [[Some(1); 4].as_slice(), &[Some(2); 8]].concat());
}
