//! Models for the checker of threads: what must hold in every order in which threads may run.
//!
//! `cargo xtask threads` runs these, and those of the same name beside the code they are about. A model that says `finds` shows that
//! the checker notices the defect of that name.

use std::collections::VecDeque;
use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::thread;

use crate::control::stats::Counters;
use crate::memory::budget::Budget;
use crate::memory::buffer::Workspace;
use crate::models::{self, finds};
use crate::sync::models::leave_early;
use crate::sync::{AtomicUsize, Mutex, Ordering, WaitList};

/// Runs a model in every order that is tried of it.
pub(crate) fn every_order(model: impl Fn() + Send + Sync + 'static) {
    models::every_order(30_000, model);
}

/// Tokens that one side hands out and the other takes: nobody waits for ever.
fn tokens() {
    let shared = Arc::new((WaitList::default(), AtomicUsize::new(0)));
    let takers: Vec<_> = (0..2)
        .map(|_| {
            let shared = shared.clone();
            let take = |count: usize| count.checked_sub(1);
            thread::spawn(move || {
                block_on(shared.0.until(|| {
                    shared.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok().map(|_| ())
                }));
            })
        })
        .collect();
    for _ in 0..2 {
        shared.1.fetch_add(1, Ordering::SeqCst);
        shared.0.wake_one();
    }
    takers.into_iter().for_each(|taker| taker.join().expect("a taker ends"));
    assert_eq!(shared.0.waiting(), 0);
}

/// Two wait for one token, one of them gives up: the other gets it all the same.
fn a_waiter_that_leaves() {
    let shared = Arc::new((WaitList::default(), Mutex::new(VecDeque::new())));
    let take = |queue: &Mutex<VecDeque<i32>>| queue.lock().pop_front();
    let patient = {
        let shared = shared.clone();
        thread::spawn(move || block_on(shared.0.until(|| take(&shared.1))))
    };
    let hasty = {
        let shared = shared.clone();
        thread::spawn(move || {
            let mut served = false;
            block_on(leave_early(async {
                shared.0.until(|| take(&shared.1)).await;
                served = true;
            }));
            served
        })
    };
    let give = |token| {
        shared.1.lock().push_back(token);
        shared.0.wake_one();
    };
    // Late enough that both have usually begun to wait.
    (0..10).for_each(|_| thread::yield_now());
    give(1);
    if hasty.join().expect("the hasty one leaves") {
        give(2);
    }
    patient.join().expect("the patient one is served");
}

#[test]
fn every_waiter_gets_its_token() {
    every_order(tokens);
}

#[test]
fn a_waiter_that_leaves_passes_its_wake_on() {
    every_order(a_waiter_that_leaves);
}

#[test]
fn the_checker_finds_a_wait_list_that_does_not_look_again() {
    finds("wait list: register without looking again", every_waiter_gets_its_token);
}

#[test]
fn the_checker_finds_a_wait_list_that_keeps_wakes() {
    finds("wait list: keep a wake that comes too late", a_waiter_that_leaves_passes_its_wake_on);
}

/// Three want more of a workspace than there is, and one of them may leave: no more than the whole is ever lent, everybody who
/// stays is served, and in the end all is back.
fn lending() {
    const PAGE: usize = crate::memory::buffer::ALIGNMENT;
    let budget = Budget::new(3 * PAGE as u64);
    let workspace = Workspace::new("a model", &budget, 3 * PAGE).expect("the budget has room");
    let lent = Arc::new(AtomicUsize::new(0));
    let mut takers: Vec<_> = [1, 2, 3]
        .map(|pages| {
            let (workspace, lent) = (workspace.clone(), lent.clone());
            thread::spawn(move || {
                let buf = block_on(workspace.take(pages * PAGE));
                let before = lent.fetch_add(pages, Ordering::SeqCst);
                assert!(before + pages <= 3, "{pages} pages were lent beside {before}");
                lent.fetch_sub(pages, Ordering::SeqCst);
                drop(buf);
            })
        })
        .into();
    let hasty = workspace.clone();
    takers.push(thread::spawn(move || block_on(leave_early(hasty.take(3 * PAGE)))));
    takers.into_iter().for_each(|taker| taker.join().expect("a taker ends"));
    assert!(workspace.try_take(3 * PAGE).is_some(), "something was not given back");
}

#[test]
fn a_workspace_lends_what_it_has_to_everybody_in_turn() {
    every_order(lending);
}

#[test]
fn the_checker_finds_a_semaphore_that_does_not_look_again() {
    finds("semaphore: wait without looking again", a_workspace_lends_what_it_has_to_everybody_in_turn);
}

#[test]
fn the_checker_finds_a_semaphore_that_keeps_what_a_waiter_left() {
    finds("semaphore: keep what a waiter left", a_workspace_lends_what_it_has_to_everybody_in_turn);
}

fn charges() {
    let parent = Budget::new(100);
    let share = Budget::share(&parent, 60);
    let users: Vec<_> = [share.clone(), share.clone(), parent.clone()]
        .into_iter()
        .map(|budget| {
            let parent = parent.clone();
            thread::spawn(move || {
                let held = [budget.hold(40), budget.hold(30)];
                assert!(parent.used() <= 100, "{} bytes of 100 are charged", parent.used());
                drop(held);
            })
        })
        .collect();
    users.into_iter().for_each(|user| user.join().expect("a user ends"));
    assert_eq!((share.used(), parent.used()), (0, 0));
    assert!(share.peak() <= 60 && parent.peak() <= 100);
}

#[test]
fn a_budget_is_never_exceeded_and_returns_to_zero() {
    every_order(charges);
}

#[test]
fn the_checker_finds_a_budget_that_looks_and_then_charges() {
    finds("budget: look, then charge", a_budget_is_never_exceeded_and_returns_to_zero);
}

#[test]
fn counters_lose_nothing() {
    every_order(|| {
        let counters = Arc::new(Counters::<1>::default());
        let adders: Vec<_> = (0..3)
            .map(|_| {
                let counters = counters.clone();
                thread::spawn(move || {
                    counters.add(0, 3);
                    counters.sub(0, 1);
                })
            })
            .collect();
        adders.into_iter().for_each(|adder| adder.join().expect("an adder ends"));
        assert_eq!(counters.sum(0), 6);
    });
}
