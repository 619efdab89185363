//! Files that become longer as they are filled.

use spillway_core::storage::Moved;
use spillway_core::sync::{AtomicU64, Ordering};
use spillway_core::{ByteRange, Extent, FallocateMode, Geometry, IoBuf, LocalFuture, Storage};

use super::*;

/// Bytes of a segment, and of a file with as few of them as may be.
const SEGMENT: u64 = 1 << SHIFT;
const LEAST: u64 = 9 * SEGMENT;

/// A disk of which a file has the beginning. Its host has room for so many bytes of it.
struct Short {
    disk: Arc<Disk>,
    bytes: AtomicU64,
    room: AtomicU64,
    /// Where the furthest write has ended.
    written: AtomicU64,
    /// How often it was made longer, and how often while less than a segment was left behind what was written.
    lengthened: AtomicU64,
    late: AtomicU64,
}

impl Short {
    fn new(disk: Arc<Disk>, room: u64) -> Arc<Self> {
        let [written, lengthened, late] = [0; 3].map(AtomicU64::new);
        let (bytes, room) = (AtomicU64::new(LEAST), AtomicU64::new(room));
        Arc::new(Self { disk, bytes, room, written, lengthened, late })
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn assert_has(&self, at: u64, len: usize) {
        assert!(at + len as u64 <= self.bytes(), "{len} bytes at {at} of {}", self.bytes());
    }
}

impl Storage for Short {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.bytes(), ..self.disk.geometry() }
    }

    fn lengthen(&self, bytes: u64) -> Answer<Result<(), Kind>> {
        if bytes > self.room.load(Ordering::Relaxed) {
            return Answer::Done(Err(Kind::Overflow));
        }
        let left = self.bytes() - self.written.load(Ordering::Relaxed);
        self.late.fetch_add(u64::from(left < SEGMENT), Ordering::Relaxed);
        self.lengthened.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_max(bytes, Ordering::Relaxed);
        Answer::Done(Ok(()))
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        self.assert_has(at, buf.len() - done);
        self.disk.read(at, buf, done)
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        self.assert_has(at, buf.len() - done);
        self.written.fetch_max(at + (buf.len() - done) as u64, Ordering::Relaxed);
        self.disk.write(at, buf, done, durable)
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        self.disk.sync()
    }

    fn zero(&self, range: ByteRange, mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        self.assert_has(range.offset, range.len as usize);
        self.disk.zero(range, mode)
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.disk.extents(range, count_max)
    }
}

/// A store over a file that may become `segments` long, beside its first, on a host with room for `room` bytes.
fn growing(segments: u64, room: u64) -> (House, Arc<Short>) {
    let (world, whole) = (World::new(1), (segments + 1) << SHIFT);
    let disk = Arc::new(Disk::new(world.clone(), Medium::new(whole), BlockSize::PAGE, Plan::default(), 1));
    let short = Short::new(disk.clone(), room);
    let file = Arc::new(File::new(short.clone(), world.clone()));
    let (env, budget) = (world.clone(), Budget::new(64 << 20));
    let charged = budget.clone();
    let opened = run(&world, async move {
        Store::open_growing(file, whole, &settings(), env, &charged, &mut |_| Err(Kind::Corrupt))
            .await
            .expect("it is blank")
    });
    (House { world, disk, store: opened.0, slots: Arc::default(), budget }, short)
}

#[test]
fn a_file_is_made_longer_ahead_of_what_is_written() {
    let (house, short) = growing(200, u64::MAX);
    assert_eq!((house.store.size(), short.bytes()), (201 * SEGMENT, LEAST));
    let mut seen = vec![LEAST];
    for slot in 0..185 * 14 {
        house.spill_pages([slot], 0);
        assert!(short.written.load(Ordering::Relaxed) <= short.bytes());
        if *seen.last().expect("the first") < short.bytes() {
            seen.push(short.bytes());
        }
    }
    assert_eq!(*seen.last().expect("the last"), 201 * SEGMENT, "as long as it may be: {seen:?}");
    assert!(seen[1] < 100 * SEGMENT && seen.len() > 3, "in steps: {seen:?}");
    assert_eq!(
        (short.lengthened.load(Ordering::Relaxed), short.late.load(Ordering::Relaxed)),
        (seen.len() as u64 - 1, 0)
    );
    (0..185 * 14).for_each(|slot| assert_eq!(house.check(slot), Ok(()), "slot {slot}"));
    (0..185 * 14).for_each(|slot| house.release(slot));
    house.verify();
    house.stop().expect("the disk is sound");
    assert_eq!(short.bytes(), 201 * SEGMENT, "it does not shrink");
}

/// Content keeps off what the host does not give, and goes on as soon as something comes free, or the host has more.
#[test]
fn a_host_that_refuses_makes_a_full_file() {
    let (house, short) = growing(200, LEAST);
    let full = (0..2000).find(|&slot| {
        let (written, result) = house.spill(vec![(slot, bytes(slot.into(), 4096))]);
        assert!(matches!((written, result), (1, Ok(())) | (0, Err(Kind::NoSpace))), "{result:?}");
        result.is_err()
    });
    let full = full.expect("it has an end");
    assert!(full > 4 * 12 && short.bytes() == LEAST && house.store.count(Count::Full) > 0, "{full} pages");
    assert!(!house.store.has_failed());
    (0..full).for_each(|slot| assert_eq!(house.check(slot), Ok(()), "slot {slot}"));
    (0..full / 2).for_each(|slot| house.release(slot));
    house.verify();
    house.spill_pages(1000..1012, 0);
    short.room.store(u64::MAX, Ordering::Relaxed);
    house.spill_pages(2000..2000 + 8 * 12, 0);
    assert!(short.bytes() > LEAST);
    house.verify();
    house.stop().expect("the disk is sound");
}
