//! A system that reports a lost writeback once, to whichever sync or durable write looks first, and then shows what was
//! there before.

mod house;
mod kernel;
mod orders;

use std::task::{Context, Waker};

use spillway_core::{Grow, Kind, Op};

use house::{Asked, House};

#[test]
fn a_durable_write_that_fails_fails_all_flushes_after_it() {
    for direct in [false, true] {
        let house = House::new(direct);
        assert_eq!(house.done(house.write(0, false)), Ok(()));
        house.lose();
        assert_eq!(house.done(house.write(1, true)), Err(Kind::Io), "it was told of the loss");
        assert_eq!(house.done(house.flush()), Err(Kind::Io), "direct: {direct}");
    }
}

#[test]
fn of_two_flushes_at_once_neither_succeeds_over_a_loss() {
    let house = House::new(true);
    assert_eq!(house.done(house.write(0, false)), Ok(()));
    let (mut first, mut second) = (house.flush(), house.flush());
    house.lose();
    house.carry_out();
    let answers = [house.end(&mut first), house.end(&mut second)];
    assert_eq!(answers, [Err(Kind::Io); 2], "the second call looked first");
}

#[test]
fn a_flush_waits_for_what_a_durable_write_beside_it_was_told() {
    for direct in [false, true] {
        let house = House::new(direct);
        assert_eq!(house.done(house.write(0, false)), Ok(()));
        let (mut flush, mut write) = (house.flush(), house.write(1, true));
        house.lose();
        house.look(2);
        house.look(1);
        house.answer(1);
        assert_eq!(flush.poll(), None, "the write may have taken the report");
        house.answer(2);
        assert_eq!((write.poll(), flush.poll()), (Some(Err(Kind::Io)), Some(Err(Kind::Io))));
    }
}

#[test]
fn without_o_direct_durable_writes_wait_for_what_the_others_were_told() {
    let house = House::new(false);
    let (mut first, mut second) = (house.write(0, true), house.write(1, true));
    house.lose();
    house.look(1);
    house.look(0);
    house.answer(0);
    assert_eq!(first.poll(), None, "the report about it may have gone to the other");
    house.answer(1);
    assert_eq!((second.poll(), first.poll()), (Some(Err(Kind::Io)), Some(Err(Kind::Io))));
}

#[test]
fn with_o_direct_a_durable_write_waits_for_no_other() {
    let house = House::new(true);
    let (mut first, _second) = (house.write(0, true), house.write(1, true));
    house.look(0);
    house.answer(0);
    assert_eq!(first.poll(), Some(Ok(())));
}

#[test]
fn a_write_of_any_kind_that_promised_nothing_and_fails_fails_no_flush() {
    let failures: [fn(&House) -> Asked; 3] = [
        |house| house.write(0, false),
        |house| house.bare(Op::WriteZeroes, 0, false),
        |house| house.bare(Op::Discard, 0, false),
    ];
    for direct in [false, true] {
        for ask in failures {
            let house = House::new(direct);
            house.kernel.state.lock().refuse = true;
            assert_eq!(house.done(ask(&house)), Err(Kind::NoSpace));
            house.kernel.state.lock().refuse = false;
            assert_eq!(house.done(house.flush()), Ok(()), "direct: {direct}");
        }
    }
}

#[test]
fn a_zeroing_with_fua_answers_for_what_its_sync_was_told() {
    for op in [Op::WriteZeroes, Op::Discard] {
        let house = House::new(true);
        assert_eq!(house.done(house.write(0, false)), Ok(()));
        let mut zero = house.bare(op, 1, true);
        house.carry_out();
        assert_eq!(zero.poll(), None, "it is made durable by a sync");
        house.lose();
        assert_eq!(house.end(&mut zero), Err(Kind::Io));
        assert_eq!(house.done(house.flush()), Err(Kind::Io), "the zeroing took the report");
    }
}

#[test]
fn flushes_share_one_sync_that_begins_after_they_were_asked() {
    let house = House::new(true);
    let mut first = house.flush();
    let mut others: Vec<Asked> = (0..5).map(|_| house.flush()).collect();
    assert_eq!(house.syncs(), 1, "one at a time");
    house.carry_out();
    assert_eq!(first.poll(), Some(Ok(())));
    assert!(others.iter_mut().all(|other| other.poll().is_none()), "asked after the sync had begun");
    house.carry_out();
    assert!(others.iter_mut().all(|other| other.poll() == Some(Ok(()))));
    assert_eq!(house.syncs(), 2);
}

#[test]
fn a_dropped_flush_ends_its_sync_and_what_it_was_told_is_remembered() {
    let house = House::new(true);
    assert_eq!(house.done(house.write(0, false)), Ok(()));
    let (first, mut second) = (house.flush(), house.flush());
    drop(first);
    assert_eq!((second.poll(), house.syncs()), (None, 1), "the kernel still has the first");
    house.lose();
    house.carry_out();
    while house.world.go_on() {}
    assert_eq!(house.end(&mut second), Err(Kind::Io));
}

#[test]
fn a_growth_that_is_dropped_breaks_no_flush() {
    let house = House::new(true);
    let mut grow = house.file.grow(None);
    assert!(grow.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(house.syncs(), 1);
    drop(grow);
    house.carry_out();
    while house.world.go_on() {}
    assert_eq!(house.done(house.flush()), Ok(()));
}

#[test]
fn a_call_whose_end_nobody_saw_counts_as_failed() {
    let house = House::new(true);
    let (first, mut second) = (house.flush(), house.flush());
    drop(first);
    house.world.power_off();
    assert_eq!(house.end(&mut second), Err(Kind::Io), "it may have taken a report");
}
