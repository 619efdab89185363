//! The write-back engine: one loop on a background thread that takes dirty data from a [`Source`] in batches and has them written.
//!
//! The source knows what is dirty, what leaves next and what success means. The engine knows when to look, how many bytes may be in
//! flight, when to try again after a failure, and whether everything is written back.
//!
//! ```text
//!   kick -> goal -> take -> write, many at a time -> an end makes room for the next
//!                    |-> Again: others have their turn first      |-> failed: the batch is dirty again; exponential backoff
//!                    |-> After: not before so much time
//!                    |-> Nothing: until a kick, or the end of a batch
//! ```
//!
//! Promises: a look follows every kick, whatever thread it comes from, and sees what was published before it. A drain ends with
//! success only after a moment, later than its call, at which nothing was left; and with an error after one lap, begun later than its call,
//! in which a batch failed. Once it has ended no batch begins, and it holds nothing of its source. Needs: a source that kicks whenever
//! more can be taken than before, and when nothing is left any more. Locks: the drains, the ages, the bandwidth; all are leaves.

mod aging;
mod drains;
mod meter;
mod pauses;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;
mod timer;

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use spillway_core::sync::{AtomicBool, Called, Mutex, Ordering, WaitList, Work};
use spillway_core::{Env, Kind, LocalFuture, Place, mutant, task};
use spillway_policy::backoff::Backoff;
use spillway_policy::depth::{Waiting, depth};
use spillway_policy::watermarks::Goal;

pub(crate) use aging::Aging;
use drains::{DrainLap, Drains, EndedBatch, NO_LAP};
pub(crate) use meter::{Meter, MeteredRead};
pub(crate) use pauses::Pauses;
pub(crate) use timer::Timer;

/// Batches begun before others have their turn: a device in memory may have ended each at once.
const BATCHES_TURN: usize = 4;

/// What a source has for the engine.
pub(crate) enum Take<B> {
    /// A batch, and its bytes.
    Batch(B, u64),
    /// Nothing so far: look again after others had their turn.
    Again,
    /// Nothing before so much time has passed, or a kick.
    After(Duration),
    /// Nothing before a kick, or the end of a batch.
    Nothing,
}

/// Something with dirty data.
pub(crate) trait Source: Send + Sync + 'static {
    /// Dirty data on its way. Dropped before it is written, it is dirty again.
    type Batch: 'static;

    /// What is to be written back; everything, while a drain runs.
    fn goal(&self) -> Goal;

    /// Takes the next batch for `goal`, of at most `bytes_max` bytes or else as small as one can be. Looks at a bounded part of what
    /// is dirty.
    fn take(self: &Arc<Self>, goal: Goal, bytes_max: u64) -> Take<Self::Batch>;

    /// Writes a batch, makes it durable, and publishes that.
    fn write(self: &Arc<Self>, batch: Self::Batch) -> LocalFuture<Result<(), Kind>>;

    /// Bytes that a drain has to wait for: dirty ones, those in flight, and those about to become dirty. 0 only when none are.
    fn left(&self) -> u64;

    /// Whether clients wait for what writing back makes room for.
    fn is_waited_for(&self) -> bool;

    /// A batch has failed, and is dirty again.
    fn failed(&self, kind: Kind);
}

/// The engine of one source, which owns it.
pub(crate) struct Writeback<S: Source>(Arc<State<S>>);

struct State<S: Source> {
    source: Weak<S>,
    env: Arc<dyn Env>,
    meter: Arc<Meter>,
    work: Work,
    /// The run waits until it is queued again.
    kicked: WaitList,
    drains: Mutex<Drains>,
    /// Drains that have no answer yet: one load.
    draining: AtomicBool,
    /// Drains and ends wait for their answers.
    drained: WaitList,
    /// No batch begins any more.
    ended: AtomicBool,
}

impl<S: Source> Writeback<S> {
    /// The engine of `source`, which writes to the device that `meter` measures.
    pub(crate) fn new(source: Weak<S>, env: Arc<dyn Env>, meter: Arc<Meter>) -> Self {
        Self(Arc::new(State {
            source,
            env,
            meter,
            work: Work::default(),
            kicked: WaitList::default(),
            drains: Mutex::default(),
            draining: AtomicBool::new(false),
            drained: WaitList::default(),
            ended: AtomicBool::new(false),
        }))
    }

    /// Has the engine look whether there is something to do.
    pub(crate) fn kick(&self) {
        self.0.kick();
    }

    /// Whether a drain runs. One load.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Writes everything back. Dropped, it is not asked for any more. The error is that of a batch that was tried after this call, and what
    /// could be written back has been.
    pub(crate) async fn drain(&self) -> Result<(), Kind> {
        let call = Call::begin(&self.0);
        self.kick();
        self.0.drained.until(|| call.answer()).await
    }

    /// Whether no batch begins any more. One load.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    /// Ends it for good: no batch begins any more, and drains fail with [`Kind::ShuttingDown`]. What is in flight is waited for, for a while.
    pub(crate) async fn end(&self) {
        self.0.ended.store(true, Ordering::Release);
        self.kick();
        self.0.drained.wake_all();
        self.0.drained.until(|| self.0.work.is_idle().then_some(())).await;
    }
}

impl<S: Source> State<S> {
    fn kick(self: &Arc<Self>) {
        match self.work.call() {
            Called::Idle => {
                let state = self.clone();
                self.env.spawn(Place::Background, task(move || Run::start(state)));
            }
            // Only the first kick since a look wakes the run that may sleep.
            Called::Running => self.kicked.wake_all(),
            Called::Queued => {}
        }
    }

    /// Changes the calls; `draining` says whether any has no answer.
    fn change<T>(&self, change: impl FnOnce(&mut Drains) -> T) -> T {
        let mut drains = self.drains.lock();
        let changed = change(&mut drains);
        self.draining.store(drains.pending(), Ordering::Release);
        changed
    }

    /// Answers the calls numbered below `before`.
    fn answer(&self, before: u64, result: Result<(), Kind>) {
        self.change(|drains| drains.answer(before, result));
        self.drained.wake_all();
    }
}

/// A call for a drain.
struct Call<'a, S: Source> {
    state: &'a Arc<State<S>>,
    number: u64,
}

impl<'a, S: Source> Call<'a, S> {
    fn begin(state: &'a Arc<State<S>>) -> Self {
        let number = state.change(|drains| {
            drains.next += 1;
            drains.calls.insert(drains.next, None);
            drains.next
        });
        Self { state, number }
    }

    fn answer(&self) -> Option<Result<(), Kind>> {
        self.state.drains.lock().calls[&self.number]
    }
}

impl<S: Source> Drop for Call<'_, S> {
    fn drop(&mut self) {
        let known = self.state.change(|drains| drains.calls.remove(&self.number));
        assert!(known.is_some(), "call {} leaves once", self.number);
    }
}

/// How long batches in flight may take at the end, and what else a source has in flight.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(1);

/// What a look came to.
enum Look {
    Started,
    Again,
    After(Duration),
    /// No more may be in flight.
    Full,
    Nothing,
}

/// A run of the loop, until there is nothing to do.
struct Run<S: Source> {
    source: Arc<S>,
    state: Arc<State<S>>,
    batches: FuturesUnordered<LocalFuture<EndedBatch>>,
    bytes_in_flight: u64,
    /// Batches begun since others had their turn.
    begun: usize,
    backoff: Backoff,
    lap: Option<DrainLap>,
    laps: u64,
    /// Until when batches in flight may end, once no other begins.
    ends_by: Option<Duration>,
}

impl<S: Source> Run<S> {
    async fn start(state: Arc<State<S>>) {
        let Some(source) = state.source.upgrade() else { return };
        let (batches, backoff, lap, ends_by) = (FuturesUnordered::new(), Backoff::default(), None, None);
        let (bytes_in_flight, begun, laps) = (0, 0, 0);
        Self { source, state, batches, bytes_in_flight, begun, backoff, lap, laps, ends_by }.work().await;
    }

    async fn work(mut self) {
        loop {
            self.state.work.look();
            match self.look() {
                Look::Started if self.begun < BATCHES_TURN => self.reap(),
                Look::Started | Look::Again => {
                    self.begun = 0;
                    self.state.env.sleep(Duration::ZERO).await;
                    self.reap();
                }
                Look::After(delay) => {
                    assert!(!delay.is_zero(), "a wait without time would spin");
                    self.wait(true, Some(delay)).await;
                }
                Look::Full => self.wait(false, None).await,
                Look::Nothing if !self.batches.is_empty() => self.wait(true, None).await,
                Look::Nothing if self.end_failed_lap() => {}
                Look::Nothing if self.state.work.again() => {}
                Look::Nothing => {
                    assert_eq!(self.bytes_in_flight, 0, "a run ends with nothing in flight");
                    let state = self.state.clone();
                    drop(self);
                    return state.drained.wake_all();
                }
            }
        }
    }

    /// Takes a batch and starts it, if one may be.
    fn look(&mut self) -> Look {
        if self.state.ended.load(Ordering::Acquire) {
            return self.look_at_end();
        }
        let draining = self.is_draining();
        let goal = if draining { Goal::All } else { self.source.goal() };
        if goal == Goal::Rest {
            return Look::Nothing;
        }
        // A failing lap tries nothing twice: its batches end, then it does.
        if self.lap.as_ref().is_some_and(DrainLap::is_ending) {
            return if self.batches.is_empty() { Look::Nothing } else { Look::Full };
        }
        let room = self.state.meter.ahead().saturating_sub(self.bytes_in_flight);
        let waiting = Waiting { reads: self.state.meter.is_read(), room: self.source.is_waited_for() };
        if room == 0 || self.batches.len() >= depth(waiting) {
            return Look::Full;
        }
        let delay = self.backoff.left(self.state.env.now());
        if !delay.is_zero() && !self.lap.as_ref().is_some_and(DrainLap::is_open) {
            return Look::After(delay);
        }
        match self.source.take(goal, room) {
            Take::Batch(batch, bytes) => self.begin(batch, bytes),
            Take::Again => Look::Again,
            Take::After(delay) => Look::After(delay),
            Take::Nothing => Look::Nothing,
        }
    }

    /// No batch begins. Those in flight have a while; a disk that does not answer is given up, and what was on its way is dirty again.
    fn look_at_end(&mut self) -> Look {
        let now = self.state.env.now();
        let left = self.ends_by.get_or_insert(now + END_PATIENCE).saturating_sub(now);
        if !self.batches.is_empty() && !left.is_zero() {
            return Look::After(left);
        }
        self.batches.clear();
        (self.bytes_in_flight, self.lap) = (0, None);
        self.state.answer(u64::MAX, Err(Kind::ShuttingDown));
        Look::Nothing
    }

    fn begin(&mut self, batch: S::Batch, bytes: u64) -> Look {
        assert!(bytes > 0, "a batch has bytes");
        self.bytes_in_flight += bytes;
        self.begun += 1;
        let lap = self.lap.as_mut().map_or(NO_LAP, |lap| lap.begin(bytes));
        let write = self.source.write(batch);
        self.batches.push(Box::pin(write.map(move |result| (bytes, lap, result))));
        Look::Started
    }

    /// Whether a drain runs; answers those that have nothing left to wait for.
    fn is_draining(&mut self) -> bool {
        let (before, pending) = {
            let drains = self.state.drains.lock();
            (drains.next + 1, drains.pending())
        };
        if pending && self.source.left() > 0 {
            // Until something fails, laps follow each other without a pause.
            if self.lap.as_ref().is_none_or(DrainLap::has_succeeded) {
                self.laps += 1;
                self.lap = Some(DrainLap::new(self.laps, before, self.source.left()));
            }
            return true;
        }
        self.lap = None;
        if pending {
            // Calls that came after the look are not covered by it.
            let late = mutant::on("writeback: answer a drain that was called too late");
            self.state.answer(if late { u64::MAX } else { before }, Ok(()));
        }
        false
    }

    /// Ends a lap that has found what it can; whether it has failed, which the drains are told that were called before it.
    fn end_failed_lap(&mut self) -> bool {
        let Some(DrainLap { before, failed: Some(kind), .. }) = self.lap.take() else { return false };
        self.state.answer(before, Err(kind));
        true
    }

    /// Takes notice of batches that have ended.
    fn reap(&mut self) {
        while let Some(Some(ended)) = self.batches.next().now_or_never() {
            self.end(ended);
        }
    }

    /// Waits for the end of a batch, for a kick since the look where one is `heard`, else for the end of all, and for the end of `delay`.
    async fn wait(&mut self, heard: bool, delay: Option<Duration>) {
        let (batches, state) = (&mut self.batches, &self.state);
        let ended = batches.next().then(async |ended| match ended {
            Some(ended) => ended,
            None => pending().await,
        });
        let kicked = async {
            match heard {
                true => state.kicked.until(|| state.work.is_queued().then_some(())).await,
                false => state.drained.until(|| state.ended.load(Ordering::Acquire).then_some(())).await,
            }
        };
        let slept = async {
            match delay {
                Some(delay) => state.env.sleep(delay).await,
                None => pending().await,
            }
        };
        let ended = match select(pin!(ended), pin!(select(pin!(kicked), pin!(slept)))).await {
            Either::Left((ended, _)) => Some(ended),
            Either::Right(_) => None,
        };
        ended.into_iter().for_each(|ended| self.end(ended));
    }

    fn end(&mut self, (bytes, lap, result): EndedBatch) {
        assert!(self.bytes_in_flight >= bytes, "{bytes} of {} bytes end", self.bytes_in_flight);
        self.bytes_in_flight -= bytes;
        self.lap.iter_mut().for_each(|present| present.end(lap, bytes, result));
        let Err(kind) = result else { return self.backoff.succeeded() };
        self.backoff.failed(self.state.env.now());
        self.source.failed(kind);
    }
}
