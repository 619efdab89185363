//! `cargo xtask sim`: runs stories, shortens those that break a promise, and prints how to see them again.
#![forbid(unsafe_code)]

mod job;
mod race;

use std::process::ExitCode;
use std::time::Instant;

use spillway_core::contract::Random;
use spillway_core::mutant;
use spillway_core::sync::{AtomicU64, Mutex, Ordering};
use spillway_simulate::campaign;
use spillway_simulate::mutants::{MUTANTS, Mutant};
use spillway_simulate::run::run;
use spillway_simulate::scenario::Scenario;
use spillway_simulate::stacks::{self, Row, STACKS};

use crate::job::{Job, Task};
use crate::race::{Counts, race, share_out, until_crashes};

const USAGE: &str = "\
cargo xtask sim [--stack NAME] --seed N [--runs N]     the stories of so many seeds from N on (1 run); all stacks unless one is named
cargo xtask sim [--stack NAME] --crashes N [--seed N]  stories until there were so many power cuts; every durable stack gets as much time
cargo xtask sim [--stack NAME] --sequences LEN         all sequences of LEN operations, the power cut at every boundary
cargo xtask sim [--stack NAME] --failures N            N workloads in which every call fails in turn
cargo xtask sim --stack NAME --sequence LEN:INDEX      one of these again
cargo xtask sim --stack NAME --failure INDEX           one of these again
cargo xtask sim [--stack NAME] --mutants [--seed N]    finds every deliberate defect, or fails; from a fresh seed on
cargo xtask sim --check                                what CI runs: all of the above in a minute
cargo xtask sim --release ...                          any of them built for release: twice as fast, without debug assertions
";

/// Seeds that once broke a promise, with what was wrong. They are run first.
const CORPUS: &str = include_str!("../corpus.txt");

/// What the check runs: power cuts, workloads with failures for each stack, sampled sequences of three.
const CHECK_CRASHES: u64 = 12_000;
const CHECK_FAILURES: u64 = 20;
const CHECK_TRIPLES: u64 = 300;

/// Stories that a mutant may live through: some 60 seconds of a release build on one idle core, however busy this one is.
const MUTANT_STORIES: usize = 60_000;

fn main() -> ExitCode {
    // A panic of a stack is reported as a broken promise, with the story that led to it.
    std::panic::set_hook(Box::new(|_| {}));
    let words: Vec<String> = std::env::args().skip(1).collect();
    match command(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The options, each with its value.
struct Options<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Options<'a> {
    fn parse(words: &'a [String]) -> Result<Self, String> {
        let mut found = Vec::new();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--mutants" | "--check" => found.push((word, "")),
                "--stack" | "--seed" | "--runs" | "--crashes" | "--sequences" | "--failures"
                | "--sequence" | "--failure" => {
                    let value = words.next().ok_or_else(|| format!("{word} wants a value\n\n{USAGE}"))?;
                    found.push((word, value));
                }
                _ => return Err(format!("`{word}` is not an option\n\n{USAGE}")),
            }
        }
        Ok(Self(found))
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let parse = |text: &str| text.parse().map_err(|_| format!("{name} {text}: give a whole number"));
        self.text(name).map(parse).transpose()
    }

    fn rows(&self) -> Result<Vec<&'static Row>, String> {
        let Some(name) = self.text("--stack").filter(|name| *name != "all") else {
            return Ok(STACKS.iter().collect());
        };
        let names: Vec<_> = STACKS.iter().map(|row| row.name).collect();
        let unknown = || format!("there is no stack {name:?}; there are: {}", names.join(", "));
        stacks::find(name).map(|row| vec![row]).ok_or_else(unknown)
    }
}

fn command(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words)?;
    let rows = options.rows()?;
    if options.text("--check").is_some() {
        return check();
    }
    if options.text("--mutants").is_some() {
        return mutants(&rows, options.number("--seed")?.unwrap_or_else(fresh_seed));
    }
    if let Some(crashes) = options.number("--crashes")? {
        return long_run(&rows, options.number("--seed")?.unwrap_or_else(fresh_seed), crashes);
    }
    if let Some(len) = options.number("--sequences")? {
        return report("sequences", race(&all_sequences(&rows, len as u32)));
    }
    if let Some(count) = options.number("--failures")? {
        return report("failures", race(&tasks(&rows, (0..count).map(Job::Failure))));
    }
    if let Some(index) = options.number("--failure")? {
        return report("failure", race(&tasks(&rows, std::iter::once(Job::Failure(index)))));
    }
    if let Some(text) = options.text("--sequence") {
        let parts =
            text.split_once(':').and_then(|(len, index)| Some((len.parse().ok()?, index.parse().ok()?)));
        let (len, index) = parts.ok_or_else(|| format!("--sequence {text}: give LEN:INDEX"))?;
        return report("sequence", race(&tasks(&rows, std::iter::once(Job::Sequence(len, index)))));
    }
    let Some(seed) = options.number("--seed")? else { return Err(format!("say what to run\n\n{USAGE}")) };
    let runs = options.number("--runs")?.unwrap_or(1);
    report("seeds", race(&tasks(&rows, (seed..seed.saturating_add(runs)).map(Job::Seed))))
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

/// A run of `crashes` power cuts, in which every durable stack gets as much time.
fn long_run(rows: &[&'static Row], first: u64, crashes: u64) -> Result<(), String> {
    let durable: Vec<&'static Row> = rows.iter().copied().filter(|row| row.disk.is_some()).collect();
    if durable.is_empty() {
        return Err("no such stack has a disk whose power could be cut".into());
    }
    let start = Instant::now();
    println!("crashes: from seed {first} on, again with --seed {first}");
    let (counts, outcome) = share_out(&durable, first, crashes);
    let (total, by_stack) = (counts.total(), counts.by_stack());
    println!(
        "crashes: {} in {} stories with {} answers, {} violations, {} s: {by_stack}",
        total.crashes,
        total.stories,
        total.answers,
        u8::from(outcome.is_err()),
        start.elapsed().as_secs()
    );
    outcome
}

fn report(what: &str, outcome: Result<Counts, String>) -> Result<(), String> {
    let total = outcome?.total();
    println!(
        "{what}: {} stories, {} crashes, {} answers, 0 violations",
        total.stories, total.crashes, total.answers
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

fn check() -> Result<(), String> {
    let all: Vec<&'static Row> = STACKS.iter().collect();
    let short: Vec<&'static Row> = ["file", "file-512", "write-cache-small", "write-cache-eager", "zram"]
        .iter()
        .filter_map(|name| stacks::find(name))
        .collect();
    timed("corpus", || race(&corpus()?))?;
    determinism()?;
    // A full cache is about runs of metadata: random stories on it are worth their time, all short ones are not.
    let small: Vec<&'static Row> = all.iter().copied().filter(|row| !row.full).collect();
    timed("all sequences of one", || race(&all_sequences(&small, 1)))?;
    timed("all sequences of two", || race(&all_sequences(&short, 2)))?;
    timed("sampled sequences of three", || race(&triples(&short)))?;
    timed("every failure", || race(&tasks(&short, (0..CHECK_FAILURES).map(Job::Failure))))?;
    timed("random", || until_crashes(&all, 1, CHECK_CRASHES))?;
    mutants(&all, fresh_seed())
}

fn triples(rows: &[&'static Row]) -> Vec<Task> {
    let each = |row: &&'static Row| {
        let row = *row;
        let count = campaign::sequences(row, 3);
        (0..CHECK_TRIPLES).map(move |index| (row, Job::Sequence(3, index * (count / CHECK_TRIPLES))))
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
fn determinism() -> Result<(), String> {
    for row in STACKS {
        for seed in 1..=20 {
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

/// The table of the mutants of these stacks, searched from seed `first` on.
fn mutants(rows: &[&'static Row], first: u64) -> Result<(), String> {
    let here = |mutant: &&Mutant| rows.iter().any(|row| row.name == mutant.stack);
    let wanted: Vec<&Mutant> = MUTANTS.iter().filter(here).collect();
    println!("mutants: again with --mutants --seed {first}");
    println!("| mutant | stack | found by | stories | after | as |\n| --- | --- | --- | --- | --- | --- |");
    let (next, alive, broken) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutant) = wanted.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    match hunt(mutant, first) {
                        Ok(Some(line)) => println!("{line}"),
                        Ok(None) => alive.lock().push(mutant.name),
                        Err(words) => broken.lock().push(words),
                    }
                }
            });
        }
    });
    let (alive, mut wrong) = (alive.into_inner(), broken.into_inner());
    if !alive.is_empty() {
        wrong.push(format!("not found within {MUTANT_STORIES} stories: {}", alive.join("; ")));
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    println!("mutants: {} of {} found", wanted.len(), wanted.len());
    Ok(())
}

/// A seed that nobody knows before.
fn fresh_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Random(since.map_or(0, |since| since.as_nanos() as u64)).draw() >> 24
}

/// Seeds between two workloads in which every call fails: these take as long as some hundred stories.
const SEEDS_A_FAILURE: u64 = 512;

/// The first job that notices a mutant, as a line of the table. An error where that job finds something without the mutant too.
fn hunt(candidate: &Mutant, first: u64) -> Result<Option<String>, String> {
    let start = Instant::now();
    let row = stacks::find(candidate.stack).expect("the table of mutants names stacks");
    mutant::choose(candidate.name);
    let jobs = (0..).flat_map(|round: u64| {
        let seeds = round * SEEDS_A_FAILURE..(round + 1) * SEEDS_A_FAILURE;
        seeds.map(move |seed| Job::Seed(first + seed)).chain([Job::Failure(first + round)])
    });
    let found = (1..).zip(jobs).take(MUTANT_STORIES).find_map(|(stories, job): (u64, Job)| {
        let broken = job.run(row).err()?;
        Some((stories, job, broken.violation.0))
    });
    mutant::choose("");
    let Some((stories, job, words)) = found else { return Ok(None) };
    works_without_defect(row, job)?;
    let (name, seconds) = (candidate.name, start.elapsed().as_secs_f64());
    Ok(Some(format!("| {name} | {} | {job} | {stories} | {seconds:.1} s | {words} |", row.name)))
}

/// What found a mutant has to go well without it: else it is not the mutant that was found.
fn works_without_defect(row: &'static Row, job: Job) -> Result<(), String> {
    let words = |words| {
        format!("BROKEN without any defect: {words}; again: cargo xtask sim --stack {} {job}", row.name)
    };
    job.run(row).map(|_| ()).map_err(|broken| words(broken.violation.0))
}

#[cfg(test)]
mod tests {
    use spillway_sim::workload::Act;

    use super::*;

    /// The story of a seed in which nothing fails and nobody asks for anything to be durable.
    fn without_flushes(row: &'static Row, seed: u64) -> Scenario {
        let mut story = Scenario::draw(row, seed);
        for phase in &mut story.phases {
            phase.drain = false;
            (0..2).for_each(|number| phase.plan_mut(number).faults.clear());
            phase.steps.retain(|step| step.act != Act::Flush);
            for step in &mut phase.steps {
                if let Act::Write { fua, .. } | Act::Zero { fua, .. } | Act::Discard { fua } = &mut step.act {
                    *fua = false;
                }
            }
        }
        story
    }

    #[test]
    fn a_block_that_nobody_flushed_is_missed_where_it_leaves_the_cache_before_its_copy_is_durable() {
        let row = stacks::find("write-cache").unwrap();
        mutant::choose("write_cache: free before the origin is durable");
        let torn = (1..1000).find(|&seed| {
            run(&without_flushes(row, seed)).is_err_and(|violation| violation.0.starts_with("a mixture"))
        });
        mutant::choose("");
        let seed = torn.expect("some copy is torn");
        run(&without_flushes(row, seed)).unwrap();
    }

    #[test]
    fn what_finds_more_than_the_mutant_is_told_of_with_its_words() {
        let row = stacks::find("file").unwrap();
        works_without_defect(row, Job::Seed(1)).unwrap();
        mutant::choose("file: skip a flush");
        let broken = (1..100).find_map(|seed| works_without_defect(row, Job::Seed(seed)).err()).unwrap();
        mutant::choose("");
        assert!(broken.starts_with("BROKEN without any defect: sector"), "{broken}");
        assert!(broken.contains("again: cargo xtask sim --stack file --seed"), "{broken}");
    }
}
