//! A client of a stack: makes its requests one after the other, and holds every answer against the model.

mod enlarging;
mod refusals;
mod resetting;
mod setting_up;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::{
    Aligned, Attributes, ByteRange, Env, Flags, IoBuf, Kind, Op, Reply, Request, SECTOR, Value,
};
use spillway_layers::stack::Stack;
use spillway_sim::model::{Change, End, Model, Number, Said, Violation};
use spillway_sim::payload;
use spillway_sim::workload::{Act, Step};
use spillway_sim::world::World;

use super::dropping::Dropping;
use super::story::LOOK_SECTORS;
use crate::stacks::others::{OTHERS, Others, Steps};
use crate::stacks::room::MemoryRoom;
use crate::stacks::row::{BACKING, Knob, Setup, is_command};
use crate::stories::growing::Growth;
use crate::stories::spill::Spill;
use crate::world::network::{Lost, Network};
use resetting::Resets;

/// Extents that are asked for at a time.
const EXTENTS_MAX: usize = 16;

/// Tenths of a second until all that was written to a spill file has ended.
const SETTLING_MAX: u32 = 3000;

/// A stack that is open.
pub(crate) struct Site {
    pub(crate) stack: Stack,
    pub(crate) device: Aligned,
    /// What a device that keeps everything in memory may have.
    pub(crate) room: Option<MemoryRoom>,
    /// How clients reach it, where they do not call it.
    pub(crate) network: Option<Network>,
}

/// What every client has.
#[derive(Clone)]
pub(crate) struct Visitor {
    /// Absent until the stack is open, and after it could not be opened.
    pub(crate) site: Rc<OnceCell<Site>>,
    pub(crate) model: Rc<RefCell<Model>>,
    pub(crate) world: Arc<World>,
    pub(crate) answers: Rc<Cell<u64>>,
    pub(crate) violation: Rc<RefCell<Option<Violation>>>,
    /// Numbers writes through all phases of a story.
    pub(crate) numbers: Rc<Cell<u64>>,
    pub(crate) knobs: &'static [Knob],
    /// What a device is set up as that was reset.
    pub(crate) setups: &'static [Setup],
    pub(crate) resets: Rc<Resets>,
    /// What others take of the memory.
    pub(crate) others: Rc<Others>,
    pub(crate) growth: Rc<Growth>,
    pub(crate) steps: Rc<Steps>,
    /// What is looked at in each phase.
    pub(crate) looks: Rc<[(u64, u64)]>,
    /// Any request may fail.
    pub(crate) faulty: bool,
    /// Reads may fail, also where writes have failed.
    pub(crate) reads_fail: bool,
    /// Every write that is acknowledged is durable.
    pub(crate) commits: bool,
    /// What it acknowledges and flushes survives a crash.
    pub(crate) durable: bool,
    /// Its page cache gets no memory from the system: nothing is written through it.
    pub(crate) has_no_slabs: bool,
    /// Of a stack that spills, what is known of its disk.
    pub(crate) spill: Option<Rc<Spill>>,
    /// Bytes of the clients' buffers, which the server of each charges. What was withdrawn may be in use until the end.
    pub(crate) payloads: Rc<Cell<u64>>,
    /// Which client it is; none looks at the device itself.
    pub(crate) client: Option<u8>,
}

impl Visitor {
    pub(crate) fn fail(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
    }

    pub(crate) async fn look_at_everything(self) {
        for &(from, end) in &self.looks[..] {
            let end = end.min(self.sectors());
            for first in (from..end).step_by(LOOK_SECTORS as usize) {
                self.read(first, LOOK_SECTORS.min(end - first), None).await;
            }
        }
    }

    pub(crate) fn site(&self) -> &Site {
        self.site.get().expect("clients come once the stack is open")
    }

    pub(crate) fn stack(&self) -> &Stack {
        &self.site().stack
    }

    pub(crate) async fn visit(mut self, steps: Vec<Step>) {
        for step in steps {
            self.client = Some(step.client);
            let Step { act, first, count, withdraw, .. } = step;
            let _made = (!matches!(act, Act::Sleep(_))).then(|| self.steps.begin());
            let _share = if self.uses_device(act) { Some(self.resets.share().await) } else { None };
            let Some(count) = self.fitting(act, first, count) else { continue };
            match act {
                Act::Read => self.read(first, count, withdraw).await,
                Act::Extents => self.extents(first, count).await,
                Act::Flush => self.flush(withdraw).await,
                Act::Sleep(micros) => self.world.sleep(Duration::from_micros(micros)).await,
                Act::Set { attribute, value } => self.set(attribute, value, withdraw).await,
                Act::Reset { setup } => self.reset(setup, withdraw).await,
                Act::Grow { sectors } => self.grow(sectors).await,
                _ => self.write(Step { count, ..step }).await,
            }
        }
        if let Some(network) = self.network() {
            network.settled().await;
        }
    }

    pub(crate) fn network(&self) -> Option<&Network> {
        self.site().network.as_ref()
    }

    /// Whether nobody resets the device meanwhile.
    fn uses_device(&self, act: Act) -> bool {
        match act {
            Act::Sleep(_) | Act::Reset { .. } => false,
            Act::Set { attribute, .. } => !is_command(self.knobs[attribute].0),
            _ => true,
        }
    }

    /// Whether the device has a spill file.
    pub(crate) fn has_spill_file(&self) -> bool {
        self.stack().show("backing_dev").is_ok_and(|path| path != "none")
    }

    /// Sets an attribute. Where a stack spills, its commands go on when nobody waits for them.
    pub(crate) async fn set(&self, attribute: usize, value: usize, withdraw: Option<u8>) {
        let (name, values) = self.knobs[attribute];
        if name == OTHERS {
            return self.others.leave(values[value]);
        }
        if let Some(spill) = &self.spill {
            spill.note_setting(name, values[value]);
        }
        let polls = withdraw.filter(|_| self.spill.is_some() && is_command(name));
        let (resets, had) = (self.resets.ended(), self.has_spill_file());
        let Some(stored) = (Dropping { answer: self.stack().store(name, values[value]), polls }).await else {
            return;
        };
        if name == BACKING {
            return self.judge_attaching(stored.map_err(|error| error.kind));
        }
        if let ("mem_limit", Some(room)) = (name, &self.site().room) {
            room.set_limit(self.model.borrow_mut().moment(), values[value]);
        }
        if let (Err(error), false) = (stored, self.faulty)
            && !(error.kind == Kind::NoDevice && self.spill.is_some() && !(had && self.has_spill_file()))
            && !self.may_refuse_setting(name, error.kind)
            && !self.others.may_refuse(error.kind)
            && !self.resets.may_refuse(name, error.kind, resets)
        {
            self.fail(Violation(format!("setting {name} to {} fails: {error}", values[value])));
        }
    }

    fn may_refuse_setting(&self, name: &str, kind: Kind) -> bool {
        let Some(spill) = &self.spill else { return false };
        let written = self.stack().get("spill_written_bytes").ok().and_then(|bytes| bytes.number());
        spill.may_refuse(name, kind, written.expect("a stack that spills counts what it writes"))
    }

    pub(crate) async fn read(&self, first: u64, count: u64, withdraw: Option<u8>) {
        let number = self.model.borrow_mut().begin_read(first, count);
        let request = Request::read(first * SECTOR, IoBuf::new((count * SECTOR) as usize));
        let reply = self.ask(request, withdraw, number).await;
        let bytes = reply.as_ref().ok().filter(|reply| reply.result.is_ok()).map(|reply| &reply.buf[..]);
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
        // One that was refused has not been tried.
        let tried = reply.ok().filter(|reply| reply.result != Err(Kind::ShuttingDown));
        let end = tried.map_or(End::Withdrawn, |reply| end(reply.result, false));
        if let Err(violation) = self.model.borrow_mut().end_flush(number, end) {
            self.fail(violation);
        }
    }

    async fn write(&self, step: Step) {
        let range = ByteRange::new(step.first * SECTOR, step.count * SECTOR);
        self.numbers.set(self.numbers.get() + 1);
        let act = self.network().map_or(step.act, |network| network.act(step.act));
        let (request, change) = match act {
            Act::Write { look, fua } => {
                let value = payload::value(self.numbers.get(), look);
                let mut buf = IoBuf::new(range.len as usize);
                payload::fill(value, step.first, &mut buf);
                let flags = Flags { fua, ..Flags::default() };
                (Request { op: Op::Write, range, flags, buf }, Change::To(value))
            }
            Act::Zero { fua, no_hole } => {
                let mut request = Request::bare(Op::WriteZeroes, range);
                request.flags = Flags { fua, no_hole, free: false };
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
        // What a lost connection has left may be under way, and parts of a write beside each other.
        let alone =
            self.steps.alone().filter(|_| self.network().is_none_or(|network| network.serves_alone(range)));
        let number = self.model.borrow_mut().begin_write(step.first, step.count, change);
        let end = match self.ask(request, step.withdraw, number).await.map(|reply| reply.result) {
            Ok(result) => {
                if result == Err(Kind::NoSpace) {
                    self.judge_spilling(alone);
                    self.judge_sharing(alone, number);
                    self.judge_refusal(number).await;
                }
                end(result, durable)
            }
            Err(Lost::Link(link)) => {
                let model = self.model.clone();
                let end = move || model.borrow_mut().end_write(number, End::Withdrawn);
                let network = self.network().expect("a connection was lost");
                return network.once_over(link, end);
            }
            Err(Lost::Withdrawn) => End::Withdrawn,
            Err(Lost::Unsent) => End::Failed,
        };
        self.model.borrow_mut().end_write(number, end);
    }

    /// Compacts, and where a stack spills waits until what is under way there has ended, so that these attributes are 0; not for ever.
    pub(crate) async fn settle(&self, empty: &[&str]) {
        self.compact().await;
        let is_empty = |name: &&str| self.stack().get(name).is_ok_and(|left| left == Value::U64(0));
        for _ in (0..SETTLING_MAX).take_while(|_| self.spill.is_some() && !empty.iter().all(is_empty)) {
            self.world.sleep(Duration::from_millis(100)).await;
            self.compact().await;
        }
    }

    /// Has the device move everything together, and give back what memory it keeps at hand.
    pub(crate) async fn compact(&self) {
        self.stack().store("compact", "1").await.expect("what keeps everything in memory can be compacted");
    }

    /// The reply, or why there is none.
    async fn ask(&self, request: Request, withdraw: Option<u8>, number: Number) -> Result<Reply, Lost> {
        let (op, range, payload) = (request.op, request.range, request.buf.capacity() as u64);
        let payload = self.network().map_or(payload, |network| network.bytes_for(payload));
        let len = request.buf.len();
        let (first, count) = (range.offset / SECTOR, range.len / SECTOR);
        tracing::debug!("client: {op:?} {first}+{count} begins");
        let doubt = self.spill.as_ref().map(|spill| spill.doubt(op, range, &self.model.borrow()));
        let refused =
            self.faulty && matches!(op, Op::Write | Op::WriteZeroes | Op::Flush) && self.has_failed();
        self.payloads.set(self.payloads.get() + payload);
        let mut reply = match (self.network(), self.client) {
            (Some(network), Some(client)) if !self.growth.is_new(range) => {
                network.ask(client, request, withdraw).await?
            }
            _ => {
                let answer = Dropping { answer: self.site().device.submit(request), polls: withdraw };
                answer.await.ok_or(Lost::Withdrawn)?
            }
        };
        self.payloads.set(self.payloads.get() - payload);
        self.answers.set(self.answers.get() + 1);
        tracing::debug!("client: {op:?} {first}+{count} {:?}", reply.result);
        if reply.buf.len() != len {
            self.fail(Violation(format!("{op:?} of {range:?} returns {} bytes of {len}", reply.buf.len())));
        }
        if refused && reply.result.is_ok() {
            self.fail(Violation(format!(
                "{op:?} of {range:?} succeeds after the first error of a write cache"
            )));
        }
        self.world.note(u64::from(reply.result.is_ok()) ^ range.offset << 8);
        // Reads go on after an error.
        let faulty = match (&self.spill, doubt) {
            (Some(spill), Some(doubt)) => spill.may_fail(doubt, op),
            _ if op == Op::Read => self.reads_fail,
            _ => self.faulty,
        };
        if !faulty && reply.result == Err(Kind::Io) {
            reply.result = Err(self.refusal(op));
        }
        if let (Err(kind), false) = (reply.result, faulty)
            && !self.may_be_refused(op, kind, number)
            && !(kind == Kind::ShuttingDown && self.network().is_some_and(Network::is_closing))
        {
            self.fail(Violation(format!("{op:?} of {range:?} fails with {kind:?} for no reason")));
        }
        Ok(reply)
    }
}

fn end(result: Result<(), Kind>, durable: bool) -> End {
    match result {
        Ok(()) => End::Done { durable },
        Err(_) => End::Failed,
    }
}
