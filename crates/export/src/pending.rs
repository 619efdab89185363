//! Answers that are still to come, and which of them have news.
//!
//! Each pending answer has a slot with a waker of its own. A wake sets the slot's bit and wakes the session's task once;
//! the session then polls exactly the slots whose bits are set. A waker stays with its slot: a late wake of an earlier
//! occupant costs one needless poll.
//!
//! Why no wake is lost: a wake sets its bit before it swaps `notified`, a poll swaps `notified` back before it collects the
//! bits. Whichever swap is second sees what the other side did: the poll finds the bit, or the wake wakes the task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use spillway_core::buffer::Reserve;
use spillway_core::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use spillway_core::{mutant, work};

/// What a pending request is reckoned to take besides its buffer, in bytes: its futures in all layers, its slot and its wakers.
pub(crate) const REQUEST_BYTES: u64 = 2 << 10;

/// Pending requests that a session's own charge covers.
pub(crate) const REQUESTS_COVERED: usize = 8;

/// Pending requests that are counted in one step, beyond those.
pub(crate) const REQUESTS_STEP: usize = 16;

/// Most pending answers of one session.
pub(crate) const PENDING_MAX: usize = 1024;

const WORDS: usize = PENDING_MAX / 64;

/// Units of work for a poll of an answer, besides what its device does.
const POLL_UNITS: u32 = 5;

/// Which slots have news, and whom to tell.
#[derive(Default)]
struct Ready {
    bits: [AtomicU64; WORDS],
    notified: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Ready {
    fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            // Cloned, so that the task is woken with no lock held.
            let task = self.task.lock().clone();
            if let Some(task) = task {
                task.wake();
            }
        }
    }

    fn register(&self, waker: &Waker) {
        let mut task = self.task.lock();
        match &mut *task {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }
}

struct SlotWaker {
    ready: Arc<Ready>,
    slot: usize,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.bits[self.slot / 64].fetch_or(1 << (self.slot % 64), Ordering::Release);
        self.ready.notify();
    }
}

struct Slot<T, F> {
    waker: Waker,
    occupant: Option<Occupant<T, F>>,
}

struct Occupant<T, F> {
    ticket: T,
    answer: F,
    /// Bytes besides [`REQUEST_BYTES`].
    bytes: u64,
}

/// The pending answers `F` of a session, each with what is kept of its request, `T`.
pub(crate) struct Pending<T, F> {
    slots: Vec<Slot<T, F>>,
    free: Vec<usize>,
    ready: Arc<Ready>,
    news: [u64; WORDS],
    /// Where the search for news goes on.
    next: usize,
    /// Whether an answer was polled since the news were collected.
    polled: bool,
    bytes: u64,
    /// For the requests beyond [`REQUESTS_COVERED`], each for [`REQUESTS_STEP`] of them.
    reserves: Vec<Reserve>,
}

impl<T, F> Default for Pending<T, F> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            ready: Arc::default(),
            news: [0; WORDS],
            next: 0,
            polled: false,
            bytes: 0,
            reserves: Vec::new(),
        }
    }
}

impl<T, F: Future + Unpin> Pending<T, F> {
    /// Whether memory for one more request is counted, or can be.
    pub(crate) fn has_room(&mut self) -> bool {
        let counted = REQUESTS_COVERED + self.reserves.len() * REQUESTS_STEP;
        assert!(
            self.len() <= counted,
            "{} requests are pending, memory is counted for {counted}",
            self.len()
        );
        if self.len() < counted {
            return true;
        }
        let Some(reserve) = Reserve::try_new(REQUESTS_STEP as u64 * REQUEST_BYTES) else { return false };
        self.reserves.push(reserve);
        true
    }

    /// Gives back what only many requests need, once there are none.
    fn shrink(&mut self) {
        assert_eq!(self.bytes, 0, "bytes are held for no request");
        if !self.reserves.is_empty() {
            self.reserves = Vec::new();
            self.slots.truncate(REQUESTS_COVERED + REQUESTS_STEP);
            self.slots.shrink_to_fit();
            self.free = (0..self.slots.len()).collect();
        }
    }

    /// Number of pending answers.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the pending requests hold.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts an answer whose request holds `bytes` besides itself: polls it once, and keeps it unless that was enough.
    pub(crate) fn begin(&mut self, ticket: T, bytes: u64, mut answer: F) -> Option<(T, F::Output)> {
        let index = self.free_slot();
        let slot = &mut self.slots[index];
        assert!(slot.occupant.is_none(), "slot {index} is given to two requests");
        match Pin::new(&mut answer).poll(&mut Context::from_waker(&slot.waker)) {
            Poll::Ready(outcome) => {
                self.free.push(index);
                Some((ticket, outcome))
            }
            Poll::Pending => {
                slot.occupant = Some(Occupant { ticket, answer, bytes });
                self.bytes += REQUEST_BYTES + bytes;
                None
            }
        }
    }

    fn free_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len();
            assert!(slot < PENDING_MAX, "requests are limited before they are submitted");
            let waker = Waker::from(Arc::new(SlotWaker { ready: self.ready.clone(), slot }));
            self.slots.push(Slot { waker, occupant: None });
            slot
        })
    }

    /// From now on news wake this task; [`Pending::next_done`] looks at the news so far.
    pub(crate) fn collect(&mut self, context: &Context<'_>) {
        self.ready.register(context.waker());
        self.ready.notified.swap(false, Ordering::AcqRel);
        self.polled = false;
        let words = self.slots.len().div_ceil(64);
        for (bits, news) in self.ready.bits[..words].iter().zip(&mut self.news) {
            if bits.load(Ordering::Relaxed) != 0 {
                *news |= bits.swap(0, Ordering::Acquire);
            }
        }
    }

    /// The next finished answer among the collected news. One is polled in any case; then some are left for later where the turn is spent.
    pub(crate) fn next_done(&mut self) -> Option<(T, F::Output)> {
        while !(self.polled && work::spent()) {
            let index = self.first_news()?;
            self.news[index / 64] &= !(1 << (index % 64));
            self.next = index + 1;
            self.polled = true;
            if let Some(done) = self.poll_slot(index) {
                return Some(done);
            }
        }
        None
    }

    /// The first slot with news from `next` on, and around: one whose turns are spent on long work has news at once again, and must
    /// not keep the others from theirs.
    fn first_news(&self) -> Option<usize> {
        let start = self.next % PENDING_MAX;
        let in_word = |word: usize, mask: u64| {
            let news = self.news[word] & mask;
            (news != 0).then(|| word * 64 + news.trailing_zeros() as usize)
        };
        let first = start / 64;
        let words = if mutant::on("pending: never look around at earlier news") { 0 } else { WORDS };
        let later = (1..=words).map(|step| (first + step) % WORDS);
        in_word(first, u64::MAX << (start % 64))
            .or_else(|| later.into_iter().find_map(|word| in_word(word, u64::MAX)))
    }

    fn poll_slot(&mut self, index: usize) -> Option<(T, F::Output)> {
        work::spend(POLL_UNITS);
        // A late wake may be of a slot that is gone.
        let slot = self.slots.get_mut(index)?;
        let answer = &mut slot.occupant.as_mut()?.answer;
        let Poll::Ready(outcome) = Pin::new(answer).poll(&mut Context::from_waker(&slot.waker)) else {
            return None;
        };
        let Occupant { ticket, bytes, .. } = slot.occupant.take().expect("it has just answered");
        self.free.push(index);
        let held = REQUEST_BYTES + bytes;
        assert!(self.bytes >= held, "a request gives back {held} bytes of {}", self.bytes);
        self.bytes -= held;
        if self.is_empty() {
            self.shrink();
        }
        Some((ticket, outcome))
    }
}
