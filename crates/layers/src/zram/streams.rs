//! Compression streams: how many writers may compress at once.
//!
//! A stream is a codec's working memory and an output buffer. There are as many places as streams are allowed; each is a
//! lock around a stream that is made when the place is first used. A writer looks first at the place of its own thread,
//! then at the others, and spins for about the time of four pages; if none is free by then its *task* waits. With
//! one stream there is nothing to choose: the place is that one.
//!
//! The number may be changed at any time in both directions: places beyond it are emptied as they fall free.
//!
//! Lock order: a stream is taken with no other lock held, and never held across an await; the locks that storing a page
//! takes come after it.

use std::hint::spin_loop;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use spillway_core::stats::lane;
use spillway_core::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, RwLock, WaitList};
use spillway_core::{Budget, Charge, Kind};

use super::codec::{CODECS, Compressor, Params};
use super::{PAGE, work};

/// Most streams that may be asked for.
pub(super) const STREAMS_MAX: usize = 256;

/// Looks at busy places before a writer's task waits: some 100 us, the time for which a writer keeps a stream with a slow
/// codec. A sleep and a wake cost the returning writer nearly as much; and places are all busy only where there are fewer
/// than workers.
/// The checker of threads tries every order anyway.
const SPINS: usize = if cfg!(feature = "shuttle") { 1 } else { 2400 };

/// Units a page that its connection expects anyway.
const EXPECTED_UNITS: u32 = 31;

/// Which codec streams use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Index into [`CODECS`].
    pub(super) codec: usize,
    pub(super) params: Params,
}

/// A stream at work.
pub(super) struct Stream {
    compressor: Box<dyn Compressor>,
    out: Box<[u8; PAGE]>,
    units: u32,
    _charge: Option<Charge>,
}

/// Bytes that a stream takes.
fn stream_bytes(choice: Choice) -> u64 {
    CODECS[choice.codec].compressor_bytes + PAGE as u64
}

impl Stream {
    fn new(choice: Choice, charge: Option<Charge>) -> Self {
        let codec = &CODECS[choice.codec];
        let compressor = (codec.compressor)(choice.params);
        let units = (codec.compress_units)(choice.params);
        Self { compressor, out: Box::new([0; PAGE]), units, _charge: charge }
    }

    /// The compressed form of `page`, or `None` where it is longer than `len_max` bytes, at most a page.
    pub(super) fn compress(&mut self, page: &[u8], len_max: usize) -> Option<&[u8]> {
        work::note(self.units);
        spillway_core::work::spend(self.units.saturating_sub(EXPECTED_UNITS));
        // The codec stops as soon as it passes the limit: most of the work of a page that does not compress is saved.
        let len = self.compressor.compress(page, &mut self.out[..len_max])?;
        Some(&self.out[..len])
    }
}

fn pages_a_slice(choice: Choice) -> usize {
    CODECS[choice.codec].pages_a_write(choice.params)
}

type Place = Mutex<Option<Box<Stream>>>;

/// All streams of a device.
pub(super) struct Streams {
    places: Box<[CachePadded<Place>]>,
    limit: AtomicUsize,
    choice: RwLock<Choice>,
    codec: AtomicUsize,
    pages_a_slice: AtomicUsize,
    waiters: WaitList,
    budget: Arc<Budget>,
    /// The stream of the first place, which there is always memory for.
    first: Mutex<Charge>,
}

impl Streams {
    /// At most `limit` streams, charged to `budget`; the first one at once.
    pub(super) fn new(limit: usize, choice: Choice, budget: Arc<Budget>) -> Result<Self, Kind> {
        assert!((1..=STREAMS_MAX).contains(&limit));
        let places = (0..STREAMS_MAX).map(|_| CachePadded::default()).collect();
        let codec = AtomicUsize::new(choice.codec);
        let pages_a_slice = AtomicUsize::new(pages_a_slice(choice));
        let (limit, choice) = (AtomicUsize::new(limit), (choice, RwLock::new(choice)));
        let (first, waiters) = (Mutex::new(budget.hold(stream_bytes(choice.0))?), WaitList::default());
        Ok(Self { places, limit, choice: choice.1, codec, pages_a_slice, waiters, budget, first })
    }

    /// How many writers may compress at once.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes how many writers may compress at once: 1 to [`STREAMS_MAX`].
    pub(super) fn set_limit(&self, limit: usize) {
        assert!((1..=STREAMS_MAX).contains(&limit));
        self.limit.store(limit, Ordering::Relaxed);
        self.places[limit..].iter().for_each(|place| *place.lock() = None);
        self.waiters.wake_all();
    }

    /// The codec in use.
    pub(super) fn choice(&self) -> Choice {
        *self.choice.read()
    }

    /// Index of the codec in use: one load, for readers.
    pub(super) fn codec(&self) -> usize {
        self.codec.load(Ordering::Relaxed)
    }

    /// Pages that a poll may compress.
    pub(super) fn pages_a_slice(&self) -> usize {
        self.pages_a_slice.load(Ordering::Relaxed)
    }

    /// Changes the codec. No writer is at work.
    pub(super) fn choose(&self, choice: Choice) -> Result<(), Kind> {
        let first = self.budget.hold(stream_bytes(choice))?;
        *self.choice.write() = choice;
        self.codec.store(choice.codec, Ordering::Relaxed);
        self.pages_a_slice.store(pages_a_slice(choice), Ordering::Relaxed);
        self.places.iter().for_each(|place| *place.lock() = None);
        *self.first.lock() = first;
        Ok(())
    }

    /// An idle stream, after a short spin if need be.
    pub(super) fn try_take(&self) -> Option<Taken<'_>> {
        self.look().or_else(|| {
            (0..SPINS).find_map(|_| {
                spin_loop();
                self.look()
            })
        })
    }

    /// An idle stream; waits in line for one.
    pub(super) async fn take(&self) -> Taken<'_> {
        self.waiters.until(|| self.try_take()).await
    }

    fn look(&self) -> Option<Taken<'_>> {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == 1 {
            return self.try_place(0);
        }
        let first = lane() % limit;
        (first..limit).chain(0..first).find_map(|index| self.try_place(index))
    }

    /// A stream for a place; none where there is no memory for it, and the writer waits for another.
    fn make(&self, index: usize) -> Option<Stream> {
        let choice = self.choice();
        let charge = if index > 0 { Some(self.budget.hold(stream_bytes(choice)).ok()?) } else { None };
        Some(Stream::new(choice, charge))
    }

    fn try_place(&self, index: usize) -> Option<Taken<'_>> {
        let place = &self.places[index];
        if place.is_locked() {
            return None;
        }
        let mut guard = place.try_lock()?;
        if guard.is_none() {
            *guard = Some(Box::new(self.make(index)?));
        }
        Some(Taken { guard: Some(guard), streams: self, index })
    }
}

/// A stream in use; goes back on drop.
pub(super) struct Taken<'a> {
    guard: Option<MutexGuard<'a, Option<Box<Stream>>>>,
    streams: &'a Streams,
    index: usize,
}

impl std::ops::Deref for Taken<'_> {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        self.guard
            .as_ref()
            .and_then(|guard| guard.as_deref())
            .expect("a taken place has a stream until it is dropped")
    }
}

impl std::ops::DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Stream {
        self.guard
            .as_mut()
            .and_then(|guard| guard.as_deref_mut())
            .expect("a taken place has a stream until it is dropped")
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take()
            && self.index >= self.streams.limit()
        {
            *guard = None;
        }
        self.streams.waiters.wake_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::contract::block_on;
    use std::sync::atomic::AtomicUsize as Count;

    fn streams(limit: usize) -> Streams {
        Streams::new(limit, Choice::default(), Budget::new(1 << 30)).unwrap()
    }

    #[test]
    fn where_memory_is_short_there_is_always_the_first_stream() {
        let budget = Budget::new(stream_bytes(Choice::default()) * 5 / 2);
        let streams = Streams::new(4, Choice::default(), budget.clone()).unwrap();
        let first = streams.try_take().unwrap();
        let second = streams.try_take().unwrap();
        assert!(streams.try_take().is_none(), "a third is not charged for, and not made");
        assert!(budget.used() <= budget.limit());
        drop((first, second));
        streams.set_limit(1);
        assert_eq!(budget.used(), stream_bytes(Choice::default()));
        budget.set_limit(budget.used());
        drop(streams.try_take().unwrap());
        assert_eq!(Streams::new(1, Choice::default(), budget).err(), Some(Kind::NoSpace));
    }

    #[test]
    fn no_more_writers_than_streams_at_any_time() {
        let streams = streams(2);
        let (now, most) = (Count::new(0), Count::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mut stream = block_on(streams.take());
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        assert!(stream.compress(&[7; PAGE], PAGE).is_some());
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 2);
    }

    #[test]
    fn the_number_changes_while_writers_work_and_surplus_streams_go() {
        let streams = streams(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        block_on(streams.take()).compress(&[7; PAGE], PAGE);
                    }
                });
            }
            for limit in [1, 8, 2, 1, 3].repeat(50) {
                streams.set_limit(limit);
            }
            streams.set_limit(1);
        });
        assert!(streams.places[1..].iter().all(|place| place.lock().is_none()));
        assert_eq!(streams.waiters.waiting(), 0);
    }

    #[test]
    fn a_task_that_finds_none_idle_is_woken_by_the_next_return() {
        use std::future::Future;
        use std::task::{Context, Waker};
        let streams = streams(1);
        let held = streams.try_take().unwrap();
        let mut waiting = Box::pin(streams.take());
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(streams.waiters.waiting(), 1);
        drop(held);
        assert_eq!(streams.waiters.waiting(), 0);
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
