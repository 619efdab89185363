//! Models for the checker of threads: clients, committer and write-back hand work to each other on whatever thread they are, and nobody
//! waits for ever.

mod growing;
mod parts;
mod timers;

use std::future::pending;

use spillway_core::models::{Tasks, carry_out, every_order, finds, together};
use spillway_core::sync::Unseen;
use spillway_core::sync::shuttle::future::{block_on, yield_now};
use spillway_core::sync::shuttle::thread;
use spillway_core::{Attributes, BlockSize, IoBuf, Works};

use super::index::block::{CacheBlock, OriginBlock, Stage};
use super::*;

const BLOCK: usize = 512;

/// A disk that takes a moment for each answer, in which others go on.
struct Disk {
    bytes: Unseen<Vec<u8>>,
    speed: Unseen<Speed>,
}

/// When an answer comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speed {
    AtOnce,
    AfterAMoment,
    Never,
}

impl Disk {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes: Unseen::new(vec![0; bytes]), speed: Unseen::new(Speed::AfterAMoment) })
    }
}

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_size: BlockSize::new(BLOCK as u32).expect("a power of two"),
            optimal_io: BLOCK as u32,
            volatile: false,
            discards: false,
            fast_zeroes: false,
            ..Geometry::in_memory(self.bytes.lock().len() as u64)
        }
    }

    fn submit(&self, mut request: Request) -> Submission {
        let speed = *self.speed.lock();
        carry_out(&self.bytes, &mut request);
        Answer::pending(async move {
            match speed {
                Speed::AtOnce => {}
                Speed::AfterAMoment => yield_now().await,
                Speed::Never => pending().await,
            }
            request.answer(Ok(()))
        })
    }
}

/// An origin of 16 blocks and a cache device.
struct House {
    origin: Arc<Disk>,
    cache: Arc<Disk>,
}

impl House {
    /// With a cache of so many blocks; its metadata fills one.
    fn new(blocks: usize) -> Self {
        Self { origin: Disk::new(16 * BLOCK), cache: Disk::new((1 + blocks) * BLOCK) }
    }

    fn open(&self, watermark: u64) -> Arc<WriteCache> {
        let config = Config { high_watermark: watermark, low_watermark: watermark, ..Config::default() };
        self.open_in(config, Arc::new(Tasks))
    }

    fn open_in(&self, config: Config, env: Arc<dyn Env>) -> Arc<WriteCache> {
        let config = Config { block_size: BLOCK as u64, ..config };
        let (origin, cache, budget) = (self.origin.clone(), self.cache.clone(), Budget::new(16 << 20));
        block_on(WriteCache::open(&config, origin, cache, env, budget, Works::default())).expect("it opens").0
    }

    /// What the origin has in a block.
    fn below(&self, block: usize) -> u8 {
        self.origin.bytes.lock()[block * BLOCK]
    }
}

fn write(cache: &WriteCache, block: u64, value: u8) {
    let buf = IoBuf::copy_of(&[value; BLOCK]);
    assert_eq!(block_on(cache.submit(Request::write(block * BLOCK as u64, buf))).result, Ok(()));
}

fn flush(cache: &WriteCache) {
    assert_eq!(block_on(cache.submit(Request::flush())).result, Ok(()));
}

fn set(cache: &Arc<WriteCache>, name: &str, value: &str) {
    block_on(attributes(cache.clone()).store(name, value)).expect("it is set");
}

fn read(cache: &WriteCache, block: u64) -> u8 {
    let reply = block_on(cache.submit(Request::read(block * BLOCK as u64, IoBuf::new(BLOCK))));
    assert_eq!(reply.result, Ok(()));
    assert!(reply.buf.iter().all(|byte| *byte == reply.buf[0]), "a mixture");
    reply.buf[0]
}

/// Flushes share commits, versions replace each other, and what was flushed is there when the cache is opened again.
#[test]
fn every_flush_is_answered() {
    every_order(8000, || {
        let house = House::new(12);
        let cache = house.open(100);
        let client: fn(&WriteCache) = |cache| {
            write(cache, 0, 1);
            flush(cache);
        };
        let other: fn(&WriteCache) = |cache| {
            write(cache, 1, 2);
            flush(cache);
            write(cache, 1, 3);
            flush(cache);
        };
        together(&cache, &[client, other, flush]);
        let again = house.open(100);
        assert_eq!((read(&again, 0), read(&again, 1)), (1, 3));
    });
}

/// New versions where no block is free: they wait for write-back, which may wait for commits.
fn rewrites(watermark: u64, flushes: bool) {
    let house = House::new(3);
    let cache = house.open(watermark);
    (0..3).for_each(|block| write(&cache, block, 1));
    if flushes {
        flush(&cache);
    }
    let low: fn(&WriteCache) = |cache| (2..4).for_each(|value| write(cache, 0, value));
    let high: fn(&WriteCache) = |cache| (0..2).for_each(|_| write(cache, 2, 4));
    together(&cache, &[low, high]);
    assert_eq!([0, 1, 2].map(|block| read(&cache, block)), [3, 1, 4]);
}

#[test]
fn every_write_gets_room() {
    every_order(8000, || rewrites(100, true));
}

/// Write-back runs for a watermark, and can do nothing, when a waiter comes.
#[test]
fn every_write_gets_room_beside_write_back() {
    every_order(8000, || rewrites(0, false));
}

/// The origin answers no write, so that room comes free by nothing but the last reader of a version that was replaced.
#[test]
fn a_write_gets_the_block_that_was_read() {
    every_order(8000, || {
        let house = House::new(2);
        let cache = house.open(100);
        write(&cache, 0, 1);
        flush(&cache);
        *house.origin.speed.lock() = Speed::Never;
        let reading = block_on(cache.core.look_up(OriginBlock(0), 1));
        write(&cache, 0, 2);
        flush(&cache);
        let core = cache.core.clone();
        let reader = thread::spawn(move || {
            while core.index.stage(CacheBlock(0)) != Stage::Leaving {
                thread::yield_now();
            }
            drop(reading);
        });
        write(&cache, 0, 3);
        reader.join().expect("it ends");
        assert_eq!(read(&cache, 0), 3);
    });
}

/// The same by nothing but a write that replaces what is not committed.
#[test]
fn a_write_gets_the_block_that_was_replaced() {
    every_order(8000, || {
        let house = House::new(4);
        let cache = house.open(100);
        write(&cache, 2, 1);
        flush(&cache);
        *house.origin.speed.lock() = Speed::Never;
        set(&cache, "low_watermark", "0");
        set(&cache, "high_watermark", "0");
        while cache.core.index.writing_back() == 0 {
            thread::yield_now();
        }
        set(&cache, "high_watermark", "100");
        (0..2).for_each(|block| write(&cache, block, 1));
        let clients: fn(&WriteCache) = |cache| write(cache, 0, 2);
        let other: fn(&WriteCache) = |cache| write(cache, 1, 2);
        together(&cache, &[clients, other]);
        assert_eq!([0, 1, 2].map(|block| read(&cache, block)), [2, 2, 1]);
    });
}

/// A client goes on to write while everything is written back.
#[test]
fn every_drain_ends() {
    every_order(8000, || {
        let house = House::new(8);
        let cache = house.open(100);
        (0..2).for_each(|block| write(&cache, block, 1));
        cache.core.drain(true).expect("it is sound");
        let client: fn(&WriteCache) = |cache| (1..4).for_each(|block| write(cache, block, 2));
        let drained: fn(&WriteCache) = |cache| block_on(cache.core.drained()).expect("it ends");
        together(&cache, &[client, drained]);
        assert_eq!(cache.core.blocks_left(), 0);
        assert_eq!([0, 1, 2, 3].map(|block| house.below(block)), [1, 2, 2, 2]);
    });
}

#[test]
fn the_checker_finds_a_reader_that_wakes_nobody() {
    finds("write_cache: the last reader of a block wakes nobody", a_write_gets_the_block_that_was_read);
}

#[test]
fn the_checker_finds_a_write_that_replaces_and_wakes_nobody() {
    finds("write_cache: a version that is replaced wakes nobody", a_write_gets_the_block_that_was_replaced);
}

#[test]
fn the_checker_finds_a_committer_that_does_not_look_again() {
    finds("work: forget what was queued during a run", every_flush_is_answered);
}

#[test]
fn the_checker_finds_write_back_that_does_not_look_again() {
    finds("work: forget what was queued during a run", every_write_gets_room);
}
