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

use serde::Deserialize;
use spillway_core::sync::{AtomicBool, Mutex, Ordering};
use spillway_core::{
    Answer, Attribute, BlockDevice, ByteRange, Env, Error, Extent, Geometry, Kind, Op, Request, Seam,
    Submission, Table, Unit,
};

use crate::config::{Size, choose, name_of};

/// What a configuration says about a fault. It is armed where `nth` or `probability` is not 0.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Operations that count: `any` (the default), `read`, `write`, `write_zeroes`, `discard` or `flush`.
    pub op: String,
    /// First byte of the place that counts; 0 by default.
    pub offset: Size,
    /// Bytes of that place; 0, the default, is to the end. A flush has no place: it counts where `op` names it or where
    /// the place is the whole device.
    pub len: Size,
    /// The Nth request that counts fails, from 1; 0, the default, is none.
    pub nth: u64,
    /// Each request that counts fails with this probability, 0 (the default) to 1.
    pub probability: f64,
    /// After a failure: `once` (the default) ends the plan, `each` goes on (every Nth, or by chance again), `sticky` fails
    /// every request that counts from then on.
    pub mode: String,
    /// The errno of a failed request: `EIO` (the default), `ENOSPC`, `ENOMEM`, `EOPNOTSUPP`, `EPERM`, `ESHUTDOWN`.
    pub error: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            op: "any".into(),
            offset: Size::default(),
            len: Size::default(),
            nth: 0,
            probability: 0.0,
            mode: "once".into(),
            error: "EIO".into(),
        }
    }
}

const OPS: &[(Option<Op>, &str)] = &[
    (None, "any"),
    (Some(Op::Read), "read"),
    (Some(Op::Write), "write"),
    (Some(Op::WriteZeroes), "write_zeroes"),
    (Some(Op::Discard), "discard"),
    (Some(Op::Flush), "flush"),
];

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Once,
    Each,
    Sticky,
}

const MODES: &[(Mode, &str)] = &[(Mode::Once, "once"), (Mode::Each, "each"), (Mode::Sticky, "sticky")];

const ERRORS: &[(Kind, &str)] = &[
    (Kind::Io, "EIO"),
    (Kind::NoSpace, "ENOSPC"),
    (Kind::OutOfMemory, "ENOMEM"),
    (Kind::NotSupported, "EOPNOTSUPP"),
    (Kind::ReadOnly, "EPERM"),
    (Kind::ShuttingDown, "ESHUTDOWN"),
];

struct Plan {
    op: Option<Op>,
    offset: u64,
    len: u64,
    nth: u64,
    probability: f64,
    mode: Mode,
    error: Kind,
    /// Requests that counted since the plan was armed.
    seen: u64,
    /// Requests failed since the device was made.
    failed: u64,
    /// A sticky failure has happened.
    stuck: bool,
}

impl Plan {
    fn new(config: &Config) -> Result<Self, Error> {
        Ok(Self {
            op: choose("op", &config.op, OPS)?,
            offset: config.offset.bytes("offset")?,
            len: config.len.bytes("len")?,
            nth: config.nth,
            probability: checked_probability(config.probability)?,
            mode: choose("mode", &config.mode, MODES)?,
            error: choose("error", &config.error, ERRORS)?,
            seen: 0,
            failed: 0,
            stuck: false,
        })
    }

    fn can_fail(&self) -> bool {
        self.nth > 0 || self.probability > 0.0
    }

    fn place(&self) -> ByteRange {
        ByteRange::new(self.offset, if self.len == 0 { u64::MAX } else { self.len })
    }

    fn counts(&self, request: &Request) -> bool {
        match self.op {
            Some(op) if op != request.op => false,
            Some(Op::Flush) => true,
            None if request.op == Op::Flush => self.offset == 0 && self.len == 0,
            _ => self.place().overlaps(request.range),
        }
    }

    /// Counts a request, and says whether it fails. `chance` gives a number from 0 to below 1.
    fn strikes(&mut self, chance: impl FnOnce() -> f64) -> bool {
        self.seen += 1;
        let due = match self.mode {
            Mode::Each => self.nth > 0 && self.seen.is_multiple_of(self.nth),
            Mode::Once | Mode::Sticky => self.seen == self.nth,
        };
        let fails = self.stuck || due || (self.probability > 0.0 && chance() < self.probability);
        self.stuck |= fails && self.mode == Mode::Sticky;
        self.failed += u64::from(fails);
        fails
    }
}

fn checked_probability(value: f64) -> Result<f64, Error> {
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(format!("probability cannot be {value}: give a number from 0 to 1, such as 0.01")))
}

/// See the head of this file.
pub struct Fault {
    below: Seam,
    env: Arc<dyn Env>,
    armed: AtomicBool,
    plan: Mutex<Plan>,
}

impl Fault {
    /// Faults over `below`; [`Kind::Invalid`] for a value that is not allowed.
    pub fn new(config: &Config, below: Arc<dyn BlockDevice>, env: Arc<dyn Env>) -> Result<Arc<Self>, Error> {
        let plan = Plan::new(config)?;
        let armed = AtomicBool::new(plan.can_fail());
        Ok(Arc::new(Self { below: Seam::new(below), env, armed, plan: Mutex::new(plan) }))
    }

    /// The error that `request` is to fail with.
    fn strike(&self, request: &Request) -> Option<Kind> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        let mut plan = self.plan.lock();
        // Looked at again: another request may just have ended the plan.
        if !self.armed.load(Ordering::Relaxed) || !plan.counts(request) || !plan.strikes(|| self.chance()) {
            return None;
        }
        if plan.mode == Mode::Once {
            self.armed.store(false, Ordering::Relaxed);
        }
        Some(plan.error)
    }

    /// A number from 0 to below 1, of as many bits as a double holds exactly.
    fn chance(&self) -> f64 {
        (self.env.random() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn change(&self, change: impl FnOnce(&mut Plan) -> Result<(), Error>) -> Result<(), Error> {
        change(&mut self.plan.lock())
    }

    fn arm(&self, text: &str) -> Result<(), Error> {
        let armed = choose("armed", text, &[(false, "0"), (true, "1")])?;
        let mut plan = self.plan.lock();
        if armed && !plan.can_fail() {
            return Err(Error::invalid("armed cannot be 1 while nth and probability are 0: set one first"));
        }
        (plan.seen, plan.stuck) = (0, false);
        self.armed.store(armed, Ordering::Relaxed);
        Ok(())
    }
}

impl BlockDevice for Fault {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        match self.strike(&request) {
            Some(kind) => Answer::Done(request.answer(Err(kind))),
            None => self.below.submit(request),
        }
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.below.extents(range, count_max)
    }
}

fn whole_number(key: &str, text: &str) -> Result<u64, Error> {
    let refusal = || Error::invalid(format!("{key} cannot be {text:?}: give a whole number, 0 for none"));
    text.trim().parse().map_err(|_| refusal())
}

fn real_number(key: &str, text: &str) -> Result<f64, Error> {
    let refusal = || Error::invalid(format!("{key} cannot be {text:?}: give a number from 0 to 1"));
    text.trim().parse().map_err(|_| refusal())
}

static ROWS: &[Attribute<Fault>] = &[
    Attribute::both(
        "armed",
        Unit::Switch,
        "Whether requests can fail. Writing 1 starts the count of requests again.",
        |fault| u8::from(fault.armed.load(Ordering::Relaxed)).to_string(),
        |fault, text| fault.arm(text),
    ),
    Attribute::both(
        "op",
        Unit::Text,
        "Operations that count: any, read, write, write_zeroes, discard or flush.",
        |fault| name_of(fault.plan.lock().op, OPS).into(),
        |fault, text| fault.change(|plan| choose("op", text, OPS).map(|op| plan.op = op)),
    ),
    Attribute::both(
        "offset",
        Unit::Bytes,
        "First byte of the place that counts.",
        |fault| fault.plan.lock().offset.to_string(),
        |fault, text| fault.change(|plan| Size::from(text).bytes("offset").map(|bytes| plan.offset = bytes)),
    ),
    Attribute::both(
        "len",
        Unit::Bytes,
        "Bytes of the place that counts; 0 is to the end.",
        |fault| fault.plan.lock().len.to_string(),
        |fault, text| fault.change(|plan| Size::from(text).bytes("len").map(|bytes| plan.len = bytes)),
    ),
    Attribute::both(
        "nth",
        Unit::Count,
        "The Nth request that counts fails, from 1; 0 is none.",
        |fault| fault.plan.lock().nth.to_string(),
        |fault, text| fault.change(|plan| whole_number("nth", text).map(|nth| plan.nth = nth)),
    ),
    Attribute::both(
        "probability",
        Unit::Text,
        "Each request that counts fails with this probability, 0 to 1.",
        |fault| fault.plan.lock().probability.to_string(),
        |fault, text| {
            let value = checked_probability(real_number("probability", text)?)?;
            fault.change(|plan| {
                plan.probability = value;
                Ok(())
            })
        },
    ),
    Attribute::both(
        "mode",
        Unit::Text,
        "After a failure: once ends the plan, each goes on, sticky fails all that counts.",
        |fault| name_of(fault.plan.lock().mode, MODES).into(),
        |fault, text| fault.change(|plan| choose("mode", text, MODES).map(|mode| plan.mode = mode)),
    ),
    Attribute::both(
        "error",
        Unit::Text,
        "The errno of a failed request: EIO, ENOSPC, ENOMEM, EOPNOTSUPP, EPERM or ESHUTDOWN.",
        |fault| name_of(fault.plan.lock().error, ERRORS).into(),
        |fault, text| fault.change(|plan| choose("error", text, ERRORS).map(|error| plan.error = error)),
    ),
    Attribute::read("failures", Unit::Count, "Requests failed so far.", |fault| {
        fault.plan.lock().failed.to_string()
    }),
];

/// The attributes of `fault`.
pub fn attributes(fault: Arc<Fault>) -> Table<Fault> {
    Table::new(fault, ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::{self, Null};
    use spillway_core::{Attributes, IoBuf};
    use spillway_sim::world::World;

    fn fault(config: &Config, seed: u64) -> Arc<Fault> {
        let null = Null::new(&null::Config { size: "1M".into() }).unwrap();
        Fault::new(config, null, World::new(seed)).unwrap()
    }

    fn ask(layer: &Fault, request: Request) -> Result<(), Kind> {
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
    fn failures(layer: &Fault, count: u64) -> Vec<u64> {
        (1..=count).filter(|_| ask(layer, read(0)).is_err()).collect()
    }

    #[test]
    fn the_nth_fails_once_each_time_or_from_then_on() {
        let plan = |mode: &str| fault(&Config { nth: 3, mode: mode.into(), ..Config::default() }, 1);
        assert_eq!(failures(&plan("once"), 10), [3]);
        assert_eq!(failures(&plan("each"), 10), [3, 6, 9]);
        assert_eq!(failures(&plan("sticky"), 6), [3, 4, 5, 6]);
    }

    #[test]
    fn chance_follows_from_the_seed() {
        let config = Config { probability: 0.25, mode: "each".into(), ..Config::default() };
        let first = failures(&fault(&config, 5), 1000);
        assert!((200..300).contains(&first.len()), "{} of 1000", first.len());
        assert_eq!(first, failures(&fault(&config, 5), 1000));
        assert_ne!(first, failures(&fault(&config, 6), 1000));
        let sticky = failures(&fault(&Config { mode: "sticky".into(), ..config }, 5), 1000);
        assert_eq!(sticky, (first[0]..=1000).collect::<Vec<_>>());
    }

    #[test]
    fn only_the_operation_and_place_of_the_plan_count() {
        let config = Config {
            op: "write".into(),
            offset: "64K".into(),
            len: "8K".into(),
            nth: 1,
            mode: "sticky".into(),
            error: "ENOSPC".into(),
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
        let plan = |op: &str, offset: u64| {
            let layer = Config { op: op.into(), offset: offset.into(), nth: 1, ..Config::default() };
            ask(&fault(&layer, 1), Request::flush())
        };
        assert_eq!(plan("any", 0), Err(Kind::Io));
        assert_eq!(plan("flush", 4096), Err(Kind::Io));
        assert_eq!(plan("any", 4096), Ok(()));
    }

    #[test]
    fn a_plan_is_made_while_running() {
        let layer = fault(&Config::default(), 1);
        let table = attributes(layer.clone());
        assert!(table.store("armed", "1").unwrap_err().message().contains("set one first"));
        for (key, value) in [("op", "read"), ("error", "ENOMEM"), ("nth", "2"), ("armed", "1")] {
            table.store(key, value).unwrap();
            assert_eq!(table.show(key).unwrap(), value);
        }
        assert_eq!([ask(&layer, read(0)), ask(&layer, read(0))], [Ok(()), Err(Kind::OutOfMemory)]);
        assert_eq!((table.show("armed").unwrap(), table.show("failures").unwrap()), ("0".into(), "1".into()));
        table.store("armed", "1").unwrap();
        assert_eq!(failures(&layer, 4), [2]);
    }

    #[test]
    fn values_that_are_not_allowed_are_refused_by_name() {
        let table = attributes(fault(&Config::default(), 1));
        for (key, value) in
            [("op", "erase"), ("mode", "twice"), ("error", "EWHAT"), ("probability", "NaN"), ("nth", "-1")]
        {
            let text = table.store(key, value).unwrap_err().to_string();
            assert!(text.contains(key) && text.contains(value) && text.contains("give"), "{text}");
        }
    }
}
