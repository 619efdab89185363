//! A thin volume: it discards, has no call for zeroes, and takes room for whatever is written, zeroes by the system included.

use std::collections::BTreeSet;
use std::sync::Arc;

use spillway_core::storage::Moved;
use spillway_core::sync::Mutex;
use spillway_core::{
    Answer, BlockSize, ByteRange, Extent, FallocateMode, Geometry, IoBuf, Kind, LocalFuture, Op, Request,
    Seam, Storage,
};
use spillway_sim::disk::{Disk, Medium, Plan};
use spillway_sim::world::World;

use super::super::File;

const BLOCK: u64 = 4096;

struct Thin {
    disk: Disk,
    discards: bool,
    taken: Mutex<BTreeSet<u64>>,
}

impl Thin {
    fn take(&self, range: ByteRange) {
        self.taken.lock().extend(range.offset / BLOCK..(range.offset + range.len) / BLOCK);
    }
}

impl Storage for Thin {
    fn geometry(&self) -> Geometry {
        Geometry { discards: true, fast_zeroes: false, ..self.disk.geometry() }
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        self.disk.read(at, buf, done)
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        self.take(ByteRange::new(at, (buf.len() - done) as u64));
        self.disk.write(at, buf, done, durable)
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        self.disk.sync()
    }

    fn zero(&self, range: ByteRange, mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        match mode {
            FallocateMode::Discard if self.discards => {
                let mut taken = self.taken.lock();
                taken.retain(|block| !range.overlaps(ByteRange::new(block * BLOCK, BLOCK)));
            }
            FallocateMode::Discard | FallocateMode::Punch | FallocateMode::Free => {
                return Box::pin(async { Err(Kind::NotSupported) });
            }
            FallocateMode::Zero => self.take(range),
        }
        self.disk.zero(range, mode)
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.disk.extents(range, count_max)
    }
}

struct House {
    world: Arc<World>,
    thin: Arc<Thin>,
    seam: Seam,
}

impl House {
    fn new(discards: bool) -> Self {
        let world = World::new(1);
        let disk = Disk::new(world.clone(), Medium::new(1 << 20), BlockSize::PAGE, Plan::default(), 1);
        let thin = Arc::new(Thin { disk, discards, taken: Mutex::new(BTreeSet::new()) });
        let seam = Seam::new(Arc::new(File::new(thin.clone(), world.clone())));
        Self { world, thin, seam }
    }

    fn ask(&self, request: Request) -> IoBuf {
        let reply = self.world.run(self.seam.submit(request));
        assert_eq!(reply.result, Ok(()));
        reply.buf
    }

    fn bare(&self, op: Op, at: u64, len: u64) {
        self.ask(Request::bare(op, ByteRange::new(at, len)));
    }

    fn fill(&self, at: u64, len: usize) {
        let mut buf = IoBuf::new(len);
        buf.fill(7);
        self.ask(Request::write(at, buf));
    }

    fn taken(&self) -> usize {
        self.thin.taken.lock().len()
    }
}

#[test]
fn a_discard_frees_room_and_never_takes_any() {
    let house = House::new(true);
    house.fill(0, 1 << 19);
    assert_eq!(house.taken(), 128);
    house.bare(Op::Discard, 0, 1 << 18);
    assert_eq!(house.taken(), 64);
    house.bare(Op::Discard, 0, 1 << 20);
    assert_eq!(house.taken(), 0, "the part that was never written included");
}

#[test]
fn zeroes_that_are_asked_for_are_zeroes_also_where_they_have_to_be_written() {
    let house = House::new(true);
    house.fill(0, 1 << 19);
    house.bare(Op::WriteZeroes, BLOCK, 1 << 18);
    let bytes = house.ask(Request::read(0, IoBuf::new(1 << 19)));
    let zeroes = BLOCK as usize..BLOCK as usize + (1 << 18);
    assert!(bytes.iter().enumerate().all(|(at, &byte)| (byte == 0) == zeroes.contains(&at)));
    house.bare(Op::Discard, 0, 1 << 20);
    assert_eq!(house.taken(), 0, "the missing call for zeroes says nothing about discards");
}

#[test]
fn a_discard_that_the_device_does_not_know_changes_nothing() {
    let house = House::new(false);
    house.fill(0, 1 << 19);
    let calls = house.thin.disk.calls();
    house.bare(Op::Discard, 0, 1 << 20);
    house.bare(Op::Discard, 0, 1 << 20);
    assert_eq!((house.taken(), house.thin.disk.calls()), (128, calls), "nothing is written instead");
    assert!(house.ask(Request::read(0, IoBuf::new(1 << 19))).iter().all(|&byte| byte == 7));
}
