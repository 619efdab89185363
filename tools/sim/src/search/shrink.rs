//! Makes a story that breaks a promise as short as it gets.

use super::campaign::Broken;
use crate::run::run;
use crate::stories::scenario::Scenario;

/// Stories tried at most.
const TRIES_MAX: usize = 3000;

/// The shortest story found that still breaks a promise, not necessarily the same one.
pub fn shrink(broken: Broken) -> Broken {
    let mut best = broken;
    let mut tries = 0;
    loop {
        let Some(shorter) = candidates(&best.scenario).find_map(|scenario| {
            tries += 1;
            let violation = (tries <= TRIES_MAX).then(|| run(&scenario).err())??;
            Some(Broken { scenario, violation })
        }) else {
            return best;
        };
        best = shorter;
    }
}

/// Shorter stories, the shortest first.
fn candidates(scenario: &Scenario) -> impl Iterator<Item = Scenario> + '_ {
    let phases = 0..scenario.phases.len();
    let without_phase = phases.clone().filter(|_| scenario.phases.len() > 1).map(|index| {
        let mut shorter = scenario.clone();
        shorter.phases.remove(index);
        shorter
    });
    let without_faults = phases.clone().flat_map(move |index| {
        let plan = &scenario.phases[index].plan;
        (0..plan.faults.len()).map(move |fault| {
            let mut shorter = scenario.clone();
            shorter.phases[index].plan.faults.remove(fault);
            shorter
        })
    });
    let without_cache_faults = phases.clone().flat_map(move |index| {
        let plan = &scenario.phases[index].cache_plan;
        (0..plan.faults.len()).map(move |fault| {
            let mut shorter = scenario.clone();
            shorter.phases[index].cache_plan.faults.remove(fault);
            shorter
        })
    });
    let without_steps = phases.flat_map(move |index| {
        let count = scenario.phases[index].steps.len();
        let sizes =
            std::iter::successors(Some(count.div_ceil(2)), |size| (*size > 1).then(|| size.div_ceil(2)));
        sizes.flat_map(move |size| (0..count).step_by(size.max(1)).map(move |from| (index, from, size)))
    });
    let without_steps = without_steps.map(|(index, from, size)| {
        let mut shorter = scenario.clone();
        let steps = &mut shorter.phases[index].steps;
        steps.drain(from..(from + size).min(steps.len()));
        shorter
    });
    let beside = scenario.phases.iter().enumerate().flat_map(|(index, phase)| {
        let count = phase.beside.len();
        (0..count).map(move |from| (index, from..count)).chain((0..count).map(move |at| (index, at..at + 1)))
    });
    let without_beside = beside.map(|(index, range)| {
        let mut shorter = scenario.clone();
        shorter.phases[index].beside.drain(range);
        shorter
    });
    without_phase.chain(without_beside).chain(without_steps).chain(without_faults).chain(without_cache_faults)
}
