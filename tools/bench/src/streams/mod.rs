//! E2: how writers and compression streams scale, and what a pool of streams costs.
//!
//! The work of a write is C inside its stream and N outside. More streams can gain 2C/(C+N) at most, so a ratio alone
//! rewards a slow N: therefore two writers on two streams are also held against two writers that share nothing at all,
//! each with a device of its own.

mod fwrite;

use std::collections::VecDeque;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::Result;
use parking_lot::{Condvar, Mutex};
use spillway_core::IoBuf;
use spillway_io::{DriverChoice, Workers, WorkersOptions};

use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Bound, Figure, figure, named, ratio};
use crate::peers::device::Device;
use crate::peers::lz4::lz4;
use crate::peers::pages::{self, PAGE, Pages};
use fwrite::Files;

/// iozone's sizes in the source: 16 KiB records, 60 MiB a writer.
const RECORD: usize = 16 << 10;
const RECORDS: usize = (60 << 20) / RECORD;

/// Rows of the source's table. `pwrite` is positional and scattered by a fixed stride. Its fwrite is a table of its own.
const TESTS: [&str; 4] = ["initial write", "rewrite", "random write", "pwrite"];

/// Writers in this process, the source's fwrite over a mount, or handing out a context alone.
pub(crate) fn run(rounds: Rounds) -> Result<()> {
    if rounds.part == Some("locks") {
        return locks(&pages::elf(64 << 20)?, rounds);
    }
    let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for algorithm in ["lz4", "zstd"] {
        for set in [pages::elf(64 << 20)?, pages::half(64 << 20)?] {
            let (tests, wanted) = match rounds.part {
                Some("inside") => (grid(&workers, algorithm, &set, rounds)?, wanted(algorithm, &set)),
                _ => (stdio(algorithm, &set, rounds)?, [0.0; 3]),
            };
            for (test, figures) in tests {
                let name = format!("{algorithm}, {}, {test}", set.name);
                rates.push(named(&name, figures.iter().map(|rates| figure(rates, 0))));
                let to = |(ours, theirs): (usize, usize), wanted| {
                    ratio(&figures[ours], &figures[theirs]).wanted(wanted).of_ours()
                };
                let of = |nth: usize| to((RATIOS[nth].1, RATIOS[nth].2), wanted[nth]);
                ratios.push((name, [0, 1, 2].map(of)));
            }
        }
    }
    let head: Vec<&str> =
        std::iter::once("writers, streams").chain(COLUMNS.iter().map(|column| column.0)).collect();
    let place = if rounds.part == Some("inside") { "in this process" } else { "fwrite over a mount" };
    rounds.show(&format!("E2: records of 16 KiB, {place}, MiB a second"), &head, rates)?;
    let head: Vec<&str> =
        std::iter::once("writers by streams").chain(RATIOS.map(|(name, ..)| name)).collect();
    let worst = worst(&ratios);
    let rows = ratios.into_iter().chain([worst]).map(|(name, ratios)| named(&name, ratios));
    rounds.show(&format!("E2: records of 16 KiB, {place}, ratios"), &head, rows.collect())
}

/// The row of these.
pub(crate) const WORST: &str = "the worst of these";

/// Of each column the ratio that is farthest below its bound, or nearest to it.
fn worst(ratios: &[(String, [Figure; 3])]) -> (String, [Figure; 3]) {
    let margin = |figure: &Figure| {
        let value = figure.value().unwrap_or(f64::MAX);
        if let Some(Bound::AtLeast(wanted)) = figure.bound { value / wanted } else { value }
    };
    let least = |column: usize| {
        let figures = ratios.iter().map(|(_, figures)| &figures[column]);
        figures.min_by(|a, b| margin(a).total_cmp(&margin(b))).expect("there are rows").clone()
    };
    (WORST.into(), [0, 1, 2].map(least))
}

/// The least ratios.
fn wanted(algorithm: &str, set: &Pages) -> [f64; 3] {
    match (algorithm, set.name) {
        ("zstd", _) => [1.8, 0.95, 0.85],
        (_, "ELF files") => [1.65, 0.95, 0.95],
        _ => [1.4, 0.95, 0.95],
    }
}

/// Records of a writer.
fn records(rounds: Rounds) -> usize {
    rounds.pick(RECORDS, RECORDS / 4)
}

fn order(test: usize, writer: usize, records: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..records).collect();
    match test {
        2 => order = drawn_order(records, writer),
        3 => order.sort_by_key(|index| (index % 16, *index)),
        _ => {}
    }
    order
}

/// MiB a second of each test, `writers` threads at once; writer `n` writes to `devices[n % devices.len()]`.
fn race(devices: &[Device], set: &Pages, writers: usize, records: usize) -> [f64; 4] {
    let barrier = Barrier::new(writers + 1);
    let mut rates = [0.0; 4];
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (device, barrier) = (&devices[writer % devices.len()], &barrier);
            scope.spawn(move || {
                let mut buf = IoBuf::new(RECORD);
                for test in 0..TESTS.len() {
                    let order = order(test, writer, records);
                    barrier.wait();
                    for &record in &order {
                        let source = (record * 4 + test * 7 + writer * 1000) % (set.count() - 4) * PAGE;
                        buf.copy_from_slice(&set.bytes[source..source + RECORD]);
                        buf = device.write(((writer * records + record) * RECORD) as u64, buf);
                    }
                    barrier.wait();
                }
            });
        }
        for rate in &mut rates {
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            *rate = (writers * records * RECORD) as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64();
        }
    });
    rates
}

/// A column of the table: its name, writers, streams; 0 streams means a device of its own for each writer.
const COLUMNS: [(&str, usize, usize); 9] = [
    ("1 writer, 1 stream", 1, 1),
    ("1, 2", 1, 2),
    ("2, 1", 2, 1),
    ("2, 2", 2, 2),
    ("2, apart", 2, 0),
    ("2, 3", 2, 3),
    ("3, 1", 3, 1),
    ("3, 2", 3, 2),
    ("3, 3", 3, 3),
];
const ONE: usize = 0;
const TWO_BY_ONE: usize = 2;
const TWO_BY_TWO: usize = 3;
const TWO_APART: usize = 4;

/// Ratios of one column to another.
const RATIOS: [(&str, usize, usize); 3] = [
    ("2 by 2 / 2 by 1", TWO_BY_TWO, TWO_BY_ONE),
    ("2 by 2 / 2 apart", TWO_BY_TWO, TWO_APART),
    ("2 by 1 / 1 by 1", TWO_BY_ONE, ONE),
];

fn grid(workers: &Workers, algorithm: &'static str, set: &Pages, rounds: Rounds) -> Result<Tests> {
    let figures = rounds.measure_anew(|round| {
        let mut rates = vec![0.0; TESTS.len() * COLUMNS.len()];
        for column in drawn_order(COLUMNS.len(), round) {
            let (_, writers, streams) = COLUMNS[column];
            let count = if streams == 0 { writers } else { 1 };
            let devices = (0..count).map(|_| Device::new(workers, 1 << 30, algorithm, streams.max(1)));
            let devices = devices.collect::<Result<Vec<_>, _>>()?;
            for (test, rate) in race(&devices, set, writers, records(rounds)).into_iter().enumerate() {
                rates[test * COLUMNS.len() + column] = rate;
            }
        }
        Ok(rates)
    })?;
    Ok(TESTS.into_iter().zip(figures.chunks(COLUMNS.len()).map(<[_]>::to_vec)).collect())
}

/// The figures of each column, by test.
type Tests = Vec<(&'static str, Vec<Vec<f64>>)>;

/// The source's fwrite, over a mount.
fn stdio(algorithm: &'static str, set: &Pages, rounds: Rounds) -> Result<Tests> {
    let files = Files::start(algorithm)?;
    let rates = rounds.measure(|round| {
        let mut rates = vec![0.0; COLUMNS.len()];
        for column in drawn_order(COLUMNS.len(), round) {
            let (_, writers, streams) = COLUMNS[column];
            rates[column] = files.race(set, writers, streams, (RECORD, records(rounds.at(round))))?;
        }
        Ok(rates)
    })?;
    Ok(vec![("fwrite", rates)])
}

/// One writer on one stream, for counting instructions from outside; by polling, because valgrind knows no io_uring.
pub(crate) fn one_writer() -> Result<()> {
    let workers =
        Workers::start(WorkersOptions { count: 1, driver: DriverChoice::Poll, ..WorkersOptions::default() })?;
    let device = Device::new(&workers, 64 << 20, "lz4", 1)?;
    let set = pages::elf(8 << 20)?;
    for index in 0..set.count() {
        device.write((index * PAGE) as u64, IoBuf::copy_of(set.page(index)));
    }
    Ok(())
}

/// The source's own comparison: ways to hand out contexts, around the compression alone.
fn locks(set: &Pages, rounds: Rounds) -> Result<()> {
    const KINDS: [&str; 3] = ["no pool", "a list of one", "a mutex"];
    let mut rows = Vec::new();
    for writers in [1, 3] {
        let figures = rounds.measure(|_| {
            Ok(vec![
                compress(set, writers, &|_| Box::new(Private(Mutex::new(vec![0; lz4_flat()])))),
                shared(set, writers, &List::new()),
                shared(set, writers, &Private(Mutex::new(vec![0; lz4_flat()]))),
            ])
        })?;
        rows.push(named(&writers.to_string(), figures.iter().map(|rates| figure(rates, 0))));
    }
    let head: Vec<&str> = std::iter::once("writers").chain(KINDS).collect();
    let what = "Handing out one context, lz4, ELF files, compression alone, MiB/s";
    rounds.show(what, &head, rows)
}

/// Something that runs work with a context.
trait Contexts: Sync {
    fn with(&self, work: &mut dyn FnMut(&mut Vec<u8>));
}

struct Private(Mutex<Vec<u8>>);

impl Contexts for Private {
    fn with(&self, work: &mut dyn FnMut(&mut Vec<u8>)) {
        work(&mut self.0.lock());
    }
}

/// A list of idle contexts and a queue of waiters, as the source first had it.
struct List {
    idle: Mutex<VecDeque<Vec<u8>>>,
    returned: Condvar,
}

impl List {
    fn new() -> Self {
        Self { idle: Mutex::new(VecDeque::from([vec![0; lz4_flat()]])), returned: Condvar::new() }
    }
}

impl Contexts for List {
    fn with(&self, work: &mut dyn FnMut(&mut Vec<u8>)) {
        let mut idle = self.idle.lock();
        let mut context = loop {
            match idle.pop_front() {
                Some(context) => break context,
                None => self.returned.wait(&mut idle),
            }
        };
        drop(idle);
        work(&mut context);
        self.idle.lock().push_back(context);
        self.returned.notify_one();
    }
}

/// Bytes that hold the compressed form of any page.
fn lz4_flat() -> usize {
    2 * PAGE
}

fn shared(set: &Pages, writers: usize, contexts: &dyn Contexts) -> f64 {
    run_writers(set, writers, &|_, work| contexts.with(work))
}

fn compress(set: &Pages, writers: usize, make: &dyn Fn(usize) -> Box<dyn Contexts>) -> f64 {
    let own: Vec<_> = (0..writers).map(make).collect();
    run_writers(set, writers, &|writer, work| own[writer].with(work))
}

type Lend<'a> = dyn Fn(usize, &mut dyn FnMut(&mut Vec<u8>)) + Sync + 'a;

fn run_writers(set: &Pages, writers: usize, lend: &Lend<'_>) -> f64 {
    const COUNT: usize = 4096;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                for index in 0..COUNT {
                    lend(writer, &mut |out| {
                        _ = std::hint::black_box(lz4(set.page(index + writer * COUNT), out))
                    });
                }
            });
        }
    });
    (writers * COUNT * PAGE) as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_ratio_is_the_farthest_below_its_bound() {
        let row = |values: [f64; 3], wanted: f64| {
            ("a".into(), values.map(|value| ratio(&[value], &[1.0]).at_least(wanted)))
        };
        let (_, worst) = worst(&[row([1.9, 1.0, 3.0], 2.0), row([1.3, 0.8, 1.1], 1.0)]);
        assert_eq!(worst.map(|figure| figure.value()), [Some(1.9), Some(1.0), Some(1.1)]);
    }
}
