//! Requests of all kinds at once, many of which are given up on the way, while settings change, memory is short, and the disk is full now and
//! then: all others are answered, what is read was written, and in the end nothing is held, counted or under way.

use std::collections::BTreeSet;
use std::ops::Range;

use futures_util::future::{Either, select};
use spillway_core::random::Random;

use super::*;

const BLOCKS: u64 = 3000;

/// Who waits so long, in microseconds, has an answer.
const PATIENT: u64 = 60_000_000;

/// A block of the device, as those above may know it.
#[derive(Clone, Default)]
struct Block {
    /// What it may hold.
    may: BTreeSet<u8>,
    /// Requests under way that change it, and how many there ever were.
    changing: u32,
    changes: u64,
}

/// A request under way.
struct Asked {
    name: String,
    op: Op,
    blocks: Range<usize>,
    /// Each block before it, and what it writes there.
    before: Vec<Block>,
    value: Option<u8>,
    /// How long it is waited for, in microseconds.
    patience: u64,
}

impl Asked {
    /// Those of its blocks that nobody else changed since it began, by place.
    fn alone(&self, blocks: &[Block]) -> Vec<usize> {
        let own = u64::from(self.value.is_some());
        let alone = |at: &usize| {
            let (before, now) = (&self.before[*at], &blocks[self.blocks.start + at]);
            before.changing == 0 && now.changes == before.changes + own
        };
        (0..self.blocks.len()).filter(alone).collect()
    }

    /// It was answered, or nobody waits for it any more.
    fn end(self, reply: Option<Reply>, blocks: &mut [Block]) {
        assert!(reply.is_some() || self.patience < PATIENT, "{} has no answer", self.name);
        if let Some(reply) = reply.filter(|reply| reply.result.is_ok()) {
            for at in self.alone(blocks) {
                let (number, may) = (self.blocks.start + at, &self.before[at].may);
                if self.op == Op::Read {
                    let read = reply.buf[at * BLOCK + BLOCK - 1];
                    assert!(may.contains(&read), "{}: block {number} has {read}, not {may:?}", self.name);
                }
                if let Some(value) = self.value {
                    blocks[number].may = BTreeSet::from([value]);
                }
            }
        }
        if self.value.is_some() {
            blocks[self.blocks].iter_mut().for_each(|block| block.changing -= 1);
        }
    }
}

struct Storm {
    seed: u64,
    random: Random,
    house: House,
    blocks: Rc<RefCell<Vec<Block>>>,
    /// Requests under way.
    open: Rc<Cell<u64>>,
    /// Where the stream of requests goes on.
    stream: u64,
    /// The disk is full now and then.
    fills_up: bool,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut one_of = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        let cut = Cut { region_bytes: one_of(&[0, 65536, 1 << 18]), shards: one_of(&[0, 1, 2]) };
        let zones = if one_of(&[0, 0, 1]) == 1 { vec![1, 3] } else { Vec::new() };
        let config = Config {
            page_cache_bytes_max: Some(one_of(&[3 << 19, 2 << 20, 8 << 20])),
            folio_size: Some(one_of(&[0, 4096, 16384])).filter(|size| *size > 0),
            cut,
            division: Division { zones, ..Division::default() },
            ..mebibyte()
        };
        let house = House::new(&config);
        house.regions.give(one_of(&[u64::MAX, u64::MAX, 0, 1, 2]));
        house.below.slow_zeroes.store(one_of(&[0, 0, 0, 1]) == 1, Ordering::Relaxed);
        let fills_up = one_of(&[0, 0, 1]) == 1;
        let zero = Block { may: BTreeSet::from([0]), ..Block::default() };
        Self {
            seed,
            random,
            house,
            blocks: Rc::new(RefCell::new(vec![zero; BLOCKS as usize])),
            open: Rc::default(),
            stream: 0,
            fills_up,
        }
    }

    fn one_of(&mut self, values: &[u64]) -> u64 {
        values[self.random.below(values.len() as u64) as usize]
    }

    /// Lets up to so many things happen.
    fn go_on(&mut self, most: u64) {
        (0..self.random.below(most)).for_each(|_| _ = self.house.world.go_on());
    }

    fn step(&mut self, nth: u64) {
        match self.random.below(100) {
            0..30 => self.ask(nth, Op::Write),
            30..60 => self.ask(nth, Op::Read),
            60..72 => self.ask(nth, Op::Discard),
            72..80 => self.ask(nth, Op::WriteZeroes),
            80..84 => self.ask(nth, Op::Flush),
            84..88 => self.change_ratios(),
            88..90 => {
                let bytes = self.one_of(&[0, 4096, 65536, 1 << 20]);
                self.house.set("readahead_bytes_max", &bytes.to_string());
            }
            90..92 if self.fills_up => {
                let any = ByteRange::new(self.random.below(BLOCKS) * BLOCK as u64, 64 * BLOCK as u64);
                let mut full = self.house.below.full.lock();
                *full = if full.is_some() { None } else { Some(any) };
            }
            _ => {
                self.go_on(60);
                self.house.cache.verify();
            }
        }
    }

    fn change_ratios(&mut self) {
        let all = self.random.below(101);
        let background = self.random.below(all + 1);
        for (name, percent) in
            [("dirty_background_ratio", 0), ("dirty_ratio", all), ("dirty_background_ratio", background)]
        {
            self.house.set(name, &percent.to_string());
        }
    }

    /// A place that is drawn, or comes after the last one that did.
    fn place(&mut self) -> Range<u64> {
        let (first, blocks) = match self.random.below(3) {
            0 => (self.stream % BLOCKS, 1 + self.random.below(4)),
            _ => {
                let longest = self.one_of(&[4, 16, 64, 600]);
                (self.random.below(BLOCKS), 1 + self.random.below(longest))
            }
        };
        self.stream = first + blocks;
        first..(first + blocks).min(BLOCKS)
    }

    fn ask(&mut self, nth: u64, op: Op) {
        let place = if op == Op::Flush { 0..0 } else { self.place() };
        let (first, blocks) = (place.start as usize, (place.end - place.start) as usize);
        let range = ByteRange::new(place.start * BLOCK as u64, (blocks * BLOCK) as u64);
        let written = 1 + self.random.below(250) as u8;
        let (request, value) = match op {
            Op::Write => (filled(first, written, blocks), Some(written)),
            Op::Read => (Request::read(range.offset, IoBuf::new(blocks * BLOCK)), None),
            Op::WriteZeroes | Op::Discard => (Request::bare(op, range), Some(0)),
            Op::Flush => (Request::flush(), None),
        };
        let request = if op == Op::Write && self.random.below(8) == 0 { request.with_fua() } else { request };
        let patience = self.one_of(&[20, 200, 3000, PATIENT]);
        let name = format!("seed {}, {nth}: {op:?} of {range:?}", self.seed);
        let blocks = first..first + blocks;
        let before = self.blocks.borrow()[blocks.clone()].to_vec();
        self.begin(request, Asked { name, op, blocks, before, value, patience });
        if self.random.below(3) == 0 {
            self.go_on(40);
        }
    }

    fn begin(&mut self, request: Request, asked: Asked) {
        if let Some(value) = asked.value {
            for block in &mut self.blocks.borrow_mut()[asked.blocks.clone()] {
                block.may.insert(value);
                block.changing += 1;
                block.changes += 1;
            }
        }
        let submission = self.house.submit(request);
        let (world, blocks, open) = (self.house.world.clone(), self.blocks.clone(), self.open.clone());
        open.set(open.get() + 1);
        self.house.world.spawn_here(Box::pin(async move {
            let given_up = world.sleep(Duration::from_micros(asked.patience));
            let reply = match select(Box::pin(submission), given_up).await {
                Either::Left((reply, _)) => Some(reply),
                Either::Right(_) => None,
            };
            asked.end(reply, &mut blocks.borrow_mut());
            open.set(open.get() - 1);
        }));
    }

    /// Nobody asks for anything any more: all comes to rest, and is as it should be.
    fn rest(self) {
        let Self { seed, house, blocks, open, .. } = self;
        *house.below.full.lock() = None;
        let core = &house.cache.core;
        let (buffers, copies) = (&core.streams.buffers, &core.batches);
        house.until("an answer to each", || open.get() == 0);
        house.until("the end of windows", || core.streams.found.lock().under_way() == 0);
        house.until("the end of batches", || core.zones.moving() == 0);
        house.until("the end of buffers", || buffers.try_take(buffers.bytes()).is_some());
        house.until("the end of copies", || copies.try_take(copies.bytes()).is_some());
        assert!(core.outside.is_empty(), "seed {seed}: a range is held");
        assert_eq!(core.unsaved.used(), core.zones.dirty(), "seed {seed}");
        let waited_for = core.pressure.iter().any(|pressure| pressure.room.is_waited_for());
        assert!(!waited_for && core.unsaved.waiting() == 0, "seed {seed}: a writer waits");
        assert_eq!((house.stop(), core.unsaved.used()), (Ok(()), 0), "seed {seed}");
        house.until("the end of reclaim", || core.reclaim.is_idle());
        assert!(!core.is_short(), "seed {seed}: memory is short, and all is clean");
        for (number, block) in blocks.borrow().iter().enumerate() {
            let read = house.read(number, 1)[0];
            assert!(block.may.contains(&read), "seed {seed}: block {number} has {read}, not {:?}", block.may);
        }
    }
}

#[test]
fn whatever_is_given_up_nothing_is_left_behind() {
    for seed in 0..12 {
        let mut storm = Storm::new(seed);
        (0..600).for_each(|nth| storm.step(nth));
        storm.rest();
    }
}
