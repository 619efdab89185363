//! Many stories: drawn from seeds, all short ones, and every single failure.

use spillway_core::Kind;
use spillway_core::random::Random;

use crate::run::{Summary, run};
use crate::stacks::row::Row;
use crate::stories::scenario::{Phase, Scenario};
use spillway_sim::disk::{Effect, Fault, Latency, Plan};
use spillway_sim::model::Violation;
use spillway_sim::workload::{Act, Step};

/// What has been run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Stories.
    pub stories: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Connections to what is below a device that were broken.
    pub breaks: u64,
    /// Requests answered.
    pub answers: u64,
    /// Sectors in a state that only a flush that a disk ignored explains.
    pub excused: u64,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: Tally) {
        self.stories += other.stories;
        self.crashes += other.crashes;
        self.breaks += other.breaks;
        self.answers += other.answers;
        self.excused += other.excused;
    }

    fn count(&mut self, summary: &Summary) {
        let Summary { crashes, breaks, answers, excused, .. } = *summary;
        self.add(Tally { stories: 1, crashes, breaks, answers, excused });
    }
}

/// A story that broke a promise.
pub struct Broken {
    /// The story.
    pub scenario: Scenario,
    /// The promise.
    pub violation: Violation,
}

/// A story's result, counted or with the story that broke.
fn tell(scenario: Scenario, tally: &mut Tally) -> Result<Summary, Box<Broken>> {
    match run(&scenario) {
        Ok(summary) => {
            tally.count(&summary);
            Ok(summary)
        }
        Err(violation) => Err(Box::new(Broken { scenario, violation })),
    }
}

/// The story of one seed; the error is the promise that it broke.
pub fn seed(row: &'static Row, seed: u64) -> Result<Tally, Box<Broken>> {
    let mut tally = Tally::default();
    tell(Scenario::draw(row, seed), &mut tally)?;
    Ok(tally)
}

/// Operations from which all short sequences are made: two blocks, edges, and every flag.
fn alphabet(row: &Row) -> Vec<Step> {
    let block = row.block().bytes() / spillway_core::SECTOR;
    let acts = [
        Act::Write { look: 2, fua: false },
        Act::Write { look: 1, fua: true },
        Act::Zero { fua: false, no_hole: true },
        Act::Zero { fua: true, no_hole: false },
        Act::Discard { fua: false },
        Act::Discard { fua: true },
    ];
    let step = |act, first, count| Step { client: 0, act, first, count, withdraw: None };
    let mut all = vec![step(Act::Flush, 0, 1), step(Act::Read, 0, 2 * block)];
    for act in acts {
        all.extend([step(act, 0, block), step(act, 0, 2 * block), step(act, block - 1, 1)]);
    }
    all.push(step(Act::Write { look: 2, fua: false }, block / 2, block));
    all
}

/// Number of sequences of `len` operations for a stack.
pub fn sequences(row: &Row, len: u32) -> u64 {
    (alphabet(row).len() as u64).pow(len)
}

/// The sequence number `index` of `len` operations, whole and with the power cut at every boundary, each in several outcomes. The error is the
/// first promise that was broken.
pub fn sequence(row: &'static Row, len: u32, index: u64) -> Result<Tally, Box<Broken>> {
    let alphabet = alphabet(row);
    let mut rest = index;
    let steps: Vec<Step> = (0..len)
        .map(|_| {
            let step = alphabet[rest as usize % alphabet.len()];
            rest /= alphabet.len() as u64;
            step
        })
        .collect();
    let story = |disk: usize, cut_at, seed| {
        let mut phase = Phase { steps: steps.clone(), ..Phase::quiet() };
        phase.plan_mut(disk).cut_at = cut_at;
        // One outcome of three: the other disk keeps its power.
        phase.keeps_power[1 - disk] = seed == 3;
        let phases = vec![phase];
        Scenario {
            row,
            seed,
            phases,
            tight: false,
            refused: false,
            idle_workers: 0,
            network: None,
            large_sectors: false,
            beside: None,
            shared: None,
        }
    };
    let mut tally = Tally::default();
    let whole = tell(story(0, None, 1), &mut tally)?;
    for (disk, &boundaries) in whole.boundaries.first().into_iter().flatten().enumerate() {
        for cut_at in first_boundary(row)..boundaries {
            for seed in 1..=3 {
                tell(story(disk, Some(cut_at), seed), &mut tally)?;
            }
        }
    }
    Ok(tally)
}

/// The first boundary that matters. Looking at everything is the same for every sequence where it changes nothing; a write cache
/// is formatted by it.
fn first_boundary(row: &Row) -> u64 {
    if row.cache.is_some() { 0 } else { 2 * (row.bytes / spillway_core::SECTOR).div_ceil(64) }
}

/// The workload number `index`: each of its calls fails in turn, with each error, once and for good. Every other workload is one
/// that follows a power cut and ends with a drain, so that what fails is also a recovery and copies.
pub fn every_failure(row: &'static Row, index: u64) -> Result<Tally, Box<Broken>> {
    let mut random = Random(index ^ 0x6e74_6800);
    let latency = Latency::ALL[random.below(Latency::ALL.len() as u64) as usize];
    let mut story = Scenario::draw(row, random.draw());
    let struck = (index % 2) as usize;
    story.phases.truncate(1 + struck);
    story.phases.resize_with(1 + struck, Phase::quiet);
    for phase in &mut story.phases {
        (0..2).for_each(|number| phase.plan_mut(number).faults.clear());
        (0..2).for_each(|number| phase.plan_mut(number).alone = false);
    }
    let phase = &mut story.phases[struck];
    (phase.plan, phase.cache_plan) =
        (Plan { latency, ..Plan::default() }, Plan { latency, ..Plan::default() });
    phase.keeps_power = [false; 2];
    phase.drain = row.cache.is_some() && !row.full && struck == 1;
    let mut tally = Tally::default();
    let calls = tell(story.clone(), &mut tally)?.calls.get(struck).cloned().unwrap_or_default();
    let effects =
        [Kind::Io, Kind::NoSpace, Kind::NotSupported].map(Effect::Fail).into_iter().chain([Effect::Short]);
    let each = calls.iter().enumerate().flat_map(|(disk, &calls)| (0..calls).map(move |nth| (disk, nth)));
    for (disk, nth) in each {
        for (effect, sticky) in effects.clone().flat_map(|effect| [(effect, false), (effect, true)]) {
            let mut story = story.clone();
            story.phases[struck].plan_mut(disk).faults = vec![Fault { call: None, nth, effect, sticky }];
            tell(story, &mut tally)?;
        }
    }
    Ok(tally)
}
