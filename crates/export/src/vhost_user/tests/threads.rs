//! Models for the checker of threads: a driver adds requests and waits for interrupts, while the queue takes, answers and arms itself and the
//! device answers on a thread of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use spillway_core::models::{every_order, finds, join};
use spillway_core::shared_memory::{Events, turn};
use spillway_core::sync::shuttle::future::block_on;
use spillway_core::sync::shuttle::thread::{self, JoinHandle};
use spillway_core::sync::{AtomicBool, Mutex, Ordering};
use spillway_core::{Phase, Shutdown};

use super::super::queue::BlockQueue;
use super::super::setup::Parts;
use super::guest::{Fixture, Guest};

const OUT: u32 = 1;
const GET_ID: u32 = 8;

/// An event descriptor.
#[derive(Default)]
struct Signal {
    told: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        waker.into_iter().for_each(Waker::wake);
    }

    fn take(&self, waker: &Waker) -> bool {
        let take = || self.told.swap(false, Ordering::SeqCst);
        if take() {
            return true;
        }
        *self.waker.lock() = Some(waker.clone());
        take()
    }

    fn wait(&self) {
        block_on(poll_fn(|context| if self.take(context.waker()) { Poll::Ready(()) } else { Poll::Pending }));
    }
}

/// The events of a queue, and what ends it.
#[derive(Clone, Default)]
struct Signals {
    kick: Arc<Signal>,
    call: Arc<Signal>,
    shutdown: Arc<Shutdown>,
}

impl Events for Signals {
    fn interrupt(&mut self) {
        self.call.tell();
    }

    fn report(&mut self, why: &'static str) {
        panic!("{why}");
    }

    fn is_kicked(&mut self, context: &mut Context<'_>) -> bool {
        self.kick.take(context.waker())
    }

    fn others_first(&mut self, context: &mut Context<'_>) {
        context.waker().wake_by_ref();
    }
}

fn serve(parts: Parts, mut signals: Signals) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut queue = BlockQueue::new(parts);
        let shutdown = signals.shutdown.clone();
        block_on(poll_fn(|context| {
            shutdown.watch(0, context.waker());
            turn(&mut queue, &mut signals, shutdown.phase(), context)
        }));
    })
}

/// Adds a request, and kicks the queue where it wants that.
fn add(guest: &mut Guest, signals: &Signals, event_index: bool, kind: u32) {
    let before = guest.available;
    match kind {
        OUT => guest.request(OUT, 0, &[1; 4096], 0),
        _ => guest.request(kind, 0, &[], 20),
    };
    let wanted = if event_index { guest.kick_at() == before } else { guest.used_flags() & 1 == 0 };
    if wanted {
        signals.kick.tell();
    }
}

/// Waits by interrupts alone until so many more were answered.
fn await_answers(guest: &mut Guest, signals: &Signals, count: usize) {
    let mut answered = guest.used().len();
    while answered < count {
        guest.interrupt_at(guest.seen);
        // What was answered before the wish was seen comes without an interrupt.
        match guest.used().len() {
            0 => signals.call.wait(),
            more => answered += more,
        }
    }
}

/// Requests in batches, of which the device answers some late.
fn converse(event_index: bool, batches: &'static [&'static [u32]]) {
    let (fixture, mut guest) = (Fixture { event_index, ..Fixture::new() }, Guest::new());
    let (signals, device) = (Signals::default(), fixture.device.clone());
    device.hold();
    let queue = serve(fixture.parts(&guest), signals.clone());
    let late = batches.iter().flat_map(|batch| batch.iter()).filter(|&&kind| kind == OUT).count();
    let disk = thread::spawn(move || (0..late).for_each(|_| device.release(1)));
    for batch in batches {
        batch.iter().for_each(|&kind| add(&mut guest, &signals, event_index, kind));
        await_answers(&mut guest, &signals, batch.len());
    }
    signals.shutdown.ask(Phase::Draining);
    join([queue, disk]);
}

#[test]
fn a_request_that_is_added_while_the_queue_arms_itself_is_answered() {
    for event_index in [true, false] {
        every_order(1000, move || converse(event_index, &[&[GET_ID], &[GET_ID]]));
    }
}

#[test]
fn answers_that_come_together_or_late_interrupt_who_waits_for_the_first() {
    for event_index in [true, false] {
        every_order(1000, move || converse(event_index, &[&[OUT, GET_ID], &[OUT, OUT]]));
    }
}

#[test]
fn a_queue_that_is_asked_to_end_answers_what_it_has_taken() {
    every_order(1000, || {
        let (fixture, mut guest) = (Fixture::new(), Guest::new());
        let (signals, device) = (Signals::default(), fixture.device.clone());
        device.hold();
        let parts = fixture.parts(&guest);
        let shared = parts.shared.clone();
        let queue = serve(parts, signals.clone());
        add(&mut guest, &signals, true, OUT);
        signals.shutdown.ask(Phase::Draining);
        let disk = thread::spawn(move || device.release(1));
        join([queue, disk]);
        assert_eq!(guest.used().len(), shared.base.load(Ordering::SeqCst) as usize);
    });
}

#[test]
fn the_checker_finds_a_queue_that_arms_itself_without_another_look() {
    finds("ring: arm without another look", a_request_that_is_added_while_the_queue_arms_itself_is_answered);
}

#[test]
fn the_checker_finds_a_ring_that_asks_for_its_last_answer_alone() {
    finds(
        "ring: ask for the last answer alone",
        answers_that_come_together_or_late_interrupt_who_waits_for_the_first,
    );
}
