//! A layer that watches: counts of requests by operation, and the latest of them with result and latency.
//!
//! It changes nothing that passes. A record is written when the request is answered, or withdrawn; the ring keeps the
//! latest `records_max`, and its memory is charged to the budget when the layer is made. It needs a clock, which it reads
//! twice for each request. The ring's lock is held to add a record or to copy the ring, never across I/O.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::stats::Counters;
use spillway_core::sync::Mutex;
use spillway_core::{
    Attribute, BlockDevice, Budget, ByteRange, Charge, Column, Env, Error, Flags, Kind, Op, Preset, Request,
    Seam, Spec, Submission, Table, Type, Unit, Value, forward,
};

use crate::about;
use crate::open_context::{Below, Open, OpenContext, OpenDevice};
use crate::options::{Options, options};

options! {
    /// What a configuration says about a trace.
    pub struct Config;
    Start records_max: u64 = Type::Number(1, 65_536), "Requests remembered, charged to the budget"
        .unit(Unit::Requests).preset(Preset::Number(1024));
}

/// One request that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TraceRecord {
    /// Position in the order of answers, from 0.
    sequence: u64,
    /// What was asked.
    op: Op,
    /// Where.
    range: ByteRange,
    /// How.
    flags: Flags,
    /// The answer; `None` for a request withdrawn before it had one.
    result: Option<Result<(), Kind>>,
    /// From submission to answer.
    latency: Duration,
}

/// What a record shows.
const COLUMNS: &[Column] = &[
    Column::new("sequence", Unit::None),
    Column::new("op", Unit::None),
    Column::new("offset", Unit::Bytes),
    Column::new("len", Unit::Bytes),
    Column::new("fua", Unit::None),
    Column::new("no_hole", Unit::None),
    Column::new("result", Unit::None),
    Column::new("latency", Unit::Nanoseconds),
];

impl TraceRecord {
    /// Its values, in the order of [`COLUMNS`].
    fn row(&self) -> Vec<Value> {
        let result = match self.result {
            None => "withdrawn",
            Some(Ok(())) => "ok",
            Some(Err(kind)) => kind.errno_name(),
        };
        vec![
            Value::U64(self.sequence),
            Value::Choice(self.op.name()),
            Value::U64(self.range.offset),
            Value::U64(self.range.len),
            Value::Switch(self.flags.fua),
            Value::Switch(self.flags.no_hole),
            Value::Choice(result),
            Value::U64(self.latency.as_nanos() as u64),
        ]
    }
}

/// Counters: one for each operation in the order of [`Op`], then these.
const FAILURES: usize = 5;
const WITHDRAWN: usize = 6;
const COUNTERS: usize = 7;

#[derive(Default)]
struct Ring {
    next: u64,
    records: VecDeque<TraceRecord>,
}

/// What a request that is still on its way needs of the layer.
struct Log {
    env: Arc<dyn Env>,
    records_max: usize,
    ring: Mutex<Ring>,
    counters: Counters<COUNTERS>,
    _charge: Charge,
}

impl Log {
    fn add(&self, mut record: TraceRecord) {
        self.counters.add(record.op as usize, 1);
        match record.result {
            Some(Ok(())) => {}
            Some(Err(_)) => self.counters.add(FAILURES, 1),
            None => self.counters.add(WITHDRAWN, 1),
        }
        let mut ring = self.ring.lock();
        record.sequence = ring.next;
        ring.next += 1;
        if ring.records.len() == self.records_max {
            ring.records.pop_front();
        }
        ring.records.push_back(record);
        assert!(
            ring.records.len() <= self.records_max,
            "the ring is charged for {} records",
            self.records_max
        );
    }
}

/// A request on its way; recorded on drop.
struct TracedRequest {
    log: Arc<Log>,
    start: Duration,
    record: TraceRecord,
}

impl TracedRequest {
    fn new(log: Arc<Log>, request: &Request) -> Self {
        let Request { op, range, flags, .. } = *request;
        let record = TraceRecord { sequence: 0, op, range, flags, result: None, latency: Duration::ZERO };
        Self { start: log.env.now(), log, record }
    }

    fn end(mut self, result: Result<(), Kind>) {
        assert_eq!(self.record.result, None, "a request ends once");
        self.record.result = Some(result);
    }
}

impl Drop for TracedRequest {
    fn drop(&mut self) {
        self.record.latency = self.log.env.now().saturating_sub(self.start);
        self.log.add(self.record);
    }
}

/// See the head of this file.
struct Trace {
    below: Seam,
    log: Arc<Log>,
}

impl Trace {
    /// A trace over `below`, its ring charged to `budget`; [`Kind::Invalid`] for a number outside its range,
    /// [`Kind::NoSpace`] where the budget has no room.
    fn new(
        config: &Config,
        below: Arc<dyn BlockDevice>,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<Arc<Self>, Error> {
        config.check()?;
        let records_max = config.records_max as usize;
        let bytes = (records_max * size_of::<TraceRecord>()) as u64;
        let no_room =
            |kind| Error::new(kind, format!("{bytes} bytes of records do not fit the memory budget"));
        let charge = budget.hold(bytes).map_err(no_room).map_err(|error| about("records_max", &error))?;
        let ring = Mutex::new(Ring { next: 0, records: VecDeque::with_capacity(records_max) });
        let log = Log { env, records_max, ring, counters: Counters::default(), _charge: charge };
        Ok(Arc::new(Self { below: Seam::new(below), log: Arc::new(log) }))
    }

    /// The records in the ring, oldest first.
    fn records(&self) -> Vec<TraceRecord> {
        self.log.ring.lock().records.iter().copied().collect()
    }

    fn rows(&self) -> Value {
        Value::Rows(self.records().iter().map(TraceRecord::row).collect())
    }

    fn count(&self, counter: usize) -> Value {
        Value::U64(self.log.counters.sum(counter))
    }

    fn clear(&self) {
        self.log.counters.clear();
        self.log.ring.lock().records.clear();
    }
}

impl Open<Below> for Config {
    async fn open(&self, below: Below, context: &OpenContext) -> Result<OpenDevice, Error> {
        Ok(OpenDevice::new(Trace::new(self, below, context.env.clone(), &context.budget)?, attributes))
    }
}

impl BlockDevice for Trace {
    forward!(below: geometry, extents, verify);

    fn submit(&self, request: Request) -> Submission {
        let traced = TracedRequest::new(self.log.clone(), &request);
        self.below.submit(request).map(move |reply| {
            traced.end(reply.result);
            reply
        })
    }
}

macro_rules! counter {
    ($name:literal, $help:literal, $counter:expr) => {
        Attribute::read(Spec::counter($name, Unit::Requests, $help), |trace: &Trace| trace.count($counter))
    };
}

static ROWS: &[Attribute<Trace>] = &[
    Attribute::read(
        Spec::fact("records", Type::Rows(COLUMNS), "The latest requests, oldest first"),
        Trace::rows,
    ),
    Attribute::read(OPTIONS.records_max, |trace| Value::U64(trace.log.records_max as u64)),
    counter!("reads", "Reads that passed", Op::Read as usize),
    counter!("writes", "Writes that passed", Op::Write as usize),
    counter!("write_zeroes", "Writes of zeroes that passed", Op::WriteZeroes as usize),
    counter!("discards", "Discards that passed", Op::Discard as usize),
    counter!("flushes", "Flushes that passed", Op::Flush as usize),
    counter!("failures", "Requests answered with an error", FAILURES),
    counter!("withdrawn", "Requests given up before their answer", WITHDRAWN),
    Attribute::write(
        Spec::command("clear", Type::Text, "Forgets all records and counts, whatever is written"),
        |trace, _| {
            trace.clear();
            Ok(())
        },
    ),
];

/// The attributes of `trace`.
fn attributes(trace: Arc<Trace>) -> Table<Trace> {
    Table::new(trace, ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small::delay::{self, Delay};
    use crate::small::fault::{self, FaultInjector};
    use crate::small::null::{self, Null};
    use spillway_core::{Attributes, IoBuf};
    use spillway_sim::world::World;

    fn null() -> Arc<Null> {
        Null::new(&null::Config { size: 1 << 20 }).unwrap()
    }

    fn trace(records_max: u64, below: Arc<dyn BlockDevice>, world: &Arc<World>) -> Arc<Trace> {
        let budget = Budget::new(1 << 20);
        Trace::new(&Config { records_max }, below, world.clone(), &budget).unwrap()
    }

    #[test]
    fn requests_are_recorded_with_result_and_latency() {
        let world = World::new(1);
        let config = fault::Config { op: fault::What::Flush, nth: 1, ..fault::Config::default() };
        let fault = FaultInjector::new(&config, null(), world.clone()).unwrap();
        let config = delay::Config { write_us: 5, ..delay::Config::default() };
        let layer = trace(10, Delay::new(&config, fault, world.clone()).unwrap(), &world);
        world.run(layer.submit(Request::read(4096, IoBuf::new(8192))));
        world.run(layer.submit(Request::write(0, IoBuf::zeroed(4096)).with_fua()));
        world.run(layer.submit(Request::flush()));
        let row = |sequence, op, offset, len, fua, result, latency| {
            let (op, result) = (Value::Choice(op), Value::Choice(result));
            let [sequence, offset, len, latency] = [sequence, offset, len, latency].map(Value::U64);
            vec![sequence, op, offset, len, Value::Switch(fua), Value::Switch(false), result, latency]
        };
        let table = attributes(layer);
        let rows = vec![
            row(0, "read", 4096, 8192, false, "ok", 0),
            row(1, "write", 0, 4096, true, "ok", 5000),
            row(2, "flush", 0, 0, false, "EIO", 0),
        ];
        assert_eq!(table.get("records").unwrap(), Value::Rows(rows));
        for (name, count) in [("reads", "1"), ("writes", "1"), ("flushes", "1"), ("failures", "1")] {
            assert_eq!(table.show(name).unwrap(), count, "{name}");
        }
        table.store("clear", "1").now().unwrap();
        assert_eq!(
            (table.get("records").unwrap(), table.get("reads").unwrap()),
            (Value::Rows(vec![]), Value::U64(0))
        );
    }

    #[test]
    fn the_ring_keeps_the_latest() {
        let world = World::new(1);
        let layer = trace(3, null(), &world);
        for block in 0..10 {
            world.run(layer.submit(Request::read(block * 4096, IoBuf::new(4096))));
        }
        let kept: Vec<_> =
            layer.records().iter().map(|record| (record.sequence, record.range.offset)).collect();
        assert_eq!(kept, [(7, 7 * 4096), (8, 8 * 4096), (9, 9 * 4096)]);
    }

    #[test]
    fn a_withdrawn_request_is_recorded_as_such() {
        let world = World::new(1);
        let config = delay::Config { read_us: 1000, ..delay::Config::default() };
        let layer = trace(3, Delay::new(&config, null(), world.clone()).unwrap(), &world);
        drop(layer.submit(Request::read(0, IoBuf::new(4096))));
        assert_eq!(layer.records()[0].result, None);
        assert_eq!(attributes(layer).show("withdrawn").unwrap(), "1");
    }

    #[test]
    fn a_ring_is_charged_while_it_lives() {
        let budget = Budget::new(10 * size_of::<TraceRecord>() as u64);
        let world = World::new(1);
        let make = |records_max| Trace::new(&Config { records_max }, null(), world.clone(), &budget);
        let layer = make(10).unwrap();
        assert_eq!(budget.room(), 0);
        assert_eq!(make(1).map(|_| ()).unwrap_err().kind, Kind::NoSpace);
        drop(layer);
        assert_eq!(budget.used(), 0);
        for refused in [0, 65_537] {
            assert!(make(refused).map(|_| ()).unwrap_err().message().contains("from 1 to 65536"));
        }
    }
}
