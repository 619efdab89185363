//! Models for the checker of threads.

use super::*;
use crate::sync::models::{every_order, finds, leave_early};
use shuttle::future::block_on;
use shuttle::thread;

fn add(counts: &[AtomicUsize], by: isize) {
    for count in counts {
        count.fetch_add(by as usize, Ordering::SeqCst);
    }
}

/// Three are at work on ranges held for them, two of these the same; three others wait until they may begin.
fn workers() {
    let set = RangeSet::new(3);
    let at_work: Arc<[AtomicUsize; 3]> = Arc::default();
    let range = |first: usize, len: usize| ByteRange::new(first as u64, len as u64);
    let holders = [(0, 2), (0, 2), (1, 2)].map(|(first, len)| {
        add(&at_work[first..first + len], 1);
        let (held, at_work) = (set.hold(range(first, len)), at_work.clone());
        thread::spawn(move || {
            add(&at_work[first..first + len], -1);
            drop(held);
        })
    });
    let waiters = [(0, 1), (1, 1), (0, 3)].map(|(first, len)| {
        let (set, at_work) = (set.clone(), at_work.clone());
        thread::spawn(move || {
            block_on(set.clear_of(range(first, len)));
            let busy = (first..first + len).find(|&byte| at_work[byte].load(Ordering::SeqCst) > 0);
            assert_eq!(busy, None, "the range is held");
        })
    });
    holders.into_iter().chain(waiters).for_each(|thread| thread.join().expect("everybody ends"));
    assert!(set.is_empty() && set.0.state.lock().line.len() == 0);
}

#[test]
fn who_waits_begins_when_nobody_is_at_work_on_its_range() {
    every_order(20_000, workers);
}

fn bites(mutant: &str) {
    finds(mutant, who_waits_begins_when_nobody_is_at_work_on_its_range);
}

#[test]
fn the_checker_finds_a_set_that_takes_equal_ranges_for_one() {
    bites("range set: drop what another holds as well");
}

#[test]
fn the_checker_finds_a_set_in_which_a_wait_begins_too_late() {
    bites("range set: look, then wait");
}

/// Has a turn, and waits until nobody holds its range: how often it is held once more, by one who came before.
fn meet(set: &RangeSet, range: ByteRange) -> usize {
    let (mut turn, mut met) = (set.line_up(range), 0);
    block_on(turn.clear());
    while set.overlaps(range) {
        met += 1;
        block_on(turn.clear());
    }
    met
}

/// Two hold a range again and again; one has a turn there, and, if wanted, others do that leave when they like.
fn turns(leavers: usize) {
    let set = RangeSet::new(usize::MAX);
    let range = ByteRange::new(0, 4);
    let first = set.hold(range);
    let holder = || {
        let set = set.clone();
        thread::spawn(move || (0..2).for_each(|_| drop(block_on(set.hold_in_turn(range)))))
    };
    let leaver = |_| {
        let set = set.clone();
        thread::spawn(move || block_on(leave_early(set.clear_of(ByteRange::new(3, 1)))))
    };
    let mut threads = vec![holder(), holder()];
    threads.extend((0..leavers).map(leaver));
    let owner = set.clone();
    threads.push(thread::spawn(move || {
        let met = meet(&owner, ByteRange::new(1, 1));
        // Each holder may have come before it and waited for the turn of one who left.
        assert!(met <= 2 * leavers.min(1), "it meets {met}");
    }));
    drop(first);
    threads.into_iter().for_each(|thread| thread.join().expect("everybody ends"));
    assert!(set.is_empty() && set.0.state.lock().line.len() == 0);
}

#[test]
fn who_has_a_turn_finds_its_range_clear_and_everybody_ends() {
    every_order(20_000, || turns(0));
}

#[test]
fn turns_that_are_given_up_are_in_nobodys_way() {
    every_order(20_000, || turns(2));
}

fn turns_bite(mutant: &str) {
    finds(mutant, who_has_a_turn_finds_its_range_clear_and_everybody_ends);
}

#[test]
fn the_checker_finds_ranges_that_are_held_out_of_turn() {
    turns_bite("range set: hold without waiting for those before");
}

#[test]
fn the_checker_finds_a_turn_that_is_over_without_a_word() {
    turns_bite("range set: leave without a word");
}

/// Three hold ranges alone, of which each overlaps the others, and a fourth leaves when it likes.
fn alone() {
    let set = RangeSet::new(usize::MAX);
    let at_work: Arc<[AtomicUsize; 3]> = Arc::default();
    let holders = [(0, 2), (1, 2), (0, 3)].map(|(first, len): (usize, usize)| {
        let (set, at_work) = (set.clone(), at_work.clone());
        thread::spawn(move || {
            let _held = block_on(set.hold_alone(ByteRange::new(first as u64, len as u64)));
            let busy = at_work[first..first + len].iter().any(|byte| byte.load(Ordering::SeqCst) > 0);
            assert!(!busy, "another holds a part of it");
            add(&at_work[first..first + len], 1);
            add(&at_work[first..first + len], -1);
        })
    });
    block_on(leave_early(set.hold_alone(ByteRange::new(1, 1))));
    holders.into_iter().for_each(|thread| thread.join().expect("everybody ends"));
    assert!(set.is_empty() && set.0.state.lock().line.len() == 0);
}

#[test]
fn who_holds_a_range_alone_is_alone_and_everybody_ends() {
    every_order(20_000, alone);
}

#[test]
fn the_checker_finds_one_who_holds_a_range_alone_without_a_word() {
    finds("range set: leave without a word", who_holds_a_range_alone_is_alone_and_everybody_ends);
}
