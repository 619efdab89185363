//! One simulated story: a stack, and what happens to it from one power cut to the next.

use std::fmt;

use spillway_core::Kind;
use spillway_core::contract::Random;

use crate::disk::{Call, Effect, Fault, Latency, Plan};
use crate::stacks::Row;
use crate::workload::{Act, Shape, Step, swarm};

/// Most phases of a story: a cut within a recovery within a recovery ...
const PHASES_MAX: u64 = 6;

/// Most steps of a phase.
const STEPS_MAX: u64 = 40;

/// From power on to power off.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What clients do.
    pub steps: Vec<Step>,
    /// What goes wrong with the disk.
    pub plan: Plan,
    /// What goes wrong with the disk of a write cache.
    pub cache_plan: Plan,
}

/// A story, fully determined.
#[derive(Clone)]
pub struct Scenario {
    /// The stack.
    pub row: &'static Row,
    /// Decides all that the story leaves open: order of tasks, contents that survive, latencies.
    pub seed: u64,
    /// One after the other; the power is cut after each, at the latest when all is done.
    pub phases: Vec<Phase>,
    /// With as little memory as the stack's row allows.
    pub tight: bool,
    /// The system refuses memory for regions.
    pub refused: bool,
    /// Workers that have nothing to do, as the stack is told.
    pub idle_workers: usize,
}

impl Scenario {
    /// The story of `seed`.
    pub fn draw(row: &'static Row, seed: u64) -> Self {
        let mut random = Random(seed ^ 0x7374_6f72_7900);
        let count = if row.disk.is_some() { 1 + random.below(PHASES_MAX) } else { 1 };
        let faulty = row.disk.is_some() && random.below(3) == 0;
        let phases = (0..count).map(|_| Phase::draw(row, &mut random, faulty)).collect();
        let (tight, idle_workers) = (random.below(4) == 0, random.below(4) as usize);
        let refused = random.below(32) == 0;
        Self { row, seed, phases, tight, refused, idle_workers }
    }

    /// Whether a request may fail at all.
    pub fn may_fail(&self) -> bool {
        self.phases.iter().any(|phase| phase.faulty())
    }
}

impl Phase {
    /// Whether a disk is to fail.
    pub fn faulty(&self) -> bool {
        !self.plan.faults.is_empty() || !self.cache_plan.faults.is_empty()
    }

    fn draw(row: &Row, random: &mut Random, faulty: bool) -> Self {
        let knobs: Vec<usize> = row.knobs.iter().map(|(_, values)| values.len()).collect();
        let shape = Shape {
            sectors: row.bytes / spillway_core::SECTOR,
            block: row.block().bytes() / spillway_core::SECTOR,
            steps_max: STEPS_MAX,
            attributes: &knobs,
        };
        let steps = swarm(random, &shape);
        let plan = draw_plan(random, faulty, steps.len() as u64);
        let cache_plan = match row.cache {
            Some(_) => draw_plan(random, faulty, steps.len() as u64),
            None => Plan::default(),
        };
        Self { steps, plan, cache_plan }
    }
}

fn draw_plan(random: &mut Random, faulty: bool, steps: u64) -> Plan {
    let count = if faulty { random.below(3) } else { 0 };
    let faults = (0..count).map(|_| draw_fault(random)).collect();
    let cut_at = (random.below(4) > 0).then(|| random.below(8 + steps * 4));
    let latency = Latency::ALL[random.below(Latency::ALL.len() as u64) as usize];
    Plan { faults, cut_at, latency }
}

fn draw_fault(random: &mut Random) -> Fault {
    let effect = [
        Effect::Fail(Kind::Io),
        Effect::Fail(Kind::NoSpace),
        Effect::Fail(Kind::NotSupported),
        Effect::Short,
    ][random.below(4) as usize];
    let call = [None, Some(Call::Read), Some(Call::Write), Some(Call::Sync), Some(Call::Zero)]
        [random.below(5) as usize];
    Fault { call, nth: random.below(20), effect, sticky: random.below(3) == 0 }
}

/// One line for each thing that happens.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match (self.refused, self.tight) {
            (true, _) => ", memory is refused",
            (_, true) => ", little memory",
            _ => "",
        };
        writeln!(f, "stack {}, {} idle workers{memory}", self.row.name, self.idle_workers)?;
        for (index, phase) in self.phases.iter().enumerate() {
            writeln!(f, "phase {index}")?;
            write_plan(f, "disk", &phase.plan)?;
            if self.row.cache.is_some() {
                write_plan(f, "cache", &phase.cache_plan)?;
            }
            for step in &phase.steps {
                writeln!(f, "  {}", words(step, self.row))?;
            }
        }
        Ok(())
    }
}

fn write_plan(f: &mut fmt::Formatter<'_>, disk: &str, plan: &Plan) -> fmt::Result {
    let cut = plan.cut_at.map_or("when all is done".into(), |at| format!("at boundary {at}"));
    writeln!(f, "  {disk}: latency {:?}, power cut {cut}", plan.latency)?;
    for fault in &plan.faults {
        let which = fault.call.map_or("call".into(), |call| format!("{call:?}"));
        let often = if fault.sticky { "from then on" } else { "once" };
        writeln!(f, "  {disk}: fault at {which} {}: {:?}, {often}", fault.nth, fault.effect)?;
    }
    Ok(())
}

fn words(step: &Step, row: &Row) -> String {
    let range = format!("{}+{}", step.first, step.count);
    let act = match step.act {
        Act::Read => format!("read {range}"),
        Act::Write { look, fua } => format!("write {range}, look {look}{}", if fua { ", FUA" } else { "" }),
        Act::Zero { fua, no_hole } => {
            let (fua, no_hole) = (if fua { ", FUA" } else { "" }, if no_hole { ", NO_HOLE" } else { "" });
            format!("zero {range}{fua}{no_hole}")
        }
        Act::Discard { fua } => format!("discard {range}{}", if fua { ", FUA" } else { "" }),
        Act::Flush => "flush".into(),
        Act::Set { attribute, value } => {
            let (name, values) = row.knobs[attribute];
            format!("set {name} {}", values[value])
        }
        Act::Sleep(micros) => format!("sleep {micros} us"),
    };
    let dropped = step.withdraw.map_or(String::new(), |polls| format!(", dropped after {polls} polls"));
    format!("client {}: {act}{dropped}", step.client)
}
