//! What clients need below at once: that, and what others wait for there, but nothing else.

use super::*;

const B: u64 = BLOCK as u64;

#[test]
fn a_write_with_fua_takes_nothing_else_of_its_region() {
    let house = House::new(&Config { page_cache_bytes_max: Some(20 << 20), ..mebibyte() });
    (0..64).for_each(|block| house.write(2 * block, 1, 1));
    assert_eq!(house.ask(filled(9, 2, 2).with_fua()).result, Ok(()));
    assert_eq!(house.below.take(Op::Write), [(9 * B, 2 * B)]);
    assert_eq!(house.number("nr_dirty"), 63, "and block 10, which it wrote as well");
    house.flush();
    assert_eq!((house.survivor(9), house.survivor(126)), (2, 1));
}

/// All of one region, which is written back by one batch at a time.
#[test]
fn writes_that_wait_for_a_region_go_below_together() {
    let house = House::new(&Config { page_cache_bytes_max: Some(20 << 20), ..mebibyte() });
    house.write(500, 1, 1);
    let write = |nth: usize| house.spawn(house.submit(filled(4 * nth, 2, 1).with_fua()));
    let mut writes = vec![write(0)];
    house.until("the first below", || !house.below.seen.lock().is_empty());
    writes.extend((1..40).map(write));
    house.until("the second", || writes[1].get().is_some());
    let below = house.below.take(Op::Write);
    assert_eq!(below, (0..40).map(|nth| (4 * nth * B, B)).collect::<Vec<_>>());
    house.until("all", || writes.iter().all(|write| write.get() == Some(Ok(()))));
    assert_eq!(house.number("nr_dirty"), 1, "nobody waits for the other");
}

/// The first that takes it gives up on the way: who has waited for its batch takes another.
#[test]
fn who_waits_is_not_left_behind_by_who_gives_up() {
    let house = House::new(&Config { page_cache_bytes_max: Some(20 << 20), ..mebibyte() });
    let first = house.spawn(house.submit(filled(0, 1, 1).with_fua()));
    house.until("the first below", || !house.below.seen.lock().is_empty());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let poll = |submission: &mut Submission, context: &mut std::task::Context| {
        let Answer::Pending(asked) = submission else { panic!("it is answered at once") };
        assert!(asked.as_mut().poll(context).is_pending());
    };
    let mut gives_up = house.submit(filled(8, 2, 1).with_fua());
    poll(&mut gives_up, &mut context);
    let stays = house.spawn(house.submit(filled(16, 3, 1).with_fua()));
    // As soon as the region can be taken it takes both, and is given up.
    let both = || house.number("nr_writeback") == 2;
    while !both() {
        assert!(house.world.go_on(), "the first does not end");
        poll(&mut gives_up, &mut context);
    }
    assert_eq!(first.get(), None, "it has not been told yet");
    drop(gives_up);
    house.until("the last", || stays.get() == Some(Ok(())));
    assert_eq!(house.survivor(16), 3);
}

/// It asks for no part of the region: the write that follows another there takes all of it.
#[test]
fn writes_that_follow_each_other_keep_no_flush_waiting() {
    let house = House::new(&Config { page_cache_bytes_max: Some(20 << 20), ..mebibyte() });
    (0..64).for_each(|block| house.write(2 * block, 1, 1));
    let first = house.spawn(house.submit(filled(201, 2, 1).with_fua()));
    house.until("the first below", || !house.below.seen.lock().is_empty());
    let flush = house.spawn(house.submit(Request::flush()));
    house.until("the flush", || house.cache.core.wanted.load(Ordering::Relaxed) > 0);
    let mut second = house.submit(filled(301, 2, 1).with_fua());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let writes = || house.below.seen.lock().iter().filter(|(op, _)| *op == Op::Write).count();
    while writes() < 2 {
        let Answer::Pending(asked) = &mut second else { panic!("it is answered at once") };
        assert!(asked.as_mut().poll(&mut context).is_pending() && house.world.go_on());
    }
    assert_eq!(house.number("nr_writeback"), 65, "what the flush waits for, and its own");
    let second = house.spawn(second);
    house.until("all", || [&first, &flush, &second].iter().all(|one| one.get() == Some(Ok(()))));
}

/// More of them than there is memory for copies, all the time. Who left a block dirty is gone.
#[test]
fn writers_that_wait_for_copies_keep_no_flush_waiting() {
    let house = House::new(&Config { mode: Mode::Writethrough, dirty_ratio: 100, ..mebibyte() });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut left = house.submit(filled(9 * 32, 2, 1));
    let Answer::Pending(asked) = &mut left else { panic!("it is answered at once") };
    assert!(asked.as_mut().poll(&mut context).is_pending());
    drop(left);
    assert_eq!(house.number("nr_dirty"), 1);
    let begin = |number: usize| house.spawn(house.submit(filled(32 * number, 1, 16)));
    let writes = RefCell::new([0, 1, 2, 3].map(begin));
    let flush = house.spawn(house.submit(Request::flush()));
    house.until("the flush", || {
        for (number, write) in writes.borrow_mut().iter_mut().enumerate() {
            if write.get().is_some() {
                *write = begin(number);
            }
        }
        flush.get() == Some(Ok(()))
    });
    house.until("all", || writes.borrow().iter().all(|write| write.get() == Some(Ok(()))));
    assert_eq!(house.survivor(9 * 32), 2);
}
