//! A stack in a world, opened, used by clients and taken down in one phase of a story.

mod ending;
mod hanging;
mod keeping;
mod neighbour;

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::buffer::Buffers;
use spillway_core::{Budget, Env};
use spillway_sim::disk::{Disk, Medium, Tear};
use spillway_sim::model::{End, Violation};
use spillway_sim::workload::Step;
use spillway_sim::world::World;

use self::neighbour::Neighbour;
use super::story::Story;
use super::visitor::{Site, Visitor};
use crate::stacks::others::Others;
use crate::stacks::room::MemoryRoom;
use crate::stacks::row::{Left, Row};
use crate::stories::growing::Growth;
use crate::stories::scenario::{Phase, Scenario};
use crate::stories::spill::Spill;
use crate::world::network::{Network, Way};
use crate::world::remote;

/// Steps of the executor after which a phase is called stuck: a request is never answered.
const STEPS_MAX: u64 = 3_000_000;

/// Memory for regions, where the system does not refuse it.
const REGIONS_BYTES: u64 = 256 << 20;

/// A stack in a world, and those who use it.
pub(crate) struct House {
    row: &'static Row,
    pub(crate) world: Arc<World>,
    pub(crate) disks: Vec<Arc<Disk>>,
    budget: Arc<Budget>,
    /// The system gives no memory for regions.
    refused: bool,
    visitor: Visitor,
    pub(crate) answers: Rc<Cell<u64>>,
    /// The cache was emptied, and nothing was written since.
    pub(crate) drained: Cell<bool>,
    /// It was stopped as a server stops it.
    pub(crate) stopped: Cell<bool>,
    /// A spill file is taken whatever it holds.
    force: bool,
    /// What is to be there, of a stack whose disk keeps it.
    left: Option<Left>,
    /// What this phase leaves.
    pub(crate) leaves: Cell<Option<Left>>,
    /// Bytes that the crash before may have taken.
    at_risk: Option<u64>,
    buffers: Buffers,
    network: Option<Way>,
    /// Nobody resets the device.
    steady: bool,
    neighbour: Option<Neighbour>,
}

impl House {
    pub(crate) fn new(
        scenario: &Scenario,
        phase: &Phase,
        media: &[Medium],
        story: &Story,
        seed: u64,
        force: bool,
    ) -> Self {
        let row = scenario.row;
        let world = World::new(seed);
        world.set_idle_workers(scenario.idle_workers);
        world.set_order(phase.order);
        let power_up = |(number, medium): (usize, &Medium)| {
            let (plan, seed) = (phase.plan(number).clone(), seed ^ 0xd15c << number);
            let disk = Disk::new(world.clone(), medium.clone(), row.disk_block(number), plan, seed);
            let tear = row.tear(number, scenario.large_sectors);
            Arc::new(disk.named(row.disk_name(number)).tearing(tear))
        };
        let disks: Vec<_> = media.iter().enumerate().map(power_up).collect();
        let buffers = entered_buffers(scenario);
        let budget = row.budget(scenario.tight);
        story.model.borrow_mut().set_losing(row.is_durable() && phase.loses());
        story.model.borrow_mut().set_late(scenario.network.is_some());
        // What cannot be read stays so in later phases.
        let bad = media.iter().any(Medium::has_bad_sectors);
        let visitor = Visitor {
            site: Rc::default(),
            model: story.model.clone(),
            world: world.clone(),
            answers: Rc::default(),
            violation: Rc::default(),
            numbers: story.numbers.clone(),
            knobs: row.knobs,
            setups: row.setups,
            resets: Rc::default(),
            others: Rc::new(Others::new(budget.clone(), row.exact, scenario.shared)),
            growth: Rc::new(Growth::new(disks.first().filter(|_| row.is_durable()))),
            steps: Rc::default(),
            looks: story.looks.clone(),
            faulty: phase.faulty() || bad || row.impatient,
            reads_fail: phase.reads_fail() || bad || row.impatient || row.remote && phase.faulty(),
            commits: row.commits,
            durable: row.is_durable(),
            has_no_slabs: scenario.refused && row.is_paged(),
            spill: spill_of(row, phase.spoils() || bad, force),
            payloads: Rc::default(),
            client: None,
        };
        // What a disk loses now, before anybody has looked, no kill has taken. Nor what a server has lost with its power.
        let at_risk = story.at_risk.get().filter(|_| !phase.faulty() && !row.remote);
        Self {
            row,
            world,
            disks,
            budget,
            refused: scenario.refused,
            answers: visitor.answers.clone(),
            drained: Cell::default(),
            stopped: Cell::default(),
            force,
            left: story.left.get(),
            leaves: Cell::new(story.left.get().map(|left| Left { sure: false, ..left })),
            at_risk,
            buffers,
            network: scenario.network,
            neighbour: scenario.beside.map(|row| Neighbour::new(row, &visitor, seed)),
            steady: phase.is_steady(),
            visitor,
        }
    }

    /// Opening, clients, a last look at everything.
    pub(crate) fn live(&self, phase: &Phase) -> Result<(), Violation> {
        if !self.open()? {
            return Ok(());
        }
        let (visitor, knobs) = (self.visitor.clone(), phase.knobs.clone());
        self.until_done(vec![self.spawn(async move {
            for (attribute, value) in knobs {
                visitor.set(attribute, value, None).await;
            }
        })])?;
        self.until_done(vec![self.spawn(self.visitor.clone().look_at_everything())])?;
        self.check_losses()?;
        let clients = phase.steps.iter().map(|step| step.client).max().map_or(0, |last| last + 1);
        let mut visits = Vec::new();
        for client in 0..clients {
            let steps: Vec<Step> = phase.steps.iter().filter(|step| step.client == client).copied().collect();
            visits.push(self.spawn(self.visitor.clone().visit(steps)));
        }
        if let Some(neighbour) = &self.neighbour {
            visits.extend(neighbour.visits(&phase.beside).map(|visit| self.spawn(visit)));
        }
        visits.extend(phase.closes.map(|after| self.close(after)));
        self.until_done(visits)?;
        if phase.closes.is_some() {
            return Ok(());
        }
        let both = [Some(&self.visitor), self.neighbour.as_ref().map(|neighbour| &neighbour.visitor)];
        let looks =
            both.into_iter().flatten().map(|visitor| self.spawn(visitor.clone().look_at_everything()));
        self.until_done(looks.collect())?;
        if phase.drain && !self.powerless() {
            self.drain()?;
        }
        if phase.stops && !self.powerless() {
            return self.stop();
        }
        if self.row.empty.is_empty() || self.powerless() { Ok(()) } else { self.clear_out() }
    }

    /// The server stops, so many microseconds from now: what was acknowledged before is flushed then.
    fn close(&self, after: u64) -> Rc<Cell<bool>> {
        let visitor = self.visitor.clone();
        self.spawn(async move {
            visitor.world.sleep(Duration::from_micros(after)).await;
            let network = visitor.network().expect("only what is served is closed");
            let number = visitor.model.borrow_mut().begin_flush();
            let end = match network.close().await && !visitor.faulty {
                true => End::Done { durable: false },
                false => End::Withdrawn,
            };
            let ended = visitor.model.borrow_mut().end_flush(number, end);
            ended.expect("no flush has failed where nothing fails");
        })
    }

    /// Opens the stack, as a server does before its first client. False where it cannot, for a reason, or the power goes first.
    fn open(&self) -> Result<bool, Violation> {
        let (row, refused, force) = (self.row, self.refused, self.force);
        let regions_bytes = if refused { 0 } else { REGIONS_BYTES };
        let (world, disks, budget) = (self.world.clone(), self.disks.clone(), self.budget.clone());
        let left = self.left;
        let (way, neighbour, others) = (self.network, self.neighbour.clone(), self.visitor.others.clone());
        if row.exact {
            others.join(&self.visitor.model);
        }
        self.visitor.join_spilling();
        let (site, failure) = (self.visitor.site.clone(), Rc::new(OnceCell::new()));
        let failed = failure.clone();
        let opening = self.spawn(async move {
            let second = match neighbour.clone() {
                Some(second) => second.open(&world, &budget).await,
                None => Ok(()),
            };
            let mut first = row.open(&world, &disks, &budget, regions_bytes, force, left).await;
            if first.is_err() && force && left.is_some() {
                first = row.open(&world, &disks, &budget, regions_bytes, true, None).await;
            }
            let opened = second.and(first).and_then(|stack| {
                let device = Way::serve(way, stack.device.clone(), &budget)?;
                let room = row.exact.then(|| MemoryRoom::new(&budget, refused));
                let network = way.map(|way| Network::new(&world, &device, way)).transpose()?;
                Ok(Site { stack, device, room, network })
            });
            match opened {
                Ok(opened) => {
                    others.settle(neighbour.is_some());
                    drop(site.set(opened));
                }
                Err(error) => drop(failed.set(error)),
            }
        });
        self.until_done(vec![opening])?;
        if self.visitor.site.get().is_some() {
            self.find_kept();
            self.visitor.find_size()?;
        }
        match failure.get() {
            Some(error) if !self.visitor.faulty => {
                Err(Violation(format!("the stack cannot be opened for no reason: {error}")))
            }
            _ => Ok(self.visitor.site.get().is_some() && !self.powerless()),
        }
    }

    /// A kill has taken no more than was allowed to be at risk.
    fn check_losses(&self) -> Result<(), Violation> {
        let lost = self.visitor.model.borrow().lost_bytes();
        match self.at_risk.filter(|at_risk| lost > *at_risk) {
            Some(at_risk) => Err(Violation(format!(
                "a kill took {lost} bytes that were acknowledged, and {at_risk} may be at risk"
            ))),
            None => Ok(()),
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) -> Rc<Cell<bool>> {
        let done: Rc<Cell<bool>> = Rc::default();
        let seen = done.clone();
        self.world.spawn_here(Box::pin(async move {
            task.await;
            seen.set(true);
        }));
        done
    }

    fn powerless(&self) -> bool {
        self.disks.iter().any(|disk| disk.is_cut())
    }

    fn until_done(&self, tasks: Vec<Rc<Cell<bool>>>) -> Result<(), Violation> {
        self.until(|| tasks.iter().all(|task| task.get()))
    }

    /// Goes on until something is done, or the power is gone.
    fn until(&self, done: impl Fn() -> bool) -> Result<(), Violation> {
        let start = self.world.now();
        for step in 0..STEPS_MAX {
            if let Some(violation) = self.visitor.violation.borrow_mut().take() {
                return Err(violation);
            }
            if self.powerless() || done() {
                return Ok(());
            }
            if self.hangs_since(start) || !self.world.go_on() {
                return self.give_up();
            }
            // Most steps over a network only carry bytes.
            if let Some(site) = self.visitor.site.get()
                && (self.network.is_none() || step % 8 == 0)
            {
                site.stack.device.verify();
                self.neighbour.iter().for_each(Neighbour::verify);
            }
            self.check_memory()?;
            self.tell_what_changed();
        }
        Err(Violation(format!("a request is not answered within {STEPS_MAX} steps")))
    }

    /// Tells the model what the last step did to the disk whose sectors are the device's.
    fn tell_what_changed(&self) {
        self.neighbour.iter().for_each(Neighbour::tell_what_changed);
        let (Some(disk), mut model) = (self.disks.first(), self.visitor.model.borrow_mut()) else { return };
        let (changed, wrong) = (disk.take_changed(), disk.take_wrong());
        if let Some(spill) = &self.visitor.spill {
            let others = self.disks[1..].iter().filter(|disk| !disk.take_changed().is_empty());
            if others.count() > 0 || !changed.is_empty() {
                spill.note_write(&mut model);
            }
        }
        if !self.row.is_durable() {
            return;
        }
        if disk.tear() != Tear::Blocks {
            model.changes_below(&changed);
        }
        for (first, count) in wrong {
            model.store_wrong(first, count);
        }
    }

    /// What the budget has charged is within it, and nothing else is held.
    fn check_memory(&self) -> Result<(), Violation> {
        let uncounted = self.buffers.bytes_held().saturating_sub(self.visitor.payloads.get());
        let network = self.visitor.site.get().and_then(|site| site.network.as_ref());
        let sessions = network.map_or(0, |network| network.bytes_max(self.row.long()));
        let far = if self.row.remote { remote::BYTES_MAX } else { 0 };
        let uncounted = uncounted.saturating_sub(sessions + far);
        let (used, limit) = (self.budget.used(), self.budget.limit());
        if used <= limit && uncounted == 0 {
            return Ok(());
        }
        Err(Violation(format!(
            "of {limit} bytes of memory {used} are charged, and {uncounted} in buffers that nobody counts"
        )))
    }

    /// Takes everything down; what was charged has to be given back.
    pub(crate) fn leave(self) -> Result<Vec<Arc<Disk>>, Violation> {
        self.world.power_off();
        drop((self.visitor, self.neighbour));
        self.world.power_off();
        drop(self.world);
        match (self.budget.used(), self.buffers.bytes_held()) {
            (0, 0) => Ok(self.disks),
            (used, held) => Err(Violation(format!(
                "the stack is gone, but {used} bytes are still charged, and {held} are in buffers"
            ))),
        }
    }
}

/// The buffers of the server, which this thread takes from now on. That of an origin, beside it, takes some too, which one elsewhere would
/// not wait for.
fn entered_buffers(scenario: &Scenario) -> Buffers {
    let way = scenario.network.filter(|_| !scenario.row.remote);
    let buffers = way.map_or_else(Buffers::default, |way| way.buffers(scenario.row.long()));
    buffers.enter();
    buffers
}

/// The disk that a stack spills to. What it keeps may be spoiled since an earlier phase, after which it is opened by force.
fn spill_of(row: &Row, spoils: bool, force: bool) -> Option<Rc<Spill>> {
    let spoils = spoils || row.kept && force;
    row.spill.map(|bytes| Rc::new(Spill::new(bytes, spoils, force).keeping(row.kept)))
}
