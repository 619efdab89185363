//! What a hit costs: reads of 4 KiB in memory, beside a look-up in a sharded hash table and a copy; and how both grow with a thread.

use std::time::Instant;

use anyhow::{Result, bail};
use hashbrown::HashMap;
use parking_lot::RwLock;
use spillway_core::random::Random;
use spillway_core::{Answer, IoBuf, Request, Seam};
use spillway_io::{DriverChoice, Workers, WorkersOptions};
use spillway_layers::page_cache::{Config, Cut};

use super::store::Rig;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{figure, ratio, row};

const PAGE: u64 = 4096;
const READS: u64 = 400_000;
const SHARDS: u64 = 16;

/// Pages that are read: in the processor's caches, and far more than these hold.
const SETS: [(&str, u64); 2] = [("1 MiB", 256), ("128 MiB", 32 << 10)];

/// What is read from, and how a page is.
pub(super) trait Contender: Sync {
    fn read(&self, page: u64, buf: IoBuf) -> IoBuf;
}

/// By name.
pub(super) const CONTENDERS: [&str; 3] = ["cache", "table", "copies"];

/// The one of that name, with so many pages in memory.
pub(super) fn contender(name: &str, pages: u64) -> Result<Box<dyn Contender>> {
    Ok(match name {
        "cache" => Box::new(Cached::filled(pages)?),
        "table" => Box::new(Table::new(pages)),
        "copies" => Box::new(Copies(vec![1; (pages * PAGE) as usize])),
        _ => bail!("there is no contender {name:?}; there are: {}", CONTENDERS.join(", ")),
    })
}

/// A cache, and how it is reached.
struct Cached(Seam, #[expect(dead_code, reason = "its worker lives as long")] Rig);

impl Cached {
    /// One that holds so many pages of its device, of which a shard may have more than others. By polling, because valgrind knows no io_uring.
    fn filled(pages: u64) -> Result<Self> {
        let config = Config {
            page_cache_bytes_max: Some(pages * PAGE * 2 + (64 << 20)),
            cut: Cut { shards: SHARDS, ..Cut::default() },
            ..Config::default()
        };
        let polling = WorkersOptions { count: 1, driver: DriverChoice::Poll, ..WorkersOptions::default() };
        let rig = Rig::on(Workers::start(polling)?, &config, pages * PAGE, 4096, 1 << 30)?;
        rig.on_worker(move |seam| async move {
            for page in 0..pages {
                let reply = seam.submit(Request::read(page * PAGE, IoBuf::new(PAGE as usize))).await;
                assert_eq!(reply.result, Ok(()));
            }
        });
        Ok(Self(Seam::new(rig.cache.clone()), rig))
    }
}

impl Contender for Cached {
    fn read(&self, page: u64, buf: IoBuf) -> IoBuf {
        match self.0.submit(Request::read(page * PAGE, buf)) {
            Answer::Done(reply) => reply.buf,
            _ => panic!("page {page} is in memory"),
        }
    }
}

/// The least that a cache has to do: a lock, a look-up, a copy.
struct Table(Vec<RwLock<HashMap<u64, Box<[u8]>>>>);

impl Table {
    fn new(pages: u64) -> Self {
        let shards: Vec<_> = (0..SHARDS).map(|_| RwLock::new(HashMap::new())).collect();
        (0..pages).for_each(|page| {
            _ = shards[(page % SHARDS) as usize].write().insert(page, vec![0; PAGE as usize].into());
        });
        Self(shards)
    }
}

impl Contender for Table {
    fn read(&self, page: u64, mut buf: IoBuf) -> IoBuf {
        let shard = self.0[(page % SHARDS) as usize].read();
        buf.copy_from_slice(shard.get(&page).expect("the page is there"));
        buf
    }
}

/// Nothing but the copy.
struct Copies(Vec<u8>);

impl Contender for Copies {
    fn read(&self, page: u64, mut buf: IoBuf) -> IoBuf {
        buf.copy_from_slice(&self.0[(page * PAGE) as usize..][..PAGE as usize]);
        buf
    }
}

/// Reads `count` of so many pages. Called by name from outside, where its instructions are counted.
#[inline(never)]
pub(super) fn read_at_random(contender: &dyn Contender, seed: u64, count: u64, pages: u64) {
    let (mut random, mut buf) = (Random(seed), IoBuf::new(PAGE as usize));
    for _ in 0..count {
        buf = contender.read(random.below(pages), buf);
    }
    std::hint::black_box(buf);
}

/// Million reads a second of so many threads together.
fn rate(contender: &dyn Contender, threads: u64, pages: u64) -> f64 {
    let reader = |thread: u64| read_at_random(contender, thread + 1, READS, pages);
    let start = Instant::now();
    std::thread::scope(|scope| (0..threads).for_each(|thread| _ = scope.spawn(move || reader(thread))));
    (threads * READS) as f64 / start.elapsed().as_secs_f64() / 1e6
}

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (name, pages) in SETS {
        let contenders = CONTENDERS.map(|name| contender(name, pages));
        let contenders = contenders.into_iter().collect::<Result<Vec<_>>>()?;
        let figures = rounds.measure(|round| {
            let mut rates = vec![0.0; 2 * contenders.len()];
            for turn in drawn_order(rates.len(), round) {
                rates[turn] = rate(&*contenders[turn / 2], 1 + turn as u64 % 2, pages);
            }
            Ok(rates)
        })?;
        let growth = |contender: usize| ratio(&figures[2 * contender + 1], &figures[2 * contender]).of_ours();
        rows.push(row![
            name,
            figure(&figures[0], 2),
            figure(&figures[2], 2),
            ratio(&figures[2], &figures[0]),
            growth(0),
            growth(1),
            growth(2),
            growth(0).to(&growth(2)).at_least(0.95),
        ]);
    }
    let title = "Reads of 4 KiB that hit, million a second of one thread";
    let head = [
        "set",
        "page cache",
        "sharded hash table",
        "time to that of the table",
        "two threads to one",
        "of the table",
        "of bare copies",
        "ours to copies",
    ];
    rounds.show(title, &head, rows)
}
