//! Which writes pass the limits, and which are held; the flushes that let them pass.

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::size::human;
use spillway_core::sync::{AtomicU64, Changes, Mutex, Ordering, Room, Work};
use spillway_core::{
    Answer, AtRisk, BlockDevice, Env, Kind, Op, Place, Reply, Request, Submission, mutant, task,
};
use spillway_policy::exposure::Exposure;

use super::config::Settings;
use crate::decisions::{Decision, Decisions};
use crate::writeback::Timer;

/// The log tells of writes that are held once in this time.
const ALARM_EVERY: Duration = Duration::from_secs(60);

/// Time between two looks for what nobody has told of.
const LOST_EVERY: Duration = Duration::from_millis(100);

/// Longest time between two looks at how old writes are.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// What requests and tasks share.
pub(super) struct Core {
    /// Name of the device.
    device: String,
    pub(super) below: Arc<dyn BlockDevice>,
    env: Arc<dyn Env>,
    pub(super) settings: Settings,
    parts: Vec<Arc<dyn AtRisk>>,
    exposure: Mutex<Exposure>,
    /// Writes that wait, from when they came on.
    waiting: AtomicU64,
    room: Room,
    /// A flush has ended, or a write has while others wait.
    ends: Changes,
    /// How many flushes have ended, and how the last of them.
    flushed: Mutex<(u64, Result<(), Kind>)>,
    flusher: Work,
    /// Runs for as long as something is exposed.
    watcher: Timer<Self>,
    /// Runs where a write waits for others that are under way.
    lost: Timer<Self>,
    /// Writes that have waited.
    pub(super) held: AtomicU64,
    /// Flushes that the limits have begun.
    pub(super) flushes: AtomicU64,
    alarmed_at: Mutex<Option<Duration>>,
    pub(super) decisions: Decisions,
}

/// A write that is under way.
struct Admitted {
    core: Arc<Core>,
    /// Until this is dropped its bytes count beside those of the parts. None of a write that is to be durable once it is acknowledged.
    bytes: Option<u64>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.core.ended(self.bytes);
    }
}

/// A write that waits.
struct Waiting(Arc<Core>);

impl Waiting {
    fn new(core: &Arc<Core>) -> Self {
        core.waiting.fetch_add(1, Ordering::SeqCst);
        Self(core.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let before = self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a wait ends that has not begun");
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        assert_eq!(self.exposure.lock().admitted(), 0, "a write that is under way holds its limits");
    }
}

impl Core {
    /// The limits `core`, over `below`, whose `parts` have acknowledged what may be lost.
    pub(super) fn new(
        core: Weak<Self>,
        device: &str,
        below: Arc<dyn BlockDevice>,
        parts: Vec<Arc<dyn AtRisk>>,
        env: Arc<dyn Env>,
        settings: Settings,
    ) -> Self {
        Self {
            device: device.to_owned(),
            below,
            decisions: Decisions::new(env.clone()),
            watcher: Timer::new(core.clone(), env.clone(), Self::look_every, Self::look_at_age),
            lost: Timer::new(core, env.clone(), |_| LOST_EVERY, Self::look_for_lost),
            env,
            settings,
            parts,
            exposure: Mutex::default(),
            waiting: AtomicU64::new(0),
            room: Room::default(),
            ends: Changes::default(),
            flushed: Mutex::new((0, Ok(()))),
            flusher: Work::default(),
            held: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            alarmed_at: Mutex::default(),
        }
    }

    /// A limit has changed.
    pub(super) fn changed(self: &Arc<Self>) {
        self.ends.wake_all();
        if self.settings.is_any() {
            // What was acknowledged before is as old as it may be, and what is under way is not known.
            self.exposure.lock().note(u64::MAX, self.env.coarse_now());
            self.flush_in_background();
            self.watch();
        }
    }

    /// Age of the oldest write that no flush has covered.
    pub(super) fn age(&self) -> Option<Duration> {
        self.exposure.lock().age(self.env.now())
    }

    /// Bytes that a crash would take: what is acknowledged of those that the parts have.
    pub(super) fn bytes(&self) -> u64 {
        self.acknowledged(&self.exposure.lock())
    }

    fn acknowledged(&self, exposure: &Exposure) -> u64 {
        if mutant::on("limits: forget what the parts have acknowledged") {
            return 0;
        }
        // From the top down: what goes from one part to the next meanwhile is in both, and never in none.
        exposure.acknowledged_of(self.parts.iter().rev().map(|part| part.at_risk_bytes()).sum())
    }

    /// A request that changes the device and is not durable once it is acknowledged.
    pub(super) fn change(self: &Arc<Self>, request: Request) -> Submission {
        assert!(!request.flags.fua, "what is durable once it is acknowledged needs no room");
        // A discard that is lost takes nothing with it.
        let bytes = if request.op == Op::Discard { 0 } else { request.range.len };
        if let Some(admitted) = (!self.is_waited()).then(|| self.admit(bytes)).flatten() {
            return self.carry_out(request, admitted);
        }
        let (core, waiting) = (self.clone(), Waiting::new(self));
        Answer::pending(async move {
            match core.wait(bytes, waiting).await {
                Ok(admitted) => core.carry_out(request, admitted).await,
                Err(kind) => request.answer(Err(kind)),
            }
        })
    }

    /// A write that is durable once it is acknowledged: it needs no room, and waits for nobody.
    pub(super) fn durably(self: &Arc<Self>, request: Request) -> Submission {
        assert!(request.flags.fua, "a write is at risk without FUA");
        let admitted = self.force(&mut self.exposure.lock());
        self.carry_out(request, admitted)
    }

    fn carry_out(&self, request: Request, admitted: Admitted) -> Submission {
        let request = if admitted.bytes.is_none() { request.with_fua() } else { request };
        self.below.submit(request).map(move |reply| {
            drop(admitted);
            reply
        })
    }

    /// Admits a write of so many bytes, if no limit that is in force now is in the way. What is larger than the limit never fits, and is to be
    /// durable once it is acknowledged.
    fn admit(self: &Arc<Self>, bytes: u64) -> Option<Admitted> {
        let mut exposure = self.exposure.lock();
        if self.settings.at_risk_bytes_max.get().is_some_and(|max| bytes > max) {
            return Some(self.force(&mut exposure));
        }
        let fits = |max: u64| {
            let under_way =
                if mutant::on("limits: forget what is under way") { 0 } else { exposure.admitted() };
            self.acknowledged(&exposure) + under_way + bytes <= max
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

    /// Lets a write go that is to be durable once it is acknowledged.
    fn force(self: &Arc<Self>, exposure: &mut Exposure) -> Admitted {
        exposure.begin_forced();
        Admitted { core: self.clone(), bytes: None }
    }

    /// A write has ended.
    fn ended(self: &Arc<Self>, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => self.expose(bytes),
            None => self.exposure.lock().end_forced(),
        }
        if self.is_waited() {
            self.ends.wake_all();
        }
    }

    /// A write that nothing limited when it came was acknowledged; it is at risk all the same where a limit was set meanwhile.
    pub(super) fn passed(self: &Arc<Self>, bytes: u64) {
        assert!(bytes > 0, "a write has bytes");
        if self.settings.is_any() {
            self.exposure.lock().admit(bytes);
            self.ended(Some(bytes));
        }
    }

    fn is_waited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// So many admitted bytes are acknowledged.
    fn expose(self: &Arc<Self>, bytes: u64) {
        let at_risk = {
            let mut exposure = self.exposure.lock();
            exposure.acknowledge(bytes, self.env.coarse_now());
            exposure.admitted() + self.acknowledged(&exposure)
        };
        if self.settings.at_risk_bytes_max.get().is_some_and(|max| at_risk > max / 2) {
            self.flush_by("half of at_risk_bytes_max", at_risk);
        }
        self.watch();
    }

    /// Waits, after all that came before, until a write of so many bytes is admitted.
    async fn wait(self: &Arc<Self>, bytes: u64, _waiting: Waiting) -> Result<Admitted, Kind> {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.decisions.note(Decision("hold writes", "at_risk limits"), bytes, || self.state());
        self.alarm();
        let mut before = None;
        self.room.until(&self.ends, || self.look(bytes, &mut before)).await
    }

    /// Admits the first of those that wait, or fails it with a flush that has ended since its first look, `before` which so many had; none
    /// where it has to wait for an end.
    fn look(self: &Arc<Self>, bytes: u64, before: &mut Option<u64>) -> Option<Result<Admitted, Kind>> {
        let (ended, result) = *self.flushed.lock();
        let since = ended - *before.get_or_insert(ended);
        if since > 0
            && let Err(kind) = result
        {
            return Some(Err(kind));
        }
        if let Some(admitted) = self.admit(bytes) {
            return Some(Ok(admitted));
        }
        // Apart: tasks are started with nothing locked.
        let is_exposed = self.exposure.lock().age(self.env.coarse_now()).is_some();
        if is_exposed {
            self.flush_in_background();
        } else {
            // No flush that begins now covers what is under way.
            self.lost.start();
        }
        None
    }

    /// Has the first of those that wait look again: nobody reports what a withdrawn request leaves at risk, nor what the parts make durable
    /// by themselves. Where something is exposed, the flush that is asked for does so.
    fn look_for_lost(self: &Arc<Self>) -> bool {
        let now = self.env.coarse_now();
        {
            let mut exposure = self.exposure.lock();
            if exposure.age(now).is_some() {
                return false;
            }
            let left = self.acknowledged(&exposure);
            if left > 0 {
                exposure.note(left, now);
            }
        }
        self.ends.wake_all();
        false
    }

    /// Flushes by `request`, which covers what was acknowledged before.
    pub(super) async fn flush(&self, request: Request) -> Reply {
        assert_eq!(request.op, Op::Flush, "nothing else makes durable what was acknowledged before");
        let number = self.exposure.lock().begin_flush();
        let reply = self.below.submit(request).await;
        if reply.result.is_ok() {
            self.exposure.lock().end_flush(number);
        }
        {
            let mut flushed = self.flushed.lock();
            *flushed = (flushed.0 + 1, reply.result);
        }
        if !mutant::on("limits: wake nobody when a flush ends") {
            self.ends.wake_all();
        }
        reply
    }

    /// Flushes what is at risk because a limit says so, unless a flush is due anyway.
    fn flush_by(self: &Arc<Self>, rule: &'static str, at_risk: u64) {
        if self.flush_in_background() {
            self.decisions.note(Decision("flush", rule), at_risk, || self.state());
        }
    }

    /// Whether that has begun a flush; otherwise one is under way, or due behind it.
    fn flush_in_background(self: &Arc<Self>) -> bool {
        let begins = self.flusher.queue();
        if begins {
            let core = self.clone();
            self.env.spawn(Place::Background, task(move || run_flusher(core)));
        }
        begins
    }

    /// Has ages looked at for as long as something is exposed; it has just become so.
    fn watch(self: &Arc<Self>) {
        if self.settings.seconds().is_some() {
            self.watcher.start();
        }
    }

    fn look_every(&self) -> Duration {
        let every = self.settings.seconds().unwrap_or_default() / 8;
        every.clamp(Duration::from_millis(1), LOOK_EVERY_MAX)
    }

    /// Whether something is exposed whose age is limited; flushes it in time.
    fn look_at_age(self: &Arc<Self>) -> bool {
        let age = self.exposure.lock().age(self.env.now());
        let (Some(age), Some(max)) = (age, self.settings.seconds()) else { return false };
        if age >= max / 2 {
            self.flush_by("half of at_risk_seconds_max", self.bytes());
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
        tracing::warn!(
            "device {}: {}: a limit is reached, and writes wait for a flush (at_risk_bytes_max, at_risk_seconds_max)",
            self.device,
            self.state()
        );
    }

    /// What is at risk, in words.
    fn state(&self) -> String {
        let age = self.exposure.lock().age(self.env.now()).unwrap_or_default().as_secs();
        format!("{} are acknowledged and not durable, the oldest for {age} s", human(self.bytes()))
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
