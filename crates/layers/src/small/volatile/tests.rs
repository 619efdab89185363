//! Which writes are on the device below, and which survive a power cut.

use std::sync::Arc;
use std::task::{Context, Waker};

use spillway_core::sync::Mutex;
use spillway_core::{
    Answer, Attributes, BlockDevice, Budget, ByteRange, Geometry, IoBuf, Kind, Op, Request, SECTOR, Seam,
    Submission, Table,
};
use spillway_sim::world::World;

use super::blocks::ENTRY_COST;
use super::{Config, Volatile, attributes};
use crate::open_context::Below;
use crate::small::delay::{self, Delay};
use crate::small::fault::{self, FaultInjector, What};
use crate::small::memory::{self, Memory};

const BLOCK: usize = 4096;

struct Fixture {
    world: Arc<World>,
    below: Seam,
    layer: Arc<Volatile>,
    seam: Seam,
    table: Table<Volatile>,
    budget: Arc<Budget>,
}

fn fixture(config: &Config) -> Fixture {
    Fixture::over(config, Budget::new(1 << 20), |memory, _| memory)
}

impl Fixture {
    fn over(config: &Config, budget: Arc<Budget>, between: impl FnOnce(Below, &Arc<World>) -> Below) -> Self {
        let world = World::new(1);
        let config_below = memory::Config { size: 1 << 20, block_size: BLOCK as u64 };
        let memory: Below = Memory::new(&config_below, Budget::new(Budget::UNLIMITED)).unwrap();
        let middle = between(memory.clone(), &world);
        let layer = Volatile::new(config, middle, world.clone(), &budget).unwrap();
        let seam = Seam::new(layer.clone());
        let table = attributes(layer.clone());
        Self { world, below: Seam::new(memory), layer, seam, table, budget }
    }

    fn ask(&self, request: Request) -> Result<(), Kind> {
        self.world.run(self.seam.submit(request)).result
    }

    fn write(&self, block: usize, value: u8) -> Result<(), Kind> {
        self.ask(write(block, value))
    }

    fn set(&self, name: &str, value: &str) {
        self.world.run(self.table.store(name, value)).unwrap();
    }

    /// The first byte of each of the first blocks.
    fn bytes<const N: usize>(&self, seam: &Seam) -> [u8; N] {
        let reply = self.world.run(seam.submit(Request::read(0, IoBuf::new(N * BLOCK))));
        assert_eq!(reply.result, Ok(()));
        std::array::from_fn(|block| reply.buf[block * BLOCK])
    }

    fn number(&self, name: &str) -> u64 {
        self.table.show(name).unwrap().parse().unwrap()
    }
}

fn filled(value: u8, len: usize) -> IoBuf {
    IoBuf::copy_of(&vec![value; len])
}

fn write(block: usize, value: u8) -> Request {
    Request::write((block * BLOCK) as u64, filled(value, BLOCK))
}

fn zeroes(op: Op, block: usize) -> Request {
    Request::bare(op, ByteRange::new((block * BLOCK) as u64, BLOCK as u64))
}

fn losing(percent: u64) -> Config {
    Config { lost_percent: percent, ..Config::default() }
}

#[test]
fn flushed_writes_are_below_and_cached_ones_are_read() {
    let fixture = fixture(&Config::default());
    assert_eq!(
        (fixture.write(0, 1), fixture.write(2, 3), fixture.ask(Request::flush())),
        (Ok(()), Ok(()), Ok(()))
    );
    assert_eq!((fixture.write(0, 4), fixture.write(1, 2)), (Ok(()), Ok(())));
    assert_eq!(fixture.bytes(&fixture.seam), [4, 2, 3]);
    assert_eq!(fixture.bytes(&fixture.below), [1, 0, 3]);
    assert_eq!(fixture.number("volatile_bytes"), 2 * BLOCK as u64);
}

#[test]
fn a_durable_write_replaces_cached_blocks() {
    let fixture = fixture(&losing(100));
    for (block, request) in
        [write(0, 7).with_fua(), zeroes(Op::WriteZeroes, 1).with_fua(), zeroes(Op::Discard, 2).with_fua()]
            .into_iter()
            .enumerate()
    {
        assert_eq!((fixture.write(block, 1), fixture.ask(request)), (Ok(()), Ok(())));
    }
    assert_eq!((fixture.bytes(&fixture.below), fixture.number("volatile_bytes")), ([7, 0, 0], 0));
    fixture.set("power_cut", "1");
    fixture.set("power_on", "1");
    assert_eq!(fixture.bytes(&fixture.seam), [7, 0, 0]);
}

#[test]
fn zeroes_and_discards_are_as_volatile_as_writes() {
    for op in [Op::WriteZeroes, Op::Discard] {
        let fixture = fixture(&losing(100));
        assert_eq!((fixture.write(0, 1), fixture.write(1, 1)), (Ok(()), Ok(())));
        assert_eq!((fixture.ask(Request::flush()), fixture.ask(zeroes(op, 0))), (Ok(()), Ok(())));
        assert_eq!((fixture.bytes(&fixture.seam), fixture.bytes(&fixture.below)), ([0, 1], [1, 1]), "{op:?}");
        fixture.set("power_cut", "1");
        fixture.set("power_on", "1");
        assert_eq!(fixture.bytes(&fixture.seam), [1, 1], "{op:?}");
    }
}

#[test]
fn requests_fail_while_the_power_is_off() {
    let fixture = fixture(&losing(0));
    assert_eq!(fixture.write(0, 1), Ok(()));
    fixture.set("power_cut", "7");
    assert_eq!(fixture.number("powered"), 0);
    for request in
        [write(0, 2), write(0, 2).with_fua(), Request::read(0, IoBuf::new(BLOCK)), Request::flush()]
    {
        let op = request.op;
        assert_eq!(fixture.ask(request), Err(Kind::Io), "{op:?}");
    }
    fixture.set("power_on", "1");
    assert_eq!(fixture.bytes(&fixture.seam), [1]);
}

/// The sectors that survive a power cut, of 64 blocks written over zeroes.
fn survivors(config: &Config, seed: u64) -> Vec<bool> {
    let fixture = fixture(config);
    assert_eq!(fixture.ask(Request::write(0, filled(9, 64 * BLOCK))), Ok(()));
    fixture.set("power_cut", &seed.to_string());
    let reply = fixture.world.run(fixture.below.submit(Request::read(0, IoBuf::new(64 * BLOCK))));
    let whole = |sector: &[u8]| {
        assert!(sector.iter().all(|&byte| byte == sector[0]), "a sector is torn");
        sector[0] == 9
    };
    reply.buf.chunks(SECTOR as usize).map(whole).collect()
}

#[test]
fn a_seed_draws_the_sectors_that_survive() {
    let left = survivors(&losing(50), 5);
    let count = |left: &[bool]| left.iter().filter(|left| **left).count();
    assert!((100..412).contains(&count(&left)), "{} of 512 sectors survive", count(&left));
    assert!(left.chunks(8).any(|block| block != [block[0]; 8]), "no block is torn");
    assert_eq!(left, survivors(&losing(50), 5));
    assert_ne!(left, survivors(&losing(50), 6));
    assert_eq!(count(&survivors(&losing(0), 5)), 512);
    assert_eq!(count(&survivors(&losing(100), 5)), 0);
    let whole = survivors(&Config { torn: false, ..losing(50) }, 5);
    assert!((100..412).contains(&count(&whole)) && whole.chunks(8).all(|block| block == [block[0]; 8]));
}

/// Both limits: that of the layer and the memory budget.
#[test]
fn a_full_cache_evicts_random_blocks() {
    let cost = BLOCK as u64 + ENTRY_COST;
    for (bytes_max, budget) in [(8 * BLOCK as u64, 1 << 20), (1 << 20, BLOCK as u64 + 8 * cost)] {
        let config = Config { volatile_bytes_max: bytes_max, ..Config::default() };
        let fixture = Fixture::over(&config, Budget::new(budget), |memory, _| memory);
        for block in 0..16 {
            assert_eq!(fixture.write(block, 1 + block as u8), Ok(()));
            assert!(fixture.number("volatile_bytes") <= 8 * BLOCK as u64);
        }
        let below: [u8; 16] = fixture.bytes(&fixture.below);
        assert_eq!(below.iter().filter(|byte| **byte > 0).count(), 8, "{below:?}");
        assert!(below[..8].contains(&0), "they were evicted in order: {below:?}");
        assert_eq!(fixture.bytes(&fixture.seam), std::array::from_fn::<u8, 16, _>(|block| 1 + block as u8));
        assert_eq!(
            fixture.ask(Request::write(0, filled(7, 16 * BLOCK))),
            Ok(()),
            "longer than there is room"
        );
        assert_eq!((fixture.bytes(&fixture.seam), fixture.ask(Request::flush())), ([7; 16], Ok(())));
        assert_eq!((fixture.bytes(&fixture.below), fixture.budget.used()), ([7; 16], BLOCK as u64));
    }
}

#[test]
fn without_room_for_a_block_it_writes_through() {
    let config = Config { volatile_bytes_max: 0, ..Config::default() };
    let fixture = Fixture::over(&config, Budget::new(BLOCK as u64), |memory, _| memory);
    assert_eq!((fixture.write(0, 1), fixture.bytes(&fixture.below)), (Ok(()), [1]));
}

#[test]
fn blocks_that_a_flush_could_not_write_stay_cached_and_no_flush_succeeds_again() {
    let fails = fault::Config { op: What::Write, nth: 2, ..fault::Config::default() };
    let fixture = Fixture::over(&losing(100), Budget::new(1 << 20), |memory, world| {
        FaultInjector::new(&fails, memory, world.clone()).unwrap()
    });
    (0..4).for_each(|block| assert_eq!(fixture.write(block, 5), Ok(())));
    assert_eq!(fixture.ask(Request::flush()), Err(Kind::Io));
    assert_eq!(fixture.bytes(&fixture.seam), [5; 4]);
    assert_eq!((fixture.write(1, 6), fixture.ask(Request::flush())), (Ok(()), Err(Kind::Io)));
    assert_eq!(fixture.bytes(&fixture.below), [5, 6, 5, 5]);
}

/// Takes no write as long as there is a kind to fail it by.
struct Refusing(Below, Arc<Mutex<Option<Kind>>>);

impl BlockDevice for Refusing {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        let refused = self.1.lock().filter(|_| request.op == Op::Write);
        match refused {
            Some(kind) => Answer::Done(request.answer(Err(kind))),
            None => self.0.submit(request),
        }
    }
}

/// A server that is away, or whose disk is full.
#[test]
fn a_flush_fails_while_what_is_below_takes_nothing_and_the_next_one_writes_all() {
    for kind in [Kind::Unreachable, Kind::Exhausted] {
        let refused = Arc::new(Mutex::new(Some(kind)));
        let of_device = refused.clone();
        let fixture = Fixture::over(&losing(100), Budget::new(1 << 20), |memory, _| {
            Arc::new(Refusing(memory, of_device))
        });
        (0..4).for_each(|block| assert_eq!(fixture.write(block, 5), Ok(())));
        assert_eq!(fixture.ask(Request::flush()), Err(kind));
        assert_eq!(fixture.bytes(&fixture.seam), [5; 4]);
        *refused.lock() = None;
        assert_eq!((fixture.write(1, 6), fixture.ask(Request::flush())), (Ok(()), Ok(())));
        assert_eq!(fixture.bytes(&fixture.below), [5, 6, 5, 5]);
    }
}

#[test]
fn a_cancelled_flush_loses_nothing() {
    let slow = delay::Config { write_us: 10, ..delay::Config::default() };
    let fixture = Fixture::over(&losing(100), Budget::new(1 << 20), |memory, world| {
        Delay::new(&slow, memory, world.clone()).unwrap()
    });
    (0..4).for_each(|block| assert_eq!(fixture.write(block, 5), Ok(())));
    let Answer::Pending(mut flush) = fixture.seam.submit(Request::flush()) else {
        panic!("it takes its time")
    };
    assert!(flush.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(fixture.write(2, 6), Ok(()));
    drop(flush);
    assert_eq!(fixture.bytes(&fixture.seam), [5, 5, 6, 5]);
    assert_eq!((fixture.ask(Request::flush()), fixture.bytes(&fixture.below)), (Ok(()), [5, 5, 6, 5]));
}

#[test]
fn a_cached_block_is_no_hole() {
    let fixture = fixture(&Config::default());
    let holes = || {
        let list = fixture.layer.extents(ByteRange::new(0, 4 * BLOCK as u64), 4).now().unwrap();
        list.iter().filter(|extent| extent.hole).map(|extent| extent.len).sum::<u64>()
    };
    assert_eq!(holes(), 4 * BLOCK as u64);
    assert_eq!(fixture.write(1, 1), Ok(()));
    assert_eq!(holes(), 0);
}
