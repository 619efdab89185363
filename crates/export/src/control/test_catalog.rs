//! A catalog of one device that answers changes when told to, for the tests of protocols.

use std::sync::Arc;
use std::task::Poll;

use spillway_core::sync::{AtomicBool, Mutex, Ordering};
use spillway_core::{Answer, Error, Kind, Registry};

use super::catalog::{Catalog, DeviceChanges};
use super::message::{Operation, ServerVersion};
use super::rows::{AttributeRow, DeviceRow, Shown};

#[derive(Default)]
pub(super) struct Toy {
    /// What was asked for.
    pub(super) changes: Mutex<Vec<Operation>>,
    /// Changes are answered later,
    pub(super) slow: AtomicBool,
    /// once this is set.
    pub(super) complete: Arc<AtomicBool>,
    pub(super) registry: Option<Arc<Registry>>,
}

impl Catalog for Toy {
    fn version(&self) -> ServerVersion {
        ServerVersion { version: "1.2.3".into(), pid: 42 }
    }

    fn server(&self) -> Vec<(AttributeRow, Shown)> {
        let row = AttributeRow {
            name: "workers".into(),
            part: "server".into(),
            role: "gauge".into(),
            ..Default::default()
        };
        vec![(row, shown("workers"))]
    }

    fn devices(&self) -> Vec<DeviceRow> {
        vec![DeviceRow { name: "ram0".into(), ..Default::default() }]
    }

    fn attributes(&self, device: &str) -> Result<Vec<AttributeRow>, Error> {
        if device != "ram0" {
            return Err(Error::new(Kind::NotFound, format!("there is no device {device:?}")));
        }
        let row = |name: &str, readable, kind: &str| AttributeRow {
            name: name.into(),
            readable,
            r#type: kind.into(),
            ..Default::default()
        };
        let disksize = AttributeRow { allowed: Some("a size".into()), ..row("disksize", true, "number") };
        Ok(vec![disksize, row("compact", false, "text"), row("pages", true, "lines")])
    }

    fn get(&self, device: &str, attribute: &str, from: u64) -> Result<Shown, Error> {
        self.attributes(device)?;
        let lines = attribute == "pages" && from < 3;
        Ok(Shown { next: lines.then_some(from + 1), ..shown(attribute) })
    }

    fn registry(&self) -> Option<&Arc<Registry>> {
        self.registry.as_ref()
    }
}

impl DeviceChanges for Toy {
    fn change(&self, operation: Operation) -> Answer<Result<(), Error>> {
        self.changes.lock().push(operation);
        if !self.slow.load(Ordering::SeqCst) {
            return Answer::Done(Ok(()));
        }
        let complete = self.complete.clone();
        Answer::pending(std::future::poll_fn(move |_| {
            if complete.load(Ordering::SeqCst) { Poll::Ready(Err(busy())) } else { Poll::Pending }
        }))
    }

    fn hot_add(&self) -> Answer<Result<u32, Error>> {
        Answer::Done(Ok(7))
    }

    fn hot_remove(&self, _: u32) -> Answer<Result<(), Error>> {
        unreachable!("a control client does not ask")
    }
}

pub(super) fn shown(name: &str) -> Shown {
    Shown { name: name.into(), value: 5.into(), text: format!("value of {name}"), next: None }
}

pub(super) fn busy() -> Error {
    Error::new(Kind::Busy, "in use")
}
