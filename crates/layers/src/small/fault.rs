//! A layer that fails requests on purpose.
//!
//! A plan says which requests count (by operation and place), which of those fail (the Nth, or each with a probability),
//! what happens afterwards (`mode`) and with which error. It is made by the configuration and changed while running through
//! attributes: set what you need, then `armed` to 1, which starts the count again.
//!
//! A failed request never reaches the device below. Chance comes from the environment, so a simulated run repeats exactly.
//! While no plan is armed a request costs one load. The plan's lock is held to decide, with a draw of chance inside, never
//! across I/O.

use std::sync::Arc;

use spillway_core::sync::{AtomicBool, Mutex, Ordering};
use spillway_core::{
    Answer, Attribute, BlockDevice, ByteRange, Env, Error, Kind, Op, Preset, Request, Seam, Spec, Submission,
    Table, Type, Unit, Value, forward,
};

use crate::open_context::{Below, Open, OpenContext, OpenDevice};
use crate::options::{Field, choices, options, unrelated};

choices! {
    /// Operations that a fault counts.
    pub enum What {
        /// All of them.
        Any = "any",
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
        /// Writes of zeroes.
        WriteZeroes = "write_zeroes",
        /// Discards.
        Discard = "discard",
        /// Flushes.
        Flush = "flush",
    }
}

impl What {
    fn op(self) -> Option<Op> {
        match self {
            What::Any => None,
            What::Read => Some(Op::Read),
            What::Write => Some(Op::Write),
            What::WriteZeroes => Some(Op::WriteZeroes),
            What::Discard => Some(Op::Discard),
            What::Flush => Some(Op::Flush),
        }
    }
}

choices! {
    /// What happens after a failure.
    pub enum Mode {
        /// The plan ends.
        Once = "once",
        /// The plan goes on: every Nth, or by chance again.
        Each = "each",
        /// Every request that counts fails from then on.
        Sticky = "sticky",
    }
}

choices! {
    /// The error of a failed request.
    pub enum Errno {
        /// [`Kind::Io`].
        Io = "EIO",
        /// [`Kind::NoSpace`].
        NoSpace = "ENOSPC",
        /// [`Kind::OutOfMemory`].
        OutOfMemory = "ENOMEM",
        /// [`Kind::NotSupported`].
        NotSupported = "EOPNOTSUPP",
        /// [`Kind::ReadOnly`].
        ReadOnly = "EPERM",
        /// [`Kind::ShuttingDown`].
        ShuttingDown = "ESHUTDOWN",
    }
}

impl Errno {
    fn kind(self) -> Kind {
        match self {
            Errno::Io => Kind::Io,
            Errno::NoSpace => Kind::NoSpace,
            Errno::OutOfMemory => Kind::OutOfMemory,
            Errno::NotSupported => Kind::NotSupported,
            Errno::ReadOnly => Kind::ReadOnly,
            Errno::ShuttingDown => Kind::ShuttingDown,
        }
    }
}

options! {
    /// What a configuration says about a fault. It is armed at the start if `nth` or `probability` is not 0.
    pub struct Config;
    struct Settings: unrelated;
    Live op: What = Type::Choice(What::NAMES), "Operations that count"
        .preset(Preset::Choice("any"));
    Live offset: u64 = Type::COUNT, "First byte of the range that counts"
        .unit(Unit::Bytes).preset(Preset::Number(0));
    Live len: u64 = Type::COUNT,
        "Length of the range that counts; 0 is to the end. A flush has no range: it counts if op names it or the range is the whole \
         device"
        .unit(Unit::Bytes).preset(Preset::Number(0));
    Live nth: u64 = Type::COUNT, "The Nth request that counts fails, from 1; 0 is none"
        .unit(Unit::Requests).preset(Preset::Number(0));
    Live probability: f64 = Type::Ratio { most: 1, decimals: 9 }, "Each request that counts fails with this probability"
        .preset(Preset::Number(0));
    Live mode: Mode = Type::Choice(Mode::NAMES),
        "After a failure: once ends the plan, each goes on, sticky fails every request that counts from then on"
        .preset(Preset::Choice("once"));
    Live error: Errno = Type::Choice(Errno::NAMES), "The error of a failed request"
        .preset(Preset::Choice("EIO"));
}

impl Settings {
    fn can_fail(&self) -> bool {
        self.nth.get() > 0 || self.probability.get() > 0.0
    }

    fn range(&self) -> ByteRange {
        let len = self.len.get();
        ByteRange::new(self.offset.get(), if len == 0 { u64::MAX } else { len })
    }

    fn counts(&self, request: &Request) -> bool {
        match self.op.get().op() {
            Some(op) if op != request.op => false,
            Some(Op::Flush) => true,
            None if request.op == Op::Flush => self.offset.get() == 0 && self.len.get() == 0,
            _ => self.range().overlaps(request.range),
        }
    }
}

#[derive(Default)]
struct Progress {
    /// Requests that counted since the plan was armed.
    seen: u64,
    /// Requests failed since the device was made.
    failed: u64,
    /// A sticky failure has happened.
    stuck: bool,
}

impl Progress {
    /// Counts a request, and says whether it fails. `chance` gives a number from 0 to below 1.
    fn strikes(&mut self, plan: &Settings, chance: impl FnOnce() -> f64) -> bool {
        self.seen += 1;
        let (nth, probability) = (plan.nth.get(), plan.probability.get());
        let due = match plan.mode.get() {
            Mode::Each => nth > 0 && self.seen.is_multiple_of(nth),
            Mode::Once | Mode::Sticky => self.seen == nth,
        };
        assert!((0.0..=1.0).contains(&probability), "probability {probability}");
        let fails = self.stuck || due || (probability > 0.0 && chance() < probability);
        self.stuck |= fails && plan.mode.get() == Mode::Sticky;
        self.failed += u64::from(fails);
        fails
    }
}

/// See the head of this file.
pub(crate) struct FaultInjector {
    below: Seam,
    env: Arc<dyn Env>,
    armed: AtomicBool,
    plan: Settings,
    progress: Mutex<Progress>,
}

impl FaultInjector {
    /// Faults over `below`; [`Kind::Invalid`] for a value that is not allowed.
    pub(crate) fn new(config: &Config, below: Below, env: Arc<dyn Env>) -> Result<Arc<Self>, Error> {
        let plan = Settings::new(config)?;
        let armed = AtomicBool::new(plan.can_fail());
        Ok(Arc::new(Self { below: Seam::new(below), env, armed, plan, progress: Mutex::default() }))
    }

    /// The error that `request` is to fail with.
    fn strike(&self, request: &Request) -> Option<Kind> {
        if !self.armed.load(Ordering::Relaxed) || !self.plan.counts(request) {
            return None;
        }
        let mut progress = self.progress.lock();
        // Looked at again: another request may just have ended the plan.
        if !self.armed.load(Ordering::Relaxed) || !progress.strikes(&self.plan, || self.chance()) {
            return None;
        }
        if self.plan.mode.get() == Mode::Once {
            self.armed.store(false, Ordering::Relaxed);
        }
        Some(self.plan.error.get().kind())
    }

    /// A number from 0 to below 1, of as many bits as a double holds exactly.
    fn chance(&self) -> f64 {
        (self.env.random() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn arm(&self, armed: bool) -> Result<(), Error> {
        let mut progress = self.progress.lock();
        if armed && !self.plan.can_fail() {
            return Err(Error::invalid("armed cannot be 1 while nth and probability are 0: set one first"));
        }
        (progress.seen, progress.stuck) = (0, false);
        self.armed.store(armed, Ordering::Relaxed);
        Ok(())
    }
}

impl Open<Below> for Config {
    async fn open(&self, below: Below, context: &OpenContext) -> Result<OpenDevice, Error> {
        Ok(OpenDevice::new(FaultInjector::new(self, below, context.env.clone())?, attributes))
    }
}

impl BlockDevice for FaultInjector {
    forward!(below: geometry, extents, verify);

    fn submit(&self, request: Request) -> Submission {
        match self.strike(&request) {
            Some(kind) => Answer::Done(request.answer(Err(kind))),
            None => self.below.submit(request),
        }
    }
}

static ROWS: &[Attribute<FaultInjector>] = &[
    Attribute::both(
        Spec::fact(
            "armed",
            Type::Switch,
            "Whether requests can fail. Writing 1 starts the count of requests again; set nth or probability first",
        ),
        |fault| Value::Switch(fault.armed.load(Ordering::Relaxed)),
        |fault, value| fault.arm(bool::of(value)),
    ),
    Attribute::read(Spec::counter("failures", Unit::Requests, "Requests failed so far"), |fault| {
        Value::U64(fault.progress.lock().failed)
    }),
];

/// The attributes of `fault`.
fn attributes(fault: Arc<FaultInjector>) -> Table<FaultInjector> {
    Table::new(fault, ROWS).with(Settings::ROWS, |fault| &fault.plan, |_, _| {})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small::null::{self, Null};
    use spillway_core::{Attributes, IoBuf};
    use spillway_sim::world::World;

    fn fault(config: &Config, seed: u64) -> Arc<FaultInjector> {
        let null = Null::new(&null::Config { size: 1 << 20 }).unwrap();
        FaultInjector::new(config, null, World::new(seed)).unwrap()
    }

    fn ask(layer: &FaultInjector, request: Request) -> Result<(), Kind> {
        let Answer::Done(reply) = layer.submit(request) else { panic!("null and fault answer at once") };
        reply.result
    }

    fn read(offset: u64) -> Request {
        Request::read(offset, IoBuf::new(4096))
    }

    fn write(offset: u64) -> Request {
        Request::write(offset, IoBuf::zeroed(4096))
    }

    /// Which of `count` reads fail, from 1.
    fn failures(layer: &FaultInjector, count: u64) -> Vec<u64> {
        (1..=count).filter(|_| ask(layer, read(0)).is_err()).collect()
    }

    #[test]
    fn the_nth_fails_once_each_time_or_from_then_on() {
        let plan = |mode| fault(&Config { nth: 3, mode, ..Config::default() }, 1);
        assert_eq!(failures(&plan(Mode::Once), 10), [3]);
        assert_eq!(failures(&plan(Mode::Each), 10), [3, 6, 9]);
        assert_eq!(failures(&plan(Mode::Sticky), 6), [3, 4, 5, 6]);
    }

    #[test]
    fn chance_follows_from_the_seed() {
        let config = Config { probability: 0.25, mode: Mode::Each, ..Config::default() };
        let first = failures(&fault(&config, 5), 1000);
        assert!((200..300).contains(&first.len()), "{} of 1000", first.len());
        assert_eq!(first, failures(&fault(&config, 5), 1000));
        assert_ne!(first, failures(&fault(&config, 6), 1000));
        let sticky = failures(&fault(&Config { mode: Mode::Sticky, ..config }, 5), 1000);
        assert_eq!(sticky, (first[0]..=1000).collect::<Vec<_>>());
    }

    #[test]
    fn only_the_operation_and_place_of_the_plan_count() {
        let config = Config {
            op: What::Write,
            offset: 64 << 10,
            len: 8 << 10,
            nth: 1,
            mode: Mode::Sticky,
            error: Errno::NoSpace,
            ..Config::default()
        };
        let layer = fault(&config, 1);
        for offset in [0, 65536 - 4096, 65536 + 8192] {
            assert_eq!(ask(&layer, write(offset)), Ok(()));
        }
        assert_eq!(ask(&layer, read(65536)), Ok(()));
        assert_eq!(ask(&layer, write(65536 + 4096)), Err(Kind::NoSpace));
        assert_eq!(ask(&layer, Request::flush()), Ok(()));
    }

    #[test]
    fn a_flush_counts_by_name_or_for_the_whole_device() {
        let plan = |op, offset| {
            let layer = Config { op, offset, nth: 1, ..Config::default() };
            ask(&fault(&layer, 1), Request::flush())
        };
        assert_eq!(plan(What::Any, 0), Err(Kind::Io));
        assert_eq!(plan(What::Flush, 4096), Err(Kind::Io));
        assert_eq!(plan(What::Any, 4096), Ok(()));
    }

    #[test]
    fn a_plan_is_made_while_running() {
        let layer = fault(&Config::default(), 1);
        let table = attributes(layer.clone());
        assert!(table.store("armed", "1").now().unwrap_err().message().contains("set one first"));
        for (key, value) in [("op", "read"), ("error", "ENOMEM"), ("nth", "2"), ("armed", "1")] {
            table.store(key, value).now().unwrap();
            assert_eq!(table.show(key).unwrap(), value);
        }
        assert_eq!([ask(&layer, read(0)), ask(&layer, read(0))], [Ok(()), Err(Kind::OutOfMemory)]);
        assert_eq!((table.show("armed").unwrap(), table.show("failures").unwrap()), ("0".into(), "1".into()));
        table.store("armed", "1").now().unwrap();
        assert_eq!(failures(&layer, 4), [2]);
    }

    #[test]
    fn values_that_are_not_allowed_are_refused_by_name() {
        let table = attributes(fault(&Config::default(), 1));
        for (key, value) in
            [("op", "erase"), ("mode", "twice"), ("error", "EWHAT"), ("probability", "NaN"), ("nth", "-1")]
        {
            let text = table.store(key, value).now().unwrap_err().to_string();
            assert!(text.contains(key) && text.contains(value) && text.contains("give"), "{text}");
        }
    }
}
