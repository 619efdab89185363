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
    AttributeRow, Catalog, DeviceChanges, DeviceRow, Operation, ServerVersion, Shown, added_name, value_of,
};

use crate::server::device::changes::{self, once_left};
use crate::server::device::{Device, DeviceEnd, occupants};
use crate::server::event::{Event, ReplySender, ask, outcome};
use crate::server::own;

/// All devices of this server.
pub(crate) struct Devices {
    list: RwLock<Vec<Arc<Device>>>,
    /// Those that are taken from the list as they end, and have not gone. Another may have the name of one by now.
    ending: Mutex<Vec<Weak<Device>>>,
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
        Self { list: RwLock::default(), ending: Mutex::default(), env, own, registry, events }
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

    /// Takes a device that ends from the list. It is found as one that ends before it leaves that.
    pub(crate) fn remove(&self, device: &Arc<Device>) {
        device.end.begin();
        {
            let mut ending = self.ending.lock();
            ending.retain(|other| other.strong_count() > 0);
            ending.push(Arc::downgrade(device));
        }
        let mut list = self.list.write();
        let before = list.len();
        list.retain(|other| !Arc::ptr_eq(other, device));
        assert_eq!(list.len() + 1, before, "{} is taken from a list that has it once", device.name());
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

    /// The same; where there is none, the last one of that name that has not gone.
    fn find_also_ending(&self, name: &str) -> Result<Arc<Device>, Error> {
        self.find(name).or_else(|error| {
            let ending: Vec<_> = self.ending.lock().iter().filter_map(Weak::upgrade).collect();
            ending.into_iter().rfind(|device| device.name() == name).ok_or(error)
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
        let found = self.find_also_ending(device).ok();
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

    /// Stops a device. Who asks while it is being stopped, alone or with its server, waits for the same end.
    fn stop(&self, device: String) -> Answer<Result<(), Error>> {
        match self.find_also_ending(&device) {
            Ok(found) => {
                let ends = vec![found.end.clone()];
                self.ended(ends, move |reply| Event::StopDevice(device.clone(), reply))
            }
            Err(error) => Answer::Done(Err(error)),
        }
    }

    /// The same of every device, also of those that end already.
    fn stop_all(&self) -> Answer<Result<(), Error>> {
        let all = self.all();
        let ending: Vec<_> = self.ending.lock().iter().filter_map(Weak::upgrade).collect();
        let ends = all.iter().chain(&ending).map(|device| device.end.clone()).collect();
        self.ended(ends, Event::Stop)
    }

    /// How `ends` come to be, which `event` asks for unless all have begun: the first failure. The answer holds nothing of the devices.
    fn ended(
        &self,
        ends: Vec<Arc<DeviceEnd>>,
        event: impl Fn(ReplySender) -> Event + 'static,
    ) -> Answer<Result<(), Error>> {
        let asked = self.end(event);
        Answer::pending(async move {
            let have_begun = || ends.iter().all(|end| end.has_begun());
            if !have_begun() {
                let answer = asked.await;
                if answer.is_err() && !have_begun() {
                    return answer;
                }
            }
            let mut outcome = Ok(());
            for end in &ends {
                outcome = outcome.and(end.outcome().await);
            }
            outcome
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

    fn keep(&self, device: &str, peer: Peer, alone: bool) -> Result<(), Error> {
        let device = self.find(device)?;
        let kept = device.export.keep_for(peer, alone);
        kept.map_err(|busy| occupants::refusal(&device, busy, "only a lost connection is made anew"))
    }
}

impl DeviceChanges for Devices {
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
            Operation::StopServer {} => self.stop_all(),
            question => unreachable!("{question:?} changes nothing"),
        }
    }

    fn hot_add(&self) -> Answer<Result<u32, Error>> {
        let events = self.events.clone();
        Answer::pending(async move { ask(&events, Event::Add).await })
    }

    fn hot_remove(&self, number: u32) -> Answer<Result<(), Error>> {
        self.end(move |reply| Event::RemoveDevice(added_name(number), reply))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use spillway_core::block_on;
    use spillway_io::{Workers, WorkersOptions};

    use super::*;
    use crate::server::shutdown::tests::device;

    /// No devices yet, what the server's thread is asked for, and two devices that have one name.
    fn two() -> (Workers, Devices, mpsc::Receiver<Event>, [Arc<Device>; 2]) {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
        let two = [(); 2].map(|()| device(&workers));
        let (to_server, events) = mpsc::channel();
        let own = two[0].stack.parts[0].attributes.clone();
        let devices = Devices::new(workers.env(), own, Registry::new(workers.env()), to_server);
        (workers, devices, events, two)
    }

    fn expect_waiting(stop: &mut Answer<Result<(), Error>>) {
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(stop).poll(&mut context).is_pending(), "not all has ended");
    }

    /// A name is free again while clients may still hold the device that had it.
    #[test]
    fn a_stop_is_of_the_device_that_has_the_name_and_else_of_the_last_one_that_had_it() {
        let (_workers, devices, events, [old, new]) = two();
        let stop = || {
            let mut stop = devices.change(Operation::Stop { device: "a".into() });
            expect_waiting(&mut stop);
            stop
        };
        devices.add(old.clone());
        devices.remove(&old);
        let waits = stop();
        assert!(events.try_recv().is_err(), "the server has taken it out");
        devices.add(new.clone());
        let asks = stop();
        let Ok(Event::StopDevice(_, reply)) = events.try_recv() else { panic!("the server is not asked") };
        old.end.tell(Ok(()));
        reply.done(Err(Error::new(Kind::Io, "no")));
        assert_eq!(block_on(asks).map_err(|error| error.kind), Err(Kind::Io), "not that of the old one");
        assert_eq!(block_on(waits), Ok(()));
        devices.remove(&new);
        let waits = stop();
        new.end.tell(Err(Error::new(Kind::NoSpace, "lost")));
        assert_eq!(block_on(waits).map_err(|error| error.kind), Err(Kind::NoSpace), "that of the new one");
    }

    #[test]
    fn a_stop_of_the_server_waits_for_each_device_and_says_what_one_has_left() {
        let (_workers, devices, events, [old, new]) = two();
        devices.add(old.clone());
        devices.remove(&old);
        devices.add(new.clone());
        let mut stop = devices.change(Operation::StopServer {});
        expect_waiting(&mut stop);
        let Ok(Event::Stop(reply)) = events.try_recv() else { panic!("the server is not asked") };
        reply.done(Ok(()));
        expect_waiting(&mut stop);
        new.end.tell(Ok(()));
        expect_waiting(&mut stop);
        old.end.tell(Err(Error::new(Kind::Unreachable, "its lock is left")));
        assert_eq!(block_on(stop).map_err(|error| error.kind), Err(Kind::Unreachable));
    }

    /// A program runs beside it, or a file is open.
    #[test]
    fn a_stop_of_the_server_that_is_refused_waits_for_nothing() {
        let (_workers, devices, events, [_, new]) = two();
        devices.add(new);
        let mut stop = devices.change(Operation::StopServer {});
        expect_waiting(&mut stop);
        let Ok(Event::Stop(reply)) = events.try_recv() else { panic!("the server is not asked") };
        reply.done(Err(Error::new(Kind::Denied, "no")));
        assert_eq!(block_on(stop).map_err(|error| error.kind), Err(Kind::Denied));
    }
}
