//! Models for the checker of threads: streams; slots under writers, readers, discards and what moves their objects; pages of slots;
//! pages that are compressed later; pages that are spilled; spill files that come and go; reads that other workers make.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spillway_core::models::{every_order, finds, join};
use spillway_core::random::Random;
use spillway_core::sync::shuttle::future::{block_on, spawn_local};
use spillway_core::sync::shuttle::thread;
use spillway_core::sync::{AtomicBool, AtomicUsize, Ordering};
use spillway_core::{
    BlockDevice, Budget, ByteRange, Env, IoBuf, Kind, LocalFuture, Op, Place, Regions, Request, Task,
};
use spillway_policy::compaction::Compaction;
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

use super::codec::Params;
use super::codec::encoder::Choice;
use super::codec::streams::Streams;
use super::mover::slices::Caller;
use super::page::PAGE;
use super::pool::cell::{Scratch, SlotIndex};
use super::pool::pages::Pages;
use super::slots::mark::Slot;
use super::slots::picked::PublishIf;
use super::{Config, Zram};

mod attaching;
mod deferring;
mod lending;
mod marking;
mod noticed;
mod pages;
mod recompressing;
mod spilling;

/// A world in which a sleep is over as soon as another thread had its turn.
struct Impatient {
    world: Arc<World>,
    /// Tasks are threads; otherwise they never begin.
    keeps_up: bool,
    /// The device's own task on a compute thread is there. It has no end, and never begins.
    has_compactor: AtomicBool,
    /// No read has a slice any more.
    rests: AtomicBool,
}

impl Impatient {
    fn new(keeps_up: bool) -> Arc<Self> {
        let (has_compactor, rests) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { world: World::new(1), keeps_up, has_compactor, rests })
    }
}

impl Env for Impatient {
    fn now(&self) -> Duration {
        self.world.now()
    }

    fn coarse_now(&self) -> Duration {
        assert!(!self.rests.load(Ordering::SeqCst), "a read that was withdrawn goes on");
        self.world.coarse_now()
    }

    fn sleep(&self, _duration: Duration) -> LocalFuture<()> {
        let mut yielded = false;
        Box::pin(poll_fn(move |context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            thread::yield_now();
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    fn spawn(&self, place: Place, task: Task) {
        let endless = place == Place::Compute && !self.has_compactor.swap(true, Ordering::SeqCst);
        if self.keeps_up && !endless {
            spawn_local(task());
        } else {
            self.world.spawn(place, task);
        }
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        self.world.spawn_here(task);
    }

    fn idle_workers(&self) -> usize {
        self.keeps_up.into()
    }

    fn random(&self) -> u64 {
        self.world.random()
    }
}

#[test]
fn no_more_writers_than_streams_and_none_waits_for_ever() {
    every_order(1500, || {
        let choice = Choice { codec: 0, params: Params::default() };
        let streams = Arc::new(Streams::new(1, choice, Budget::new(1 << 20)).expect("there is room"));
        let busy = Arc::new(AtomicUsize::new(0));
        let env = Impatient::new(false);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let (streams, busy, env) = (streams.clone(), busy.clone(), env.clone());
                thread::spawn(move || {
                    let taken = block_on(streams.take(&*env));
                    let others = busy.fetch_add(1, Ordering::SeqCst);
                    assert!(others < 2, "{others} others compress on at most two streams");
                    thread::yield_now();
                    busy.fetch_sub(1, Ordering::SeqCst);
                    drop(taken);
                })
            })
            .collect();
        streams.set_limit(2);
        thread::yield_now();
        streams.set_limit(1);
        writers.into_iter().for_each(|writer| writer.join().expect("a writer ends"));
    });
}

/// One of two that find the budget full has the only warm span in transit, and gives back what it does not need of it a moment later.
#[test]
fn no_span_is_refused_that_another_is_about_to_give_back() {
    every_order(3000, || {
        let budget = Budget::new(8 * PAGE as u64);
        let regions = Arc::new(VecRegions::new(64 << 20));
        let pages = Arc::new(Pages::new(regions, budget, Budget::new(1 << 20)));
        let whole = pages.take_span(8).expect("there is room");
        pages.give_span(whole, 8);
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let pages = pages.clone();
                thread::spawn(move || pages.take_span(1))
            })
            .collect();
        let taken: Vec<_> = takers.into_iter().map(|taker| taker.join().expect("it ends")).collect();
        assert!(taken.iter().all(Result::is_ok), "{taken:?}");
    });
}

#[test]
fn no_page_of_slots_is_refused_what_another_is_about_to_give_back() {
    every_order(1500, || {
        let zram = zram(&Budget::new(64 << 20));
        let core = &zram.core;
        // The records of the first block of slots are charged before there is no room any more.
        write(&zram, 0, &[7; PAGE]);
        discard(&zram, 0);
        let whole = core.pages.take_span(8).expect("there is room");
        core.pages.give_span(whole, 8);
        core.budget.set_limit(core.budget.used());
        let taker = {
            let zram = zram.clone();
            thread::spawn(move || zram.core.pages.take_span(1))
        };
        assert_eq!(core.publish(0, Slot::Same(7), 0), Ok(0));
        let span = taker.join().expect("it ends").expect("there is room for both");
        core.pages.give_span(span, 1);
        discard(&zram, 0);
    });
}

fn zram(budget: &Arc<Budget>) -> Arc<Zram> {
    zram_in(Arc::new(VecRegions::new(256 << 20)), budget)
}

fn zram_in(regions: Arc<dyn Regions>, budget: &Arc<Budget>) -> Arc<Zram> {
    let secondaries = Some("algo=lz4hc".into());
    let config = Config {
        disksize: 64 << 10,
        max_comp_streams: 1,
        recomp_algorithm: secondaries,
        ..Config::default()
    };
    let env = Impatient::new(false);
    Zram::new(config, env, regions, budget.clone()).expect("a valid configuration")
}

fn page(number: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    let mut random = Random(number);
    page[..1500]
        .chunks_exact_mut(4)
        .for_each(|word| word.copy_from_slice(&(random.draw() as u32).to_le_bytes()));
    page
}

fn write(zram: &Zram, index: u64, bytes: &[u8]) {
    let reply = block_on(zram.submit(Request::write(index * PAGE as u64, IoBuf::copy_of(bytes))));
    assert_eq!(reply.result, Ok(()));
}

fn discard(zram: &Zram, index: u64) {
    let range = ByteRange::new(index * PAGE as u64, PAGE as u64);
    assert_eq!(block_on(zram.submit(Request::bare(Op::Discard, range))).result, Ok(()));
}

fn read(zram: &Zram, index: u64, expected: &[u8]) {
    let reply = block_on(zram.submit(Request::read(index * PAGE as u64, IoBuf::new(PAGE))));
    assert!(
        reply.result == Ok(()) && reply.buf[..] == *expected,
        "another page is read than was written last"
    );
}

#[test]
fn a_slot_is_whole_under_writers_readers_discards_and_the_compactor() {
    every_order(1000, || {
        let budget = Budget::new(64 << 20);
        let zram = zram(&budget);
        (0..4).for_each(|index| write(&zram, index, &page(index)));
        discard(&zram, 1);
        let writer = {
            let zram = zram.clone();
            thread::spawn(move || (10..12).for_each(|number| write(&zram, 0, &page(number))))
        };
        let remover = {
            let zram = zram.clone();
            thread::spawn(move || discard(&zram, 0))
        };
        let compactor = {
            let zram = zram.clone();
            thread::spawn(move || block_on(zram.core.make_pass(Compaction::Pack, Caller::Requests)))
        };
        let reply = block_on(zram.submit(Request::read(0, IoBuf::new(PAGE))));
        assert_eq!(reply.result, Ok(()));
        let allowed = [page(0), page(10), page(11), vec![0; PAGE]];
        assert!(allowed.iter().any(|page| page[..] == reply.buf[..]), "a reader saw a mixture");
        for thread in [writer, remover, compactor] {
            thread.join().expect("it ends");
        }
        let reply = block_on(zram.submit(Request::read(2 * PAGE as u64, IoBuf::new(PAGE))));
        assert_eq!(&reply.buf[..], &page(2)[..], "a neighbour changed");
        (0..4).for_each(|index| discard(&zram, index));
        assert_eq!(zram.core.table.holdings(), Default::default());
        drop(zram);
        assert_eq!(budget.used(), 0);
    });
}

/// Picks what slot 0 holds, and moves it if `moves`.
fn pick(zram: &Zram, moves: bool) {
    let (core, mut scratch) = (&zram.core, Scratch::new());
    let held = core.table.lock(SlotIndex(0)).map(|slot| slot.get());
    let Some(Slot::Stored(cell, _)) = held else { return };
    let Some((pick, bytes)) = core.pick(SlotIndex(0), |_, held| held.is_at(cell), &mut scratch) else {
        return;
    };
    if moves {
        let fresh = core.pool.allocate(&core.pages, bytes.len(), SlotIndex(0)).expect("there is room");
        let moved = pick.moved_to(core.pool.fill(&core.pages, fresh, bytes));
        pick.publish(moved, PublishIf::Always, |mark| mark);
    }
}

/// An object is moved by one thread, picked and left by another, and written and read by two more.
#[test]
fn a_write_survives_a_move_and_every_cell_is_freed_once() {
    every_order(2000, || {
        let budget = Budget::new(64 << 20);
        let zram = zram(&budget);
        write(&zram, 0, &page(0));
        let pickers = [true, true, false].map(|moves| {
            let zram = zram.clone();
            thread::spawn(move || pick(&zram, moves))
        });
        let writer = {
            let zram = zram.clone();
            thread::spawn(move || {
                write(&zram, 0, &page(1));
                read(&zram, 0, &page(1));
                write(&zram, 0, &page(2));
            })
        };
        pickers.into_iter().chain([writer]).for_each(|thread| thread.join().expect("it ends"));
        read(&zram, 0, &page(2));
        zram.verify();
        discard(&zram, 0);
        zram.verify();
        drop(zram);
        assert_eq!(budget.used(), 0);
    });
}

#[test]
fn the_checker_finds_what_is_published_over_a_newer_write() {
    finds("zram: publish over a newer write", a_write_survives_a_move_and_every_cell_is_freed_once);
}

#[test]
fn the_checker_finds_a_cell_that_both_sides_free() {
    finds("zram: free what was picked", a_write_survives_a_move_and_every_cell_is_freed_once);
}

#[test]
fn the_checker_finds_a_cell_that_neither_side_frees() {
    finds("zram: forget what was picked and replaced", a_write_survives_a_move_and_every_cell_is_freed_once);
}
