//! The layer: what its requests are to the limits, and its attributes.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{
    Answer, AtRisk, Attribute, BlockDevice, Env, Error, Op, Request, Spec, Submission, Table, Unit, Value,
    forward,
};

use super::admission::Core;
use super::config::{Config, Settings};
use crate::decisions::Decisions;

/// The top of a stack, with its limits. See the head of this file.
pub(crate) struct Limits {
    core: Arc<Core>,
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
        let settings = Settings::new(&config)?;
        let core = Arc::new_cyclic(|core| Core::new(core.clone(), device, below, parts, env, settings));
        Ok(Arc::new(Self { core }))
    }

    fn changed(&self, _: &'static str) {
        self.core.changed();
    }

    /// Passes a request on while no limit is set. A write that is acknowledged once one is set counts: the flush that began with the limit
    /// need not cover it.
    fn pass(&self, request: Request) -> Submission {
        let bytes = request.range.len;
        let counts = matches!(request.op, Op::Write | Op::WriteZeroes) && !request.flags.fua;
        match self.core.below.submit(request) {
            Answer::Done(reply) if counts => {
                self.core.passed(bytes);
                Answer::Done(reply)
            }
            Answer::Pending(reply) if counts => {
                let core = self.core.clone();
                Answer::pending(async move {
                    let reply = reply.await;
                    core.passed(bytes);
                    reply
                })
            }
            answer => answer,
        }
    }
}

impl BlockDevice for Limits {
    forward!(core.below: geometry, extents, verify);

    fn submit(&self, request: Request) -> Submission {
        let core = &self.core;
        if !core.settings.is_any() {
            return self.pass(request);
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
            let age = limits.core.age().filter(|_| limits.core.settings.is_any());
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
    Attribute::read(Decisions::spec(), |limits| limits.core.decisions.rows()),
];

/// The declarations of the attributes that are no options.
pub fn declarations() -> Vec<Spec> {
    ROWS.iter().map(Attribute::spec).collect()
}

/// The attributes of a stack's limits.
pub(crate) fn attributes(limits: Arc<Limits>) -> Table<Limits> {
    Table::new(limits, ROWS).with(Settings::ROWS, |limits| &limits.core.settings, Limits::changed)
}
