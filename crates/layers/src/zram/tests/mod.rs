//! What a zram device promises, tested on one thread in the simulated world.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::contract::{self, Subject};
use spillway_core::random::Random;
use spillway_core::{
    Attributes, Budget, ByteRange, Excerpt, IoBuf, Kind, Op, Reply, Request, Seam, Submission, Value,
    block_on,
};
use spillway_policy::compaction::Compaction;
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

use super::page::PAGE;
use super::pool::cell::SlotIndex;
use super::slots::mark::Slot;
use super::*;

mod attributes;
mod block_state;
mod deferring;
mod ending;
pub(super) mod lending;
pub(super) mod memory;
mod on_disk;
pub(super) mod parallel;
mod progress;
mod recompressing;
mod rest;
pub(super) mod second_chance;
mod slices;
pub(super) mod spilling;

pub(super) use parallel::Idle;

struct Bench {
    world: Arc<World>,
    budget: Arc<Budget>,
    zram: Arc<Zram>,
    seam: Seam,
    table: spillway_core::Table<Zram>,
}

fn bench(config: Config) -> Bench {
    let world = World::new(1);
    bench_in(world.clone(), world, config)
}

/// A device in `env`, which is about `world`.
fn bench_in(env: Arc<dyn Env>, world: Arc<World>, config: Config) -> Bench {
    let budget = Budget::new(64 << 20);
    let regions = Arc::new(VecRegions::new(128 << 20));
    let zram = Zram::new(config, env, regions, budget.clone()).unwrap();
    let (seam, table) = (Seam::new(zram.clone()), attributes(zram.clone()));
    Bench { world, budget, zram, seam, table }
}

fn sized(disksize: u64) -> Config {
    Config { disksize, max_comp_streams: 2, ..Config::default() }
}

impl Bench {
    /// Runs an answer, giving the device's background tasks their turns.
    fn run<T: Unpin + 'static>(&self, answer: Answer<T>) -> T {
        let mut answer = std::pin::pin!(answer);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..400_000 {
            if let std::task::Poll::Ready(answer) = answer.as_mut().poll(&mut context) {
                return answer;
            }
            self.world.turn();
            self.world.advance(Duration::from_millis(1));
        }
        panic!("no answer");
    }

    fn write(&self, index: u64, bytes: &[u8]) -> Result<(), Kind> {
        self.run(self.seam.submit(Request::write(index * PAGE as u64, IoBuf::copy_of(bytes)))).result
    }

    fn read(&self, index: u64, pages: usize) -> Vec<u8> {
        let reply = self.run(self.seam.submit(Request::read(index * PAGE as u64, IoBuf::new(pages * PAGE))));
        assert_eq!(reply.result, Ok(()));
        reply.buf.to_vec()
    }

    fn try_read(&self, index: u64) -> Result<Vec<u8>, Kind> {
        let reply = self.run(self.seam.submit(Request::read(index * PAGE as u64, IoBuf::new(PAGE))));
        reply.result.map(|()| reply.buf.to_vec())
    }

    fn show(&self, name: &str) -> String {
        self.table.show(name).unwrap()
    }

    fn number(&self, name: &str) -> u64 {
        self.table.get(name).unwrap().number().expect("a number")
    }

    /// What has several columns.
    fn columns(&self, name: &str) -> Vec<u64> {
        let Value::Columns(columns) = self.table.get(name).unwrap() else { panic!("{name} has no columns") };
        columns
    }

    fn set(&self, name: &str, value: &str) {
        self.run(self.table.store(name, value)).unwrap();
    }

    fn refuse(&self, name: &str, value: &str) -> Kind {
        self.run(self.table.store(name, value)).unwrap_err().kind
    }

    fn discard(&self, offset: u64, len: u64) {
        let request = Request::bare(Op::Discard, ByteRange::new(offset, len));
        assert_eq!(self.run(self.seam.submit(request)).result, Ok(()));
    }
}

/// Whatever a test did, what the device keeps about itself agrees.
impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.seam.verify();
        }
        // What is under way ends with it.
        self.world.power_off();
    }
}

#[test]
fn a_cell_without_a_slot_a_slot_without_a_cell_and_a_wrong_charge_are_noticed() {
    let spoil: [fn(&Core); 4] = [
        |core| _ = core.pool.allocate(&core.pages, 100, SlotIndex(7)).unwrap().publish(),
        |core| {
            let slot = core.table.lock(SlotIndex(3)).map(|locked| locked.get());
            let Some(Slot::Stored(cell, _)) = slot else { panic!("it holds an object") };
            core.pool.free(&core.pages, cell);
        },
        |core| core.budget.charge(1).unwrap(),
        |core| core.budget.uncharge(1),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let bench = bench(sized(1 << 20));
        (0..10).for_each(|index| bench.write(index, &page(&mut Random(index), 50)).unwrap());
        bench.seam.verify();
        spoil(&bench.zram.core);
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.seam.verify()));
        assert!(found.is_err(), "defect {number} was not noticed");
        std::mem::forget(bench);
    }
}

/// A page that compresses to about `share` percent.
fn page(random: &mut Random, share: usize) -> Vec<u8> {
    let mut page = vec![b'x'; PAGE];
    for chunk in page[..PAGE * share / 100].chunks_mut(8) {
        let word = random.draw().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    page
}

#[test]
fn it_keeps_the_contract_with_every_codec() {
    for name in codec::NAMES {
        let bench = bench(Config { comp_algorithm: name, ..sized(8 << 20) });
        let run = |submission| bench.run(submission);
        contract::check(&Subject { device: bench.zram.clone(), run: &run, stores: true });
    }
}

#[test]
fn same_filled_pages_cost_no_object_and_raw_pages_exactly_a_page() {
    let bench = bench(sized(1 << 20));
    bench.write(0, &[0xab; PAGE]).unwrap();
    bench.write(1, &[0; PAGE]).unwrap();
    assert_eq!((bench.number("compr_data_size"), bench.number("zero_pages")), (0, 1));
    let noise = page(&mut Random(1), 100);
    bench.write(2, &noise).unwrap();
    assert_eq!(bench.number("compr_data_size"), PAGE as u64);
    assert_eq!(bench.read(2, 1), noise);
    let columns = bench.columns("mm_stat");
    assert_eq!((columns.len(), columns[0], columns[5], columns[7], columns[8]), (9, 3 * 4096, 2, 1, 1));
}

#[test]
fn a_write_over_the_limit_fails_is_counted_and_loses_nothing() {
    let bench = bench(sized(32 << 20));
    let mut random = Random(2);
    bench.set("mem_limit", "1M");
    assert_eq!(bench.number("mem_limit"), 1 << 20);
    let pages: Vec<_> = (0..400).map(|_| page(&mut random, 100)).collect();
    let stored: Vec<bool> = (0..400).map(|index| bench.write(index as u64, &pages[index]).is_ok()).collect();
    let held = stored.iter().filter(|&&ok| ok).count();
    assert!((200..256).contains(&held), "{held} raw pages in 1 MiB");
    assert_eq!(bench.number("failed_writes"), 400 - held as u64);
    assert_eq!(
        bench.write(0, &page(&mut random, 100)).err(),
        Some(Kind::NoSpace),
        "an overwrite needs room too"
    );
    for (index, page) in pages.iter().enumerate() {
        let expected = if stored[index] { page.clone() } else { vec![0; PAGE] };
        assert_eq!(bench.read(index as u64, 1), expected);
    }
    bench.set("mem_limit", "0");
    assert_eq!(bench.write(399, &pages[0]), Ok(()));
    assert!(bench.budget.used() >= bench.number("mem_used_total"));
}

#[test]
fn a_discard_of_terabytes_of_nothing_is_instant_and_costs_nothing() {
    let bench = bench(sized(4 << 40));
    bench.write((3 << 40) / PAGE as u64, &page(&mut Random(3), 50)).unwrap();
    let used = bench.budget.used();
    for (offset, left) in [(0, PAGE as u64), (2 << 40, 0)] {
        let discard = Request::bare(Op::Discard, ByteRange::new(offset, 2 << 40));
        let (reply, _, all) = slices::metered(&bench, || bench.seam.submit(discard));
        assert_eq!((reply.result, bench.number("orig_data_size")), (Ok(()), left));
        assert!(all <= slices::most(0), "{all} units for what is empty but for a page");
        assert!(bench.budget.used() <= used, "{} bytes after {used}", bench.budget.used());
    }
    assert_eq!(bench.number("notify_free"), (4 << 40) / PAGE as u64);
}

/// The kernel would refuse it.
#[test]
fn a_device_in_use_grows_and_keeps_what_it_holds() {
    let bench = bench(sized(3 << 20));
    let page = |index: u64| -> Vec<u8> { (0..PAGE).map(|at| (at as u64 * 7 + index * 13) as u8).collect() };
    let mut written = vec![0, 255, 256, 767];
    written.iter().for_each(|&index| bench.write(index, &page(index)).unwrap());
    for size in [(3u64 << 20) + 1, 4 << 20, 64 << 20, (64 << 20) + 4096, 3 << 30, 1 << 40] {
        bench.set("disksize", &size.to_string());
        let last = bench.zram.geometry().size / PAGE as u64 - 1;
        assert_eq!((last + 1) * PAGE as u64, size.next_multiple_of(PAGE as u64));
        assert_eq!(bench.read(last, 1), [0; PAGE], "what is new is zero");
        assert_eq!(bench.write(last + 1, &page(0)), Err(Kind::NoSpace));
        bench.write(last, &page(last)).unwrap();
        written.push(last);
        written.iter().for_each(|&index| assert!(bench.read(index, 1) == page(index), "page {index}"));
        bench.seam.verify();
        for smaller in [1, size - PAGE as u64] {
            assert_eq!(bench.refuse("disksize", &smaller.to_string()), Kind::Busy);
        }
    }
    bench.set("disksize", "1T");
    bench.discard(0, 1 << 40);
    assert_eq!(bench.number("orig_data_size"), 0, "what lies behind an old end is found and freed");
    let (fixed, has) = (bench.budget.used(), bench.zram.geometry().size);
    bench.budget.charge(bench.budget.room()).unwrap();
    assert_eq!(bench.refuse("disksize", "16T"), Kind::NoSpace);
    assert_eq!(bench.zram.geometry().size, has);
    bench.budget.uncharge(bench.budget.used() - fixed);
}

#[test]
fn memory_follows_the_data_after_churn_and_after_discarding_a_random_half() {
    let bench = bench(sized(64 << 20));
    let mut random = Random(6);
    let slots = 16384;
    let mut model: Vec<Vec<u8>> = Vec::new();
    for index in 0..slots {
        let share = 8 + random.below(75) as usize;
        model.push(page(&mut random, share));
        bench.write(index, &model[index as usize]).unwrap();
    }
    for _ in 0..2 * slots {
        let (index, share) = (random.below(slots), 8 + random.below(75) as usize);
        model[index as usize] = page(&mut random, share);
        bench.write(index, &model[index as usize]).unwrap();
    }
    settle(&bench, "after churn", 50);
    for index in 0..slots {
        if random.below(2) == 0 {
            bench.discard(index * PAGE as u64, PAGE as u64);
            model[index as usize] = vec![0; PAGE];
        }
    }
    settle(&bench, "after discarding half", 50);
    for (index, page) in model.iter().enumerate() {
        assert_eq!(&bench.read(index as u64, 1), page, "slot {index}");
    }
    bench.discard(0, 64 << 20);
    settle(&bench, "after discarding all", 0);
    assert_eq!(bench.number("mem_used_total"), 0);
}

/// Gives the compactor so many looks, and time for what it then does.
fn look(bench: &Bench, looks: usize) {
    for _ in 0..looks {
        bench.world.advance(Duration::from_millis(100));
        (0..200).for_each(|_| _ = bench.world.turn());
    }
    bench.seam.verify();
}

/// Lets two seconds go by and checks the overhead of pool and table in thousandths of the objects.
fn settle(bench: &Bench, when: &str, permille: u64) {
    look(bench, 20);
    let (object, taken) = (bench.number("compr_data_size"), bench.number("mem_used_total"));
    assert!((taken - object) * 1000 <= object * permille, "{when}: {taken} bytes taken for {object}");
}

#[test]
fn a_device_that_is_stopped_gives_its_memory_back_to_the_server() {
    let (world, budget) = (World::new(1), Budget::new(64 << 20));
    let zram = Zram::new(sized(1 << 20), world, Arc::new(VecRegions::new(64 << 20)), budget.clone()).unwrap();
    let seam = Seam::new(zram);
    let noise = page(&mut Random(1), 100);
    assert_eq!(block_on(seam.submit(Request::write(0, IoBuf::copy_of(&noise)))).result, Ok(()));
    assert!(budget.used() > 0);
    drop(seam);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_device_that_finds_no_memory_says_so_and_lives() {
    let (world, budget) = (World::new(1), Budget::new(64 << 20));
    let regions = Arc::new(VecRegions::new(0));
    let zram = Zram::new(sized(1 << 20), world, regions, budget.clone()).unwrap();
    let seam = Seam::new(zram);
    let noise = page(&mut Random(1), 100);
    let reply = block_on(seam.submit(Request::write(0, IoBuf::copy_of(&noise))));
    assert_eq!(reply.result, Err(Kind::OutOfMemory));
    let reply = block_on(seam.submit(Request::read(0, IoBuf::new(PAGE))));
    assert_eq!((reply.result, reply.buf.iter().all(|&byte| byte == 0)), (Ok(()), true));
}

#[test]
fn a_device_that_has_filled_its_server_s_memory_can_be_reset() {
    let bench = bench(sized(32 << 20));
    let mut random = Random(2);
    for index in 0..200 {
        bench.write(index, &page(&mut random, 100)).unwrap();
    }
    // The server has nothing left.
    bench.budget.set_limit(bench.budget.used());
    bench.set("reset", "1");
    assert_eq!(bench.number("mem_used_total"), 0);
}
