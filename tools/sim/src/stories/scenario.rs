//! One simulated story: a stack, and what happens to it from one power cut to the next.

use std::fmt;

use spillway_core::random::Random;

use super::growing::put_growth;
use super::races::put_races;
use super::scans;
use super::scatter::scattered;
use super::spill;
use super::sweeps::put_sweeps;
use super::tides::put_tides;
use super::turn::Turn;
use super::words::{words, write_plan};
use crate::stacks::COMPANY;
use crate::stacks::row::{Row, is_command};
use crate::world::faults::{draw_plan, fails_reads};
use crate::world::network::Way;
use spillway_sim::disk::{Call, Effect, Fault, Plan};
use spillway_sim::model::Model;
use spillway_sim::workload::{Act, Step, WorkloadShape, swarm};
use spillway_sim::world::Order;

/// Most phases of a story: a cut within a recovery within a recovery ...
const PHASES_MAX: u64 = 6;

/// The same of a stack of which nothing survives.
const VOLATILE_PHASES_MAX: u64 = 3;

/// Most steps of a phase.
const STEPS_MAX: u64 = 40;

/// What two devices have of the memory that they share once both are open.
const SHARED: [Option<&str>; 4] = [None, Some("4M"), Some("1M"), Some("256K")];

/// From power on to power off.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What clients do.
    pub steps: Vec<Step>,
    /// What goes wrong with the disk.
    pub plan: Plan,
    /// What goes wrong with the disk of a write cache.
    pub cache_plan: Plan,
    /// What attributes are set to before anything else: which one, and which of its values.
    pub knobs: Vec<(usize, usize)>,
    /// A write cache is drained at the end, if nothing fails: its origin alone holds everything then.
    pub drain: bool,
    /// A stack that spills is stopped at the end as a server stops it, before the power goes.
    pub stops: bool,
    /// Which disks keep their power when the machine stops.
    pub keeps_power: [bool; 2],
    /// Who is next among the tasks that are ready.
    pub order: Order,
    /// What clients of the second device do, where there is one.
    pub beside: Vec<Step>,
    /// Where clients come by sessions: the server stops so many microseconds after they have begun.
    pub closes: Option<u64>,
    /// Where hosts share an image: which of them has it.
    pub turn: Turn,
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
    /// Disks of 4096-byte blocks store each of them whole or not at all.
    pub large_sectors: bool,
    /// How clients reach the device by a session, where they do not call it.
    pub network: Option<Way>,
    /// A second device in the same server, blank in each phase, with nothing that fails.
    pub beside: Option<&'static Row>,
    /// What is left of the memory that both share, where others take the rest.
    pub shared: Option<&'static str>,
}

impl Scenario {
    /// What the device may show, before anything is written.
    pub fn model(&self) -> Model {
        let model = self.row.model(self.large_sectors);
        // Behind a server a request fails once it has waited for long enough, or for lack of room, and the next one may succeed.
        let passes = |phase: &Phase| phase.plan.hangs() || phase.plan.lacks_room();
        let passes = self.row.remote && self.phases.iter().any(passes);
        if passes { model.with_passing_failures() } else { model }
    }

    /// The story of `seed`.
    pub fn draw(row: &'static Row, seed: u64) -> Self {
        let mut random = Random(seed ^ 0x7374_6f72_7900);
        let phases_max = if row.is_durable() { PHASES_MAX } else { VOLATILE_PHASES_MAX };
        let count = if row.has_disk() { 1 + random.below(phases_max) } else { 1 };
        let faulty = row.has_disk() && random.below(3) == 0;
        let mut phases: Vec<Phase> = (0..count).map(|_| Phase::draw(row, &mut random, faulty)).collect();
        if !row.setups.is_empty() {
            // By a chance of their own, so that stories without them are what they were.
            let mut random = Random(seed ^ 0x7265_7365_7400);
            let resets = if random.below(3) == 1 { &mut phases[..] } else { &mut [] };
            resets.iter_mut().for_each(|phase| spill::put_resets(&mut random, row, &mut phase.steps));
        }
        let (tight, idle_workers) = (random.below(4) == 0, random.below(4) as usize);
        // What is kept needs memory to begin.
        let refused = random.below(32) == 0 && !row.kept;
        // By a chance of their own, so that the steps are the same either way.
        let mut random = Random(seed ^ 0x6e65_7477_6f72_6b00);
        let network = (random.below(2) == 0).then(|| Way::draw(&mut random));
        for phase in &mut phases {
            phase.closes = (network.is_some() && random.below(4) == 0).then(|| random.below(30_000));
        }
        if row.hosts {
            let mut random = Random(seed ^ 0x686f_7374_7300);
            phases.iter_mut().for_each(|phase| phase.turn = Turn::draw(&mut random));
            // By a chance of their own, so that the rest of the stories is what it was.
            let mut random = Random(seed ^ 0x7761_6e74_7300);
            phases.iter_mut().for_each(|phase| phase.turn.put_wants(&mut random));
        }
        if row.has_disk() {
            put_hang(&mut Random(seed ^ 0x6861_6e67_7300), row, &mut phases);
            if row.spill.is_some() {
                put_misread(&mut Random(seed ^ 0x6d69_7372_6561_6400), &mut phases);
            }
            put_ignored(&mut Random(seed ^ 0x6967_6e6f_7265), &mut phases);
        }
        put_growth(
            &mut Random(seed ^ 0x6772_6f77_7300),
            row,
            phases.iter_mut().map(|phase| &mut phase.steps).collect(),
        );
        put_races(&mut Random(seed ^ 0x7261_6365_7300), row, phases.iter_mut().map(|phase| &mut phase.steps));
        // What a disk has lost or stored wrong is merged with what is written beside it: no block of such a disk has to be whole.
        let sound = !phases.iter().any(Phase::faulty);
        let large_sectors = sound && Random(seed ^ 0x7365_6374_6f72_7300).below(2) == 0;
        let spare = !tight && !refused;
        let (beside, shared) = put_second(&mut Random(seed ^ 0x7365_636f_6e64), row, spare, &mut phases);
        Self { row, seed, phases, tight, refused, idle_workers, large_sectors, network, beside, shared }
    }

    /// Whether a request may fail at all.
    pub fn may_fail(&self) -> bool {
        self.phases.iter().any(|phase| phase.faulty())
    }
}

impl Phase {
    /// A phase in which nothing happens and nothing fails.
    pub fn quiet() -> Self {
        Self {
            steps: vec![],
            plan: Plan::default(),
            cache_plan: Plan::default(),
            knobs: vec![],
            drain: false,
            stops: false,
            keeps_power: [false; 2],
            order: Order::Chance,
            beside: vec![],
            closes: None,
            turn: Turn::default(),
        }
    }

    /// What goes wrong with disk `number`.
    pub fn plan(&self, number: usize) -> &Plan {
        if number == 0 { &self.plan } else { &self.cache_plan }
    }

    /// The same, to be changed.
    pub fn plan_mut(&mut self, number: usize) -> &mut Plan {
        if number == 0 { &mut self.plan } else { &mut self.cache_plan }
    }

    /// Whether nobody resets the device.
    pub fn is_steady(&self) -> bool {
        self.steps.iter().all(|step| !matches!(step.act, Act::Reset { .. }))
    }

    /// Whether a disk is to fail.
    pub fn faulty(&self) -> bool {
        self.plan.fails() || self.cache_plan.fails()
    }

    /// Whether a read of a disk may fail.
    pub fn reads_fail(&self) -> bool {
        [&self.plan, &self.cache_plan].into_iter().any(fails_reads)
    }

    /// Whether what was written to a disk may be read as something else, or not at all.
    pub fn spoils(&self) -> bool {
        let spoils =
            |fault: &Fault| matches!(fault.effect, Effect::Rot | Effect::Misdirect | Effect::Misread);
        let plans = [&self.plan, &self.cache_plan];
        self.reads_fail() || self.loses() || plans.into_iter().any(|plan| plan.faults.iter().any(spoils))
    }

    /// Whether a disk may lose what was not synced.
    pub fn loses(&self) -> bool {
        [&self.plan, &self.cache_plan]
            .into_iter()
            .any(|plan| plan.faults.iter().any(|fault| fault.effect == Effect::Lose))
    }

    fn draw(row: &Row, random: &mut Random, faulty: bool) -> Self {
        let knobs: Vec<usize> = row.knobs.iter().map(|(_, values)| values.len()).collect();
        let anchors = row.anchors();
        let shape = WorkloadShape {
            sectors: row.sectors(),
            block: row.block().bytes() / spillway_core::SECTOR,
            steps_max: STEPS_MAX,
            attributes: &knobs,
            anchors: &anchors,
            long: row.long(),
            vast: row.vast(),
        };
        let mut steps = swarm(random, &shape);
        let count = steps.len() as u64;
        if row.dense {
            if random.below(2) == 0 {
                steps.iter_mut().for_each(|step| step.client = 0);
            }
            let limited = row.knobs.iter().position(|(name, _)| *name == "mem_limit").map(|attribute| {
                let act =
                    Act::Set { attribute, value: 1 + random.below(knobs[attribute] as u64 - 1) as usize };
                Step { client: 0, act, first: 0, count: 1, withdraw: None }
            });
            let scattered = scattered(random, row.sectors());
            steps.splice(0..0, limited.into_iter().chain(scattered));
        }
        if row.spill.is_some() {
            spill::put_rounds(random, row, &mut steps);
            spill::put_turns(random, row, &mut steps);
        }
        if row.scans {
            scans::put_scans(random, row, &mut steps);
        }
        if row.full {
            put_sweeps(random, row, &mut steps);
        }
        let mut phase = Self { steps, ..Self::quiet() };
        phase.plan = draw_plan(random, faulty, count, true);
        if row.spill.is_some() {
            spill::stretch(random, &mut phase.plan);
            phase.stops = random.below(2) == 0;
        }
        if row.cache.is_some() {
            phase.cache_plan = draw_plan(random, faulty, count, false);
            phase.drain = random.below(if row.full { 32 } else { 4 }) == 0;
            // One power cut is enough, and one disk that is gone.
            phase.cache_plan.alone &= !phase.plan.alone;
        }
        if row.has_disk() {
            let all = random.below(4) > 0;
            let keeps = |plan: &Plan, lot: u64| !all && plan.faults.is_empty() && !plan.alone && lot > 0;
            let lots = [random.below(3), random.below(3)];
            phase.keeps_power = [keeps(&phase.plan, lots[0]), keeps(&phase.cache_plan, lots[1])];
        }
        phase.knobs = draw_knobs(row, random);
        phase.order = [Order::Chance, Order::Chance, Order::Last, Order::Favour][random.below(4) as usize];
        phase
    }
}

/// A third of the attributes, in half of the phases. What is not a setting but something to be done is left to clients.
fn draw_knobs(row: &Row, random: &mut Random) -> Vec<(usize, usize)> {
    if random.below(2) == 0 {
        return vec![];
    }
    let settings = row.knobs.iter().enumerate().filter(|(_, (name, _))| !is_command(name));
    let mut drawn = Vec::new();
    for (attribute, (_, values)) in settings {
        let value = random.below(3 * values.len() as u64) as usize;
        drawn.extend((value < values.len()).then_some((attribute, value)));
    }
    drawn
}

/// Which second device there is, and what its clients do; and what is left to both. `spare`: there is memory for it.
fn put_second(
    random: &mut Random,
    row: &Row,
    spare: bool,
    phases: &mut [Phase],
) -> (Option<&'static Row>, Option<&'static str>) {
    let (rows, shared) = match row.beside {
        // What is reset takes memory again, or is no device any more.
        [] if !spare || !phases.iter().all(Phase::is_steady) || random.below(8) > 0 => return (None, None),
        [] => (COMPANY, SHARED[random.below(4) as usize]),
        rows => (rows, None),
    };
    let second = rows[random.below(rows.len() as u64) as usize];
    for phase in phases {
        let mut beside = Phase::draw(second, random, false).steps;
        put_tides(random, (row, second), (&mut phase.steps, &mut beside), &mut phase.knobs);
        phase.beside = beside;
    }
    (Some(second), shared)
}

/// In a quarter of the stories a call hangs.
fn put_hang(random: &mut Random, row: &Row, phases: &mut [Phase]) {
    if random.below(4) > 0 {
        return;
    }
    let phase = &mut phases[random.below(phases.len() as u64) as usize];
    let number = random.below(1 + u64::from(row.cache.is_some())) as usize;
    // Hosts have a cache device alone.
    let number = if row.hosts { usize::from(row.cache.is_some()) } else { number };
    let seconds = [None, None, None, Some(1), Some(20), Some(120)][random.below(6) as usize];
    let call = [None, Some(Call::Read), Some(Call::Write), Some(Call::Sync), Some(Call::Zero)]
        [random.below(5) as usize];
    let nth_max = [4, 20, 80][random.below(3) as usize];
    let fault = Fault { call, nth: random.below(nth_max), effect: Effect::Hang(seconds), sticky: false };
    phase.plan_mut(number).faults.push(fault);
    phase.keeps_power[number] = false;
}

/// In a quarter of the stories of a disk with checksums a read comes from the wrong place.
fn put_misread(random: &mut Random, phases: &mut [Phase]) {
    if random.below(4) > 0 {
        return;
    }
    let phase = &mut phases[random.below(phases.len() as u64) as usize];
    let (nth, sticky) = (random.below(24), random.below(4) == 0);
    phase.plan.faults.push(Fault { call: Some(Call::Read), nth, effect: Effect::Misread, sticky });
}

/// In an eighth of the stories a disk ignores flushes. It loses nothing while it has power, so that reads stay exact.
fn put_ignored(random: &mut Random, phases: &mut [Phase]) {
    if random.below(8) > 0 {
        return;
    }
    let phase = &mut phases[random.below(phases.len() as u64) as usize];
    let (nth, sticky) = (random.below(6), random.below(2) == 0);
    phase.plan.faults.retain(|fault| fault.effect != Effect::Lose);
    phase.plan.faults.push(Fault { call: Some(Call::Sync), nth, effect: Effect::Ignore, sticky });
    phase.keeps_power[0] = false;
}

/// One line for each thing that happens.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match (self.refused, self.tight) {
            (true, _) => ", memory is refused",
            (_, true) => ", little memory",
            _ => "",
        };
        let sectors = if self.large_sectors { ", large sectors" } else { "" };
        writeln!(f, "stack {}, {} idle workers{memory}{sectors}", self.row.name, self.idle_workers)?;
        if let Some(left) = self.shared {
            writeln!(f, "  {left} of memory are left to both devices")?;
        }
        if let Some(way) = &self.network {
            writeln!(f, "  clients come by {way:?}")?;
        }
        for (index, phase) in self.phases.iter().enumerate() {
            writeln!(f, "phase {index}")?;
            if self.row.hosts {
                writeln!(f, "  {}", phase.turn)?;
            }
            write_plan(f, "disk", &phase.plan)?;
            if self.row.cache.is_some() {
                write_plan(f, "cache", &phase.cache_plan)?;
            }
            let which = ["disk", "cache"].into_iter().zip(phase.keeps_power).filter(|(_, keeps)| *keeps);
            which
                .into_iter()
                .try_for_each(|(disk, _)| writeln!(f, "  {disk}: keeps its power at the end"))?;
            for &(attribute, value) in &phase.knobs {
                let (name, values) = self.row.knobs[attribute];
                writeln!(f, "  set {name} {} at the start", values[value])?;
            }
            writeln!(
                f,
                "  order {:?}{}{}",
                phase.order,
                if phase.drain { ", drained at the end" } else { "" },
                if phase.stops { ", stopped at the end" } else { "" }
            )?;
            for step in &phase.steps {
                writeln!(f, "  {}", words(step, self.row))?;
            }
            for (second, step) in
                self.beside.iter().flat_map(|row| phase.beside.iter().map(move |step| (row, step)))
            {
                writeln!(f, "  {}: {}", second.name, words(step, second))?;
            }
        }
        Ok(())
    }
}
