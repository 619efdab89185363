//! The limit on all buffers of the process, and unused ones that threads keep for the next request.
//!
//! A thread keeps blocks of 4 KiB for itself, so that a small request takes no lock; everything larger lies in its cache,
//! behind a lock that other threads take only when they are short of memory. The buffer that lay unused longest goes first, so
//! that a cache follows the sizes in use. While a task waits for memory nothing is kept.
//!
//! Why idle memory keeps no task waiting: a waiter queues for memory, then empties every cache; a thread that puts a buffer into
//! its cache looks for waiters afterwards, and empties it where there is one. The later of the two finds the memory. Blocks of
//! 4 KiB stay with their threads: a quarter of a thread's share each, which is a sixteenth of the limit for all, and no more
//! than [`NEAR_MAX`]. A thread that kept its share when there were fewer gives the rest back at its next use: threads that come
//! one after the other and idle may keep several times that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::page::{ALIGNMENT, Page, new_pages};
use crate::sync::{AtomicU64, Ordering, Semaphore, Unseen};

/// Most bytes of unused buffers in a cache. In a model of the checker of threads nothing outlives it.
const CACHE_BYTES_MAX: u64 = 2 << 20;

/// All threads together keep no more than this share of the limit.
const CACHES_SHARE: u64 = 4;

/// The part of a thread's share that it keeps for itself, as one in so many.
const NEAR_SHARE: u64 = 4;

/// Most blocks of 4 KiB that a thread keeps for itself, beside its cache.
const NEAR_MAX: u64 = 32;

/// In bytes, those of caches included.
static SPACE: Semaphore = Semaphore::new(u64::MAX);

/// Bytes that a cache may keep, by the limit and the number of caches.
static CACHE_BYTES: AtomicU64 = AtomicU64::new(CACHE_BYTES_MAX);

/// Blocks that a thread may keep for itself, by the same.
static NEAR_BLOCKS: AtomicU64 = AtomicU64::new(NEAR_MAX);

static CACHES: Unseen<Vec<Arc<ThreadCache>>> = Unseen::new(Vec::new());

thread_local! {
    static OWN: Own = Own::new();
}

struct Own {
    near: RefCell<Vec<Box<[Page]>>>,
    cache: Arc<ThreadCache>,
}

impl Own {
    fn new() -> Self {
        let cache = Arc::new(ThreadCache::default());
        let mut caches = CACHES.lock();
        caches.push(cache.clone());
        divide(caches.len());
        Self { near: RefCell::default(), cache }
    }

    /// Keeps memory for the next request of this thread.
    fn keep(&self, memory: Box<[Page]>) {
        let blocks_max = NEAR_BLOCKS.load(Ordering::Relaxed) as usize;
        let mut near = self.near.borrow_mut();
        if memory.len() == 1 && near.len() < blocks_max {
            return near.push(memory);
        }
        // There were fewer threads when these were kept.
        let surplus = if near.len() > blocks_max { near.split_off(blocks_max) } else { Vec::new() };
        drop(near);
        surplus.into_iter().chain([memory]).for_each(|memory| self.cache.put(memory));
    }

    fn empty(&self) {
        let near = std::mem::take(&mut *self.near.borrow_mut());
        near.into_iter().for_each(free);
        self.cache.empty();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut caches = CACHES.lock();
        caches.retain(|cache| !Arc::ptr_eq(cache, &self.cache));
        divide(caches.len());
        drop(caches);
        self.empty();
    }
}

/// Sets what each of so many threads may keep.
fn divide(caches: usize) {
    // In a model nothing is kept; and this runs at the end of a thread, when no model is left to look at the limit.
    if cfg!(feature = "shuttle") {
        return;
    }
    let share = SPACE.limit() / CACHES_SHARE / caches.max(1) as u64;
    let near = (share / NEAR_SHARE / ALIGNMENT as u64).min(NEAR_MAX);
    NEAR_BLOCKS.store(near, Ordering::Relaxed);
    CACHE_BYTES.store((share - near * ALIGNMENT as u64).min(CACHE_BYTES_MAX), Ordering::Relaxed);
}

/// Unused buffers of a thread, the one that came last at the end.
#[derive(Default)]
struct ThreadCache(Unseen<Kept>);

#[derive(Default)]
struct Kept {
    list: VecDeque<Box<[Page]>>,
    bytes: u64,
}

impl Kept {
    fn take(&mut self, pages: usize) -> Option<Box<[Page]>> {
        let index = self.list.iter().rposition(|memory| memory.len() == pages)?;
        self.bytes -= (pages * ALIGNMENT) as u64;
        self.list.remove(index)
    }

    fn put(&mut self, memory: Box<[Page]>) {
        self.bytes += bytes_of(&memory);
        self.list.push_back(memory);
    }

    fn evict(&mut self, bytes_max: u64) -> Option<Box<[Page]>> {
        if self.bytes <= bytes_max {
            return None;
        }
        let oldest = self.list.pop_front()?;
        self.bytes -= bytes_of(&oldest);
        Some(oldest)
    }
}

impl ThreadCache {
    fn take(&self, pages: usize) -> Option<Box<[Page]>> {
        self.0.lock().take(pages)
    }

    fn put(&self, memory: Box<[Page]>) {
        let bytes_max = CACHE_BYTES.load(Ordering::Relaxed);
        if bytes_of(&memory) > bytes_max {
            return free(memory);
        }
        self.0.lock().put(memory);
        while let Some(oldest) = self.evict(bytes_max) {
            free(oldest);
        }
        if SPACE.waiting() > 0 {
            self.empty();
        }
    }

    /// The lock is free again when this returns: freeing may be a system call.
    fn evict(&self, bytes_max: u64) -> Option<Box<[Page]>> {
        self.0.lock().evict(bytes_max)
    }

    fn empty(&self) {
        let kept = std::mem::take(&mut *self.0.lock());
        kept.list.into_iter().for_each(free);
    }
}

fn bytes_of(memory: &[Page]) -> u64 {
    (memory.len() * ALIGNMENT) as u64
}

fn free(memory: Box<[Page]>) {
    let bytes = bytes_of(&memory);
    drop(memory);
    SPACE.give(bytes);
}

/// Sets the bytes that all buffers of the process together may take. Called once, before the first request.
pub fn set_limit(bytes: u64) {
    SPACE.set_limit(bytes);
    divide(CACHES.lock().len());
}

/// Bytes taken for buffers and by [`Reserve`]s now, buffers kept for reuse included.
pub fn bytes_in_use() -> u64 {
    SPACE.used()
}

/// Tasks that wait for memory now.
pub fn waiting() -> usize {
    SPACE.waiting()
}

/// Whether no memory is left, unused buffers of other threads included.
pub fn is_short() -> bool {
    let short = || SPACE.waiting() > 0 || SPACE.used() >= SPACE.limit();
    short() && {
        empty_caches(|| !short());
        short()
    }
}

/// Memory of that many pages, if it can be had at once; whatever the limit is, where it is not `limited`.
pub(super) fn obtain(pages: usize, limited: bool) -> Option<Box<[Page]>> {
    if let Some(memory) = OWN.try_with(|own| take_kept(own, pages)).ok().flatten() {
        return Some(memory);
    }
    let bytes = (pages * ALIGNMENT) as u64;
    match limited {
        true => claim(bytes).then(|| new_pages(pages)),
        false => {
            SPACE.force(bytes);
            Some(new_pages(pages))
        }
    }
}

fn take_kept(own: &Own, pages: usize) -> Option<Box<[Page]>> {
    let near = if pages == 1 { own.near.borrow_mut().pop() } else { None };
    near.or_else(|| own.cache.take(pages))
}

/// Counts `bytes` as taken, with the unused buffers of this thread and then of others given back where that helps.
fn claim(bytes: u64) -> bool {
    if SPACE.try_take(bytes) {
        return true;
    }
    let _ = OWN.try_with(Own::empty);
    let mut claimed = SPACE.try_take(bytes);
    if !claimed {
        empty_caches(|| {
            claimed = SPACE.try_take(bytes);
            claimed
        });
    }
    claimed
}

/// Gives back what the threads' caches hold, one after the other until that is `enough`.
fn empty_caches(mut enough: impl FnMut() -> bool) {
    let caches = CACHES.lock().clone();
    for cache in caches {
        cache.empty();
        if enough() {
            return;
        }
    }
}

/// Waits for memory of that many pages, in turn.
pub(super) async fn wait_for(pages: usize) -> Box<[Page]> {
    let mut take = pin!(SPACE.take((pages * ALIGNMENT) as u64));
    let mut queued = false;
    poll_fn(|context| {
        let waits = take.as_mut().poll(context).is_pending();
        if !waits || std::mem::replace(&mut queued, true) {
            return if waits { Poll::Pending } else { Poll::Ready(()) };
        }
        let _ = OWN.try_with(Own::empty);
        empty_caches(|| SPACE.waiting() == 0);
        take.as_mut().poll(context)
    })
    .await;
    new_pages(pages)
}

/// Keeps memory for the next request, or frees it.
pub(super) fn recycle(memory: Box<[Page]>) {
    // A model leaves nothing to the next.
    if SPACE.waiting() > 0 || cfg!(feature = "shuttle") {
        free(memory);
        // What this thread keeps is of more use to who waits.
        let _ = OWN.try_with(Own::empty);
        return;
    }
    let mut memory = Some(memory);
    let _ = OWN.try_with(|own| own.keep(memory.take().expect("set above")));
    if let Some(memory) = memory {
        free(memory);
    }
}

/// Bytes of the limit on buffers that something else than a buffer takes, given back on drop.
#[derive(Debug)]
pub struct Reserve(u64);

impl Reserve {
    /// Takes `bytes`, or `None` where they are not left.
    pub fn try_new(bytes: u64) -> Option<Self> {
        claim(bytes).then(|| Self(bytes))
    }

    /// Takes `bytes` whatever the limit is: for what is held already and changes hands.
    pub fn force(bytes: u64) -> Self {
        SPACE.force(bytes);
        Self(bytes)
    }

    /// Bytes taken.
    pub fn bytes(&self) -> u64 {
        self.0
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        SPACE.give(self.0);
    }
}
