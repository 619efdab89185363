//! The limit on all buffers of an engine, and unused ones that its threads keep for the next request.
//!
//! A thread belongs to one engine at a time. It keeps blocks of 4 KiB for itself, so that a small request takes no lock; everything
//! larger lies in its cache, behind a lock that other threads take only when they are short of memory. The buffer that lay unused
//! longest goes first, so that a cache follows the sizes in use. While a task waits for memory nothing is kept. A block names the
//! engine that it was charged to: dropped on a thread of another one, it is freed.
//!
//! Why idle memory keeps no task waiting: a waiter queues for memory, then empties every cache; a thread that puts a buffer into
//! its cache looks for waiters afterwards, and empties it where there is one. The later of the two finds the memory. Blocks of
//! 4 KiB stay with their threads: a quarter of a thread's share each, which is a sixteenth of the limit for all, and no more
//! than [`NEAR_MAX`]. A thread that kept its share when there were fewer gives the rest back at its next use: threads that come
//! one after the other and idle may keep several times that.
//!
//! Nothing is dropped while what a thread keeps is borrowed: memory that comes free may wake a task, and that may be anything.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::block::{BufferBlock, Kept, TakeBack};
use super::lender::Lender;
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

/// Whom the memory of buffers belongs to.
pub(super) enum BufferOwner {
    Pool(BufferPool),
    Lender(Lender),
}

/// Memory of a buffer.
pub(super) type BufferMemory = BufferBlock<BufferOwner>;

impl BufferOwner {
    pub(super) fn pool(&self) -> &BufferPool {
        match self {
            Self::Pool(pool) => pool,
            Self::Lender(_) => unreachable!("threads belong to a pool"),
        }
    }
}

impl TakeBack for BufferOwner {
    fn take_back(&self, pages: Box<[Page]>) {
        match self {
            Self::Pool(pool) => pool.free(pages),
            Self::Lender(lender) => lender.give_back(pages),
        }
    }
}

/// What the threads of an engine share.
pub(super) struct BufferPool {
    /// In bytes, those of caches included.
    space: Semaphore,
    /// What of that is not for buffers.
    reserved: AtomicU64,
    /// Bytes that a cache may keep, by the limit and the number of caches.
    cache_bytes: AtomicU64,
    /// Blocks that a thread may keep for itself, by the same.
    near_blocks: AtomicU64,
    caches: Unseen<Vec<Arc<Cache>>>,
}

/// Unused buffers of a thread that others may take away.
#[derive(Default)]
struct Cache(Unseen<Kept<BufferOwner>>);

impl Cache {
    /// Nothing is dropped under the lock: that may be a system call.
    fn empty(&self) {
        let kept = self.0.lock().take_all();
        drop(kept);
    }
}

impl BufferPool {
    pub(super) fn new(limit: u64) -> Self {
        let pool = Self {
            space: Semaphore::new(limit),
            reserved: AtomicU64::new(0),
            cache_bytes: AtomicU64::new(0),
            near_blocks: AtomicU64::new(0),
            caches: Unseen::default(),
        };
        pool.divide(1);
        pool
    }

    /// Sets what each of so many threads may keep.
    fn divide(&self, threads: usize) {
        // In a model nothing is kept; and this runs at the end of a thread, when no model is left to look at the limit.
        if cfg!(feature = "shuttle") {
            return;
        }
        let share = self.space.limit() / CACHES_SHARE / threads.max(1) as u64;
        let near = (share / NEAR_SHARE / ALIGNMENT as u64).min(NEAR_MAX);
        self.near_blocks.store(near, Ordering::Relaxed);
        self.cache_bytes.store((share - near * ALIGNMENT as u64).min(CACHE_BYTES_MAX), Ordering::Relaxed);
    }

    fn free(&self, pages: Box<[Page]>) {
        let bytes = (pages.len() * ALIGNMENT) as u64;
        drop(pages);
        self.space.give(bytes);
    }

    /// Takes `bytes` for something else than a buffer, if they can be had at once; whatever the limit is, where it is not `limited`.
    pub(super) fn reserve(&self, bytes: u64, limited: bool) -> bool {
        let reserved = self.obtain(bytes, limited);
        if reserved {
            self.reserved.fetch_add(bytes, Ordering::Relaxed);
        }
        reserved
    }

    /// Gives back what was reserved.
    pub(super) fn release(&self, bytes: u64) {
        let before = self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} bytes were given back of {before} that are reserved");
        self.space.give(bytes);
    }

    fn obtain(&self, bytes: u64, limited: bool) -> bool {
        if !limited {
            self.space.force(bytes);
        }
        !limited || self.claim(bytes)
    }

    /// Bytes taken, those that threads keep included.
    pub(super) fn used(&self) -> u64 {
        self.space.used()
    }

    /// Bytes taken for buffers, less what this thread keeps, and the others in their caches.
    pub(super) fn held(&self) -> u64 {
        let near = OWN.with(|own| own.borrow().near_of(self));
        let cached: u64 = self.caches.lock().iter().map(|cache| cache.0.lock().bytes()).sum();
        self.used() - self.reserved.load(Ordering::Relaxed) - near - cached
    }

    /// Tasks that wait for memory.
    pub(super) fn waiting(&self) -> usize {
        self.space.waiting()
    }

    fn seems_short(&self) -> bool {
        self.waiting() > 0 || self.used() >= self.space.limit()
    }

    fn is_short(&self) -> bool {
        self.seems_short() && {
            self.empty_caches(|| !self.seems_short());
            self.seems_short()
        }
    }

    /// Counts `bytes` as taken, with the unused buffers of this thread and then of others given back where that helps.
    fn claim(&self, bytes: u64) -> bool {
        if self.space.try_take(bytes) {
            return true;
        }
        empty_own();
        let mut claimed = self.space.try_take(bytes);
        if !claimed {
            self.empty_caches(|| {
                claimed = self.space.try_take(bytes);
                claimed
            });
        }
        claimed
    }

    /// Gives back what the threads' caches hold, one after the other until that is `enough`.
    fn empty_caches(&self, mut enough: impl FnMut() -> bool) {
        let caches = self.caches.lock().clone();
        for cache in caches {
            cache.empty();
            if enough() {
                return;
            }
        }
    }

    /// Waits for so many bytes, in turn.
    async fn wait_for(&self, bytes: u64) {
        let mut take = pin!(self.space.take(bytes));
        let mut queued = false;
        poll_fn(|context| {
            let waits = take.as_mut().poll(context).is_pending();
            if !waits || std::mem::replace(&mut queued, true) {
                return if waits { Poll::Pending } else { Poll::Ready(()) };
            }
            empty_own();
            self.empty_caches(|| self.waiting() == 0);
            take.as_mut().poll(context)
        })
        .await;
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        // What is charged names its owner, so nothing is. A model may have ended before it looks.
        assert!(cfg!(feature = "shuttle") || self.used() == 0, "{} bytes are charged to nobody", self.used());
    }
}

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own { near: Vec::new(), member: None }) };
}

/// What a thread has of its engine.
struct Own {
    /// Blocks of 4 KiB that no other thread can take.
    near: Vec<BufferMemory>,
    /// Absent until the thread enters an engine, or first needs one.
    member: Option<Member>,
}

/// A thread's place in its engine.
struct Member {
    owner: Arc<BufferOwner>,
    cache: Arc<Cache>,
}

impl Member {
    fn new(owner: Arc<BufferOwner>) -> Self {
        let (pool, cache) = (owner.pool(), Arc::<Cache>::default());
        let mut caches = pool.caches.lock();
        caches.push(cache.clone());
        pool.divide(caches.len());
        drop(caches);
        Self { owner, cache }
    }

    /// Whether this thread may keep that memory: it is of the same engine. A model of the checker of threads leaves nothing to the next.
    fn keeps(&self, memory: &BufferMemory) -> bool {
        !cfg!(feature = "shuttle") && memory.is_of(&self.owner)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let pool = self.owner.pool();
        let mut caches = pool.caches.lock();
        let before = caches.len();
        caches.retain(|cache| !Arc::ptr_eq(cache, &self.cache));
        assert_eq!(caches.len() + 1, before, "a thread leaves an engine that has its cache once");
        pool.divide(caches.len());
        drop(caches);
        self.cache.empty();
    }
}

impl Own {
    /// Keeps a block of 4 KiB for the next request of this thread. Gives back what it does not keep.
    fn keep_near(&mut self, memory: BufferMemory) -> Option<BufferMemory> {
        let Some(member) = self.member.as_ref().filter(|member| member.keeps(&memory)) else {
            return Some(memory);
        };
        let pool = member.owner.pool();
        let room = self.near.len() < pool.near_blocks.load(Ordering::Relaxed) as usize;
        if memory.pages().len() > 1 || !room || pool.waiting() > 0 {
            return Some(memory);
        }
        self.near.push(memory);
        None
    }

    /// Keeps memory in the cache, and gives what is to be dropped instead; or gives back what this thread does not keep.
    fn keep_in_cache(&mut self, memory: BufferMemory) -> Result<Vec<BufferMemory>, BufferMemory> {
        let Some(member) = self.member.as_ref().filter(|member| member.keeps(&memory)) else {
            return Err(memory);
        };
        let pool = member.owner.pool();
        let near_max = pool.near_blocks.load(Ordering::Relaxed) as usize;
        let (bytes_max, mut gone) = (pool.cache_bytes.load(Ordering::Relaxed), Vec::new());
        // There were fewer threads when these were kept.
        let surplus = self.near.drain(self.near.len().min(near_max)..);
        let mut kept = member.cache.0.lock();
        surplus.chain([memory]).for_each(|memory| kept.put(memory, bytes_max, &mut gone));
        drop(kept);
        // What this thread keeps is of more use to who waits.
        if pool.waiting() > 0 {
            gone.append(&mut self.take_all());
        }
        Ok(gone)
    }

    fn take_all(&mut self) -> Vec<BufferMemory> {
        let mut all = std::mem::take(&mut self.near);
        all.extend(self.member.iter().flat_map(|member| member.cache.0.lock().take_all()));
        all
    }

    fn near_of(&self, pool: &BufferPool) -> u64 {
        let own = self.member.as_ref().is_some_and(|member| std::ptr::eq(member.owner.pool(), pool));
        if own { (self.near.len() * ALIGNMENT) as u64 } else { 0 }
    }
}

/// The pool of this thread's engine. A thread that has entered none has one of its own, without a limit.
pub(super) fn current() -> Arc<BufferOwner> {
    let unlimited = || Arc::new(BufferOwner::Pool(BufferPool::new(u64::MAX)));
    let member = |own: &RefCell<Own>| {
        own.borrow_mut().member.get_or_insert_with(|| Member::new(unlimited())).owner.clone()
    };
    OWN.try_with(member).unwrap_or_else(|_| unlimited())
}

/// This thread belongs to `owner`, a pool, from now on.
pub(super) fn enter(owner: Arc<BufferOwner>) {
    let own = Own { near: Vec::new(), member: Some(Member::new(owner)) };
    let before = OWN.with(|place| place.replace(own));
    drop(before);
}

/// Gives back what this thread keeps.
fn empty_own() {
    let all = OWN.try_with(|own| own.borrow_mut().take_all());
    drop(all);
}

/// Whether no memory is left to this thread's engine, unused buffers of other threads included.
pub fn is_short() -> bool {
    let seems_short = |own: &RefCell<Own>| {
        own.borrow().member.as_ref().is_some_and(|member| member.owner.pool().seems_short())
    };
    OWN.try_with(seems_short).unwrap_or(false) && current().pool().is_short()
}

/// Memory of that many pages, if it can be had at once; whatever the limit is, where it is not `limited`.
pub(super) fn obtain(pages: usize, limited: bool) -> Option<BufferMemory> {
    let near = |own: &RefCell<Own>| own.borrow_mut().near.pop();
    let near = if pages == 1 { OWN.try_with(near).ok().flatten() } else { None };
    near.or_else(|| obtain_elsewhere(pages, limited))
}

#[inline(never)]
fn obtain_elsewhere(pages: usize, limited: bool) -> Option<BufferMemory> {
    let cached = |own: &RefCell<Own>| own.borrow().member.as_ref()?.cache.0.lock().take(pages);
    if let Some(memory) = OWN.try_with(cached).ok().flatten() {
        return Some(memory);
    }
    let owner = current();
    let obtained = owner.pool().obtain((pages * ALIGNMENT) as u64, limited);
    obtained.then(|| BufferMemory::new(new_pages(pages), owner))
}

/// Waits for memory of that many pages, in turn.
pub(super) async fn wait_for(pages: usize) -> BufferMemory {
    let owner = current();
    owner.pool().wait_for((pages * ALIGNMENT) as u64).await;
    BufferMemory::new(new_pages(pages), owner)
}

/// Keeps memory for the next request of this thread, or gives it back to its owner.
pub(super) fn recycle(memory: BufferMemory) {
    let rest = OWN.try_with(|own| own.borrow_mut().keep_near(memory)).ok().flatten();
    if let Some(memory) = rest {
        recycle_elsewhere(memory);
    }
}

#[inline(never)]
fn recycle_elsewhere(memory: BufferMemory) {
    let gone = OWN.try_with(|own| own.borrow_mut().keep_in_cache(memory));
    drop(gone);
}
