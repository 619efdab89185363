//! A disk that fails: what is dirty stays, flushes fail, nobody waits for ever.

use spillway_sim::disk::{Call, Effect, Fault};

use super::*;

/// Writes fail from the first on, or the first does.
pub(super) fn failing(sticky: bool) -> Plan {
    let fault = Fault { call: Some(Call::Write), nth: 0, effect: Effect::Fail(Kind::Io), sticky };
    Plan { faults: vec![fault], latency: Latency::Nvme, ..Plan::default() }
}

#[test]
fn the_first_failure_sticks_and_what_is_dirty_stays() {
    let house = House::with_plan(&mebibyte(), failing(false));
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    assert_eq!((house.text("error"), house.read(3, 1)), ("EIO".into(), vec![7]));
    assert_eq!((house.number("nr_redirtied"), house.number("dirtied_bytes")), (1, 4096));
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io), "a later flush promises nothing either");
    assert_eq!(house.ask(filled(4, 1, 1).with_fua()).result, Err(Kind::Io));
    house.write(5, 1, 1);
    house.until("another try", || house.number("unsaved_bytes") == 0);
    assert_eq!(house.below.below.geometry().size, 32 << 20);
    assert_eq!(house.read(3, 3), [7, 1, 1]);
}

#[test]
fn a_disk_that_is_gone_ends_every_wait_and_reads_of_memory_go_on() {
    let house = House::with_plan(&mebibyte(), failing(true));
    let writes: Vec<_> = (0..200).map(|write| house.spawn(house.submit(filled(write * 8, 3, 8)))).collect();
    house.until("an answer to each", || writes.iter().all(|write| write.get().is_some()));
    let failed = writes.iter().filter(|write| write.get() == Some(Err(Kind::Io))).count();
    assert!(failed > 0 && failed < 200, "{failed} of 200 found no room");
    assert_eq!(house.read(0, 8), [3; 8]);
    assert!(house.number("dirty_bytes") > 0);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    assert_eq!(house.read(4000, 200).len(), 200, "what finds no memory is read all the same");
}

#[test]
fn a_failed_flush_below_sticks_too() {
    let fault = Fault { call: Some(Call::Sync), nth: 0, effect: Effect::Fail(Kind::Io), sticky: false };
    let plan = Plan { faults: vec![fault], latency: Latency::Nvme, ..Plan::default() };
    let house = House::with_plan(&mebibyte(), plan);
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
}

#[test]
fn a_write_through_that_fails_is_answered_so_and_read_as_it_was_asked_for() {
    let house = House::with_plan(&Config { mode: Mode::Writethrough, ..mebibyte() }, failing(false));
    assert_eq!(house.ask(filled(3, 7, 1)).result, Err(Kind::Io));
    house.write(4, 8, 1);
    assert_eq!(house.read(3, 2), [7, 8]);
}
