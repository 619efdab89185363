//! Tests of memory for objects.

use std::task::Context;

use super::*;
use spillway_core::contract::Wakes;
use spillway_core::{Attempt, Attempts, Reclaimer, Relief};
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

impl Pages {
    /// Bytes of all tags.
    pub(in crate::zram) fn tag_bytes(&self) -> u64 {
        self.chunks.iter().filter_map(OnceLock::get).map(|chunk| chunk._charge.bytes()).sum()
    }
}

fn pages(bytes: u64) -> Pages {
    Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(bytes), Budget::new(1 << 20))
}

#[test]
fn spans_are_charged_and_given_back() {
    let pages = pages(16 * PAGE_BYTES as u64);
    let first = pages.take_span(8).unwrap();
    let second = pages.take_span(8).unwrap();
    assert_eq!(pages.take_span(1), Err(Kind::NoSpace));
    pages.give_span(first, 8);
    assert_eq!(pages.budget().used(), 16 * PAGE_BYTES as u64, "a warm span stays charged");
    let again = pages.take_span(3).unwrap();
    assert_eq!((again, pages.budget().used()), (first, 11 * PAGE_BYTES as u64));
    pages.give_span(again, 3);
    pages.give_span(second, 8);
    pages.cool();
    assert_eq!(pages.budget().used(), 0);
}

#[test]
fn warm_spans_serve_any_size_before_anything_is_refused() {
    let pages = pages(16 * PAGE_BYTES as u64);
    let small: Vec<_> = (0..16).map(|_| pages.take_span(1).unwrap()).collect();
    small.into_iter().for_each(|span| pages.give_span(span, 1));
    assert_eq!(pages.budget().used(), 16 * PAGE_BYTES as u64, "sixteen warm spans of a page");
    let large = pages.take_span(8).expect("seven of them go for it");
    assert_eq!(pages.budget().used(), 16 * PAGE_BYTES as u64);
    pages.charge(8 * PAGE_BYTES as u64).expect("the others go for bookkeeping");
    assert_eq!(pages.take_span(1), Err(Kind::NoSpace));
    pages.budget().uncharge(8 * PAGE_BYTES as u64);
    pages.give_span(large, 8);
    assert!(pages.cool_one() && !pages.cool_one());
    assert_eq!(pages.budget().used(), 0);
}

/// A user of a budget that makes no attempt.
#[derive(Default)]
struct Idle(Arc<Attempts>);

impl Reclaimer for Idle {
    fn reclaim(&self, _anew: bool) -> Vec<Attempt> {
        vec![self.0.ask()]
    }
}

#[test]
fn what_comes_free_pays_the_reserve_back_first() {
    let (budget, fixed, page) = (Budget::new(16 * 4096), Budget::new(1 << 20), PAGE_BYTES as u64);
    let pages = Pages::new(Arc::new(VecRegions::new(64 << 20)), budget.clone(), fixed.clone());
    let pages = pages.with_reserve(8 * page + 100).unwrap();
    let all = [pages.take_span(8).unwrap(), pages.take_span(8).unwrap()];
    assert_eq!(pages.take_span(1), Err(Kind::NoSpace));
    let borrowed = pages.borrow_span(8, 100).unwrap();
    assert_eq!((pages.borrow_span(1, 0), pages.borrow(1)), (Err(Kind::NoSpace), Err(Kind::NoSpace)));
    let idle: Arc<dyn Reclaimer> = Arc::new(Idle::default());
    budget.register(&Arc::downgrade(&idle));
    let (world, mut relief, wakes) = (World::new(1), Relief::new(&budget), Arc::<Wakes>::default());
    let mut wait = Box::pin(relief.wait(&*world));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&wakes.waker())).is_pending());
    let woken = || wakes.count();
    pages.give_span(all[0], 8);
    assert_eq!((pages.borrowed(), budget.used(), woken()), (100, 16 * page, 0));
    assert_eq!(pages.take_span(1), Err(Kind::NoSpace), "the reserve had it");
    pages.give_span(all[1], 8);
    assert_eq!((pages.borrowed(), budget.used(), woken()), (0, 8 * page + 100, 1));
    pages.give_span(borrowed, 8);
    pages.uncharge(100);
    pages.cool();
    assert_eq!((budget.used(), fixed.used()), (0, pages.tag_bytes() + 8 * page + 100));
    drop(pages);
    assert_eq!(fixed.used(), 0);
}

#[test]
fn there_are_two_spans_to_borrow_where_not_even_tags_can_be_charged() {
    for count in 100..150 {
        let (regions, budget) = (Arc::new(VecRegions::new(64 << 20)), Budget::new(2 << 20));
        let pages = Pages::new(regions, budget.clone(), budget.clone());
        let pages = pages.with_reserve(2 * SPAN_BYTES as u64).unwrap();
        (0..count).for_each(|_| _ = pages.take_span(1).unwrap());
        pages.charge(budget.room()).unwrap();
        for _ in 0..3 {
            let borrowed = [(); 2].map(|()| pages.borrow_span(8, 0));
            borrowed.into_iter().for_each(|span| pages.give_span(span.expect("there is one"), 8));
        }
        assert_eq!(pages.borrowed(), 0);
    }
}

#[test]
fn spans_that_come_and_go_in_several_sizes_keep_their_pages() {
    let pages = pages(1 << 20);
    let mut spans: Vec<_> = [3, 8, 5, 8, 3, 4].map(|size| (pages.take_span(size).unwrap(), size)).into();
    let used = pages.budget().used();
    for round in 0..10 {
        spans.iter().for_each(|&(span, size)| pages.give_span(span, size));
        spans.rotate_left(round % 5);
        for (span, size) in &mut spans {
            *span = pages.take_span(*size).unwrap();
            assert!(pages.budget().used() == used, "pages went back to the system and others came");
        }
    }
}

#[test]
fn every_span_is_handed_out_once_however_they_come_and_go() {
    let (pages, mut random) = (pages(32 << 20), spillway_core::random::Random(3));
    let mut spans = Vec::new();
    for step in 0..6000 {
        if random.below(3) < if step < 3000 { 2 } else { 1 } {
            let (span, len) = (pages.take_span(8).unwrap(), 1 + random.below(8) as usize);
            pages.release(span, len, 8 - len);
            spans.push((span, len));
        }
        while spans.len() > 300 || random.below(3) == 0 && !spans.is_empty() {
            let (span, len) = spans.swap_remove(random.below(spans.len() as u64) as usize);
            pages.give_span(span, len);
        }
        let mut known: Vec<Span> = spans.iter().map(|(span, _)| *span).collect();
        let count = known.len();
        known.sort_unstable();
        known.dedup();
        assert_eq!(known.len(), count, "step {step}");
        let taken: usize = spans.iter().map(|(_, len)| len * PAGE_BYTES).sum();
        assert_eq!(taken as u64 + pages.warm_bytes(), pages.budget().used(), "step {step}");
    }
    spans.into_iter().for_each(|(span, len)| pages.give_span(span, len));
    pages.cool();
    assert_eq!(pages.budget().used(), 0);
}

#[test]
fn a_refusing_system_is_an_error_and_charges_nothing() {
    let fixed = Budget::new(1 << 20);
    let pages = Pages::new(Arc::new(VecRegions::new(0)), Budget::new(1 << 20), fixed.clone());
    assert_eq!(pages.take_span(1), Err(Kind::OutOfMemory));
    assert_eq!((pages.budget().used(), fixed.used()), (0, 0));
}
