//! Drains of what cannot be written, and beside what hangs.

use super::*;

/// One page is bad: the others leave, the drain says so after a lap, and the page is dirty again.
#[test]
fn a_drain_ends_after_one_failing_lap() {
    let toy = Toy::new();
    toy.soil(0..1000);
    toy.pages(|pages| pages.bad = BTreeSet::from([500]));
    let drained = toy.drain();
    toy.run_until("the end", || drained.get().is_some());
    assert_eq!(drained.get(), Some(Err(Kind::Io)));
    let (dirty, attempts) = toy.pages(|pages| (pages.dirty.clone(), pages.attempts.len()));
    assert!(dirty.len() <= 4 && dirty.contains(&500), "{dirty:?}");
    assert!((250..=252).contains(&attempts), "{attempts}: nothing is tried twice");
    assert!(toy.pages(|pages| pages.in_flight.is_empty()));
    toy.pages(|pages| pages.bad.clear());
    let drained = toy.drain();
    toy.run_until("the end", || drained.get().is_some());
    assert_eq!(drained.get(), Some(Ok(())), "it is tried at once");
}

/// The others are still in flight when nothing more can be taken, before the call or after it.
#[test]
fn what_fails_last_is_tried_once_by_a_drain() {
    for before in [false, true] {
        let toy = Toy::new();
        toy.soil(0..100);
        toy.pages(|pages| pages.bad = BTreeSet::from([99]));
        if before {
            toy.pages(|pages| pages.goal = Some(Goal::ToLow));
            toy.engine.kick();
            toy.run_until("all in flight", || toy.pages(|pages| pages.dirty.is_empty()));
        }
        let drained = toy.drain();
        toy.run_until("the end", || drained.get().is_some());
        assert_eq!(drained.get(), Some(Err(Kind::Io)));
        assert_eq!(toy.pages(|pages| pages.attempts.len()), 25 + usize::from(before));
    }
}

/// What is dirty later too.
#[test]
fn what_hangs_keeps_a_drain_from_nothing_else() {
    let toy = Toy::new();
    toy.soil(0..4);
    toy.pages(|pages| (pages.stuck, pages.goal) = ((0..4).collect(), Some(Goal::ToLow)));
    toy.engine.kick();
    toy.run_until("it hangs", || toy.pages(|pages| !pages.attempts.is_empty()));
    let drained = toy.drain();
    for more in [100..200, 200..300] {
        toy.soil(more);
        toy.engine.kick();
        toy.run_until("all but that", || toy.left() == 4 * PAGE);
    }
    assert_eq!(drained.get(), None);
    toy.pages(|pages| pages.stuck.clear());
    toy.run_until("the end", || drained.get() == Some(Ok(())));
}

/// What has failed before a call is no answer to it.
#[test]
fn a_drain_called_in_a_lap_that_has_failed_has_a_lap_of_its_own() {
    let toy = Toy::new();
    toy.soil(0..1000);
    toy.pages(|pages| pages.bad = BTreeSet::from([3]));
    let drained = toy.drain();
    toy.run_until("a failure", || toy.pages(|pages| pages.failures > 0));
    toy.pages(|pages| pages.bad.clear());
    let later = toy.drain();
    toy.run_until("the end", || drained.get().is_some() && later.get().is_some());
    assert_eq!((drained.get(), later.get()), (Some(Err(Kind::Io)), Some(Ok(()))));
}
