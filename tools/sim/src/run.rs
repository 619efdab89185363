//! Runs a story and holds what the stack shows against the model.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use spillway_core::buffer;
use spillway_core::random::Random;
use spillway_core::{
    Aligned, Attributes, Budget, ByteRange, Env, Flags, IoBuf, Kind, Op, Reply, Request, SECTOR, Submission,
    Value,
};
use spillway_layers::stack::Stack;

use crate::room::Room;
use crate::scenario::{Phase, Scenario};
use crate::stacks::{Knob, Row};
use spillway_sim::disk::{Disk, Medium};
use spillway_sim::model::{Change, End, Loss, Model, Number, Said, Violation};
use spillway_sim::payload;
use spillway_sim::workload::{Act, Step};
use spillway_sim::world::World;

/// Steps of the executor after which a phase is called stuck: a request is never answered.
const STEPS_MAX: u64 = 3_000_000;

/// Memory for regions, where the system does not refuse it.
const REGIONS_BYTES: u64 = 256 << 20;

/// Extents that are asked for at a time.
const EXTENTS_MAX: usize = 16;

/// Sectors that are read at once when everything is looked at.
const LOOK_SECTORS: u64 = 64;

/// What a story came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Power cuts.
    pub crashes: u64,
    /// Requests answered.
    pub answers: u64,
    /// Boundaries that each disk passed in each phase.
    pub boundaries: Vec<Vec<u64>>,
    /// Calls that each disk got in each phase.
    pub calls: Vec<Vec<u64>>,
    /// A sum of all that happened, in its order.
    pub log: u64,
}

/// Runs a story to its end, or to the first broken promise. A panic is one.
pub fn run(scenario: &Scenario) -> Result<Outcome, Violation> {
    let outcome = catch_unwind(AssertUnwindSafe(|| play(scenario))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Err(Violation(format!("a panic: {words}")))
    });
    if outcome.is_err() {
        World::abandon();
    }
    outcome
}

fn play(scenario: &Scenario) -> Result<Outcome, Violation> {
    let durable = scenario.row.disk.is_some();
    let model = Rc::new(RefCell::new(scenario.row.model()));
    let story = Story { model: model.clone(), numbers: Rc::default(), looks: looks(scenario).into() };
    let mut media = scenario.row.media();
    let mut outcome = Outcome::default();
    // A cache that is large is drained in few stories.
    let drain = scenario.row.cache.is_some() && (!scenario.row.full || scenario.seed.is_multiple_of(16));
    let last = Phase { drain, ..Phase::quiet() };
    for (index, phase) in scenario.phases.iter().chain(durable.then_some(&last)).enumerate() {
        let seed = scenario.seed.wrapping_add(index as u64 * 0x9e37_79b9);
        tracing::debug!("phase {index}");
        let house = House::new(scenario, phase, &media, &story, seed);
        let result = house.live(phase);
        outcome.answers += house.answers.get();
        outcome.log = outcome.log.rotate_left(5) ^ house.world.log();
        outcome.boundaries.push(house.disks.iter().map(|disk| disk.boundaries()).collect());
        outcome.calls.push(house.disks.iter().map(|disk| disk.calls()).collect());
        house.disks.iter().for_each(|disk| disk.cut());
        let drained = house.drained.get();
        let disks = house.leave()?;
        result?;
        if durable {
            let (next, loss) = stop(scenario, phase, &disks);
            media = next;
            model.borrow_mut().crash(loss);
            outcome.crashes += 1;
        }
        if drained {
            story.look_at_origin(&media[0])?;
        }
    }
    Ok(outcome)
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

/// What is looked at in each phase: everything, or of a large device what the story is about, and some more.
fn looks(scenario: &Scenario) -> Vec<(u64, u64)> {
    let (sectors, anchors) = (scenario.row.sectors(), scenario.row.anchors());
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
    let elsewhere = Random(scenario.seed).below(sectors);
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

/// What lasts from phase to phase.
struct Story {
    model: Rc<RefCell<Model>>,
    numbers: Rc<Cell<u64>>,
    /// What is looked at in each phase: first sectors and ends.
    looks: Rc<[(u64, u64)]>,
}

impl Story {
    /// After a drain: the origin alone has everything.
    fn look_at_origin(&self, origin: &Medium) -> Result<(), Violation> {
        let model = self.model.borrow();
        for &(first, end) in &self.looks[..] {
            let mut bytes = vec![0; ((end - first) * SECTOR) as usize];
            origin.read_durable(first * SECTOR, &mut bytes);
            let words = |Violation(words)| Violation(format!("after a drain, on the origin: {words}"));
            model.compare(first, &bytes).map_err(words)?;
        }
        Ok(())
    }
}

/// A stack in a world, and those who use it.
struct House {
    row: &'static Row,
    world: Arc<World>,
    disks: Vec<Arc<Disk>>,
    budget: Arc<Budget>,
    /// The system gives no memory for regions.
    refused: bool,
    visitor: Visitor,
    answers: Rc<Cell<u64>>,
    /// The cache was emptied, and nothing was written since.
    drained: Cell<bool>,
    /// Bytes of buffers outside workspaces, before the stack was built.
    buffers: i64,
}

/// A stack that is open.
struct Site {
    stack: Stack,
    device: Aligned,
    /// What a device that keeps everything in memory may have.
    room: Option<Room>,
}

/// What every client has.
#[derive(Clone)]
struct Visitor {
    /// Absent until the stack is open, and after it could not be opened.
    site: Rc<OnceCell<Site>>,
    model: Rc<RefCell<Model>>,
    world: Arc<World>,
    answers: Rc<Cell<u64>>,
    violation: Rc<RefCell<Option<Violation>>>,
    /// Numbers writes through all phases of a story.
    numbers: Rc<Cell<u64>>,
    knobs: &'static [Knob],
    /// What is looked at in each phase.
    looks: Rc<[(u64, u64)]>,
    /// Any request may fail.
    faulty: bool,
    /// Reads may fail, also where writes have failed.
    reads_fail: bool,
    /// Every write that is acknowledged is durable.
    commits: bool,
    /// Bytes of the clients' buffers, which whoever serves them charges. What was withdrawn may be in use until the end.
    payloads: Rc<Cell<u64>>,
}

impl House {
    fn new(scenario: &Scenario, phase: &Phase, media: &[Medium], story: &Story, seed: u64) -> Self {
        let row = scenario.row;
        let world = World::new(seed);
        world.set_idle_workers(scenario.idle_workers);
        world.set_order(phase.order);
        let power_up = |(number, medium): (usize, &Medium)| {
            let (plan, seed) = (phase.plan(number).clone(), seed ^ 0xd15c << number);
            let disk = Disk::new(world.clone(), medium.clone(), row.disk_block(number), plan, seed);
            let disk = disk.named(["disk", "cache"][number]);
            Arc::new(disk.of_words(number == 1 && row.cache.is_some_and(|cache| cache.words)))
        };
        let disks: Vec<_> = media.iter().enumerate().map(power_up).collect();
        let buffers = buffer::bytes_here();
        let budget = row.budget(scenario.tight);
        let answers: Rc<Cell<u64>> = Rc::default();
        story.model.borrow_mut().set_losing(phase.loses());
        // What cannot be read stays so in later phases.
        let bad = media.iter().any(Medium::has_bad_sectors);
        let visitor = Visitor {
            site: Rc::default(),
            model: story.model.clone(),
            world: world.clone(),
            answers: answers.clone(),
            violation: Rc::default(),
            numbers: story.numbers.clone(),
            knobs: row.knobs,
            looks: story.looks.clone(),
            faulty: phase.faulty() || bad,
            reads_fail: phase.reads_fail() || bad,
            commits: row.commits,
            payloads: Rc::default(),
        };
        let drained = Cell::new(false);
        Self { row, world, disks, budget, refused: scenario.refused, visitor, answers, drained, buffers }
    }

    /// Opening, clients, a last look at everything.
    fn live(&self, phase: &Phase) -> Result<(), Violation> {
        if !self.open()? {
            return Ok(());
        }
        let (visitor, knobs) = (self.visitor.clone(), phase.knobs.clone());
        self.until_done(vec![self.spawn(async move {
            for (attribute, value) in knobs {
                visitor.set(attribute, value).await;
            }
        })])?;
        self.until_done(vec![self.spawn(self.visitor.clone().look_at_everything())])?;
        let clients = phase.steps.iter().map(|step| step.client).max().map_or(0, |last| last + 1);
        let mut visits = Vec::new();
        for client in 0..clients {
            let steps: Vec<Step> = phase.steps.iter().filter(|step| step.client == client).copied().collect();
            visits.push(self.spawn(self.visitor.clone().visit(steps)));
        }
        self.until_done(visits)?;
        self.until_done(vec![self.spawn(self.visitor.clone().look_at_everything())])?;
        if phase.drain && !self.powerless() {
            self.drain()?;
        }
        if self.row.empty.is_empty() || self.powerless() { Ok(()) } else { self.clear_out() }
    }

    /// Opens the stack, as a server does before its first client. False where it cannot, for a reason, or the power goes first.
    fn open(&self) -> Result<bool, Violation> {
        let (row, refused) = (self.row, self.refused);
        let regions_bytes = if refused { 0 } else { REGIONS_BYTES };
        let (world, disks, budget) = (self.world.clone(), self.disks.clone(), self.budget.clone());
        let (site, failure) = (self.visitor.site.clone(), Rc::new(OnceCell::new()));
        let failed = failure.clone();
        let opening = self.spawn(async move {
            let opened = row.open(&world, &disks, &budget, regions_bytes).await.and_then(|stack| {
                let device = Aligned::charged(stack.device.clone(), &budget)?;
                let room = row.exact.then(|| Room::new(&budget, refused));
                Ok(Site { stack, device, room })
            });
            match opened {
                Ok(opened) => drop(site.set(opened)),
                Err(error) => drop(failed.set(error)),
            }
        });
        self.until_done(vec![opening])?;
        match failure.get() {
            Some(error) if !self.visitor.faulty => {
                Err(Violation(format!("the stack cannot be opened for no reason: {error}")))
            }
            _ => Ok(self.visitor.site.get().is_some() && !self.powerless()),
        }
    }

    /// Empties a write cache, and looks at everything once more.
    fn drain(&self) -> Result<(), Violation> {
        let flush = self.visitor.model.borrow_mut().begin_flush();
        let stack = self.visitor.stack();
        let state = || stack.get("drain_state").ok().and_then(|state| state.choice());
        let begun = stack.set("drain", Value::U64(1)).now();
        self.until(|| state() != Some("running"))?;
        if self.powerless() {
            return Ok(());
        }
        let complete = begun.is_ok() && state() == Some("complete");
        if !complete && !self.visitor.faulty {
            return Err(Violation(format!("a drain ends as {:?} for no reason: {begun:?}", state())));
        }
        if complete {
            self.visitor.model.borrow_mut().end_flush(flush, End::Done { durable: false })?;
        }
        self.drained.set(complete);
        self.until_done(vec![self.spawn(self.visitor.clone().look_at_everything())])
    }

    /// Discards everything: nothing may be left.
    fn clear_out(&self) -> Result<(), Violation> {
        let step = Step {
            client: 0,
            act: Act::Discard { fua: false },
            first: 0,
            count: self.visitor.model.borrow().sectors(),
            withdraw: None,
        };
        self.until_done(vec![self.spawn(self.visitor.clone().visit(vec![step]))])?;
        let visitor = self.visitor.clone();
        self.until_done(vec![self.spawn(async move { visitor.compact().await })])?;
        let stack = self.visitor.stack();
        for name in self.row.empty {
            let left = stack.get(name).expect("the table names attributes of the stack");
            if left != Value::U64(0) {
                return Err(Violation(format!("everything is discarded, but {name} is {left:?}")));
            }
        }
        Ok(())
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
        for _ in 0..STEPS_MAX {
            if let Some(violation) = self.visitor.violation.borrow_mut().take() {
                return Err(violation);
            }
            if self.powerless() || done() {
                return Ok(());
            }
            if !self.world.go_on() {
                return Err(Violation(
                    "nothing is ready and nobody sleeps: a request is never answered".into(),
                ));
            }
            if let Some(site) = self.visitor.site.get() {
                site.stack.device.verify();
            }
            self.check_memory()?;
            self.tell_what_changed();
        }
        Err(Violation(format!("a request is not answered within {STEPS_MAX} steps")))
    }

    /// Tells the model what the last step did to the disk whose sectors are the device's.
    fn tell_what_changed(&self) {
        let (Some(disk), mut model) = (self.disks.first(), self.visitor.model.borrow_mut()) else { return };
        model.changes_below(&disk.take_changed());
        for (first, count) in disk.take_wrong() {
            model.store_wrong(first, count);
        }
    }

    /// What the budget has charged is within it, and nothing else is held.
    fn check_memory(&self) -> Result<(), Violation> {
        let payloads = self.visitor.payloads.get() as i64;
        let uncounted = (buffer::bytes_here() - self.buffers - payloads).max(0) as u64;
        let (used, limit) = (self.budget.used(), self.budget.limit());
        if used <= limit && uncounted == 0 {
            return Ok(());
        }
        Err(Violation(format!(
            "of {limit} bytes of memory {used} are charged, and {uncounted} in buffers that nobody counts"
        )))
    }

    /// Takes everything down; what was charged has to be given back.
    fn leave(self) -> Result<Vec<Arc<Disk>>, Violation> {
        self.world.power_off();
        drop(self.visitor);
        self.world.power_off();
        drop(self.world);
        match self.budget.used() {
            0 => Ok(self.disks),
            used => Err(Violation(format!("the stack is gone, but {used} bytes are still charged"))),
        }
    }
}

impl Visitor {
    fn fail(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
    }

    async fn look_at_everything(self) {
        for &(from, end) in &self.looks[..] {
            for first in (from..end).step_by(LOOK_SECTORS as usize) {
                self.read(first, LOOK_SECTORS.min(end - first), None).await;
            }
        }
    }

    fn site(&self) -> &Site {
        self.site.get().expect("clients come once the stack is open")
    }

    fn stack(&self) -> &Stack {
        &self.site().stack
    }

    async fn visit(self, steps: Vec<Step>) {
        for step in steps {
            let Step { act, first, count, withdraw, .. } = step;
            match act {
                Act::Read => self.read(first, count, withdraw).await,
                Act::Extents => self.extents(first, count).await,
                Act::Flush => self.flush(withdraw).await,
                Act::Sleep(micros) => self.world.sleep(Duration::from_micros(micros)).await,
                Act::Set { attribute, value } => self.set(attribute, value).await,
                _ => self.write(step).await,
            }
        }
    }

    async fn set(&self, attribute: usize, value: usize) {
        let (name, values) = self.knobs[attribute];
        let stored = self.stack().store(name, values[value]).await;
        if let ("mem_limit", Some(room)) = (name, &self.site().room) {
            room.set_limit(self.model.borrow_mut().moment(), values[value]);
        }
        if let (Err(error), false) = (stored, self.faulty) {
            self.fail(Violation(format!("setting {name} to {} fails: {error}", values[value])));
        }
    }

    async fn read(&self, first: u64, count: u64, withdraw: Option<u8>) {
        let number = self.model.borrow_mut().begin_read(first, count);
        let request = Request::read(first * SECTOR, IoBuf::new((count * SECTOR) as usize));
        let reply = self.ask(request, withdraw, number).await;
        let bytes = reply.as_ref().filter(|reply| reply.result.is_ok()).map(|reply| &reply.buf[..]);
        if let Err(violation) = self.model.borrow_mut().end_read(number, bytes) {
            self.fail(violation);
        }
    }

    /// What is said to be zeroes has to be, and of a device that frees exactly a hole is said to be one.
    async fn extents(&self, first: u64, count: u64) {
        // They may be known at once: what the last step stored wrong has to be, too.
        self.world.sleep(Duration::ZERO).await;
        let block = self.site().device.preferred_block();
        let range = block.cover(ByteRange::new(first * SECTOR, count * SECTOR));
        let (first, count) = (range.offset / SECTOR, range.len / SECTOR);
        let number = self.model.borrow_mut().begin_read(first, count);
        let extents = self.site().device.extents(range, EXTENTS_MAX).await;
        let mut said = Vec::new();
        match extents {
            Ok(extents) => {
                for extent in extents {
                    let each = Said { hole: extent.hole, zero: extent.zero };
                    said.extend(std::iter::repeat_n(each, (extent.len / SECTOR) as usize));
                }
            }
            Err(kind) if !self.faulty => {
                self.fail(Violation(format!("extents of {range:?} fail with {kind:?} for no reason")));
            }
            Err(_) => {}
        }
        said.truncate(count as usize);
        if let Err(violation) = self.model.borrow_mut().end_extents(number, &said) {
            self.fail(violation);
        }
    }

    async fn flush(&self, withdraw: Option<u8>) {
        let number = self.model.borrow_mut().begin_flush();
        let reply = self.ask(Request::flush(), withdraw, number).await;
        if let Err(violation) =
            self.model.borrow_mut().end_flush(number, end(reply.map(|reply| reply.result), false))
        {
            self.fail(violation);
        }
    }

    async fn write(&self, step: Step) {
        let range = ByteRange::new(step.first * SECTOR, step.count * SECTOR);
        self.numbers.set(self.numbers.get() + 1);
        let (request, change) = match step.act {
            Act::Write { look, fua } => {
                let value = payload::value(self.numbers.get(), look);
                let mut buf = IoBuf::new(range.len as usize);
                payload::fill(value, step.first, &mut buf);
                let flags = Flags { fua, ..Flags::default() };
                (Request { op: Op::Write, range, flags, buf }, Change::To(value))
            }
            Act::Zero { fua, no_hole } => {
                let mut request = Request::bare(Op::WriteZeroes, range);
                request.flags = Flags { fua, no_hole };
                (request, Change::Zeroed { no_hole })
            }
            Act::Discard { fua } => {
                let mut request = Request::bare(Op::Discard, range);
                request.flags.fua = fua;
                (request, Change::Discarded)
            }
            other => unreachable!("{other:?} is not a write"),
        };
        let durable = request.flags.fua || self.commits;
        let number = self.model.borrow_mut().begin_write(step.first, step.count, change);
        let result = self.ask(request, step.withdraw, number).await.map(|reply| reply.result);
        if result == Some(Err(Kind::NoSpace)) {
            self.judge_refusal(number).await;
        }
        self.model.borrow_mut().end_write(number, end(result, durable));
    }

    /// After a write that found no memory, with nobody else about, a pass of compaction makes little room.
    async fn judge_refusal(&self, number: Number) {
        let alone = || self.model.borrow().is_alone(number);
        let Some(room) = self.site().room.as_ref().filter(|_| alone()) else { return };
        self.compact().await;
        if !alone() {
            return;
        }
        let stack = self.stack();
        let used = stack.get("mem_used_total").ok().and_then(|used| used.number());
        if let Some(left) = room.too_much_left(number, used.expect("it says what it takes")) {
            self.fail(Violation(format!("a write found no memory, but {left} bytes of it can be had")));
        }
    }

    /// Has the device move everything together, and give back what memory it keeps at hand.
    async fn compact(&self) {
        self.stack().store("compact", "1").await.expect("what keeps everything in memory can be compacted");
    }

    /// The reply, or nothing if the answer was dropped.
    async fn ask(&self, request: Request, withdraw: Option<u8>, number: Number) -> Option<Reply> {
        let (op, range, payload) = (request.op, request.range, request.buf.capacity() as u64);
        let len = request.buf.len();
        let (first, count) = (range.offset / SECTOR, range.len / SECTOR);
        tracing::debug!("client: {op:?} {first}+{count} begins");
        self.payloads.set(self.payloads.get() + payload);
        let reply = Dropping { answer: self.site().device.submit(request), polls: withdraw }.await?;
        self.payloads.set(self.payloads.get() - payload);
        self.answers.set(self.answers.get() + 1);
        tracing::debug!("client: {op:?} {first}+{count} {:?}", reply.result);
        if reply.buf.len() != len {
            self.fail(Violation(format!("{op:?} of {range:?} returns {} bytes of {len}", reply.buf.len())));
        }
        self.world.note(u64::from(reply.result.is_ok()) ^ range.offset << 8);
        // Reads go on after an error.
        let faulty = if op == Op::Read { self.reads_fail } else { self.faulty };
        if let (Err(kind), false) = (reply.result, faulty)
            && !self.may_be_refused(op, kind, number)
        {
            self.fail(Violation(format!("{op:?} of {range:?} fails with {kind:?} for no reason")));
        }
        Some(reply)
    }

    /// Whether a write that began as `number` may have found no memory. A discard takes none.
    fn may_be_refused(&self, op: Op, kind: Kind, number: Number) -> bool {
        let takes_memory = matches!(op, Op::Write | Op::WriteZeroes);
        let room = self.site().room.as_ref().filter(|_| takes_memory);
        room.is_some_and(|room| room.may_refuse(kind, number, &self.model.borrow()))
    }
}

fn end(result: Option<Result<(), Kind>>, durable: bool) -> End {
    match result {
        None => End::Withdrawn,
        Some(Ok(())) => End::Done { durable },
        Some(Err(_)) => End::Failed,
    }
}

/// An answer that is dropped after so many polls, as by a client that goes away.
struct Dropping {
    answer: Submission,
    polls: Option<u8>,
}

impl Future for Dropping {
    type Output = Option<Reply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        if self.polls == Some(0) {
            return Poll::Ready(None);
        }
        if let Poll::Ready(reply) = Pin::new(&mut self.answer).poll(context) {
            return Poll::Ready(Some(reply));
        }
        if let Some(polls) = &mut self.polls {
            *polls -= 1;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
