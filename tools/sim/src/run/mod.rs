//! Runs a story and holds what the stack shows against the model.
//!
//! A story is about one stack (`house`) and its clients (`visitor`), or about an image that two hosts have (`hosts`). `story` is
//! what lasts from one phase to the next.

mod dropping;
mod hosts;
mod house;
mod story;
mod visitor;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use spillway_sim::disk::{Disk, Medium};
use spillway_sim::model::{Loss, Violation};
use spillway_sim::world::World;

use crate::stacks::row::Left;
use crate::stories::scenario::{Phase, Scenario};
use hosts::Tale;
use house::House;
use story::{Story, looks};

/// What a story came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Power cuts.
    pub crashes: u64,
    /// Connections to what is below the device that were broken.
    pub breaks: u64,
    /// Sectors in a state that only a flush that a disk ignored explains.
    pub excused: u64,
    /// Requests answered.
    pub answers: u64,
    /// Boundaries that each disk passed in each phase.
    pub boundaries: Vec<Vec<u64>>,
    /// Calls that each disk got in each phase.
    pub calls: Vec<Vec<u64>>,
    /// A sum of all that happened, in its order.
    pub log: u64,
}

/// Runs a story to its end. The error is the first broken promise; a panic is one.
pub fn run(scenario: &Scenario) -> Result<Summary, Violation> {
    let summary = catch_unwind(AssertUnwindSafe(|| play(scenario))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Err(Violation(format!("a panic: {words}")))
    });
    if summary.is_err() {
        World::abandon();
    }
    summary
}

fn play(scenario: &Scenario) -> Result<Summary, Violation> {
    if scenario.row.hosts {
        let Tale { crashes, breaks, answers, log } = hosts::play(scenario)?;
        return Ok(Summary { crashes, breaks, answers, log, ..Summary::default() });
    }
    let durable = scenario.row.is_durable();
    let model = Rc::new(RefCell::new(scenario.model()));
    let (numbers, at_risk, kept) = (Rc::default(), Cell::default(), scenario.row.kept);
    let left = Cell::new(kept.then_some(Left { bytes: scenario.row.bytes, sure: false }));
    let story = Story { model: model.clone(), numbers, at_risk, left, looks: looks(scenario).into() };
    let mut media = scenario.row.media();
    let mut summary = Summary::default();
    let (mut force, mut spoiled, mut made) = (false, false, false);
    // A cache that is large is drained in few stories.
    let drain = scenario.row.cache.is_some() && (!scenario.row.full || scenario.seed.is_multiple_of(16));
    let last = Phase { drain, ..Phase::quiet() };
    for (index, phase) in scenario.phases.iter().chain((durable || kept).then_some(&last)).enumerate() {
        let seed = scenario.seed.wrapping_add(index as u64 * 0x9e37_79b9);
        tracing::debug!("phase {index}");
        let house = House::new(scenario, phase, &media, &story, seed, force);
        let result = house.live(phase);
        summary.answers += house.answers.get();
        summary.breaks += house.world.breaks();
        summary.log = summary.log.rotate_left(5) ^ house.world.log();
        summary.boundaries.push(house.disks.iter().map(|disk| disk.boundaries()).collect());
        summary.calls.push(house.disks.iter().map(|disk| disk.calls()).collect());
        house.disks.iter().for_each(|disk| disk.cut());
        let (drained, stopped, leaves) = (house.drained.get(), house.stopped.get(), house.leaves.get());
        let opened = house.is_open();
        let disks = house.leave()?;
        result?;
        let ignored = disks.iter().any(|disk| disk.has_ignored());
        if durable {
            let (next, loss) = stop(scenario, phase, &disks);
            media = next;
            model.borrow_mut().crash(loss);
            if ignored {
                model.borrow_mut().allow_ignored_flush();
            }
            // Of a disk that loses its power, or fails, more may be gone than what the stack still had.
            let killed = phase.keeps_power.iter().take(disks.len()).all(|keeps| *keeps);
            story.at_risk.set(scenario.row.at_risk.filter(|_| killed && !phase.faulty()));
            summary.crashes += 1;
        } else if kept {
            media = stop(scenario, phase, &disks).0;
            model.borrow_mut().crash(Loss::Nothing);
            summary.crashes += 1;
            if ignored {
                model.borrow_mut().allow_ignored_flush();
            }
            // What is refused, or cannot be read, has a reason from now on; and until it is opened, because it may be half made.
            spoiled |= phase.faulty() || ignored;
            made |= opened;
            force = spoiled || !made;
            let bytes = leaves.map_or(scenario.row.bytes, |left| left.bytes);
            let sure = leaves.is_some_and(|left| left.sure) && !ignored;
            story.left.set(Some(Left { bytes, sure }));
        } else {
            media = stop(scenario, phase, &disks).0;
            // What was not stopped in order is taken by force only.
            force |= !stopped || phase.faulty() || ignored;
            model.replace(scenario.model());
        }
        if drained {
            story.look_at_origin(&media[0])?;
        }
    }
    summary.excused = model.borrow().excused();
    Ok(summary)
}

/// The machine stops: what its disks hold then, and what that means for the device.
fn stop(scenario: &Scenario, phase: &Phase, disks: &[Arc<Disk>]) -> (Vec<Medium>, Loss) {
    let keeps = |number: usize| phase.keeps_power[number] && !disks[number].is_gone();
    let after = |(number, disk): (usize, &Arc<Disk>)| match keeps(number) {
        true => disk.kept(),
        false => disk.survivors(),
    };
    let media = disks.iter().enumerate().map(after).collect();
    let kept = (0..disks.len()).filter(|&number| keeps(number)).count();
    let loss = match kept {
        0 => Loss::All,
        _ if kept == disks.len() && scenario.row.keeps => Loss::Nothing,
        _ => Loss::Some,
    };
    (media, loss)
}
