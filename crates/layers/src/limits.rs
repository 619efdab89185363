//! Limits of what a crash may take of a stack: acknowledged bytes that are not durable, summed over its parts, and for how long they are not.
//!
//! ```text
//!   write -> fits, and nothing is too old ------------------------> the parts
//!         -> else held, first come first served, until a flush ends
//!   half of a limit is reached -> the stack is flushed, by a task of its own
//! ```
//!
//! Promises: where all are within the limits a write passes. A write that would exceed the bytes, or that comes while the oldest one is older than the limit,
//! is held, which the log says; it fails where flushes do. What is larger than the limit of bytes is written with FUA, and so is never at
//! risk. Stands on the topmost part alone: a limit further down would hold write-back, and with it what makes room.
//!
//! What counts: each part says for itself what it has acknowledged and not made durable ([`AtRisk`]). Data that moves from one part to the next counts
//! twice for a moment. Age is that of the oldest write that no flush of the stack has covered, whatever the parts have written back meanwhile.
//!
//! Locks: what is exposed; a leaf, held while the parts' counts are read. Without a limit a write costs two loads.

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::select;
use spillway_core::block::DEVICE_BYTES_MAX;
use spillway_core::size::human;
use spillway_core::sync::{AtomicU64, Mutex, Ordering, Semaphore, Watermark, Work};
use spillway_core::{
    Answer, AtRisk, Attribute, BlockDevice, ByteRange, Env, Error, Extent, Geometry, Kind, LocalFuture, Op,
    Place, Preset, Reply, Request, Seam, Spec, Submission, Table, Type, Unit, Value, mutant, task,
};
use spillway_policy::exposure::Exposure;

use crate::options::options;

options! {
    /// What a configuration says about a stack's limits.
    pub struct Config;
    /// The limits in force.
    struct Settings: Settings::fits;
    Live at_risk_bytes_max: Option<u64> = Type::Number(4096, DEVICE_BYTES_MAX),
        "Maximum bytes that are acknowledged and not durable: dirty in the page cache or uncommitted in the write cache. Half of it starts a flush; a \
         write that would exceed it waits"
        .unit(Unit::Bytes).preset(Preset::Words("none")).or_none().option("at-risk-bytes-max");
    Live at_risk_seconds_max: Option<u64> = Type::Number(1, 86_400),
        "Maximum time for which acknowledged writes are not durable. Half of it starts a flush; while a write is older, new ones wait"
        .unit(Unit::Seconds).preset(Preset::Words("none")).or_none().option("at-risk-seconds-max");
    .. besides {
        /// Nothing of the stack is ever durable.
        volatile: bool,
    }
}

impl Settings {
    fn fits(&self) -> Result<(), Error> {
        if self.volatile && self.is_any() {
            return Err(Error::invalid(
                "this device keeps its content in memory only: all of it is at risk, and no limit can be kept. Leave out at_risk_bytes_max \
                 and at_risk_seconds_max",
            ));
        }
        Ok(())
    }

    fn is_any(&self) -> bool {
        self.at_risk_bytes_max.get().is_some() || self.at_risk_seconds_max.get().is_some()
    }

    fn seconds(&self) -> Option<Duration> {
        self.at_risk_seconds_max.get().map(Duration::from_secs)
    }
}

/// The log tells of writes that are held once in this time.
const ALARM_EVERY: Duration = Duration::from_secs(60);

/// Time between two looks for what nobody has told of.
const LOST_EVERY: Duration = Duration::from_millis(100);

/// Longest time between two looks at how old writes are: a setting that changes meanwhile is seen after that.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// The top of a stack, with its limits. See the head of this file.
pub struct Limits {
    core: Arc<Core>,
}

struct Core {
    /// Name of the device.
    device: String,
    below: Seam,
    env: Arc<dyn Env>,
    settings: Settings,
    parts: Vec<Arc<dyn AtRisk>>,
    exposure: Mutex<Exposure>,
    /// Held by the first of the writes that wait.
    line: Semaphore,
    /// Steps when a flush has ended, and when a write has while others wait.
    ends: Watermark,
    /// How the last flush has ended.
    failure: Mutex<Option<Kind>>,
    flusher: Work,
    watcher: Work,
    held: AtomicU64,
    flushes: AtomicU64,
    alarmed_at: Mutex<Option<Duration>>,
}

/// A write that is under way.
struct Admitted {
    core: Arc<Core>,
    /// Until this is dropped its bytes count beside those of the parts. None of a write that is durable once it is acknowledged.
    bytes: Option<u64>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.core.ended(self.bytes);
    }
}

impl Limits {
    /// Over `below`, whose `parts` have acknowledged what may be lost; none are set.
    pub(crate) fn new(
        device: &str,
        below: Arc<dyn BlockDevice>,
        parts: Vec<Arc<dyn AtRisk>>,
        env: Arc<dyn Env>,
    ) -> Result<Arc<Self>, Error> {
        let config = Config { volatile: below.geometry().volatile, ..Config::default() };
        let core = Core {
            device: device.to_owned(),
            below: Seam::new(below),
            env,
            settings: Settings::new(&config)?,
            parts,
            exposure: Mutex::default(),
            line: Semaphore::new(1),
            ends: Watermark::default(),
            failure: Mutex::default(),
            flusher: Work::default(),
            watcher: Work::default(),
            held: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            alarmed_at: Mutex::default(),
        };
        Ok(Arc::new(Self { core: Arc::new(core) }))
    }

    /// A limit has changed.
    fn changed(&self, _: &'static str) {
        let core = &self.core;
        core.ends.step();
        if core.settings.is_any() {
            // What was acknowledged before is as old as it may be, and what is under way is not known.
            core.exposure.lock().note(core.env.coarse_now());
            core.flush_in_background();
            core.watch();
        }
    }
}

impl Core {
    /// Bytes that a crash would take.
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.at_risk_bytes()).sum()
    }

    /// A request that changes the device and is not durable once it is acknowledged.
    fn change(self: &Arc<Self>, request: Request) -> Submission {
        // A discard that is lost takes nothing with it.
        let bytes = if request.op == Op::Discard { 0 } else { request.range.len };
        if self.settings.at_risk_bytes_max.get().is_some_and(|max| bytes > max) {
            return self.durably(request.with_fua());
        }
        let passes = self.line.used() == 0;
        if let Some(admitted) = passes.then(|| self.admit(bytes)).flatten() {
            return self.carry_out(request, admitted);
        }
        let core = self.clone();
        Answer::pending(async move {
            match core.wait(bytes).await {
                Ok(admitted) => core.carry_out(request, admitted).await,
                Err(kind) => request.answer(Err(kind)),
            }
        })
    }

    /// A write that is durable once it is acknowledged. Until then some of it may count with the parts.
    fn durably(self: &Arc<Self>, request: Request) -> Submission {
        self.carry_out(request, Admitted { core: self.clone(), bytes: None })
    }

    fn carry_out(&self, request: Request, admitted: Admitted) -> Submission {
        match self.below.submit(request) {
            Answer::Done(reply) => {
                drop(admitted);
                Answer::Done(reply)
            }
            Answer::Pending(reply) => Answer::pending(async move {
                let reply = reply.await;
                drop(admitted);
                reply
            }),
        }
    }

    /// Admits a write of so many bytes, if no limit is in the way.
    fn admit(self: &Arc<Self>, bytes: u64) -> Option<Admitted> {
        let mut exposure = self.exposure.lock();
        let fits = |max: u64| {
            let under_way =
                if mutant::on("limits: forget what is under way") { 0 } else { exposure.admitted() };
            let acknowledged =
                if mutant::on("limits: forget what the parts have acknowledged") { 0 } else { self.bytes() };
            acknowledged + under_way + bytes <= max
        };
        let young = |max: Duration| exposure.age(self.env.coarse_now()).is_none_or(|age| age <= max);
        if !self.settings.at_risk_bytes_max.get().is_none_or(fits)
            || !self.settings.seconds().is_none_or(young)
        {
            return None;
        }
        exposure.admit(bytes);
        Some(Admitted { core: self.clone(), bytes: Some(bytes) })
    }

    /// A write has ended.
    fn ended(self: &Arc<Self>, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.acknowledged(bytes);
        }
        if self.line.used() > 0 {
            self.ends.step();
        }
    }

    fn acknowledged(self: &Arc<Self>, bytes: u64) {
        let at_risk = {
            let mut exposure = self.exposure.lock();
            exposure.acknowledge(bytes, self.env.coarse_now());
            exposure.admitted() + self.bytes()
        };
        if self.settings.at_risk_bytes_max.get().is_some_and(|max| at_risk > max / 2) {
            self.flush_in_background();
        }
        self.watch();
    }

    /// Waits, after all that came before, until a write of so many bytes is admitted.
    async fn wait(self: &Arc<Self>, bytes: u64) -> Result<Admitted, Kind> {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.alarm();
        let _first = self.line.hold().await;
        loop {
            let seen = self.ends.current();
            if let Some(admitted) = self.admit(bytes) {
                return Ok(admitted);
            }
            let exposed = self.exposure.lock().age(self.env.coarse_now()).is_some();
            match exposed {
                true => {
                    self.flush_in_background();
                    self.ends.reached(seen + 1).await;
                }
                false => self.wait_for_others(seen).await,
            }
            if let Some(kind) = *self.failure.lock() {
                return Err(kind);
            }
        }
    }

    /// Waits for an end after `seen`: no flush that begins now covers what is under way. What a request that was withdrawn leaves is told by
    /// nobody, and looked for.
    async fn wait_for_others(&self, seen: u64) {
        select(pin!(self.ends.reached(seen + 1)), self.env.sleep(LOST_EVERY)).await;
        if self.bytes() > 0 {
            self.exposure.lock().note(self.env.coarse_now());
        }
    }

    /// Flushes by `request`, which covers what was acknowledged before.
    async fn flush(&self, request: Request) -> Reply {
        let number = self.exposure.lock().begin_flush();
        let reply = self.below.submit(request).await;
        if reply.result.is_ok() {
            self.exposure.lock().end_flush(number);
        }
        *self.failure.lock() = reply.result.err();
        if !mutant::on("limits: wake nobody when a flush ends") {
            self.ends.step();
        }
        reply
    }

    fn flush_in_background(self: &Arc<Self>) {
        if self.flusher.queue() {
            let core = self.clone();
            self.env.spawn(Place::Background, task(move || run_flusher(core)));
        }
    }

    /// Has ages looked at for as long as something is exposed; it has just become so.
    fn watch(self: &Arc<Self>) {
        if self.settings.seconds().is_some() && self.watcher.queue() {
            let core = Arc::downgrade(self);
            let begin = move || Box::pin(run_watcher(core)) as LocalFuture<()>;
            self.env.spawn(Place::Background, Box::new(begin));
        }
    }

    /// Whether something is exposed whose age is limited; flushes it in time.
    fn look_at_age(self: &Arc<Self>) -> bool {
        let age = self.exposure.lock().age(self.env.now());
        let (Some(age), Some(max)) = (age, self.settings.seconds()) else { return false };
        if age >= max / 2 {
            self.flush_in_background();
        }
        if age > max {
            self.alarm();
        }
        true
    }

    /// Tells that a limit is reached.
    fn alarm(&self) {
        let now = self.env.now();
        let mut at = self.alarmed_at.lock();
        if at.is_some_and(|at| now < at + ALARM_EVERY) {
            return;
        }
        *at = Some(now);
        drop(at);
        let age = self.exposure.lock().age(now).unwrap_or_default();
        tracing::warn!(
            "device {}: {} are acknowledged and not durable, the oldest for {} s: a limit is reached, and writes wait for a flush \
             (at_risk_bytes_max, at_risk_seconds_max)",
            self.device,
            human(self.bytes()),
            age.as_secs()
        );
    }
}

async fn run_flusher(core: Arc<Core>) {
    loop {
        core.flushes.fetch_add(1, Ordering::Relaxed);
        core.flush(Request::flush()).await;
        if !core.flusher.again() {
            return;
        }
    }
}

async fn run_watcher(core: Weak<Core>) {
    loop {
        let Some((env, every)) = core.upgrade().map(|core| {
            let every = core.settings.seconds().unwrap_or_default() / 8;
            (core.env.clone(), every.clamp(Duration::from_millis(1), LOOK_EVERY_MAX))
        }) else {
            return;
        };
        env.sleep(every).await;
        let Some(core) = core.upgrade() else { return };
        // A task that exposes something queues another run afterwards: it is seen here, or there.
        if !core.look_at_age() && !core.watcher.again() {
            return;
        }
    }
}

impl BlockDevice for Limits {
    fn geometry(&self) -> Geometry {
        self.core.below.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        let core = &self.core;
        if !core.settings.is_any() {
            return core.below.submit(request);
        }
        match request.op {
            Op::Flush => {
                let core = core.clone();
                Answer::pending(async move { core.flush(request).await })
            }
            Op::Read => core.below.submit(request),
            _ if request.flags.fua => core.durably(request),
            _ => core.change(request),
        }
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.core.below.extents(range, count_max)
    }

    fn verify(&self) {
        self.core.below.verify();
    }
}

static ROWS: &[Attribute<Limits>] = &[
    Attribute::read(
        Spec::gauge(
            "at_risk_bytes",
            Unit::Bytes,
            "Bytes that are acknowledged and not durable: what a crash would take. None where nothing is ever durable",
        )
        .or_none(),
        |limits| match limits.core.settings.volatile {
            true => Value::None,
            false => Value::U64(limits.core.bytes()),
        },
    ),
    Attribute::read(
        Spec::gauge(
            "at_risk_seconds",
            Unit::Seconds,
            "Age of the oldest write that no flush has covered; none without such a write, or without a limit",
        )
        .or_none(),
        |limits| {
            let core = &limits.core;
            let age = core.exposure.lock().age(core.env.now()).filter(|_| core.settings.is_any());
            age.map_or(Value::None, |age| Value::U64(age.as_secs()))
        },
    ),
    Attribute::read(
        Spec::counter("at_risk_waits", Unit::Requests, "Writes that waited because a limit was reached"),
        |limits| Value::U64(limits.core.held.load(Ordering::Relaxed)),
    ),
    Attribute::read(
        Spec::counter("at_risk_flushes", Unit::None, "Flushes that the limits have begun"),
        |limits| Value::U64(limits.core.flushes.load(Ordering::Relaxed)),
    ),
];

/// The declarations of the attributes that are no options.
pub fn declarations() -> Vec<Spec> {
    ROWS.iter().map(Attribute::spec).collect()
}

/// The attributes of a stack's limits.
pub(crate) fn attributes(limits: Arc<Limits>) -> Table<Limits> {
    Table::new(limits, ROWS).with(Settings::ROWS, |limits| &limits.core.settings, Limits::changed)
}
