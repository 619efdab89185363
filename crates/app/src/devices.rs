//! The devices of this server: the [`Catalog`] that control clients see.
//!
//! Looking is done here, on the thread that asks. Changes are sent to the server's own thread, which makes one at a
//! time, so that two of them cannot meet. The list's lock is a leaf: it is released before a device is asked.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use spillway_core::sync::RwLock;
use spillway_core::{Answer, Attributes, Error, Kind};
use spillway_export::control::{AttributeRow, Catalog, Change, DeviceRow, ServerVersion, Shown};

use crate::device::Device;
use crate::event::{Event, request, request_change};

/// All devices of this server.
pub(crate) struct Devices {
    list: RwLock<Vec<Arc<Device>>>,
    events: Sender<Event>,
}

impl Devices {
    /// No devices yet; changes go to `events`.
    pub(crate) fn new(events: Sender<Event>) -> Self {
        Self { list: RwLock::new(Vec::new()), events }
    }

    /// Where the server's thread is asked for something.
    pub(crate) fn events(&self) -> &Sender<Event> {
        &self.events
    }

    /// Adds a device whose name is not taken.
    pub(crate) fn add(&self, device: Arc<Device>) {
        self.list.write().push(device);
    }

    /// Takes a device from the list.
    pub(crate) fn remove(&self, name: &str) {
        self.list.write().retain(|device| device.name() != name);
    }

    /// Every device, in the order in which they were configured or added.
    pub(crate) fn all(&self) -> Vec<Arc<Device>> {
        self.list.read().clone()
    }

    /// The device of that name, or [`Kind::NotFound`] with the names there are.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Device>, Error> {
        let all = self.all();
        all.iter().find(|device| device.name() == name).cloned().ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|device| device.name()).collect();
            let there = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            Error::new(Kind::NotFound, format!("there is no device {name:?}; this server has: {there}"))
        })
    }
}

impl Catalog for Devices {
    fn version(&self) -> ServerVersion {
        ServerVersion { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() }
    }

    fn devices(&self) -> Vec<DeviceRow> {
        self.all().iter().map(|device| device.row()).collect()
    }

    fn attributes(&self, device: &str) -> Result<Vec<AttributeRow>, Error> {
        Ok(self.find(device)?.attributes())
    }

    fn get(&self, device: &str, attribute: &str, from: u64) -> Result<Shown, Error> {
        let device = self.find(device)?;
        let spec = device.stack.spec(attribute)?;
        Ok(Shown::new(attribute.to_owned(), &spec, &device.stack.excerpt(attribute, from)?))
    }

    fn change(&self, change: Change) -> Answer<Result<(), Error>> {
        request_change(&self.events, change)
    }

    fn hot_add(&self) -> Answer<Result<u32, Error>> {
        request(&self.events, Event::Add)
    }
}
