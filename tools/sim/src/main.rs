//! `cargo xtask sim`: runs stories, shortens those that break a promise, and prints how to see them again.
#![forbid(unsafe_code)]

mod cli;

use std::panic::PanicHookInfo;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use spillway_core::random::Random;
use spillway_simulate::run::run;
use spillway_simulate::search::campaign;
use spillway_simulate::search::shrink::shrink;
use spillway_simulate::stacks::row::Row;
use spillway_simulate::stacks::{self, STACKS};
use spillway_simulate::stories::scenario::Scenario;
use tracing::Level;

use crate::cli::hunt::hunt_all;
use crate::cli::job::{self, Job, Task};
use crate::cli::options::Options;
use crate::cli::race::{Counts, race, share_out, until_crashes};

/// Seeds that once broke a promise, with what was wrong. They are run first.
const CORPUS: &str = include_str!("../corpus.txt");

/// What the check runs: power cuts, workloads with failures for each stack, sampled sequences of three.
const CHECK_CRASHES: u64 = 12_000;
const CHECK_FAILURES: u64 = 20;
const CHECK_TRIPLES: u64 = 300;

fn main() -> ExitCode {
    let options = Options::parse();
    std::panic::set_hook(Box::new(tell_of_abort));
    match carry_out(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// A panic of a stack is reported as a broken promise, with the story that led to it; one that ends the process has to say it here.
fn tell_of_abort(panic: &PanicHookInfo<'_>) {
    let words = panic.payload_as_str().unwrap_or_default();
    if words.contains("destructor") {
        eprintln!("{words}: {}", job::current());
    }
}

fn carry_out(options: &Options) -> Result<(), String> {
    let (rows, first) = (options.rows(), options.seed.unwrap_or_else(fresh_seed));
    if options.check {
        return check(first)
            .map_err(|broken| format!("{broken}\ncheck: again: cargo xtask sim --check --seed {first}"));
    }
    if let Some(text) = &options.mutants {
        return hunt_all(&rows, text, first);
    }
    if let Some(crashes) = options.crashes {
        return long_run(&rows, first, crashes);
    }
    let tasks = wanted(options, &rows);
    if options.log {
        tasks.iter().for_each(|&(row, job)| show(row, job));
    }
    report("run", race(&tasks))
}

/// The tasks that are counted by their number.
fn wanted(options: &Options, rows: &[&'static Row]) -> Vec<Task> {
    let one = |job| tasks(rows, std::iter::once(job));
    if let Some(len) = options.sequences {
        return all_sequences(rows, len);
    }
    if let Some(count) = options.failures {
        return tasks(rows, (0..count).map(Job::Failure));
    }
    if let Some(index) = options.failure {
        return one(Job::Failure(index));
    }
    if let Some(sequence) = options.sequence {
        return one(Job::Sequence(sequence.len, sequence.index));
    }
    let first = options.seed.expect("it is required where nothing else is given");
    tasks(rows, (first..first.saturating_add(options.runs)).map(Job::Seed))
}

/// Prints what happens in the shortest story found that breaks a promise, or in that of the seed where none does.
fn show(row: &'static Row, job: Job) {
    let story = match (job.run(row), job) {
        (Err(broken), _) => shrink(*broken).scenario,
        (Ok(_), Job::Seed(seed)) => Scenario::draw(row, seed),
        (Ok(_), Job::Sequence(..) | Job::Failure(_)) => return,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_target(false)
        .with_level(false)
        .without_time();
    let _ = tracing::subscriber::with_default(log.with_writer(std::io::stderr).finish(), || run(&story));
}

fn tasks(rows: &[&'static Row], jobs: impl Iterator<Item = Job> + Clone) -> Vec<Task> {
    rows.iter().flat_map(|&row| jobs.clone().map(move |job| (row, job))).collect()
}

/// Sequences are about power cuts: of the stacks without a disk one is enough.
fn all_sequences(rows: &[&'static Row], len: u32) -> Vec<Task> {
    let each = |row: &&'static Row| {
        let row = *row;
        (0..campaign::sequences(row, len)).map(move |index| (row, Job::Sequence(len, index)))
    };
    rows.iter().flat_map(each).collect()
}

/// A run of `crashes` power cuts and broken connections, in which every stack that comes back after one gets as much time.
fn long_run(rows: &[&'static Row], first: u64, crashes: u64) -> Result<(), String> {
    let comes_back = |row: &&'static Row| row.disk.is_some() || row.kept;
    let rows: Vec<&'static Row> = rows.iter().copied().filter(comes_back).collect();
    if rows.is_empty() {
        return Err("no such stack has a disk whose power could be cut".into());
    }
    let start = Instant::now();
    println!("crashes: from seed {first} on, again with --seed {first}");
    let (counts, outcome) = share_out(&rows, first, crashes);
    let (total, by_stack) = (counts.total(), counts.by_stack());
    println!(
        "crashes: {} and {} breaks in {} stories with {} answers, {} violations{}, {} s: {by_stack}",
        total.crashes,
        total.breaks,
        total.stories,
        total.answers,
        u8::from(outcome.is_err()),
        lost(total),
        start.elapsed().as_secs()
    );
    outcome
}

/// What disks that ignored a flush have lost.
fn lost(total: campaign::Tally) -> String {
    match total.excused {
        0 => String::new(),
        count => format!(", {count} sectors lost by disks that ignored a flush"),
    }
}

fn report(what: &str, outcome: Result<Counts, String>) -> Result<(), String> {
    let total = outcome?.total();
    println!(
        "{what}: {} stories, {} crashes, {} breaks, {} answers, 0 violations{}",
        total.stories,
        total.crashes,
        total.breaks,
        total.answers,
        lost(total)
    );
    Ok(())
}

fn timed(what: &str, work: impl FnOnce() -> Result<Counts, String>) -> Result<(), String> {
    let start = Instant::now();
    let outcome = work();
    report(what, outcome)?;
    println!("    {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Everything that is drawn is drawn from `first` on.
fn check(first: u64) -> Result<(), String> {
    println!("check: again with cargo xtask sim --check --seed {first}");
    let all: Vec<&'static Row> = STACKS.iter().collect();
    let short: Vec<&'static Row> = ["file", "file-512", "write-cache-small", "write-cache-eager", "zram"]
        .iter()
        .filter_map(|name| stacks::find(name))
        .collect();
    timed("corpus", || race(&corpus()?))?;
    determinism(first)?;
    // A full cache is about runs of metadata: random stories on it are worth their time, all short ones are not.
    let small: Vec<&'static Row> = all.iter().copied().filter(|row| !row.full).collect();
    timed("all sequences of one", || race(&all_sequences(&small, 1)))?;
    timed("all sequences of two", || race(&all_sequences(&short, 2)))?;
    timed("sampled sequences of three", || race(&triples(&short, first)))?;
    timed("every failure", || {
        race(&tasks(&short, (0..CHECK_FAILURES).map(|nth| Job::Failure(first.wrapping_add(nth)))))
    })?;
    timed("random", || until_crashes(&all, first, CHECK_CRASHES))?;
    hunt_all(&all, "", first)
}

fn triples(rows: &[&'static Row], first: u64) -> Vec<Task> {
    let each = |row: &&'static Row| {
        let row = *row;
        let count = campaign::sequences(row, 3);
        let apart = count / CHECK_TRIPLES;
        (0..CHECK_TRIPLES).map(move |nth| (row, Job::Sequence(3, nth * apart + first % apart)))
    };
    rows.iter().flat_map(each).collect()
}

/// Lines of the corpus: a stack, a seed, and what it found.
fn corpus() -> Result<Vec<Task>, String> {
    let lines = CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let row = words.next().and_then(stacks::find);
            let seed = words.next().and_then(|word| word.parse().ok());
            row.zip(seed).map(|(row, seed)| (row, Job::Seed(seed))).ok_or_else(|| format!("corpus: {line:?}"))
        })
        .collect()
}

/// Two runs of one seed have one log.
fn determinism(first: u64) -> Result<(), String> {
    for row in STACKS {
        for seed in (0..20).map(|nth| first.wrapping_add(nth)) {
            let log = || run(&Scenario::draw(row, seed)).map_err(|violation| violation.0);
            let (first, second) = (log()?, log()?);
            if first != second {
                return Err(format!("{} seed {seed}: two runs differ\n{first:?}\n{second:?}", row.name));
            }
        }
    }
    println!("determinism: {} seeds twice, one log each", STACKS.len() * 20);
    Ok(())
}

/// A seed that nobody knows before.
fn fresh_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Random(since.map_or(0, |since| since.as_nanos() as u64)).draw() >> 24
}
