//! The search for deliberate defects.

use std::time::Instant;

use spillway_core::mutant;
use spillway_core::sync::{AtomicU64, Mutex, Ordering};
use spillway_simulate::mutants::{MUTANTS, Mutant};
use spillway_simulate::row::Row;
use spillway_simulate::stacks;

use crate::job::Job;

/// Stories that a mutant may live through: some 60 seconds of a release build on one idle core, however busy this one is.
const MUTANT_STORIES: usize = 60_000;

/// Seeds between two workloads in which every call fails: these take as long as some hundred stories.
const SEEDS_A_FAILURE: u64 = 512;

/// Searches those mutants of these stacks whose names contain `text`, from seed `first` on, and prints a table.
pub(crate) fn hunt_all(rows: &[&'static Row], text: &str, first: u64) -> Result<(), String> {
    let here =
        |mutant: &&Mutant| mutant.name.contains(text) && rows.iter().any(|row| row.name == mutant.stack);
    let wanted: Vec<&Mutant> = MUTANTS.iter().filter(here).collect();
    if wanted.is_empty() {
        return Err(format!("no mutant of these stacks has {text:?} in its name"));
    }
    println!("mutants: again with --seed {first}");
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
    use spillway_simulate::run::run;
    use spillway_simulate::scenario::Scenario;

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
