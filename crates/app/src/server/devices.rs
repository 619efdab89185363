//! The devices of this server: the [`Catalog`] that control clients see.
//!
//! Looking is done on the thread that asks, and so are changes of a device, one after the other, but for those of which
//! [`changes::is_at_once`] says so. Devices are added and stopped by the server's own thread. The locks of the lists are leaves: they are
//! released before a device is asked.

use std::future::Future;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use spillway_core::session::Peer;
use spillway_core::sync::{Mutex, RwLock};
use spillway_core::{Answer, Attributes, Env, Error, Job, Kind, Place, Registry, Spec, Value};
use spillway_export::control::{
    AttributeRow, Catalog, DeviceRow, Operation, ServerVersion, Shown, added_name, value_of,
};

use crate::server::device::changes::{self, once_left};
use crate::server::device::{Device, occupants};
use crate::server::event::{Event, ReplySender, ask, outcome};
use crate::server::own;

/// Devices that end.
type Ending = Mutex<Vec<Weak<Device>>>;

/// The one of that name, if there is one.
fn find_ending(ending: &Ending, name: &str) -> Option<Arc<Device>> {
    let ending: Vec<_> = ending.lock().iter().filter_map(Weak::upgrade).collect();
    ending.into_iter().find(|device| device.name() == name)
}

/// All devices of this server.
pub(crate) struct Devices {
    list: RwLock<Vec<Arc<Device>>>,
    /// Those that were taken from the list and have not gone.
    ending: Arc<Ending>,
    env: Arc<dyn Env>,
    /// What the server says of itself.
    own: Arc<dyn Attributes>,
    registry: Arc<Registry>,
    /// Where the server's thread is asked for something.
    events: Sender<Event>,
}

impl Devices {
    /// No devices yet, whose long work is in `registry`; the server's thread takes `events`.
    pub(crate) fn new(
        env: Arc<dyn Env>,
        own: Arc<dyn Attributes>,
        registry: Arc<Registry>,
        events: Sender<Event>,
    ) -> Self {
        Self { list: RwLock::default(), ending: Arc::default(), env, own, registry, events }
    }

    /// Adds a device whose name is not taken.
    pub(crate) fn add(&self, device: Arc<Device>) {
        let mut list = self.list.write();
        let name = device.name();
        assert!(list.iter().all(|other| other.name() != name), "two devices are named {name}");
        assert!(
            list.iter().all(|other| other.alias() != Some(name)),
            "{name} is a second name of another device"
        );
        list.push(device);
    }

    /// Takes a device that ends from the list that is there.
    pub(crate) fn remove(&self, name: &str) {
        let device = {
            let mut list = self.list.write();
            let place = list.iter().position(|device| device.name() == name);
            list.remove(place.expect("a device is taken from a list that has it"))
        };
        let mut ending = self.ending.lock();
        ending.retain(|other| other.upgrade().is_some_and(|other| other.name() != name));
        ending.push(Arc::downgrade(&device));
    }

    /// Every device, in the order in which they were configured or added.
    pub(crate) fn all(&self) -> Vec<Arc<Device>> {
        self.list.read().clone()
    }

    /// The device of that name, or [`Kind::NotFound`] with the names there are.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Device>, Error> {
        let all = self.all();
        all.iter().find(|device| device.name() == name).cloned().ok_or_else(|| {
            if let Some(device) = all.iter().find(|device| device.alias() == Some(name)) {
                let text = format!("{name} is the read-only name of device {0}: give {0}", device.name());
                return Error::new(Kind::NotFound, text);
            }
            let names: Vec<_> = all.iter().map(|device| device.name()).collect();
            let there = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            Error::new(Kind::NotFound, format!("there is no device {name:?}; this server has: {there}"))
        })
    }
}

impl Devices {
    /// Makes a change of a device in its turn, on this thread, to its end whether anybody waits for it or not.
    fn make<F>(
        &self,
        device: &str,
        change: impl FnOnce(Arc<Device>, Arc<dyn Env>) -> F,
    ) -> Answer<Result<(), Error>>
    where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        match self.find(device) {
            Ok(device) => {
                let change = change(device.clone(), self.env.clone());
                let made = Job::spawn_here(&*self.env, async move { device.changes.make(change).await });
                Answer::pending(outcome(made))
            }
            Err(error) => Answer::Done(Err(error)),
        }
    }

    fn set(&self, device: &str, attribute: String, value: Result<Value, Error>) -> Answer<Result<(), Error>> {
        let found = self.find(device).ok().or_else(|| find_ending(&self.ending, device));
        match (found.filter(|found| changes::is_at_once(found, &attribute)), value) {
            (Some(found), Ok(value)) => found.stack.set(&attribute, value),
            (Some(_), Err(error)) => Answer::Done(Err(error)),
            (None, value) => self.make(device, async move |device, env| {
                changes::set(&device, &*env, &attribute, value?).await
            }),
        }
    }

    fn resize(&self, device: &str, size: Option<u64>) -> Answer<Result<(), Error>> {
        let events = self.events.clone();
        self.make(device, async move |device, env| {
            let (before, grown) = (device.export.geometry().size, device.clone());
            // Tables for the new blocks may take long.
            let grown = async move || grown.stack.grow(size).await;
            outcome(Job::spawn(&*env, Place::Background, grown)).await?;
            // A server that stops shows it to nobody.
            let _ = ask(&events, |reply| Event::Grew(device.name().to_owned(), before, reply)).await;
            Ok(())
        })
    }

    /// Stops a device. Who asks while it is being stopped waits for the same end.
    fn stop(&self, device: String) -> Answer<Result<(), Error>> {
        let (ending, name) = (self.ending.clone(), device.clone());
        let asked = self.end(move |reply| Event::StopDevice(device.clone(), reply));
        Answer::pending(async move {
            let stopped = asked.await;
            let under_way = find_ending(&ending, &name).map(|device| device.ended.clone());
            match (stopped, under_way) {
                (Err(_), Some(ended)) => ended.outcome().await,
                (stopped, _) => stopped,
            }
        })
    }

    /// Asks the server's thread for an end, which clients may be in the way of that are leaving.
    fn end(&self, event: impl Fn(ReplySender) -> Event + 'static) -> Answer<Result<(), Error>> {
        let (env, events) = (self.env.clone(), self.events.clone());
        Answer::pending(async move { once_left(&*env, async || ask(&events, &event).await).await })
    }
}

impl Catalog for Devices {
    fn version(&self) -> ServerVersion {
        ServerVersion { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() }
    }

    fn server(&self) -> Vec<(AttributeRow, Shown)> {
        let shown = |spec: Spec| {
            let value = self.own.excerpt(spec.name, 0).expect("a server's attributes can be read");
            let row = AttributeRow { part: own::PART.to_owned(), ..AttributeRow::from(&spec) };
            (row, Shown::new(spec.name.to_owned(), &spec, &value))
        };
        self.own.specs().into_iter().map(shown).collect()
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

    fn registry(&self) -> Option<&Arc<Registry>> {
        Some(&self.registry)
    }

    fn change(&self, operation: Operation) -> Answer<Result<(), Error>> {
        match operation {
            Operation::Set { device, attribute, value } => self.set(&device, attribute, value_of(value)),
            Operation::Reset { device } => {
                self.make(&device, async move |device, env| changes::reset(&device, &*env).await)
            }
            Operation::Resize { device, size } => self.resize(&device, size),
            Operation::Hold { device, opener } => {
                let events = self.events.clone();
                Answer::pending(async move { ask(&events, |reply| Event::Hold(device, opener, reply)).await })
            }
            Operation::Stop { device } => self.stop(device),
            Operation::StopServer {} => self.end(Event::Stop),
            question => unreachable!("{question:?} changes nothing"),
        }
    }

    fn keep(&self, device: &str, peer: Peer, alone: bool) -> Result<(), Error> {
        let device = self.find(device)?;
        let kept = device.export.keep_for(peer, alone);
        kept.map_err(|busy| occupants::refusal(&device, busy, "only a lost connection is made anew"))
    }

    fn hot_add(&self) -> Answer<Result<u32, Error>> {
        let events = self.events.clone();
        Answer::pending(async move { ask(&events, Event::Add).await })
    }

    fn hot_remove(&self, number: u32) -> Answer<Result<(), Error>> {
        self.end(move |reply| Event::RemoveDevice(added_name(number), reply))
    }
}
