//! A storage that takes only memory aligned to its pages, as some devices do with O_DIRECT.

use std::sync::Arc;

use spillway_core::storage::Moved;
use spillway_core::{
    Answer, BlockDevice, BlockSize, Budget, ByteRange, Extent, FallocateMode, Geometry, IoBuf, Kind,
    LocalFuture, Request, Storage,
};
use spillway_sim::disk::{Disk, Latency, Medium, Plan};
use spillway_sim::world::World;

use super::super::File;
use super::super::device::BOUNCE_LEN;

const ALIGNMENT: usize = 4096;

struct Picky(Disk);

fn check(buf: &IoBuf) {
    assert!((buf.as_ptr() as usize).is_multiple_of(ALIGNMENT), "memory that the device does not take");
}

impl Storage for Picky {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn memory_alignment(&self) -> usize {
        ALIGNMENT
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        check(&buf);
        self.0.read(at, buf, done)
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        check(&buf);
        self.0.write(at, buf, done, durable)
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        self.0.sync()
    }

    fn zero(&self, _range: ByteRange, _mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        Box::pin(async { Err(Kind::NotSupported) })
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.0.extents(range, count_max)
    }
}

fn open(world: &Arc<World>, budget: &Arc<Budget>) -> Result<File, spillway_core::Error> {
    let plan = Plan { latency: Latency::Nvme, ..Plan::default() };
    let disk = Disk::new(world.clone(), Medium::new(4 << 20), BlockSize::PAGE, plan, 1);
    File::charged(Arc::new(Picky(disk)), world.clone(), budget)
}

fn misaligned(value: u8, len: usize) -> IoBuf {
    let mut buf = IoBuf::new(len + 512);
    buf.narrow(512, len);
    buf.fill(value);
    buf
}

#[test]
fn memory_of_any_alignment_goes_through_what_was_charged_at_the_opening() {
    let (world, budget) = (World::new(1), Budget::new(1 << 20));
    let file = open(&world, &budget).unwrap();
    assert_eq!(budget.used(), BOUNCE_LEN as u64);
    for len in [4096, BOUNCE_LEN, BOUNCE_LEN + 4096, 3 * BOUNCE_LEN - 4096] {
        let count = ((4 << 20) / len).min(5) as u8;
        let at = |index: u8| u64::from(index) * len as u64;
        let writes =
            (0..count).map(|index| file.submit(Request::write(at(index), misaligned(index + 1, len))));
        for reply in world.run_all(writes.collect()) {
            assert_eq!((reply.result, reply.buf.len()), (Ok(()), len));
        }
        for index in 0..count {
            let reply = world.run(file.submit(Request::read(at(index), misaligned(0, len))));
            assert_eq!(reply.result, Ok(()));
            assert!(reply.buf.iter().all(|&byte| byte == index + 1), "{len} bytes, write {index}");
        }
    }
    assert_eq!(budget.used(), BOUNCE_LEN as u64);
    drop(file);
    assert_eq!(budget.used(), 0);
}

#[test]
fn without_room_for_its_buffer_a_file_is_not_opened() {
    let error = open(&World::new(1), &Budget::new(BOUNCE_LEN as u64 - 1)).err().unwrap();
    assert!(error.kind == Kind::NoSpace && error.message().contains("--memory"), "{error}");
}
