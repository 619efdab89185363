//! The engine with a toy source: numbered pages that are dirty, in flight or clean, and a device that fails as it is told.

mod drains;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use spillway_core::Answer;
use spillway_policy::backoff;
use spillway_policy::depth::{DEPTH_BESIDE_READS, DEPTH_MAX};
use spillway_sim::world::World;

use super::*;

const PAGE: u64 = 4096;

#[derive(Default)]
struct Pages {
    dirty: BTreeSet<u64>,
    in_flight: BTreeSet<u64>,
    /// Where the next look begins.
    at: u64,
    /// Pages that cannot be written.
    bad: BTreeSet<u64>,
    /// Pages whose writes do not end.
    stuck: BTreeSet<u64>,
    goal: Option<Goal>,
    /// When each attempt to write began, and its pages.
    attempts: Vec<(Duration, Vec<u64>)>,
    failures: usize,
    waited_for: bool,
    /// Most bytes in flight at a time.
    most: u64,
    /// Writes end at once.
    instant: bool,
}

struct Toy {
    world: Arc<World>,
    pages: Mutex<Pages>,
    engine: Writeback<Toy>,
    meter: Arc<Meter>,
}

/// Pages on their way; dirty again when dropped.
struct Batch {
    toy: Arc<Toy>,
    pages: Vec<u64>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut pages = self.toy.pages.lock();
        for page in self.pages.drain(..) {
            assert!(pages.in_flight.remove(&page));
            pages.dirty.insert(page);
        }
    }
}

impl Toy {
    fn new() -> Arc<Self> {
        let world = World::new(7);
        let meter = Meter::new(world.clone());
        Arc::new_cyclic(|toy| Self {
            world: world.clone(),
            pages: Mutex::default(),
            engine: Writeback::new(toy.clone(), world.clone(), meter.clone()),
            meter: meter.clone(),
        })
    }

    fn soil(&self, pages: impl IntoIterator<Item = u64>) {
        self.pages.lock().dirty.extend(pages);
    }

    /// Drains in the background: what it comes to, once it has.
    fn drain(self: &Arc<Self>) -> Rc<Cell<Option<Result<(), Kind>>>> {
        let (toy, answer): (_, Rc<Cell<_>>) = (self.clone(), Rc::default());
        let told = answer.clone();
        let drain = async move { told.set(Some(toy.engine.drain().await)) };
        self.world.spawn_here(Box::pin(drain));
        answer
    }

    fn run_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        assert!(
            (0..100_000).any(|_| condition() || !self.world.go_on()) && condition(),
            "{what} does not come"
        );
    }

    fn pages<T>(&self, look: impl FnOnce(&mut Pages) -> T) -> T {
        look(&mut self.pages.lock())
    }
}

impl Source for Toy {
    type Batch = Batch;

    fn goal(&self) -> Goal {
        self.pages(|pages| pages.goal.filter(|_| !pages.dirty.is_empty()).unwrap_or(Goal::Rest))
    }

    fn take(self: &Arc<Self>, _: Goal, bytes_max: u64) -> Take<Batch> {
        let mut pages = self.pages.lock();
        let at = std::mem::take(&mut pages.at);
        let few = (bytes_max / PAGE).clamp(1, 4) as usize;
        let taken: Vec<u64> = pages.dirty.range(at..).copied().take(few).collect();
        let Some(last) = taken.last() else {
            // The end of a lap, or of all.
            return if at == 0 { Take::Nothing } else { Take::Again };
        };
        pages.at = last + 1;
        for page in &taken {
            pages.dirty.remove(page);
            pages.in_flight.insert(*page);
        }
        pages.most = pages.most.max(pages.in_flight.len() as u64 * PAGE);
        let bytes = taken.len() as u64 * PAGE;
        Take::Batch(Batch { toy: self.clone(), pages: taken }, bytes)
    }

    fn write(self: &Arc<Self>, mut batch: Batch) -> LocalFuture<Result<(), Kind>> {
        let toy = self.clone();
        Box::pin(async move {
            let attempt = (toy.world.now(), batch.pages.clone());
            toy.pages(|pages| pages.attempts.push(attempt));
            let writing = toy.meter.write(batch.pages.len() as u64 * PAGE);
            if !toy.pages(|pages| pages.instant) {
                toy.world.sleep(Duration::from_millis(1)).await;
            }
            while toy.pages(|pages| batch.pages.iter().any(|page| pages.stuck.contains(page))) {
                toy.world.sleep(Duration::from_secs(1)).await;
            }
            let mut pages = toy.pages.lock();
            if batch.pages.iter().any(|page| pages.bad.contains(page)) {
                return Err(Kind::Io);
            }
            writing.landed();
            batch.pages.drain(..).for_each(|page| assert!(pages.in_flight.remove(&page)));
            Ok(())
        })
    }

    fn left(&self) -> u64 {
        self.pages(|pages| (pages.dirty.len() + pages.in_flight.len()) as u64 * PAGE)
    }

    fn is_waited_for(&self) -> bool {
        self.pages(|pages| pages.waited_for)
    }

    fn failed(&self, _: Kind) {
        self.pages(|pages| pages.failures += 1);
    }
}

#[test]
fn a_drain_writes_everything_once() {
    let toy = Toy::new();
    toy.soil(0..1000);
    let drained = toy.drain();
    toy.run_until("the first batch", || toy.pages(|pages| !pages.attempts.is_empty()));
    assert!(toy.engine.is_draining());
    toy.run_until("the end", || drained.get().is_some());
    assert_eq!(drained.get(), Some(Ok(())));
    let mut written: Vec<u64> =
        toy.pages(|pages| pages.attempts.iter().flat_map(|(_, some)| some.clone()).collect());
    written.sort_unstable();
    assert_eq!(written, (0..1000).collect::<Vec<_>>());
    assert!(!toy.engine.is_draining());
}

#[test]
fn bytes_in_flight_are_bounded_by_the_bandwidth() {
    let toy = Toy::new();
    toy.soil(0..10_000);
    let drained = toy.drain();
    toy.run_until("the end", || drained.get().is_some());
    let most = toy.pages(|pages| pages.most);
    assert_eq!(most, DEPTH_MAX as u64 * 4 * PAGE, "as many batches as may be");
    assert!(most <= toy.meter.ahead());
}

#[test]
fn what_fails_or_is_withdrawn_is_no_bandwidth() {
    let toy = Toy::new();
    let written = |bytes, landed: bool| {
        let writing = toy.meter.write(bytes);
        toy.world.advance(Duration::from_secs(1));
        if landed {
            writing.landed();
        }
        (toy.meter.bytes_per_second(), toy.meter.written())
    };
    assert_eq!(written(1 << 30, false), (0, 0));
    assert_eq!(written(1 << 20, true), (1 << 20, 1 << 20));
    assert_eq!(written(1 << 30, false), (1 << 20, 1 << 20));
}

#[test]
fn few_batches_are_in_flight_while_clients_read_and_none_waits_for_room() {
    let toy = Toy::new();
    toy.soil(0..100_000);
    let _drained = toy.drain();
    let in_flight = || toy.pages(|pages| pages.in_flight.len());
    let (few, many) = (DEPTH_BESIDE_READS * 4, DEPTH_MAX * 4);
    toy.run_until("full depth", || in_flight() == many);
    let read = toy.meter.read();
    toy.run_until("the end of what was in flight", || in_flight() <= few);
    let (mut most, mut before) = (0, toy.left());
    toy.run_until("a hundred batches", || {
        most = most.max(in_flight());
        before - toy.left() >= 400 * PAGE
    });
    assert_eq!(most, few, "writing back goes on, at this depth");
    toy.pages(|pages| pages.waited_for = true);
    toy.run_until("full depth for writes", || in_flight() == many);
    toy.pages(|pages| pages.waited_for = false);
    toy.run_until("few again", || in_flight() <= few);
    drop(read);
    before = toy.left();
    toy.run_until("full depth again", || in_flight() == many);
    assert!(before - toy.left() <= 2 * many as u64 * PAGE, "soon after the read");
}

#[test]
fn failures_back_off_exponentially() {
    let toy = Toy::new();
    toy.soil([1]);
    toy.pages(|pages| (pages.goal, pages.bad) = (Some(Goal::ToLow), BTreeSet::from([1])));
    toy.engine.kick();
    toy.run_until("failures", || toy.pages(|pages| pages.failures == 14));
    let begun: Vec<Duration> = toy.pages(|pages| pages.attempts.iter().map(|(at, _)| *at).collect());
    let pauses: Vec<Duration> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] >= backoff::FIRST && pauses[0] < 2 * backoff::FIRST, "{pauses:?}");
    for pair in pauses.windows(2) {
        assert!(pair[1] > pair[0] * 3 / 2 || pair[0] >= backoff::LONGEST, "{pauses:?}");
    }
    assert!(pauses.iter().all(|pause| *pause <= backoff::LONGEST + Duration::from_secs(1)), "{pauses:?}");
    toy.pages(|pages| pages.bad.clear());
    toy.run_until("the end", || toy.left() == 0);
}

#[test]
fn a_batch_that_is_dropped_is_dirty_again() {
    let toy = Toy::new();
    toy.soil(0..4);
    let Take::Batch(batch, bytes) = toy.take(Goal::All, u64::MAX) else { panic!("pages are dirty") };
    assert_eq!((bytes, toy.pages(|pages| pages.dirty.len())), (4 * PAGE, 0));
    // The future owns the batch from the first moment on.
    drop(toy.write(batch));
    assert_eq!(toy.pages(|pages| (pages.dirty.len(), pages.in_flight.len())), (4, 0));
    let drained = toy.drain();
    toy.run_until("the end", || drained.get().is_some());
}

#[test]
fn a_drain_that_is_dropped_is_not_asked_for_any_more() {
    let toy = Toy::new();
    toy.soil(0..1000);
    let mut drain = Box::pin(toy.engine.drain());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(drain.as_mut().poll(&mut context).is_pending());
    toy.run_until("the first batch", || toy.pages(|pages| !pages.attempts.is_empty()));
    drop(drain);
    assert!(!toy.engine.is_draining());
    while toy.pages(|pages| !pages.in_flight.is_empty()) {
        assert!(toy.world.go_on());
    }
    assert!(toy.pages(|pages| !pages.dirty.is_empty()), "what is left stays");
}

/// Pages become dirty while others are written, and a kick says so each time.
#[test]
fn kicks_are_not_lost() {
    let toy = Toy::new();
    toy.pages(|pages| pages.goal = Some(Goal::ToLow));
    for page in 0..500 {
        toy.soil([page]);
        toy.engine.kick();
        (0..page % 7).for_each(|_| _ = toy.world.go_on());
    }
    toy.run_until("the end", || toy.left() == 0);
    assert!(toy.engine.0.work.is_idle());
}

#[test]
fn a_source_that_rests_is_left_alone() {
    let toy = Toy::new();
    toy.soil(0..10);
    toy.engine.kick();
    toy.run_until("the end of a run", || toy.engine.0.work.is_idle());
    assert!(toy.pages(|pages| pages.attempts.is_empty() && pages.dirty.len() == 10));
}

/// The answer is a promise about what was dirty before the call.
#[test]
fn every_drain_covers_what_came_before_it() {
    let toy = Toy::new();
    for round in 0..200 {
        toy.soil([round]);
        let drained = toy.drain();
        (0..round % 11).for_each(|_| _ = toy.world.go_on());
        toy.soil([1000 + round]);
        let later = toy.drain();
        toy.run_until("the first", || drained.get().is_some());
        assert!(!toy.pages(|pages| pages.dirty.contains(&round) || pages.in_flight.contains(&round)));
        toy.run_until("the second", || later.get().is_some());
        assert!(!toy.pages(|pages| pages.dirty.contains(&(1000 + round))));
    }
}

#[test]
fn a_device_that_answers_at_once_leaves_others_their_turn() {
    let toy = Toy::new();
    toy.soil(0..10_000);
    toy.pages(|pages| (pages.goal, pages.instant) = (Some(Goal::ToLow), true));
    toy.engine.kick();
    let attempts = || toy.pages(|pages| pages.attempts.len());
    let (mut before, mut most) = (0, 0);
    toy.run_until("the end", || {
        let now = attempts();
        most = most.max(now - before);
        before = now;
        toy.left() == 0
    });
    assert!(most <= BATCHES_TURN, "{most} batches in one turn");
}

#[test]
fn once_it_has_ended_no_batch_begins_and_drains_fail() {
    let toy = Toy::new();
    toy.soil(0..4096);
    let drain = toy.drain();
    toy.run_until("a batch", || toy.pages(|pages| !pages.in_flight.is_empty()));
    let engine = toy.clone();
    toy.world.run(Answer::pending(async move { engine.engine.end().await }));
    assert!(toy.pages(|pages| pages.in_flight.is_empty() && !pages.dirty.is_empty()));
    let attempts = toy.pages(|pages| pages.attempts.len());
    let late = toy.drain();
    toy.run_until("answers", || drain.get().is_some() && late.get().is_some());
    toy.engine.kick();
    while toy.world.go_on() {}
    assert_eq!([drain.get(), late.get()], [Some(Err(Kind::ShuttingDown)); 2]);
    assert_eq!(toy.pages(|pages| pages.attempts.len()), attempts);
    let engine = toy.clone();
    toy.world.run(Answer::pending(async move { engine.engine.end().await }));
    assert_eq!(Arc::strong_count(&toy), 1, "nothing is left of a run");
}
