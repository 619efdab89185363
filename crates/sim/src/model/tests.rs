//! What may be read after each kind of write, flush, crash and loss.

use super::*;
use crate::payload::value;

const DONE: End = End::Done { durable: false };
const DURABLE: End = End::Done { durable: true };

fn write(model: &mut Model, number: u64, end: End) {
    let write = model.begin_write(0, 1, Change::To(value(number, 1)));
    model.end_write(write, end);
}

fn may_be(model: &mut Model, number: u64) -> bool {
    let mut bytes = [0; 512];
    payload::fill(if number == 0 { ZERO } else { value(number, 1) }, 0, &mut bytes);
    let sector = model.touch(0).clone();
    let read = model.begin_read(0, 1);
    let allowed = model.end_read(read, Some(&bytes)).is_ok();
    *model.touch(0) = sector;
    allowed
}

fn choices(model: &mut Model) -> Vec<u64> {
    (0..8).filter(|&number| may_be(model, number)).collect()
}

#[test]
fn writes_replace_what_ended_before_them() {
    let mut model = Model::new(512, true);
    write(&mut model, 1, DONE);
    assert_eq!(choices(&mut model), [1]);
    let second = model.begin_write(0, 1, Change::To(value(2, 1)));
    let third = model.begin_write(0, 1, Change::To(value(3, 1)));
    assert_eq!(choices(&mut model), [1, 2, 3]);
    model.end_write(second, DONE);
    model.end_write(third, DONE);
    assert_eq!(choices(&mut model), [2, 3]);
    write(&mut model, 4, End::Failed);
    write(&mut model, 5, End::Withdrawn);
    assert_eq!(choices(&mut model), [2, 3, 4, 5]);
    write(&mut model, 6, DONE);
    assert_eq!(choices(&mut model), [6]);
}

#[test]
fn a_crash_goes_back_to_what_was_flushed_or_durable() {
    let mut model = Model::new(512, true);
    write(&mut model, 1, DURABLE);
    write(&mut model, 2, DONE);
    let flush = model.begin_flush();
    write(&mut model, 3, DONE);
    model.end_flush(flush, DONE).unwrap();
    write(&mut model, 4, End::Failed);
    model.crash(Loss::All);
    assert_eq!(choices(&mut model), [2, 3, 4]);
    write(&mut model, 5, DURABLE);
    model.crash(Loss::All);
    assert_eq!(choices(&mut model), [5]);
}

#[test]
fn a_read_settles_what_is_there_until_the_next_write() {
    let mut model = Model::new(512, true);
    write(&mut model, 1, End::Failed);
    let (mut bytes, read) = ([0; 512], model.begin_read(0, 1));
    payload::fill(value(1, 1), 0, &mut bytes);
    model.end_read(read, Some(&bytes)).unwrap();
    assert_eq!(choices(&mut model), [1]);
    model.crash(Loss::All);
    assert_eq!(choices(&mut model), [0, 1], "it was never flushed");
    let read = model.begin_read(0, 1);
    model.end_read(read, Some(&bytes)).unwrap();
    model.crash(Loss::All);
    assert_eq!(choices(&mut model), [1], "after a crash the medium has it");
}

#[test]
fn after_a_kill_what_is_there_may_be_lost_until_it_is_flushed() {
    let mut model = Model::new(512, true);
    write(&mut model, 1, DONE);
    model.crash(Loss::Nothing);
    assert_eq!(choices(&mut model), [1], "it was acknowledged");
    let mut lost = Model::new(512, true);
    write(&mut lost, 1, DONE);
    lost.crash(Loss::Some);
    assert_eq!(choices(&mut lost), [0, 1]);
    for model in [&mut model, &mut lost] {
        let (mut bytes, read) = ([0; 512], model.begin_read(0, 1));
        payload::fill(value(1, 1), 0, &mut bytes);
        model.end_read(read, Some(&bytes)).unwrap();
        model.crash(Loss::Nothing);
        assert_eq!(choices(model), [1]);
        let flush = model.begin_flush();
        model.end_flush(flush, DONE).unwrap();
        model.crash(Loss::All);
        assert_eq!(choices(model), [1], "flushed by the next process");
    }
    write(&mut model, 2, DONE);
    model.crash(Loss::Nothing);
    model.crash(Loss::All);
    assert_eq!(choices(&mut model), [1, 2], "never flushed");
}

#[test]
fn what_was_stored_wrong_or_lost_is_excused_until_it_is_written_or_flushed() {
    let mut model = Model::new(1024, true);
    write(&mut model, 1, DONE);
    model.store_wrong(0, 1);
    assert_eq!(choices(&mut model).len(), 8);
    write(&mut model, 2, DONE);
    assert_eq!(choices(&mut model), [2]);
    let neighbour = model.begin_read(1, 1);
    assert!(model.end_read(neighbour, Some(&[9; 512])).is_err());
    let mut model = Model::new(512, true);
    model.set_losing(true);
    write(&mut model, 1, DONE);
    assert_eq!(choices(&mut model), [0, 1]);
    let flush = model.begin_flush();
    model.end_flush(flush, DONE).unwrap();
    assert_eq!(choices(&mut model), [1]);
}

#[test]
fn a_read_may_see_what_was_there_at_any_moment_of_it() {
    let mut model = Model::new(512, true);
    write(&mut model, 1, DONE);
    let reads = [model.begin_read(0, 1), model.begin_read(0, 1), model.begin_read(0, 1)];
    write(&mut model, 2, DONE);
    let mut bytes = [0; 512];
    for (read, number, allowed) in [(reads[0], 1, true), (reads[1], 2, true), (reads[2], 3, false)] {
        payload::fill(value(number, 1), 0, &mut bytes);
        assert_eq!(model.end_read(read, Some(&bytes)).is_ok(), allowed, "write {number}");
        assert_eq!(choices(&mut model), [2], "a late read settles nothing");
    }
}

#[test]
fn discards_may_show_and_flush_errors_stick() {
    let mut model = Model::new(512, true);
    write(&mut model, 1, DONE);
    let discard = model.begin_write(0, 1, Change::Discarded);
    model.end_write(discard, DURABLE);
    assert_eq!(choices(&mut model), [0, 1]);
    let [first, second] = [model.begin_flush(), model.begin_flush()];
    model.end_flush(first, End::Failed).unwrap();
    assert!(model.end_flush(second, DONE).is_err());
}

/// What was acknowledged counts as lost once it is read and is not there; what was in flight, or flushed, does not.
#[test]
fn what_was_acknowledged_before_a_crash_and_is_gone_is_counted() {
    let mut model = Model::new(4 * 512, true);
    for sector in 0..3 {
        let write = model.begin_write(sector, 1, Change::To(value(1 + sector, 1)));
        model.end_write(write, DONE);
    }
    model.begin_write(3, 1, Change::To(value(4, 1)));
    model.crash(Loss::Some);
    let read = model.begin_read(0, 4);
    let mut bytes = [0; 4 * 512];
    payload::fill(value(1, 1), 0, &mut bytes[..512]);
    model.end_read(read, Some(&bytes)).unwrap();
    assert_eq!(model.lost_bytes(), 2 * 512);
    let read = model.begin_read(0, 4);
    model.end_read(read, Some(&bytes)).unwrap();
    assert_eq!(model.lost_bytes(), 2 * 512, "once");
    model.crash(Loss::All);
    assert_eq!(model.lost_bytes(), 0);
}

/// After a flush that a disk ignored anything may be there that was written, and is counted; nothing else may.
#[test]
fn only_an_ignored_flush_excuses_what_was_flushed_and_is_gone() {
    let look = |ignored: bool, number: u64| {
        let mut model = Model::new(512, true);
        (1..3).for_each(|number| write(&mut model, number, DONE));
        let flush = model.begin_flush();
        model.end_flush(flush, DONE).unwrap();
        model.crash(Loss::All);
        if ignored {
            model.allow_ignored_flush();
        }
        let (mut bytes, read) = ([0; 512], model.begin_read(0, 1));
        payload::fill(value(number, 1), 0, &mut bytes);
        model.end_read(read, Some(&bytes)).map(|()| (model.excused(), choices(&mut model)))
    };
    assert_eq!(look(false, 2), Ok((0, vec![2])));
    assert_eq!(look(true, 2), Ok((0, vec![2])));
    assert_eq!(look(true, 1), Ok((1, vec![1])));
    look(false, 1).unwrap_err();
    look(true, 3).expect_err("nobody wrote it");
}

#[test]
fn a_size_that_was_seen_is_kept_and_another_may_be_lost_with_what_nobody_flushed() {
    let mut model = Model::new(8 * 512, true);
    model.see_size(9).expect_err("nobody has asked for that");
    model.ask_for(16);
    model.ask_for(12);
    model.see_size(8).unwrap();
    model.see_size(16).unwrap();
    model.see_size(8).expect_err("it shrinks");
    model.crash(Loss::All);
    model.find_size(8).expect_err("it was seen");
    model.find_size(16).unwrap();
    model.ask_for(32);
    model.crash(Loss::Nothing);
    model.find_size(32).unwrap();
    let write = model.begin_write(20, 1, Change::To(value(1, 1)));
    model.end_write(write, End::Done { durable: false });
    model.crash(Loss::All);
    model.find_size(16).expect("its length was never durable");
    assert_eq!(model.sectors(), 16);
    model.find_size(33).expect_err("nobody has asked for that");
}

#[test]
fn what_was_flushed_behind_an_old_end_is_missed() {
    let mut model = Model::new(8 * 512, true);
    model.ask_for(16);
    model.crash(Loss::Nothing);
    model.find_size(16).unwrap();
    let write = model.begin_write(12, 1, Change::To(value(1, 1)));
    model.end_write(write, End::Done { durable: true });
    model.crash(Loss::All);
    model.find_size(8).expect_err("sector 12 is gone");
}
