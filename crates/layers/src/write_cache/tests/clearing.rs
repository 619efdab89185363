//! Flushes while very many entries are to be cleared.

use spillway_core::Works;
use std::cell::Cell;
use std::rc::Rc;

use super::*;

const SMALL: u64 = 512;
const BLOCKS: u64 = 600_000;
const PIECE: u64 = 1 << 20;

/// A device that serves one request after the other: 20 us and 200 MB/s for each, and what a flush costs. It keeps its first
/// bytes only, and reads as zeroes behind them; so much data would take too long to store.
pub(super) struct Slow {
    kept: Mutex<Vec<u8>>,
    size: u64,
    flush: Duration,
    busy_until: Mutex<Duration>,
    written: AtomicU64,
    world: Arc<World>,
}

impl Slow {
    pub(super) fn new(world: &Arc<World>, size: u64, kept: usize, flush_ms: u64) -> Arc<Self> {
        Arc::new(Self {
            kept: Mutex::new(vec![0; kept]),
            size,
            flush: Duration::from_millis(flush_ms),
            busy_until: Mutex::default(),
            written: AtomicU64::new(0),
            world: world.clone(),
        })
    }

    /// How long a request has to wait for its end.
    fn time(&self, request: &Request) -> Duration {
        let moved = if matches!(request.op, Op::Read | Op::Write) { request.range.len } else { 0 };
        let flush = if request.op == Op::Flush || request.flags.fua { self.flush } else { Duration::ZERO };
        let mut busy_until = self.busy_until.lock();
        let begin = (*busy_until).max(self.world.now());
        *busy_until = begin + Duration::from_nanos(20_000 + moved * 5) + flush;
        *busy_until - self.world.now()
    }

    fn carry_out(&self, request: &mut Request) {
        let mut kept = self.kept.lock();
        let len = kept.len() as u64;
        let end = (request.range.offset + request.range.len).min(len);
        let place = request.range.offset.min(len) as usize..end as usize;
        match request.op {
            Op::Read => {
                request.buf[place.len()..].fill(0);
                request.buf[..place.len()].copy_from_slice(&kept[place]);
            }
            Op::Write => {
                self.written.fetch_add(place.len() as u64, Ordering::Relaxed);
                kept[place.clone()].copy_from_slice(&request.buf[..place.len()]);
            }
            _ => {}
        }
    }
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::SECTOR, volatile: false, ..Geometry::in_memory(self.size) }
    }

    fn submit(&self, mut request: Request) -> Submission {
        self.carry_out(&mut request);
        let ended = self.world.sleep(self.time(&request));
        Answer::pending(async move {
            ended.await;
            request.answer(Ok(()))
        })
    }
}

/// A cache of many small blocks over an origin of as many.
struct Large {
    world: Arc<World>,
    meta: Arc<Slow>,
    cache: Arc<WriteCache>,
}

impl Large {
    fn new(flush_ms: u64) -> Self {
        let world = World::new(7);
        let origin = Slow::new(&world, BLOCKS * SMALL, 0, flush_ms);
        // Twice the blocks: all may be overwritten before a commit.
        let meta = Slow::new(&world, 2 * BLOCKS * SMALL + (40 << 20), 40 << 20, flush_ms);
        let config = Config {
            block_size: SMALL,
            high_watermark: 100,
            low_watermark: 100,
            autocommit_blocks: Some(u64::from(u32::MAX)),
            autocommit_time: 3_600_000,
            ..config()
        };
        let budget = Budget::new(256 << 20);
        let (device, env) = (meta.clone(), world.clone());
        let open =
            async move { WriteCache::open(&config, origin, device, env, budget, Works::default()).await };
        let (cache, _) = world.run(Answer::pending(open)).unwrap();
        Self { world, meta, cache }
    }

    fn ask(&self, request: Request) {
        assert_eq!(self.world.run(Seam::new(self.cache.clone()).submit(request)).result, Ok(()));
    }

    fn write_all(&self) {
        for at in (0..BLOCKS * SMALL).step_by(PIECE as usize) {
            let len = PIECE.min(BLOCKS * SMALL - at);
            self.ask(Request::write(at, IoBuf::new(len as usize)));
        }
    }

    /// Flushes; how long that took, and the bytes of metadata that were written meanwhile.
    fn flush(&self) -> (Duration, u64) {
        let (begin, before) = (self.world.now(), self.meta.written.load(Ordering::Relaxed));
        self.ask(Request::flush());
        (self.world.now() - begin, self.meta.written.load(Ordering::Relaxed) - before)
    }
}

/// A flush waits for what is being cleared at the moment, not for all that is to be.
#[test]
fn a_flush_comes_between_slices_of_a_clear() {
    for flush_ms in [5, 30] {
        let large = Large::new(flush_ms);
        large.write_all();
        large.flush();
        large.write_all();
        large.flush();
        let stale = large.cache.core.journal.stale();
        assert!(stale > 500_000, "everything was overwritten: {stale}");
        for _ in 0..4 {
            large.ask(Request::write(0, IoBuf::new(512)));
            let (took, written) = large.flush();
            assert!(took < Duration::from_secs(2), "{took:?}");
            assert!(written < 4 << 20, "{written} bytes of metadata, of {} in all", BLOCKS * 16);
        }
        large.world.power_off();
    }
}

/// A flush after a discard has to wait until the entries are clear: a discard does not end before few are left.
#[test]
fn a_flush_after_a_discard_of_everything_is_answered_soon() {
    for flush_ms in [5, 30] {
        let large = Large::new(flush_ms);
        large.write_all();
        large.flush();
        large.ask(Request::bare(Op::Discard, ByteRange::new(0, BLOCKS * SMALL)));
        let left = large.cache.core.journal.stale();
        assert!(left <= 300_000, "{left} entries are to be cleared");
        let (took, _) = large.flush();
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(show(&large.cache, "dirty_blocks"), "0");
        large.world.power_off();
    }
}

/// Discards at the same time leave no more to be cleared than one alone.
#[test]
fn discards_together_leave_as_few_entries_as_one() {
    const TOGETHER: u64 = 10;
    let large = Large::new(5);
    large.write_all();
    large.flush();
    let ended: Rc<Cell<u64>> = Rc::default();
    for nth in 0..TOGETHER {
        let len = BLOCKS / TOGETHER * SMALL;
        let discard = Request::bare(Op::Discard, ByteRange::new(nth * len, len));
        let (answer, ended) = (Seam::new(large.cache.clone()).submit(discard), ended.clone());
        large.world.spawn_here(Box::pin(async move {
            assert_eq!(answer.await.result, Ok(()));
            ended.set(ended.get() + 1);
        }));
    }
    let mut most = 0;
    while ended.get() < TOGETHER {
        assert!(large.world.go_on());
        most = most.max(large.cache.core.journal.stale());
    }
    assert!(most <= 300_000, "{most} entries were to be cleared at once");
    assert_eq!(show(&large.cache, "dirty_blocks"), "0");
    large.world.power_off();
}

/// A discard walks the index in slices: others have their turn in between.
#[test]
fn a_discard_of_everything_gives_way() {
    let large = Large::new(5);
    large.write_all();
    large.flush();
    let discard = Request::bare(Op::Discard, ByteRange::new(0, BLOCKS * SMALL));
    let done: Rc<Cell<bool>> = Rc::default();
    let answer = Seam::new(large.cache.clone()).submit(discard);
    large.world.spawn_here(Box::pin({
        let done = done.clone();
        async move {
            answer.await;
            done.set(true);
        }
    }));
    let mut steps = 0;
    while !done.get() {
        let left = || large.cache.core.index.held() - large.cache.core.index.writing_back();
        let before = left();
        assert!(large.world.go_on());
        assert!(before - left() <= 2 * crate::write_cache::index::LOOKS as u32, "{before} to {}", left());
        steps += 1;
    }
    assert!(steps > 2 * BLOCKS / 2048, "{steps} steps");
    large.world.power_off();
}

/// Runs `work` and everything else; what `look` says after each step until it is done.
fn steps<T: Unpin + 'static>(world: &World, work: Answer<T>, mut look: impl FnMut() -> usize) -> Vec<usize> {
    let done: Rc<Cell<bool>> = Rc::default();
    world.spawn_here(Box::pin({
        let done = done.clone();
        async move {
            work.await;
            done.set(true);
        }
    }));
    let mut seen = Vec::new();
    while !done.get() {
        assert!(world.go_on());
        seen.push(look());
    }
    seen
}

/// A long read pins its blocks and unpins them in slices, and a question about extents walks in such.
#[test]
fn long_reads_and_walks_over_extents_give_way() {
    const SLICE: usize = crate::write_cache::index::LOOKS;
    let large = Large::new(5);
    large.write_all();
    large.flush();
    let pinned = || large.cache.core.index.pinned();
    let read = Request::read(PIECE / 2, IoBuf::new(32 << 20));
    let blocks = (32 << 20) / SMALL as usize;
    let seen = steps(&large.world, Seam::new(large.cache.clone()).submit(read), pinned);
    assert_eq!(seen.iter().max(), Some(&blocks), "all of it is pinned while it is read");
    let apart = seen.windows(2).map(|pair| pair[0].abs_diff(pair[1])).max().unwrap();
    assert!(apart <= SLICE, "{apart} blocks in one step");
    assert_eq!(pinned(), 0);
    // One that is withdrawn unpins as well, also in the middle of its lookup.
    for polls in [1, 5, 40] {
        let read = Request::read(0, IoBuf::new(32 << 20));
        let mut answer = Box::pin(async { Seam::new(large.cache.clone()).submit(read).await });
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..polls {
            assert!(answer.as_mut().poll(&mut context).is_pending());
        }
        assert!(pinned() > 0);
        drop(answer);
        assert_eq!(pinned(), 0);
    }
    let extents = large.cache.extents(ByteRange::new(0, BLOCKS * SMALL), 16);
    let seen = steps(&large.world, extents, || 0);
    assert!(seen.len() >= BLOCKS as usize / SLICE / 2, "{} steps", seen.len());
    large.world.power_off();
}

/// A long write publishes its blocks in slices. One that is withdrawn in between leaves nothing reserved, and keeps nobody from a commit.
#[test]
fn a_long_write_gives_way() {
    const SLICE: usize = crate::write_cache::index::LOOKS;
    const LONG: usize = 32 << 20;
    let large = Large::new(5);
    let core = &large.cache.core;
    let held = || core.index.held() as usize;
    let write = Request::write(PIECE / 2, IoBuf::new(LONG));
    let seen = steps(&large.world, Seam::new(large.cache.clone()).submit(write), held);
    assert_eq!(seen.last(), Some(&(LONG / SMALL as usize)));
    let apart = seen.windows(2).map(|pair| pair[0].abs_diff(pair[1])).max().unwrap();
    assert!(apart <= SLICE, "{apart} blocks in one step");
    let (before, write) = (held(), Request::write(100 * PIECE, IoBuf::new(LONG)));
    let mut answer = Box::pin(async { Seam::new(large.cache.clone()).submit(write).await });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while held() == before {
        assert!(answer.as_mut().poll(&mut context).is_pending(), "it has slices to go");
        large.world.go_on();
    }
    drop(answer);
    assert_eq!((core.space.reserved(), core.journal.writers()), (0, 0));
    assert_eq!(u64::from(core.space.count() + core.index.held()), core.layout.n_blocks);
    large.flush();
    assert_eq!(core.journal.uncommitted(), 0);
    large.world.power_off();
}

/// Begins to discard everything, and withdraws that once it has come `far`.
fn withdraw(large: &Large, far: impl Fn() -> bool) {
    let discard = Request::bare(Op::Discard, ByteRange::new(0, BLOCKS * SMALL));
    let mut answer = Box::pin(async { Seam::new(large.cache.clone()).submit(discard).await });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while !far() {
        assert!(answer.as_mut().poll(&mut context).is_pending(), "it has slices to go");
        large.world.go_on();
    }
}

/// The origin has its zeroes already, or not: what it has taken is replaced, or as it was.
#[test]
fn a_discard_that_is_withdrawn_gives_way() {
    const SLICE: u32 = crate::write_cache::index::LOOKS as u32;
    for replaced in [65_536, 0] {
        let large = Large::new(5);
        large.write_all();
        large.flush();
        let index = &large.cache.core.index;
        withdraw(&large, || match replaced {
            0 => index.writing_back() > 20 * SLICE,
            _ => u64::from(index.held()) < BLOCKS,
        });
        let mut before = index.writing_back();
        assert!(before > 20 * SLICE, "{before} blocks are left to be told of");
        while before > 0 {
            assert!(large.world.go_on());
            let left = index.writing_back();
            assert!(before - left <= SLICE, "{before} to {left} in one step");
            before = left;
        }
        assert_eq!(u64::from(index.held()), BLOCKS - replaced);
        large.world.power_off();
    }
}

/// Nothing of it is left to be written afterwards.
#[test]
fn a_cache_is_closed_after_discards_that_were_withdrawn() {
    let large = Large::new(5);
    large.write_all();
    large.flush();
    let core = &large.cache.core;
    withdraw(&large, || u64::from(core.index.held()) < BLOCKS);
    assert_eq!(large.world.run(Answer::pending(large.cache.close())), Ok(()));
    assert_eq!((core.index.writing_back(), core.journal.work.is_idle()), (0, true));
    large.world.power_off();
}
