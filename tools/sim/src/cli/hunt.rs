//! The search for deliberate defects.

use std::process::{Command, Output};
use std::time::Instant;

use spillway_core::mutant;
use spillway_core::sync::{AtomicU64, Ordering, Unseen};
use spillway_simulate::search::mutants::{MUTANTS, Mutant};
use spillway_simulate::stacks;
use spillway_simulate::stacks::row::Row;

use super::job::Job;

/// Stories that a mutant may live through: some minutes of a release build on one idle core, however busy this one is.
const MUTANT_STORIES: usize = 200_000;

/// Seeds between two workloads in which every call fails: these take as long as some hundred stories.
const SEEDS_A_FAILURE: u64 = 512;

/// How the table begins.
const HEAD: &str =
    "| mutant | stack | found by | stories | after | as |\n| --- | --- | --- | --- | --- | --- |";

/// Said of a mutant that nothing has found.
const ALIVE: &str = "not found";

/// What comes of a search for one mutant: a line of the table, nothing if it lives, an error if something else is broken.
type Searched = Result<Option<String>, String>;

/// Searches those mutants of these stacks whose names contain `text`, from seed `first` on, and prints a table. Of several each has a
/// process of its own: one that makes a destructor panic while another panic is under way ends its process.
pub(crate) fn hunt_all(rows: &[&'static Row], text: &str, first: u64) -> Result<(), String> {
    let wanted = wanted(rows, text);
    println!("mutants: again with --seed {first}");
    println!("{HEAD}");
    report(&match wanted[..] {
        [] => return Err(format!("no mutant of these stacks has {text:?} in its name")),
        [one] => vec![(one, shown(hunt(one, first)))],
        _ => side_by_side(&wanted, first),
    })?;
    println!("mutants: {} of {} found", wanted.len(), wanted.len());
    Ok(())
}

/// The mutant of that name, or those with the text in theirs.
fn wanted(rows: &[&'static Row], text: &str) -> Vec<&'static Mutant> {
    let here = |mutant: &&Mutant| rows.iter().any(|row| row.name == mutant.stack);
    let (exact, part): (Vec<_>, Vec<_>) = MUTANTS
        .iter()
        .filter(here)
        .filter(|mutant| mutant.name.contains(text))
        .partition(|mutant| mutant.name == text);
    if exact.is_empty() { part } else { exact }
}

/// The mutants that live, and what else is broken, as an error.
fn report(results: &[(&Mutant, Searched)]) -> Result<(), String> {
    let alive = |(mutant, result): &(&Mutant, Searched)| matches!(result, Ok(None)).then_some(mutant.name);
    let alive: Vec<&str> = results.iter().filter_map(alive).collect();
    let mut wrong: Vec<String> = results.iter().filter_map(|(_, result)| result.clone().err()).collect();
    if !alive.is_empty() {
        wrong.push(format!("{ALIVE} within {MUTANT_STORIES} stories: {}", alive.join("; ")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Prints the line of a mutant that was found.
fn shown(result: Searched) -> Searched {
    result.inspect(|line| line.iter().for_each(|line| println!("{line}")))
}

/// Searches as many at a time as there are cores.
fn side_by_side(wanted: &[&'static Mutant], first: u64) -> Vec<(&'static Mutant, Searched)> {
    let (next, results) = (AtomicU64::new(0), Unseen::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&mutant) = wanted.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let result = shown(searched_alone(mutant, first));
                    results.lock().push((mutant, result));
                }
            });
        }
    });
    results.into_inner()
}

/// Searches one mutant in a process of its own, and reads its table. An abort counts as found: nobody could miss it.
fn searched_alone(mutant: &Mutant, first: u64) -> Searched {
    let seed = first.to_string();
    let output = myself(&["--stack", mutant.stack, "--seed", &seed, "--mutants", mutant.name])?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        let line = out.lines().find(|line| line.starts_with(&format!("| {} |", mutant.name)));
        return line.map(|line| Some(line.to_owned())).ok_or_else(|| format!("no line of {:?}", mutant.name));
    }
    if err.contains(ALIVE) {
        return Ok(None);
    }
    let Some((words, again)) = err.lines().find_map(|line| line.split_once(": cargo xtask sim ")) else {
        return Err(format!("{}: {err}", mutant.name));
    };
    let without = myself(&again.split_whitespace().collect::<Vec<_>>())?;
    if !without.status.success() || output.status.code().is_some() {
        return Err(err.into_owned());
    }
    let job = again.split_once(mutant.stack).map_or(again, |(_, job)| job.trim());
    Ok(Some(format!("| {} | {} | {job} | | | an abort: {words} |", mutant.name, mutant.stack)))
}

/// This program with other arguments.
fn myself(args: &[&str]) -> Result<Output, String> {
    let program = std::env::current_exe().map_err(|why| format!("the path of this program: {why}"))?;
    Command::new(program).args(args).output().map_err(|why| format!("this program again: {why}"))
}

/// The first job that notices a mutant, as a line of the table. An error where that job finds something without the mutant too.
fn hunt(candidate: &Mutant, first: u64) -> Searched {
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
    use spillway_sim::workload::{Act, Step};
    use spillway_simulate::run::run;
    use spillway_simulate::stories::scenario::Scenario;

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

    /// The story of a seed in which a client of each phase does not wait for its first write.
    fn with_a_withdrawn_write(row: &'static Row, seed: u64) -> Scenario {
        let mut story = Scenario::draw(row, seed);
        let act = Act::Write { look: 0, fua: false };
        let withdrawn = Step { client: 0, act, first: 0, count: 8, withdraw: Some(0) };
        story.phases.iter_mut().for_each(|phase| phase.steps.insert(0, withdrawn));
        story
    }

    #[test]
    fn a_drain_that_leaves_something_is_noticed_though_a_client_has_not_waited_for_a_write() {
        let row = stacks::find("page-cache-over-write-cache-over-rbd").unwrap();
        mutant::choose("stack: drain the last part alone");
        let left = (1..2000).find(|&seed| {
            run(&with_a_withdrawn_write(row, seed))
                .is_err_and(|violation| violation.0.starts_with("on the image"))
        });
        mutant::choose("");
        let seed = left.expect("some page cache is not drained");
        run(&with_a_withdrawn_write(row, seed)).unwrap();
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
