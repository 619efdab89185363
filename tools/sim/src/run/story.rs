//! What lasts from phase to phase of a story: the model, and what is looked at in each.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use spillway_core::SECTOR;
use spillway_core::random::Random;
use spillway_sim::disk::Medium;
use spillway_sim::model::{Model, Violation};
use spillway_sim::workload::Step;

use crate::stacks::row::Left;
use crate::stories::growing::sectors_max;
use crate::stories::scenario::Scenario;

/// Sectors that are read at once when everything is looked at.
pub(crate) const LOOK_SECTORS: u64 = 64;

/// What lasts from phase to phase.
pub(crate) struct Story {
    pub(crate) model: Rc<RefCell<Model>>,
    pub(crate) numbers: Rc<Cell<u64>>,
    /// Bytes that were acknowledged and that the last crash may have taken at most, where that is limited.
    pub(crate) at_risk: Cell<Option<u64>>,
    /// What the phase before has left of a stack whose disk keeps what it stores.
    pub(crate) left: Cell<Option<Left>>,
    /// What is looked at in each phase: first sectors and ends.
    pub(crate) looks: Rc<[(u64, u64)]>,
}

impl Story {
    /// After a drain: the origin alone has everything.
    pub(crate) fn look_at_origin(&self, origin: &Medium) -> Result<(), Violation> {
        let model = self.model.borrow();
        for &(first, end) in &self.looks[..] {
            let end = end.min(origin.bytes() / SECTOR).max(first);
            let mut bytes = vec![0; ((end - first) * SECTOR) as usize];
            origin.read_durable(first * SECTOR, &mut bytes);
            let words = |Violation(words)| Violation(format!("after a drain, on the origin: {words}"));
            model.compare(first, &bytes).map_err(words)?;
        }
        Ok(())
    }
}

/// What is looked at in each phase: everything, or of a large device what the story is about, and some more.
pub(crate) fn looks(scenario: &Scenario) -> Vec<(u64, u64)> {
    let (sectors, anchors) = (sectors_max(scenario.row), scenario.row.anchors());
    if anchors.is_empty() {
        return vec![(0, sectors)];
    }
    let steps = scenario.phases.iter().flat_map(|phase| &phase.steps);
    let whole = |step: &Step| step.count <= scenario.row.long();
    // Of what is longer, its edges: what lies between is touched by other steps, or by none.
    let steps = steps.flat_map(|step| match (step.first, step.first + step.count) {
        range if whole(step) => [range, range],
        (first, end) => [(first, first + LOOK_SECTORS), (end - LOOK_SECTORS, end)],
    });
    let elsewhere = Random(scenario.seed).below(scenario.row.sectors());
    let near = anchors
        .into_iter()
        .chain([elsewhere])
        .map(|at| (at.saturating_sub(LOOK_SECTORS / 2), at + LOOK_SECTORS / 2));
    let mut ranges: Vec<(u64, u64)> = steps.chain(near).collect();
    ranges.sort_unstable();
    let mut looks: Vec<(u64, u64)> = Vec::new();
    for (first, end) in ranges {
        let end = end.min(sectors);
        match looks.last_mut() {
            Some((_, last)) if first <= *last => *last = end.max(*last),
            _ => looks.push((first, end)),
        }
    }
    looks
}
