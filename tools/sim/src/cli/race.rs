//! Stories on all processors, counted by stack.

use std::time::{Duration, Instant};

use spillway_core::sync::{AtomicBool, Ordering, Unseen};
use spillway_simulate::search::campaign::{Broken, Tally};
use spillway_simulate::search::shrink::shrink;
use spillway_simulate::stacks::STACKS;
use spillway_simulate::stacks::row::Row;

use super::job::{Job, Task};

/// What was run on a stack.
#[derive(Clone, Copy, Default)]
struct Share {
    tally: Tally,
    /// Time of all processors.
    time: Duration,
    /// Stories that were begun.
    begun: u64,
    /// Those of them that have ended.
    ended: u64,
}

impl Share {
    /// The time of a story, once one has ended.
    fn mean(&self) -> Option<Duration> {
        Some(self.time / u32::try_from(self.ended).ok().filter(|&ended| ended > 0)?)
    }

    /// Its time once the stories end that are running now; each takes as long as others of the stack, or of all stacks.
    fn expected(&self, mean_of_all: Duration) -> Duration {
        let running = u32::try_from(self.begun - self.ended).expect("threads are few");
        self.time + self.mean().unwrap_or(mean_of_all) * running
    }
}

/// What was run, for each stack of the table.
#[derive(Clone, Copy)]
pub(crate) struct Counts([Share; STACKS.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([Share::default(); STACKS.len()])
    }
}

impl Counts {
    fn of(&mut self, row: &Row) -> &mut Share {
        let at = STACKS.iter().position(|other| other.name == row.name);
        &mut self.0[at.expect("all rows are of the table")]
    }

    /// The sum over all stacks.
    pub(crate) fn total(&self) -> Tally {
        self.0.iter().fold(Tally::default(), |mut total, share| {
            total.add(share.tally);
            total
        })
    }

    /// The time of a story of any stack; nothing before one has ended.
    fn mean(&self) -> Duration {
        let all = self.0.iter().fold(Share::default(), |all, share| Share {
            time: all.time + share.time,
            ended: all.ended + share.ended,
            ..all
        });
        all.mean().unwrap_or_default()
    }

    /// The power cuts of each stack that had some.
    pub(crate) fn by_stack(&self) -> String {
        let all = STACKS.iter().zip(&self.0).filter(|(_, share)| share.tally.crashes > 0);
        all.map(|(row, share)| format!("{} {}", row.name, share.tally.crashes)).collect::<Vec<_>>().join(", ")
    }
}

/// Runs every task.
pub(crate) fn race(tasks: &[Task]) -> Result<Counts, String> {
    let mut tasks = tasks.iter().copied();
    let (counts, outcome) = fan_out(&mut |_| tasks.next());
    outcome.map(|()| counts)
}

/// Seeds from `first` on, over all of `rows` in turn, until there were so many crashes.
pub(crate) fn until_crashes(rows: &[&'static Row], first: u64, crashes: u64) -> Result<Counts, String> {
    let seeds = (first..).flat_map(|seed| rows.iter().map(move |&row| (row, Job::Seed(seed))));
    let mut seeds = seeds.fuse();
    let (counts, outcome) =
        fan_out(&mut |counts| (counts.total().crashes < crashes).then(|| seeds.next()).flatten());
    outcome.map(|()| counts)
}

/// Seeds from `first` on, of each stack, until there were so many crashes and breaks. The next story is one of the stack that has had the least
/// time: a slow stack takes no more of it than a fast one.
pub(crate) fn share_out(rows: &[&'static Row], first: u64, crashes: u64) -> (Counts, Result<(), String>) {
    fan_out(&mut |counts| {
        let row = least(rows, counts)?;
        let seed = first.wrapping_add(counts.of(row).begun);
        let total = counts.total();
        (total.crashes + total.breaks < crashes).then_some((row, Job::Seed(seed)))
    })
}

/// The stack that will have had the least time once what is running ends, or of several the one with the fewest stories.
fn least(rows: &[&'static Row], counts: &mut Counts) -> Option<&'static Row> {
    let mean = counts.mean();
    rows.iter().copied().min_by_key(|row| (counts.of(row).expected(mean), counts.of(row).begun))
}

type Next<'a> = dyn FnMut(&mut Counts) -> Option<Task> + Send + 'a;

/// Runs what `next` hands out, on all processors, until it has no more or a promise is broken.
fn fan_out(next: &mut Next<'_>) -> (Counts, Result<(), String>) {
    let race = Race {
        state: Unseen::new((Counts::default(), next)),
        broken: Unseen::default(),
        stop: AtomicBool::new(false),
        progress: Progress::begin(),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| while race.story() {});
        }
    });
    let outcome = race.broken.into_inner().map_or(Ok(()), Err);
    (race.state.into_inner().0, outcome)
}

/// What its threads share. They take one story after the other.
struct Race<'a, 'b> {
    state: Unseen<(Counts, &'a mut Next<'b>)>,
    /// Words for the first broken promise.
    broken: Unseen<Option<String>>,
    stop: AtomicBool,
    progress: Progress,
}

impl Race<'_, '_> {
    /// Runs one story; false where there are no more.
    fn story(&self) -> bool {
        let Some((row, job)) = self.take() else { return false };
        let start = Instant::now();
        match job.run(row) {
            Ok(tally) => self.count(row, tally, start.elapsed()),
            Err(found) => {
                self.stop.store(true, Ordering::Relaxed);
                let words = explain(row, job, *found);
                self.broken.lock().get_or_insert(words);
            }
        }
        true
    }

    fn take(&self) -> Option<Task> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state.lock();
        let (counts, next) = &mut *state;
        self.progress.tell(counts);
        let task = next(counts)?;
        counts.of(task.0).begun += 1;
        Some(task)
    }

    fn count(&self, row: &Row, tally: Tally, time: Duration) {
        let mut state = self.state.lock();
        let share = state.0.of(row);
        share.tally.add(tally);
        share.time += time;
        share.ended += 1;
    }
}

/// Says what was broken and how to see it again, as what comes then can take long; returns that with the shortest story that breaks
/// something.
fn explain(row: &Row, job: Job, found: Broken) -> String {
    let words = format!("BROKEN: {}\n  again: cargo xtask sim --stack {} {job}", found.violation.0, row.name);
    eprintln!("{words}\n\nlooking for a shorter story");
    let shortest = shrink(found);
    format!("{words}\n\nshortest story found: {}\n{}", shortest.violation.0, shortest.scenario)
}

/// A line every five seconds, and after the first minute one every minute.
struct Progress {
    start: Instant,
    due: Unseen<u64>,
}

impl Progress {
    fn begin() -> Self {
        Self { start: Instant::now(), due: Unseen::new(5) }
    }

    fn tell(&self, counts: &Counts) {
        let (seconds, mut due) = (self.start.elapsed().as_secs(), self.due.lock());
        if seconds < *due {
            return;
        }
        let step = if seconds < 60 { 5 } else { 60 };
        *due = (seconds / step + 1) * step;
        let total = counts.total();
        let Tally { stories, crashes, breaks, .. } = total;
        eprintln!("{seconds:4} s: {stories} stories, {crashes} crashes, {breaks} breaks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_with_the_least_time_is_next() {
        let (rows, mut counts) = ([&STACKS[0], &STACKS[2], &STACKS[3]], Counts::default());
        assert_eq!(least(&rows, &mut counts).unwrap().name, rows[0].name);
        counts.of(rows[0]).begun = 1;
        assert_eq!(least(&rows, &mut counts).unwrap().name, rows[1].name, "two are not begun with one");
        for (row, millis) in rows.into_iter().zip([7, 9, 5]) {
            *counts.of(row) =
                Share { time: Duration::from_millis(millis), begun: 1, ended: 1, ..Share::default() };
        }
        assert_eq!(least(&rows, &mut counts).unwrap().name, rows[2].name);
    }

    #[test]
    fn a_story_that_is_running_counts_as_long_as_the_others_of_its_stack() {
        let (rows, mut counts) = ([&STACKS[0], &STACKS[2]], Counts::default());
        for (row, millis, stories) in [(rows[0], 12, 2), (rows[1], 15, 10)] {
            *counts.of(row) = Share {
                time: Duration::from_millis(millis),
                begun: stories,
                ended: stories,
                ..Share::default()
            };
        }
        for wanted in [0, 1, 1] {
            let row = least(&rows, &mut counts).unwrap();
            assert_eq!(row.name, rows[wanted].name, "what runs on the first is worth 6 ms");
            counts.of(row).begun += 1;
        }
        let mut counts = Counts::default();
        *counts.of(rows[1]) =
            Share { time: Duration::from_millis(4), begun: 1, ended: 1, ..Share::default() };
        for wanted in [0, 0, 1] {
            let row = least(&rows, &mut counts).unwrap();
            assert_eq!(row.name, rows[wanted].name, "a story of a stack that is new is worth 4 ms");
            counts.of(row).begun += 1;
        }
    }
}
