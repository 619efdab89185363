//! A client of the device on one host: holds every answer against the host's model, and tells that of the image what may reach it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::{
    Aligned, Attributes, ByteRange, Env, Flags, IoBuf, Kind, Op, Reply, Request, SECTOR, Value,
};
use spillway_layers::stack::Stack;
use spillway_sim::disk::{Call, Disk};
use spillway_sim::image::Image;
use spillway_sim::model::{Change, End, Model, Violation};
use spillway_sim::payload;
use spillway_sim::workload::{Act, Step};
use spillway_sim::world::World;

use crate::run::dropping::Dropping;
use crate::stacks::row::Row;

/// Calls that an attempt to write something back makes one after the other, at most: one that has failed is told of after the others.
const ATTEMPT_CALLS: u32 = 4;

/// Sectors that are read at a time when everything is looked at.
const LOOK_SECTORS: u64 = 64;

/// What all hosts of a story share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) row: &'static Row,
    pub(super) world: Arc<World>,
    pub(super) cluster: Arc<Image>,
    /// What a reader of the image may find.
    pub(super) image: Rc<RefCell<Model>>,
    /// Times that the lock was taken.
    pub(super) reign: Rc<Cell<u64>>,
    /// Numbers writes.
    pub(super) numbers: Rc<Cell<u64>>,
    pub(super) answers: Rc<Cell<u64>>,
    pub(super) violation: Rc<RefCell<Option<Violation>>>,
}

impl Shared {
    pub(super) fn fail(&self, words: String) {
        self.violation.borrow_mut().get_or_insert(Violation(words));
    }
}

/// What a host keeps of the device, through all of its starts.
#[derive(Clone)]
pub(super) struct Kept {
    /// What it may show.
    pub(super) model: Rc<RefCell<Model>>,
    /// Sectors of the blocks that its cache may have and the image not.
    pub(super) sectors: Rc<RefCell<BTreeSet<u64>>>,
}

/// An open stack.
pub(super) struct Site {
    pub(super) stack: Stack,
    pub(super) device: Aligned,
}

/// A client.
#[derive(Clone)]
pub(super) struct Guest {
    pub(super) shared: Shared,
    pub(super) kept: Kept,
    pub(super) site: Rc<Site>,
    /// The reign of its host, and the client that it is of the cluster.
    pub(super) reign: u64,
    pub(super) client: u64,
    /// Its host's cache device.
    pub(super) disk: Arc<Disk>,
}

impl Guest {
    /// Whether its host has the lock.
    pub(super) fn reigns(&self) -> bool {
        self.shared.reign.get() == self.reign
    }

    pub(super) fn now(&self) -> Duration {
        self.shared.world.now()
    }

    /// Whether there is a reason for work that began at `begun` to fail so. What passes has failed at the image since, or in an attempt that may
    /// have been under way; anything else at the cache device, since or, where an error sticks, in this life of the host.
    pub(super) fn may_fail(&self, kind: Kind, begun: Duration) -> bool {
        if kind.passes() {
            let longest = self.shared.cluster.longest(self.client).max(self.disk.answers().longest());
            let since = begun.saturating_sub(longest * ATTEMPT_CALLS);
            return self.shared.cluster.has_failed_since(self.client, kind, since);
        }
        let sticks = self.has_failed("page_cache") || self.has_failed("write_cache");
        let since = if sticks { Duration::ZERO } else { begun };
        self.disk.answers().has_error_since(None, since)
    }

    /// The same for a request. Reads go on after an error.
    fn is_excused(&self, op: Op, kind: Kind, begun: Duration) -> bool {
        match op {
            Op::Read if !kind.passes() => self.disk.answers().has_error_since(Some(Call::Read), begun),
            _ => self.may_fail(kind, begun),
        }
    }

    /// The same where it is not said how.
    pub(super) fn may_fail_somehow(&self, begun: Duration) -> bool {
        [Kind::Unreachable, Kind::Exhausted, Kind::Io].into_iter().any(|kind| self.may_fail(kind, begun))
    }

    /// Whether an error of this cache is said to stick.
    pub(super) fn has_failed(&self, part: &str) -> bool {
        self.site.stack.get(&format!("{part}.error")).is_ok_and(|error| error != Value::None)
    }

    pub(super) fn drain_state(&self) -> &'static str {
        let state = self.site.stack.get("drain_state").ok();
        state.and_then(|state| state.choice()).unwrap_or("unknown")
    }

    pub(super) async fn look_at_everything(self) {
        let sectors = self.shared.row.sectors();
        for first in (0..sectors).step_by(LOOK_SECTORS as usize) {
            self.read(first, LOOK_SECTORS.min(sectors - first), None).await;
        }
    }

    pub(super) async fn visit(self, steps: Vec<Step>) {
        for step in steps {
            if step.first + step.count > self.shared.row.sectors() {
                continue;
            }
            match step.act {
                Act::Read | Act::Extents => self.read(step.first, step.count, step.withdraw).await,
                Act::Flush => self.flush(step.withdraw).await,
                Act::Sleep(micros) => self.shared.world.sleep(Duration::from_micros(micros)).await,
                Act::Set { attribute, value } => self.set(attribute, value).await,
                Act::Reset { .. } | Act::Grow { .. } => {}
                Act::Write { .. } | Act::Zero { .. } | Act::Discard { .. } => self.write(step).await,
            }
        }
    }

    pub(super) async fn set(&self, attribute: usize, value: usize) {
        let ((name, values), begun) = (self.shared.row.knobs[attribute], self.now());
        if let Err(error) = self.site.stack.store(name, values[value]).await
            && self.reigns()
            && !self.may_fail(error.kind, begun)
        {
            self.shared.fail(format!("setting {name} to {} fails: {error}", values[value]));
        }
    }

    pub(super) async fn read(&self, first: u64, count: u64, withdraw: Option<u8>) {
        let number = self.kept.model.borrow_mut().begin_read(first, count);
        let request = Request::read(first * SECTOR, IoBuf::new((count * SECTOR) as usize));
        let reply = self.ask(request, withdraw).await;
        let bytes = reply.as_ref().filter(|reply| reply.result.is_ok()).map(|reply| &reply.buf[..]);
        if let Err(Violation(words)) = self.kept.model.borrow_mut().end_read(number, bytes) {
            self.shared.fail(words);
        }
    }

    pub(super) async fn flush(&self, withdraw: Option<u8>) {
        let number = self.kept.model.borrow_mut().begin_flush();
        let below = self.reaches_image().then(|| self.shared.image.borrow_mut().begin_flush());
        let reply = self.ask(Request::flush(), withdraw).await;
        let end = reply.map_or(End::Withdrawn, |reply| end(reply.result, false));
        let own = self.kept.model.borrow_mut().end_flush(number, end);
        let image = below.filter(|_| self.reigns());
        let image = image.map_or(Ok(()), |number| self.shared.image.borrow_mut().end_flush(number, end));
        if let Err(Violation(words)) = own.and(image) {
            self.shared.fail(words);
        }
    }

    async fn write(&self, step: Step) {
        let row = self.shared.row;
        let range = ByteRange::new(step.first * SECTOR, step.count * SECTOR);
        self.shared.numbers.set(self.shared.numbers.get() + 1);
        let (request, change) = self.change(step, range);
        let durable = request.flags.fua || row.commits;
        let blocks = row.block().cover(range);
        let sectors = blocks.offset / SECTOR..(blocks.offset + blocks.len) / SECTOR;
        self.kept.sectors.borrow_mut().extend(sectors);
        let number = self.kept.model.borrow_mut().begin_write(step.first, step.count, change);
        let begin = || self.shared.image.borrow_mut().begin_write(step.first, step.count, change);
        let below = self.reigns().then(begin);
        let end = self.ask(request, step.withdraw).await.map(|reply| end(reply.result, durable));
        let end = end.unwrap_or(End::Withdrawn);
        self.kept.model.borrow_mut().end_write(number, end);
        let Some(number) = below.filter(|_| self.reigns()) else { return };
        let end = match end {
            // It is durable in the cache.
            End::Done { .. } if row.cache.is_some() => End::Done { durable: false },
            end => end,
        };
        self.shared.image.borrow_mut().end_write(number, end);
    }

    fn change(&self, step: Step, range: ByteRange) -> (Request, Change) {
        match step.act {
            Act::Write { look, fua } => {
                let value = payload::value(self.shared.numbers.get(), look);
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
        }
    }

    /// Whether what is durable is so on the image.
    fn reaches_image(&self) -> bool {
        self.reigns() && self.shared.row.cache.is_none()
    }

    /// The reply, unless the request was withdrawn.
    async fn ask(&self, request: Request, withdraw: Option<u8>) -> Option<Reply> {
        let (op, range) = (request.op, request.range);
        let (first, count) = (range.offset / SECTOR, range.len / SECTOR);
        tracing::debug!("reign {}: {op:?} {first}+{count} begins", self.reign);
        let (begun, late, failed) = (self.now(), !self.reigns(), self.refuses());
        // It has seen that the image is another's. A discard within a block does nothing.
        let fenced = self.site.stack.get("connection").is_ok_and(|state| state.choice() == Some("fenced"));
        let must_fail = if fenced { op != Op::Discard } else { late && self.must_fail(op) };
        let sticks = failed && matches!(op, Op::Write | Op::WriteZeroes | Op::Flush);
        let reply = Dropping { answer: self.site.device.submit(request), polls: withdraw }.await?;
        tracing::debug!("reign {}: {op:?} {first}+{count} {:?}", self.reign, reply.result);
        self.shared.answers.set(self.shared.answers.get() + 1);
        self.shared.world.note(u64::from(reply.result.is_ok()) ^ range.offset << 8);
        match reply.result {
            Err(kind) if self.reigns() && !self.is_excused(op, kind, begun) => {
                self.shared.fail(format!("{op:?} of {range:?} fails with {kind:?} for no reason"));
            }
            Ok(()) if must_fail => {
                let words = "succeeds after another host has taken the image over";
                self.shared.fail(format!("{op:?} of {range:?} {words}"));
            }
            Ok(()) if sticks => {
                let words = "succeeds after the first error of a write cache";
                self.shared.fail(format!("{op:?} of {range:?} {words}"));
            }
            _ => {}
        }
        Some(reply)
    }

    /// Whether the write cache has failed for good, and clients reach it themselves.
    fn refuses(&self) -> bool {
        self.site.stack.get("page_cache.error").is_err() && self.has_failed("write_cache")
    }

    /// Whether a request needs the image.
    fn must_fail(&self, op: Op) -> bool {
        let row = self.shared.row;
        row.cache.is_none() && (op == Op::Flush || !row.is_paged())
    }
}

fn end(result: Result<(), Kind>, durable: bool) -> End {
    match result {
        Ok(()) => End::Done { durable },
        // The cluster may do it later.
        Err(kind) if kind.passes() => End::Withdrawn,
        Err(_) => End::Failed,
    }
}
