//! Compression streams: how many writers may compress at once.
//!
//! A stream is a lock around an encoder: a codec's working memory and an output buffer, made when the stream is first used. A
//! writer tries the stream of its own thread first, then the others.
//!
//! A codec's tables move to the cache of the core that uses them, which can cost as much as the work. So a stream stays with a
//! *warm* thread, from request to request, for about 2 ms of work. A writer that finds every stream busy looks for some 20 us, rarely
//! enough to leave the cache line to the stream's user, and takes only a stream that stays idle: the pause between two requests of a busy
//! writer is shorter than that. Then its *task* waits. The warm writer that has had its time and sees a waiter keeps the stream
//! for the first in line and wakes it.
//!
//! Waiting tasks also look by themselves each millisecond, at streams kept for others as well: a writer may stop before its
//! time is over, and a woken task may never come. So no task hangs on a wake.
//!
//! The number may be changed at any time in both directions: streams beyond it lose their encoders as they fall free.
//!
//! Lock order: a stream is taken with no other lock held, and never held across an await; the line of waiters and the locks
//! that storing a page takes come after it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hint::spin_loop;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use spillway_core::stats::lane;
use spillway_core::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, RwLock};
use spillway_core::{Budget, Charge, Env, Kind};

use super::encoder::{Choice, Encoder};
use crate::slice::SLICE;
use crate::zram::codec::CodecIndex;

/// Most streams that may be asked for.
pub(crate) const STREAMS_MAX: usize = 256;

/// Units of work for which a stream stays with one thread while others wait: 2 ms.
const WARM_UNITS: u32 = 10 * SLICE;

/// How long a writer looks for an idle stream before its task waits.
const LOOK_FOR: Duration = Duration::from_micros(20);

/// Looks in that time at most, however time goes by: the checker of threads tries every order anyway.
const LOOKS_MAX: usize = if cfg!(feature = "shuttle") { 1 } else { 64 };

/// Pauses of the processor between two looks: they leave the cache line to the writer.
const PAUSES: usize = 24;

/// How long a stream is idle before a writer takes it: a busy thread comes back sooner.
const IDLE_FOR: Duration = Duration::from_micros(5);

/// How long a waiting task relies on being woken.
const PATIENCE: Duration = Duration::from_millis(1);

/// No waiter's ticket.
const NO_TICKET: u64 = 0;

/// One stream, locked while it is in use.
#[derive(Default)]
struct Stream {
    encoder: Mutex<Option<Box<Encoder>>>,
    /// Ticket of the waiter that is to have it next. Set under the lock.
    kept_for: AtomicU64,
    /// Takes so far: one that has not changed shows that the stream was idle.
    takes: AtomicU32,
    /// The thread that used it last, and the units of work since it began to. Changed under the lock.
    lane: AtomicUsize,
    used: AtomicU32,
}

/// Tasks that wait for a stream, by ticket.
#[derive(Default)]
struct Line {
    next: u64,
    waiters: BTreeMap<u64, Waker>,
}

/// All streams of a device.
pub(crate) struct Streams {
    all: Box<[CachePadded<Stream>]>,
    limit: AtomicUsize,
    choice: RwLock<Choice>,
    line: Mutex<Line>,
    /// Tasks in line.
    waiting: AtomicUsize,
    budget: Arc<Budget>,
    /// The encoder of the first stream, which there is always memory for.
    first: Mutex<Charge>,
}

impl Streams {
    /// At most `limit` streams, charged to `budget`; the first one at once.
    pub(crate) fn new(limit: usize, choice: Choice, budget: Arc<Budget>) -> Result<Self, Kind> {
        assert!((1..=STREAMS_MAX).contains(&limit));
        Ok(Self {
            all: (0..STREAMS_MAX).map(|_| CachePadded::default()).collect(),
            limit: AtomicUsize::new(limit),
            choice: RwLock::new(choice),
            line: Mutex::default(),
            waiting: AtomicUsize::new(0),
            first: Mutex::new(budget.hold(choice.encoder_bytes())?),
            budget,
        })
    }

    /// How many writers may compress at once.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes how many writers may compress at once: 1 to [`STREAMS_MAX`].
    pub(crate) fn set_limit(&self, limit: usize) {
        assert!((1..=STREAMS_MAX).contains(&limit));
        self.limit.store(limit, Ordering::Relaxed);
        self.all[limit..].iter().for_each(|stream| *stream.encoder.lock() = None);
        let waiters: Vec<Waker> = self.line.lock().waiters.values().cloned().collect();
        waiters.into_iter().for_each(Waker::wake);
    }

    /// The codec in use.
    pub(crate) fn choice(&self) -> Choice {
        *self.choice.read()
    }

    /// Changes the codec. No writer is at work.
    pub(crate) fn choose(&self, choice: Choice) -> Result<(), Kind> {
        let first = self.budget.hold(choice.encoder_bytes())?;
        *self.choice.write() = choice;
        self.all.iter().for_each(|stream| *stream.encoder.lock() = None);
        *self.first.lock() = first;
        Ok(())
    }

    /// An idle stream that is kept for no waiter; while tasks wait, only the one that is warm for this thread.
    pub(crate) fn try_take(&self) -> Option<StreamGuard<'_>> {
        let (alone, own) = (self.waiting.load(Ordering::Relaxed) == 0, lane());
        self.look(|stream| {
            stream.is_kept_for(NO_TICKET) && (alone || stream.lane.load(Ordering::Relaxed) == own)
        })
    }

    /// An idle stream; waits for one.
    pub(crate) async fn take(&self, env: &dyn Env) -> StreamGuard<'_> {
        if let Some(taken) = self.look_for_a_while(env) {
            return taken;
        }
        let waiter = Waiter::new(self);
        loop {
            if let Some(taken) = waiter.turn(env).await {
                return taken;
            }
            // Its patience is over: a stream kept for another will do.
            if let Some(taken) = self.look(|_| true) {
                return taken;
            }
        }
    }

    /// Looks for a stream that stays idle, while no task is in line.
    fn look_for_a_while(&self, env: &dyn Env) -> Option<StreamGuard<'_>> {
        let begun = env.now();
        let (mut takes, mut idle_since) = (self.takes(), begun);
        for _ in 0..LOOKS_MAX {
            (0..PAUSES).for_each(|_| spin_loop());
            let now = env.now();
            let seen = self.takes();
            if seen != takes || self.all_busy() {
                (takes, idle_since) = (seen, now);
            }
            if now - idle_since >= IDLE_FOR
                && let Some(taken) = self.try_take()
            {
                return Some(taken);
            }
            if now - begun >= LOOK_FOR || self.waiting.load(Ordering::Relaxed) > 0 {
                return None;
            }
        }
        None
    }

    /// Takes of all streams so far.
    fn takes(&self) -> u32 {
        let streams = self.all[..self.limit()].iter();
        streams.fold(0, |sum, stream| sum.wrapping_add(stream.takes.load(Ordering::Relaxed)))
    }

    fn all_busy(&self) -> bool {
        self.all[..self.limit()].iter().all(|stream| stream.encoder.is_locked())
    }

    fn look(&self, may_have: impl Fn(&Stream) -> bool) -> Option<StreamGuard<'_>> {
        let limit = self.limit.load(Ordering::Relaxed);
        let first = if limit == 1 { 0 } else { lane() % limit };
        (first..limit).chain(0..first).find_map(|index| self.try_stream(index, &may_have))
    }

    /// An encoder for a stream; `None` where there is no memory for it, and the writer waits for another.
    fn make(&self, index: usize) -> Option<Encoder> {
        let choice = self.choice();
        let charge = if index > 0 { Some(self.budget.hold(choice.encoder_bytes()).ok()?) } else { None };
        Some(Encoder::new(CodecIndex::PRIMARY, choice, charge))
    }

    fn try_stream(&self, index: usize, may_have: impl Fn(&Stream) -> bool) -> Option<StreamGuard<'_>> {
        let stream = &self.all[index];
        if stream.encoder.is_locked() || !may_have(stream) {
            return None;
        }
        let mut guard = stream.encoder.try_lock()?;
        if !may_have(stream) {
            return None;
        }
        if guard.is_none() {
            *guard = Some(Box::new(self.make(index)?));
        }
        stream.take_over();
        Some(StreamGuard { guard: Some(guard), streams: self, index })
    }

    /// The first in line, out of it.
    fn next_waiter(&self) -> Option<(u64, Waker)> {
        let mut line = self.line.lock();
        let first = line.waiters.pop_first();
        self.waiting.store(line.waiters.len(), Ordering::Relaxed);
        first
    }
}

impl Stream {
    fn is_kept_for(&self, ticket: u64) -> bool {
        self.kept_for.load(Ordering::Relaxed) == ticket
    }

    /// Notes that this thread has it now.
    fn take_over(&self) {
        self.takes.store(self.takes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.kept_for.load(Ordering::Relaxed) != NO_TICKET {
            self.kept_for.store(NO_TICKET, Ordering::Relaxed);
        }
        let own = lane();
        if self.lane.load(Ordering::Relaxed) != own {
            self.lane.store(own, Ordering::Relaxed);
            self.used.store(0, Ordering::Relaxed);
        }
    }
}

/// A task in line.
struct Waiter<'a> {
    streams: &'a Streams,
    ticket: u64,
}

impl<'a> Waiter<'a> {
    fn new(streams: &'a Streams) -> Self {
        let mut line = streams.line.lock();
        line.next += 1;
        Self { streams, ticket: line.next }
    }

    /// Waits in line until a stream is there, or for as long as its patience lasts.
    async fn turn(&self, env: &dyn Env) -> Option<StreamGuard<'a>> {
        let mut patience = env.sleep(PATIENCE);
        poll_fn(|context| {
            self.register(context.waker());
            let own = |stream: &Stream| {
                stream.is_kept_for(self.ticket) || stream.is_kept_for(NO_TICKET) && self.is_first()
            };
            if let Some(taken) = self.streams.look(own) {
                return Poll::Ready(Some(taken));
            }
            patience.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    fn register(&self, waker: &Waker) {
        let mut line = self.streams.line.lock();
        line.waiters.insert(self.ticket, waker.clone());
        self.streams.waiting.store(line.waiters.len(), Ordering::Relaxed);
    }

    fn is_first(&self) -> bool {
        self.streams.line.lock().waiters.first_key_value().is_some_and(|(first, _)| *first == self.ticket)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut line = self.streams.line.lock();
        line.waiters.remove(&self.ticket);
        self.streams.waiting.store(line.waiters.len(), Ordering::Relaxed);
        drop(line);
        // Served elsewhere, or gone: any writer may have what was kept for it.
        for stream in &self.streams.all[..self.streams.limit()] {
            let free = |kept_for| (kept_for == self.ticket).then_some(NO_TICKET);
            let _ = stream.kept_for.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free);
        }
    }
}

/// A stream in use; goes back on drop.
pub(crate) struct StreamGuard<'a> {
    guard: Option<MutexGuard<'a, Option<Box<Encoder>>>>,
    streams: &'a Streams,
    index: usize,
}

impl std::ops::Deref for StreamGuard<'_> {
    type Target = Encoder;

    fn deref(&self) -> &Encoder {
        self.guard
            .as_ref()
            .and_then(|guard| guard.as_deref())
            .expect("a stream in use has an encoder until it is dropped")
    }
}

impl std::ops::DerefMut for StreamGuard<'_> {
    fn deref_mut(&mut self) -> &mut Encoder {
        self.guard
            .as_mut()
            .and_then(|guard| guard.as_deref_mut())
            .expect("a stream in use has an encoder until it is dropped")
    }
}

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        let stream = &self.streams.all[self.index];
        assert!(guard.is_some(), "a stream in use has an encoder until it is dropped");
        let units = guard.as_mut().map_or(0, |encoder| encoder.take_spent());
        let used = stream.used.load(Ordering::Relaxed).saturating_add(units);
        stream.used.store(used, Ordering::Relaxed);
        if self.index >= self.streams.limit() {
            *guard = None;
        }
        if used < WARM_UNITS || self.streams.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        stream.used.store(0, Ordering::Relaxed);
        let Some((ticket, waker)) = self.streams.next_waiter() else { return };
        let before = stream.kept_for.swap(ticket, Ordering::Relaxed);
        assert_eq!(before, NO_TICKET, "a stream in use is kept for nobody");
        drop(guard);
        waker.wake();
    }
}

#[cfg(test)]
mod tests;
