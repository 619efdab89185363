//! A device that is served: its stack, its export and how they are shown; how it changes, and what keeps it busy.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::sync::{AtomicBool, Mutex, Ordering, Semaphore, WaitList};
use spillway_core::{Attributes, Charge, Error, Kind, Value};
use spillway_export::Export;
use spillway_export::control::{AttributeRow, DeviceRow, LatencyRow, PassedRow, WorkRow};
use spillway_layers::passed::Passed;
use spillway_layers::stack::{Part, Stack};

use crate::address::Address;
use crate::cli::plan::GuestPlan;

pub(super) mod changes;
pub(crate) mod occupants;

/// The changes of a device: one after the other, and none after its end.
pub(crate) struct ChangeLock {
    /// Its one unit is held while a change is made.
    turn: Semaphore,
    ended: AtomicBool,
}

impl ChangeLock {
    /// None is under way.
    pub(crate) fn new() -> Self {
        Self { turn: Semaphore::new(1), ended: AtomicBool::new(false) }
    }

    /// Makes `change` in its turn; [`Kind::ShuttingDown`] after the end.
    pub(crate) async fn make(&self, change: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        self.turn.take(1).await;
        let outcome = match self.ended.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::ShuttingDown, "the device was stopped")),
            false => change.await,
        };
        self.turn.give(1);
        outcome
    }

    /// Waits until those are made that were asked for before. No other is.
    pub(crate) async fn end(&self) {
        self.turn.take(1).await;
        let before = self.ended.swap(true, Ordering::Relaxed);
        assert!(!before, "a device ends that has ended before");
        self.turn.give(1);
    }
}

/// How a device ends, for all who wait for that. Its locks are leaves.
#[derive(Default)]
pub(crate) struct DeviceEnd {
    begun: AtomicBool,
    outcome: Mutex<Option<Result<(), Error>>>,
    told: WaitList,
}

impl DeviceEnd {
    /// It is about to: the outcome will be told.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Whether it has begun to.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// It has ended.
    pub(crate) fn tell(&self, outcome: Result<(), Error>) {
        *self.outcome.lock() = Some(outcome);
        self.told.wake_all();
    }

    /// Waits for the end.
    pub(crate) async fn outcome(&self) -> Result<(), Error> {
        self.told.until(|| self.outcome.lock().clone()).await
    }
}

/// A device for a virtual machine, as its sessions need to know it.
#[derive(Clone)]
pub(crate) struct Guest {
    pub(crate) plan: GuestPlan,
    /// See [`StackConfig::loses_unflushed`](spillway_layers::stack::StackConfig::loses_unflushed).
    pub(crate) buffered: bool,
    /// Whether its content is lost when this process is killed.
    pub(crate) in_memory: bool,
}

/// A device that is served.
pub(crate) struct Device {
    /// What it is made of.
    pub(crate) stack: Stack,
    pub(crate) changes: ChangeLock,
    pub(crate) end: Arc<DeviceEnd>,
    /// What NBD clients connect to.
    pub(crate) export: Arc<Export>,
    /// Where they connect.
    pub(crate) address: Address,
    /// Where it is a file.
    pub(crate) file: Option<PathBuf>,
    /// Where a virtual machine monitor finds it, if anywhere.
    pub(crate) guest: Option<Guest>,
    /// What its connections take, where that is not part of what the server keeps for them.
    pub(crate) _connections: Option<Charge>,
}

impl Device {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.export.name()
    }

    /// The name by which NBD clients can only read.
    pub(crate) fn alias(&self) -> Option<&str> {
        self.export.alias().map(|alias| alias.name.as_str())
    }

    /// The device as a listing shows it.
    pub(crate) fn row(&self) -> DeviceRow {
        let geometry = self.export.geometry();
        let value = |name: &str| self.stack.get(name).ok();
        let number = |name: &str| value(name).as_ref().and_then(Value::number);
        let (data, total) = (number("orig_data_size"), number("mem_used_total"));
        let spill_size = number("spill_size");
        DeviceRow {
            name: self.name().to_owned(),
            stack: self.stack.describe(),
            algorithm: value("comp_algorithm").as_ref().and_then(Value::choice).map(str::to_owned),
            disksize: geometry.size,
            data,
            compr: number("compr_data_size"),
            total,
            ratio: ratio(data, total),
            spilled: number("spill_bytes").filter(|_| spill_size.is_some()),
            spill_size,
            streams: number("max_comp_streams"),
            read_only: geometry.read_only,
            read_only_name: self.alias().map(str::to_owned),
            clients: self.export.clients() as u64,
            requests: self.export.statistics(),
            latencies: self.export.latencies().into_iter().map(LatencyRow::from).collect(),
            passed: self.passed(),
            work: self.stack.works.progress().into_iter().map(WorkRow::from).collect(),
            exports: if geometry.size > 0 { self.exports() } else { Vec::new() },
        }
    }

    fn passed(&self) -> Vec<PassedRow> {
        let below_another = self.stack.parts.iter().filter_map(|part| Some((part, part.passed.as_ref()?)));
        let row = |(part, passed): (&Part, &Arc<Passed>)| PassedRow {
            part: part.name.clone(),
            read_bytes: passed.read_bytes(),
            write_bytes: passed.write_bytes(),
            latencies: passed.latencies().into_iter().map(LatencyRow::from).collect(),
        };
        below_another.map(row).collect()
    }

    /// Under which names clients reach it.
    fn exports(&self) -> Vec<String> {
        let file = self.file.as_ref().map(|path| path.display().to_string());
        let guest = self.guest.as_ref().map(|guest| format!("vhost-user:{}", guest.plan.path.display()));
        let alias = self.alias().map(|name| self.address.uri(name));
        [self.address.uri(self.name())].into_iter().chain(alias).chain(file).chain(guest).collect()
    }

    /// The attributes of all parts. A name that a part above has too is written `PART.NAME`.
    pub(crate) fn attributes(&self) -> Vec<AttributeRow> {
        let mut rows: Vec<AttributeRow> = Vec::new();
        for part in &self.stack.parts {
            for spec in part.attributes.specs() {
                let mut row = AttributeRow { part: part.name.clone(), ..AttributeRow::from(&spec) };
                if rows.iter().any(|above| above.name == row.name) {
                    row.name = format!("{}.{}", part.name, row.name);
                }
                rows.push(row);
            }
        }
        rows
    }
}

/// Stored bytes for each byte in use, once there are any.
fn ratio(data: Option<u64>, total: Option<u64>) -> Option<f64> {
    let (data, total) = (data.filter(|&data| data > 0)?, total.filter(|&total| total > 0)?);
    Some(data as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_holds_nothing_has_no_ratio() {
        assert!((ratio(Some(40960), Some(12288)).unwrap() - 3.333).abs() < 0.001);
        assert_eq!([ratio(Some(0), Some(12288)), ratio(Some(1), Some(0)), ratio(None, None)], [None; 3]);
    }
}
