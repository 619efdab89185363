//! A running server: from a [`Plan`] to sockets, and back to nothing.
//!
//! One thread, the one that called [`run`], owns the server: it starts everything, then waits for [`Event`]s. An attribute or a size is changed by a
//! task on a background thread, one at a time for each device; a device that is added is built, and one that goes is stopped, on a thread of its own. Clients are served by the workers, which never wait for this
//! thread, and it never waits for a device before the end.
//!
//! Order of the end: the mount goes, which is refused while a file below it is open; no new NBD clients; what was received is answered; devices are flushed; control clients get their
//! answers; sockets go away; threads end.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result};
use spillway_core::buffer::Buffers;
use spillway_core::{Attributes, Budget, Charge, Env, Error, Kind, Value};
use spillway_export::control::{Change, ControlSession};
use spillway_export::nbd::NbdSession;
use spillway_export::{Exports, Reserved};
use spillway_io::{Limits, Listener, NewSession, Serving, Workers, WorkersOptions, serve};

use crate::address::Address;
use crate::arrival::{ADDED_CONNECTIONS_MAX, Arrival, Arrivals, Built};
use crate::background::{in_background, wait_for};
use crate::beside::Beside;
use crate::device::Device;
use crate::devices::Devices;
use crate::ending::{Leaving, flush, stop_all};
use crate::event::{Event, Promise};
use crate::exit::{Failure, refused};
use crate::listening::address_of;
use crate::memory::Memory;
use crate::mounting::Mounting;
use crate::opening::Opening;
use crate::plan::{DevicePlan, Plan};
use crate::runtime_folder::RuntimeFolder;
use crate::server_options::ServerConfig;
use crate::{client, daemon, listening, signals, start_text};

/// Devices of a server from which on none is added.
const DEVICES_MAX: usize = 64;

/// Connections to a device's control socket at a time. What they take is part of the allowance beside the budget.
const CONTROL_CONNECTIONS_MAX: usize = 16;

/// Pause between two looks whether the mount is still in use, once a signal has asked the server to stop.
const UNMOUNT_PAUSE: Duration = Duration::from_millis(100);

/// How long a reset or a stop waits for clients that are leaving: the kernel says later that a file was closed, and lets go of its mount later
/// still. The pause between two looks.
const LEAVING: Duration = Duration::from_millis(200);
const LEAVING_PAUSE: Duration = Duration::from_millis(20);

/// Serves what `plan` says until asked to stop.
pub(crate) fn run(plan: Plan, folder: &RuntimeFolder) -> Result<()> {
    let (sender, events) = mpsc::channel();
    signals::watch(sender.clone())?;
    raise_open_files();
    become_io_flusher();
    let server = Server::start(plan, folder, Devices::new(sender))?;
    client::print(&server.start_text())?;
    if daemon::is_child() {
        daemon::ready()?;
    }
    server.run(&events)
}

/// Each client takes a descriptor: takes as many as the system allows.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(why) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {why}", limit.current);
    }
}

/// A file system of this machine may stand on a device here, by a loop device or the kernel's NBD: memory that this server asks for must not
/// wait until that file system has written something. Threads that are started later inherit it. It takes CAP_SYS_RESOURCE.
fn become_io_flusher() {
    if let Err(why) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(
            "the kernel may write to file systems on these devices to find memory for this server: {why}"
        );
    }
}

/// Everything that runs.
struct Server {
    devices: Arc<Devices>,
    /// The devices as files, where the plan says so.
    mounting: Option<Mounting>,
    /// NBD at one place for all devices, where the plan says so.
    shared: Option<Service>,
    /// NBD at a device's own socket, by name of the device.
    own: HashMap<String, Service>,
    /// Control sockets, by name of the device.
    control: HashMap<String, Serving>,
    /// Devices that are being built or stopped, while this thread answers others.
    beside: Beside,
    arrivals: Arrivals,
    /// Devices that are being built.
    arriving: usize,
    /// Changes that are being made, or are to be tried again, on background threads.
    tasks: Vec<Receiver<()>>,
    memory: Memory,
    workers: Workers,
    _charges: [Charge; 2],
}

/// An NBD endpoint.
struct Service {
    exports: Arc<Exports>,
    address: Address,
    serving: Serving,
}

impl Server {
    fn start(plan: Plan, folder: &RuntimeFolder, devices: Devices) -> Result<Self> {
        let memory = Memory::choose(plan.server.memory, Path::new("/"))?;
        let names: Vec<String> = plan.devices.iter().map(|device| device.name.clone()).collect();
        // The control socket claims a device's name, so it comes before anything that could disturb another server.
        let claims = names.iter().map(|name| listening::claim(folder, name)).collect::<Result<Vec<_>>>()?;
        let budget = Budget::new(memory.bytes);
        let charges = [hold(&budget, memory.buffers)?, hold(&budget, memory.connections)?];
        let mut options = WorkersOptions {
            driver: plan.server.driver.choice(),
            look: Duration::from_micros(plan.server.poll_us),
            ..WorkersOptions::default()
        };
        options.count = plan.server.workers.map_or(options.count, |count| count as usize);
        let bulk = memory.bulk(options.count);
        options.buffers = Buffers::new(memory.buffers - bulk.bytes() as u64);
        options.bulk = Some(bulk);
        let workers = Workers::start(options).map_err(refused)?;
        let opening = Opening::new(&workers, &budget);
        let arrivals = Arrivals {
            folder: folder.clone(),
            opening,
            mount: plan.server.mount.clone(),
            own_sockets: plan.server.socket.is_none() && plan.server.listen.is_none(),
        };
        let adds = plan.adds();
        let mut server = Self {
            devices: Arc::new(devices),
            mounting: None,
            shared: None,
            own: HashMap::new(),
            control: HashMap::new(),
            beside: Beside::default(),
            arrivals,
            arriving: 0,
            tasks: Vec::new(),
            memory,
            workers,
            _charges: charges,
        };
        server.start_devices(plan.devices, &plan.server)?;
        if let Some(place) = &plan.server.mount {
            let (devices, workers) = (&server.devices, &server.workers);
            let mounting = Mounting::begin(place, devices, workers, &budget, &server.memory, adds)?;
            server.mounting = Some(mounting);
        }
        names.into_iter().zip(claims).for_each(|(name, listener)| server.start_control(name, listener));
        Ok(server)
    }

    /// Builds every device before any client can connect to one.
    fn start_devices(&mut self, plans: Vec<DevicePlan>, config: &ServerConfig) -> Result<()> {
        let shared = listening::shared(config)?;
        let endpoints = if shared.is_some() { 1 } else { plans.len() };
        let connections_max = (self.memory.connections_max() / endpoints).max(1);
        let limits = Limits { connections_max, ..Limits::default() };
        let built = plans.into_iter().map(|plan| self.build(plan)).collect::<Result<Vec<_>>>()?;
        if let Some(listener) = shared {
            let (exports, address) = (Arc::new(Exports::new()), address_of(&listener));
            for device in built {
                self.devices.add(Arc::new(device.enter(&exports, address.clone())?));
            }
            self.shared = Some(self.offer(exports, listener, limits));
            return Ok(());
        }
        for device in built {
            let listener = listening::own(&self.arrivals.folder, &device.name)?;
            let device = self.serve_alone(device, listener, limits)?;
            self.devices.add(Arc::new(device));
        }
        Ok(())
    }

    fn build(&self, plan: DevicePlan) -> Result<Built> {
        let cannot = format!("cannot build device {}", plan.name);
        let Arrivals { opening, mount, .. } = &self.arrivals;
        Built::new(plan, mount.as_deref(), opening).map_err(refused).context(cannot)
    }

    /// Serves a device at a socket of its own.
    fn serve_alone(&mut self, built: Built, listener: Listener, limits: Limits) -> Result<Device, Error> {
        let exports = Arc::new(Exports::new());
        let device = built.enter(&exports, address_of(&listener))?;
        let service = self.offer(exports, listener, limits);
        self.own.insert(device.name().to_owned(), service);
        Ok(device)
    }

    fn offer(&self, exports: Arc<Exports>, listener: Listener, limits: Limits) -> Service {
        let (offered, address) = (exports.clone(), address_of(&listener));
        let config = self.memory.session_limits();
        let new_session: NewSession = Arc::new(move || Box::new(NbdSession::new(offered.clone(), config)));
        let serving = serve(listener, &self.workers, new_session, limits);
        Service { exports, address, serving }
    }

    fn start_control(&mut self, name: String, listener: Listener) {
        let devices = self.devices.clone();
        let new_session: NewSession = Arc::new(move || Box::new(ControlSession::new(devices.clone())));
        let limits = Limits { connections_max: CONTROL_CONNECTIONS_MAX, ..Limits::default() };
        let serving = serve(listener, &self.workers, new_session, limits);
        self.control.insert(name, serving);
    }

    /// Has a device built that is to be added.
    fn add(&mut self, promise: Promise<u32>) {
        match self.room_for_device().and_then(|()| self.beside.thread()) {
            Ok(thread) => {
                self.arriving += 1;
                let (arrivals, events) = (self.arrivals.clone(), self.devices.events().clone());
                // Where nobody listens any more, the server stops.
                thread.run(move || _ = events.send(Event::Arrived(arrivals.build().map(Box::new), promise)));
            }
            Err(error) => promise.keep(Err(error)),
        }
    }

    fn room_for_device(&self) -> Result<(), Error> {
        if self.devices.all().len() + self.arriving < DEVICES_MAX {
            return Ok(());
        }
        let text = format!("a server adds no device to {DEVICES_MAX} that it has: remove one first");
        Err(Error::new(Kind::NoSpace, text))
    }

    /// Takes a device in that was built.
    fn admit(&mut self, arrival: Arrival) -> Result<u32, Error> {
        let Arrival { number, built, control, own } = arrival;
        let device = match (own, &self.shared) {
            (Some((listener, charge)), _) => {
                let limits = Limits { connections_max: ADDED_CONNECTIONS_MAX, ..Limits::default() };
                Device { _connections: Some(charge), ..self.serve_alone(built, listener, limits)? }
            }
            (None, Some(shared)) => built.enter(&shared.exports, shared.address.clone())?,
            (None, None) => unreachable!("devices have sockets of their own, or one together"),
        };
        let device = Arc::new(device);
        self.devices.add(device.clone());
        self.mounting.iter().for_each(|mounting| mounting.add(&device, &self.devices));
        self.start_control(device.name().to_owned(), control);
        Ok(number)
    }

    fn start_text(&self) -> String {
        let devices = self.devices.all();
        let devices: Vec<&Device> = devices.iter().map(|device| &**device).collect();
        let driver = self.workers.driver().to_string();
        start_text::compose(&devices, &self.memory, self.workers.count(), &driver)
    }

    /// Makes changes until a signal, a client or the last device's end stops the server.
    fn run(mut self, events: &Receiver<Event>) -> Result<()> {
        while let Ok(event) = events.recv() {
            match event {
                Event::Signal(number) => {
                    tracing::info!("signal {number}: stopping");
                    self.unmount_in_time(events);
                    return Ok(self.stop(None)?);
                }
                Event::Change(Change::StopServer, promise) => match self.unmount() {
                    Ok(()) => return Ok(self.stop(Some(promise))?),
                    Err(error) => self.refuse(Change::StopServer, promise, error),
                },
                Event::Change(Change::Hold { device, opener }, promise) => {
                    promise.keep(self.hold(&device, opener));
                }
                Event::Change(Change::Stop { device }, promise) => self.stop_device(device, promise),
                Event::Change(Change::Remove { device }, promise) => self.remove_device(device, promise),
                Event::Change(Change::Resize { device, size }, promise) => {
                    self.resize(&device, size, promise)
                }
                Event::Change(Change::Reset { device }, promise) => self.reset(&device, promise),
                Event::Change(Change::Set { device, attribute, value }, promise) => {
                    self.set(&device, attribute, value, promise);
                }
                Event::Add(promise) => self.add(promise),
                Event::Arrived(arrival, promise) => {
                    self.arriving -= 1;
                    promise.keep(arrival.and_then(|arrival| self.admit(*arrival)));
                }
            }
            if self.control.is_empty() {
                return Ok(self.stop(None)?);
            }
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), Error> {
        if let Some(mounting) = &self.mounting {
            mounting.end()?;
        }
        self.mounting = None;
        Ok(())
    }

    /// Unmounts once nothing below the mount is in use any more. Meanwhile no change is made; a second signal ends the process.
    fn unmount_in_time(&mut self, events: &Receiver<Event>) {
        let mut said = false;
        while let Err(error) = self.unmount() {
            if error.kind != Kind::Busy {
                tracing::warn!("{}", error.message());
                // Dropped, it goes out of sight at least.
                self.mounting = None;
                return;
            }
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(
                    "{}; the server ends after that, or at once by a second signal",
                    error.message()
                );
            }
            match events.recv_timeout(UNMOUNT_PAUSE) {
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Takes the file of a device away, and the mount with the last one; [`Kind::Busy`] while it is open.
    fn close_file(&mut self, name: &str) -> Result<(), Error> {
        self.devices.find(name)?;
        match &self.mounting {
            Some(mounting) if self.devices.all().len() > 1 => mounting.remove(name),
            _ => self.unmount(),
        }
    }

    /// Has `change` made by a task on a background thread, once earlier changes of the device are made.
    fn change<F>(
        &mut self,
        device: &str,
        promise: Promise,
        change: impl FnOnce(Arc<Device>) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        let device = match self.devices.find(device) {
            Ok(device) => device,
            Err(error) => return promise.keep(Err(error)),
        };
        self.in_background(async move || promise.keep(device.changes.make(change(device.clone())).await));
    }

    fn set(&mut self, device: &str, attribute: String, value: Value, promise: Promise) {
        let env = self.workers.env();
        self.change(device, promise, async move |device| set(&device, &*env, &attribute, value).await);
    }

    fn resize(&mut self, device: &str, size: Option<u64>, promise: Promise) {
        self.change(device, promise, async move |device| device.stack.grow(size).await);
    }

    fn hold(&self, name: &str, opener: Option<u32>) -> Result<(), Error> {
        let device = self.devices.find(name)?;
        let held = match (opener, &self.mounting) {
            (None, _) => device.export.hold(),
            (Some(_), None) => Err(Kind::NotFound),
            (Some(thread), Some(mounting)) => mounting.hold(name, thread),
        };
        held.map_err(|kind| match (kind, opener) {
            (Kind::NotFound, Some(thread)) => {
                let text = format!(
                    "process {thread} does not have the file of {name} open: another file is in its place"
                );
                Error::new(Kind::Denied, text)
            }
            _ => {
                let clients = device.export.clients();
                let text =
                    format!("device {name} has {clients} clients or is held already: one alone can hold it");
                Error::new(kind, text)
            }
        })
    }

    fn reset(&mut self, name: &str, promise: Promise) {
        match self.devices.find(name).and_then(|device| can_be_reset(&device)) {
            Ok(()) => self.set(name, "reset".into(), Value::U64(1), promise),
            Err(error) => promise.keep(Err(error)),
        }
    }

    fn stop_device(&mut self, device: String, promise: Promise) {
        // Taken only with a thread to end it on.
        match self.beside.thread().and_then(|thread| Ok((thread, self.take(&device)?))) {
            Ok((thread, leaving)) => thread.run(move || leaving.stop(promise)),
            Err(error) => self.refuse(Change::Stop { device }, promise, error),
        }
    }

    /// Stops a device that nobody uses.
    fn remove_device(&mut self, device: String, promise: Promise) {
        let unused = self.expect_unused(&device);
        match unused.and_then(|unused| Ok((unused, self.beside.thread()?, self.take(&device)?))) {
            Ok((unused, thread, leaving)) => thread.run(move || {
                leaving.remove(promise);
                drop(unused);
            }),
            Err(error) => self.refuse(Change::Remove { device }, promise, error),
        }
    }

    /// Keeps clients away from a device; [`Kind::Busy`] while it has any, and of the last device.
    fn expect_unused(&self, name: &str) -> Result<Reserved, Error> {
        let device = self.devices.find(name)?;
        if self.devices.all().len() == 1 {
            let text = format!("{name} is the last device of its server: spillway stop {name} ends both");
            return Err(Error::new(Kind::Busy, text));
        }
        device.export.reserve().map_err(|kind| {
            let clients = device.export.clients();
            Error::new(
                kind,
                format!("device {name} is not removed while clients are connected (now {clients})"),
            )
        })
    }

    /// Refuses a change. What is in use may be so by clients that are leaving: such a change is tried again for a while.
    fn refuse(&mut self, change: Change, promise: Promise, error: Error) {
        if error.kind != Kind::Busy || promise.age() >= LEAVING {
            return promise.keep(Err(error));
        }
        let (env, events) = (self.workers.env(), self.devices.events().clone());
        self.in_background(move || async move {
            env.sleep(LEAVING_PAUSE).await;
            // Where nobody listens any more, the server stops.
            let _ = events.send(Event::Change(change, promise));
        });
    }

    /// Has something done that the end of the server waits for.
    fn in_background<F>(&mut self, task: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        self.tasks.retain(|task| task.try_recv() == Err(TryRecvError::Empty));
        self.tasks.push(in_background(&*self.workers.env(), task));
    }

    /// Takes a device out of this server: nobody finds it any more. [`Kind::Busy`] while its file is open.
    fn take(&mut self, name: &str) -> Result<Leaving, Error> {
        self.close_file(name)?;
        let device = self.devices.find(name)?;
        self.devices.remove(name);
        let own = self.own.remove(name).map(|service| service.serving);
        if let (None, Some(shared)) = (&own, &self.shared) {
            shared.exports.remove(name);
        }
        Ok(Leaving { device, own, control: self.control.remove(name), env: self.workers.env() })
    }

    /// Stops everything. The first failed flush is reported.
    fn stop(mut self, promise: Option<Promise>) -> Result<(), Failure> {
        self.beside.join();
        self.tasks.drain(..).for_each(|task| _ = wait_for(&task));
        let services = self.own.drain().map(|(_, service)| service).chain(self.shared.take());
        stop_all(services.map(|service| service.serving));
        let env = self.workers.env();
        let flushed = self.devices.all().iter().map(|device| flush(device, &*env)).fold(Ok(()), Result::and);
        if let Some(promise) = promise {
            promise.keep(flushed.clone());
        }
        stop_all(self.control.drain().map(|(_, serving)| serving));
        self.workers.stop();
        flushed.map_err(Failure::from)
    }
}

fn hold(budget: &Arc<Budget>, bytes: u64) -> Result<Charge> {
    let held = budget.hold(bytes);
    held.map_err(|kind| {
        anyhow::anyhow!("a budget of {} bytes has no room for buffers ({kind:?})", budget.limit())
    })
}

async fn set(device: &Device, env: &dyn Env, attribute: &str, value: Value) -> Result<(), Error> {
    // A reset takes the data from under connected clients, by whatever name it is asked for.
    let resets = device.stack.find(attribute)?.1 == "reset";
    let _reserved = if resets { Some(reserve(device, env).await?) } else { None };
    device.stack.set(attribute, value).await
}

fn can_be_reset(device: &Device) -> Result<(), Error> {
    if device.stack.find("reset").is_ok() {
        return Ok(());
    }
    let (name, stack) = (device.name(), device.stack.describe());
    Err(Error::new(Kind::NotSupported, format!("device {name} ({stack}) cannot be reset: only zram can")))
}

/// Keeps clients away, or says how many there are. One that has left a moment ago may still be counted: the kernel says later that a
/// file was closed.
async fn reserve(device: &Device, env: &dyn Env) -> Result<Reserved, Error> {
    let (mut empty, mut late) = (pin!(device.export.emptied()), env.sleep(LEAVING));
    poll_fn(|context| match empty.as_mut().poll(context) {
        Poll::Pending => late.as_mut().poll(context),
        ready => ready,
    })
    .await;
    device.export.reserve().map_err(|kind| {
        let (name, clients) = (device.name(), device.export.clients());
        let message = format!("device {name} cannot be reset while clients are connected (now {clients})");
        Error::new(kind, format!("{message}: disconnect them first"))
    })
}
