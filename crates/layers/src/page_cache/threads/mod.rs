//! Models for the checker of threads: clients, write-back and reads of the device below meet in folios, and nobody waits for ever.

mod waits;

use spillway_core::models::{Tasks, carry_out, every_order, finds, together};
use spillway_core::sync::Unseen;
use spillway_core::sync::shuttle::future::{block_on, yield_now};
use spillway_core::sync::shuttle::thread;
use spillway_core::{BlockSize, Budget, Env, IoBuf, Regions, Works};
use spillway_policy::dirty_regions::RegionNumber;
use spillway_sim::memory::VecRegions;

use super::*;

const BLOCK: usize = 512;

/// A folio of eight blocks.
const FOLIO: u64 = 8;

/// A folio in the shard of the first one, where there are 32.
const BESIDE_FIRST: u64 = 34;

/// A disk that takes a moment before it does something and a moment for its answer, in which others go on.
#[derive(Clone)]
struct Disk(Arc<Unseen<Vec<u8>>>);

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_size: BlockSize::new(BLOCK as u32).expect("a power of two"),
            optimal_io: BLOCK as u32,
            volatile: false,
            ..Geometry::in_memory(self.0.lock().len() as u64)
        }
    }

    fn submit(&self, mut request: Request) -> Submission {
        let disk = self.clone();
        Answer::pending(async move {
            yield_now().await;
            carry_out(&disk.0, &mut request);
            yield_now().await;
            request.answer(Ok(()))
        })
    }
}

/// A disk of eight folios and a cache of five in two shards.
struct House {
    disk: Disk,
    cache: Arc<PageCache>,
}

impl House {
    fn new() -> Arc<Self> {
        Self::with_limit(100)
    }

    /// Where so many percent may be unsaved, or the blocks of two folios.
    fn with_limit(percent: u64) -> Arc<Self> {
        let folio = FOLIO * BLOCK as u64;
        Self::with_config(&Config {
            page_cache_bytes_max: Some(87 << 9),
            block_size: Some(BLOCK as u64),
            folio_size: Some(folio),
            dirty_background_ratio: percent,
            dirty_ratio: percent,
            cut: Cut { region_bytes: folio, shards: 2 },
            ..Config::default()
        })
    }

    /// Where a folio has eight blocks, sixteen, or all of a region of 32; there is memory for two regions.
    fn with_sizes() -> Arc<Self> {
        Self::with_config(&Config {
            page_cache_bytes_max: Some(64 << 10),
            block_size: Some(BLOCK as u64),
            dirty_background_ratio: 100,
            dirty_ratio: 100,
            cut: Cut { region_bytes: 4 * FOLIO * BLOCK as u64, shards: 1 },
            ..Config::default()
        })
    }

    /// Where each of 32 shards has memory for two folios; the first and [`BESIDE_FIRST`] are in the shard that reclaim looks at first.
    fn with_shards() -> Arc<Self> {
        let folio = FOLIO * BLOCK as u64;
        let config = Config {
            page_cache_bytes_max: Some(512 << 10),
            block_size: Some(BLOCK as u64),
            folio_size: Some(folio),
            dirty_background_ratio: 100,
            dirty_ratio: 100,
            cut: Cut { region_bytes: folio, shards: 32 },
            ..Config::default()
        };
        let house = Self::over(2 * BESIDE_FIRST, &config);
        let core = &house.cache.core;
        let places = [0, BESIDE_FIRST].map(|folio| core.places.shard_of(RegionNumber(folio)));
        assert_eq!(
            (places, core.shards[0].read().free_of(0)),
            ([0, 0], 2),
            "the first shard is full with both"
        );
        house
    }

    fn with_config(config: &Config) -> Arc<Self> {
        Self::over(8, config)
    }

    /// Over a disk of so many folios.
    fn over(folios: u64, config: &Config) -> Arc<Self> {
        Self::within(Arc::new(Tasks), folios, config)
    }

    fn within(world: Arc<dyn Env>, folios: u64, config: &Config) -> Arc<Self> {
        let disk = Disk(Arc::new(Unseen::new(vec![0; (folios * FOLIO) as usize * BLOCK])));
        let below = Arc::new(disk.clone());
        let regions: Arc<dyn Regions> = Arc::new(VecRegions::new(1 << 20));
        let (cache, _) =
            PageCache::open(config, below, world, &regions, &Budget::new(1 << 20), Works::default())
                .expect("it opens");
        Arc::new(Self { disk, cache })
    }

    fn ask(&self, request: Request) -> IoBuf {
        let reply = block_on(self.cache.submit(request));
        assert_eq!(reply.result, Ok(()));
        reply.buf
    }

    fn write(&self, block: u64, value: u8) {
        self.ask(Request::write(block * BLOCK as u64, IoBuf::copy_of(&[value; BLOCK])));
    }

    fn flush(&self) {
        self.ask(Request::flush());
    }

    fn read(&self, block: u64, blocks: usize) -> Vec<u8> {
        let bytes = self.ask(Request::read(block * BLOCK as u64, IoBuf::new(blocks * BLOCK)));
        bytes
            .chunks(BLOCK)
            .inspect(|block| assert!(block.iter().all(|byte| *byte == block[0]), "a mixture"))
            .map(|block| block[0])
            .collect()
    }

    fn below(&self, block: u64) -> u8 {
        self.disk.0.lock()[block as usize * BLOCK]
    }
}

impl Drop for House {
    /// What the cache does in the background, such as reclaim and readahead, comes to rest before a model ends: the checker drops tasks where
    /// they are, one of which may hold the lock that the drop of another takes.
    fn drop(&mut self) {
        while !std::thread::panicking() && Arc::strong_count(&self.cache.core) > 1 {
            thread::yield_now();
        }
    }
}

/// What a client has flushed is below when its flush ends, whatever another writes meanwhile.
#[test]
fn a_flush_covers_what_came_before_it() {
    every_order(3000, || {
        let house = House::new();
        let client: fn(&House) = |house| {
            house.write(0, 1);
            house.flush();
            assert_ne!(house.below(0), 0, "it was flushed");
            house.write(0, 2);
            house.flush();
            assert_eq!(house.below(0), 2);
        };
        let other: fn(&House) = |house| {
            house.write(1, 3);
            house.write(9, 4);
            house.flush();
            assert_eq!((house.below(1), house.below(9)), (3, 4));
        };
        together(&house, &[client, other]);
    });
}

/// A client that needs its write below meets others that write in the same region, and the engine.
#[test]
fn what_is_forced_below_is_there() {
    every_order(3000, || {
        let house = House::new();
        let forced: fn(&House) = |house| {
            let write = Request::write(0, IoBuf::copy_of(&[5; BLOCK])).with_fua();
            house.ask(write);
            assert_eq!(house.below(0), 5);
        };
        let beside: fn(&House) = |house| {
            let write = Request::write(BLOCK as u64, IoBuf::copy_of(&[6; BLOCK])).with_fua();
            house.ask(write);
            assert_eq!(house.below(1), 6);
        };
        let flush: fn(&House) = |house| {
            house.write(2, 7);
            house.flush();
        };
        together(&house, &[forced, beside, flush]);
        assert_eq!(house.below(2), 7);
    });
}

/// Blocks are written while the folio is read in, by two readers.
#[test]
fn a_write_outlives_the_read_that_it_meets() {
    every_order(3000, || {
        let house = House::new();
        let reader: fn(&House) = |house| {
            let read = house.read(0, 4);
            assert!(read.iter().all(|value| *value <= 1), "{read:?}");
        };
        let writer: fn(&House) = |house| {
            house.write(1, 1);
            assert_eq!(house.read(1, 1), [1]);
        };
        together(&house, &[reader, writer, reader]);
        assert_eq!(house.read(0, 4), [0, 1, 0, 0]);
        house.flush();
        assert_eq!(house.below(1), 1);
    });
}

/// A large write and a large read come to where a small write brings a folio in: no block has memory twice.
#[test]
fn a_small_folio_and_a_large_one_lie_beside_each_other() {
    every_order(3000, || {
        let house = House::with_sizes();
        let small: fn(&House) = |house| {
            house.write(9, 1);
            assert!([1, 2].contains(&house.read(9, 1)[0]), "it or what came over it");
        };
        let large: fn(&House) = |house| {
            house.ask(Request::write(0, IoBuf::copy_of(&[2; 32 * BLOCK])));
        };
        let read: fn(&House) = |house| assert!(house.read(0, 32).iter().all(|value| *value <= 2));
        together(&house, &[small, large, read]);
        let seen = house.read(0, 32);
        assert!((0..).zip(&seen).all(|(block, value)| *value == 2 || block == 9 && *value == 1), "{seen:?}");
        house.flush();
        assert_eq!((0..32).map(|block| house.below(block)).collect::<Vec<_>>(), seen);
        house.cache.verify();
    });
}

#[test]
fn the_checker_finds_a_folio_over_another() {
    finds("page_cache: bring a folio in over another", a_small_folio_and_a_large_one_lie_beside_each_other);
}

/// More folios are written than there is memory for, below the background limit: who waits has room made.
#[test]
fn every_write_gets_memory() {
    every_order(1500, || {
        let house = House::new();
        let low: fn(&House) = |house| (0..4).for_each(|folio| house.write(folio * FOLIO, 1));
        let high: fn(&House) = |house| (4..8).for_each(|folio| house.write(folio * FOLIO, 2));
        together(&house, &[low, high]);
        assert_eq!([0, 3, 4, 7].map(|folio| house.read(folio * FOLIO, 1)[0]), [1, 1, 2, 2]);
    });
}

/// Reclaim finds too few clean folios while the last that is dirty is written back: it learns of that.
#[test]
fn memory_is_short_no_longer_than_folios_are_dirty() {
    every_order(40_000, || {
        let house = House::with_shards();
        let core = &house.cache.core;
        house.write(0, 1);
        house.write(BESIDE_FIRST * FOLIO, 1);
        house.flush();
        while Arc::strong_count(core) > 1 || !core.reclaim.is_idle() {
            thread::yield_now();
        }
        assert!(!core.is_short(), "all is clean");
    });
}

#[test]
fn the_checker_finds_memory_that_stays_short() {
    finds("page_cache: look only once for clean folios", memory_is_short_no_longer_than_folios_are_dirty);
}

/// Writers of the same three folios, of which two may be unsaved: a part of what each has taken is not needed after all.
#[test]
fn every_write_gets_units() {
    every_order(1500, || {
        let house = House::with_limit(0);
        let write: fn(&House) = |house| {
            let bytes = IoBuf::copy_of(&[4; 21 * BLOCK]);
            house.ask(Request::write(3 * BLOCK as u64, bytes));
        };
        together(&house, &[write, write, write, write]);
        assert_eq!(house.read(2, 3), [0, 4, 4]);
    });
}

#[test]
fn the_checker_finds_writers_that_wait_for_what_the_others_hold() {
    finds("page_cache: wait while holding units", every_write_gets_units);
}

/// Zeroes go past the cache while others write and read what is zeroed.
#[test]
fn the_cache_and_the_device_below_agree_on_what_was_zeroed() {
    every_order(3000, || {
        let house = House::new();
        house.write(1, 1);
        let zero: fn(&House) = |house| {
            let range = ByteRange::new(0, 3 * BLOCK as u64);
            house.ask(Request::bare(Op::WriteZeroes, range));
        };
        // It comes when the zeroes pass the cache: both wait for the same block before.
        let write: fn(&House) = |house| {
            house.flush();
            house.write(2, 2);
        };
        let read: fn(&House) = |house| assert!(house.read(0, 3)[1] <= 1);
        together(&house, &[zero, write, read]);
        let seen = house.read(0, 4);
        assert!(seen[1] == 0 && [0, 2].contains(&seen[2]), "{seen:?}");
        house.flush();
        assert_eq!((0..4).map(|block| house.below(block)).collect::<Vec<_>>(), seen);
    });
}

/// The same of what is read ahead, while a range of it is zeroed.
#[test]
fn a_write_and_zeroes_outlive_what_is_read_ahead() {
    every_order(3000, || {
        let house = House::new();
        house.disk.0.lock()[5 * BLOCK..6 * BLOCK].fill(1);
        (0..2).for_each(|block| _ = house.read(block, 1));
        let reader: fn(&House) = |house| (2..6).for_each(|block| assert!(house.read(block, 1)[0] <= 1));
        let writer: fn(&House) = |house| {
            house.write(4, 1);
            assert_eq!(house.read(4, 1), [1]);
        };
        let zero: fn(&House) = |house| {
            house.ask(Request::bare(Op::WriteZeroes, ByteRange::new(5 * BLOCK as u64, BLOCK as u64)));
            assert_eq!(house.read(5, 1), [0]);
        };
        together(&house, &[reader, writer, zero]);
        assert_eq!(house.read(3, 4), [0, 1, 0, 0]);
    });
}

#[test]
fn the_checker_finds_what_is_read_ahead_of_a_range_that_is_zeroed() {
    finds("page_cache: read ahead what is being discarded", a_write_and_zeroes_outlive_what_is_read_ahead);
}

#[test]
fn the_checker_finds_a_fill_over_a_write() {
    finds("page_cache: fill over what was written meanwhile", a_write_outlives_the_read_that_it_meets);
}

#[test]
fn the_checker_finds_a_flush_that_does_not_wait() {
    finds("page_cache: flush without waiting for what is on its way", a_flush_covers_what_came_before_it);
}

#[test]
fn the_checker_finds_a_write_into_a_range_that_is_zeroed() {
    finds(
        "page_cache: write into a range that is being discarded",
        the_cache_and_the_device_below_agree_on_what_was_zeroed,
    );
}
