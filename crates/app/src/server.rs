//! A running server: from a [`Plan`] to sockets, and back to nothing.
//!
//! One thread, the one that called [`run`], owns the server: it starts everything, then waits for [`Event`]s and makes
//! changes one at a time. Clients are served by the workers, which never wait for this thread.
//!
//! Order of the end: no new NBD clients; what was received is answered; devices are flushed; control clients get their
//! answers; sockets go away; threads end.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use anyhow::{Context, Result};
use spillway_core::{Aligned, Attributes, Budget, Charge, Error, Kind, buffer};
use spillway_export::control::{Change, ControlSession};
use spillway_export::nbd::{Export, Exports, NbdSession, Reserved};
use spillway_io::{Limits, Listener, NewSession, Serving, Workers, WorkersOptions, serve};
use spillway_layers::stack::Stack;

use crate::address::Address;
use crate::device::Device;
use crate::devices::Devices;
use crate::ending::{flush, see_out, stop_all};
use crate::event::{Event, Promise};
use crate::exit::{Failure, refused};
use crate::listening::address_of;
use crate::memory::Memory;
use crate::opening::{Opening, driver_choice};
use crate::plan::{DevicePlan, Plan};
use crate::runtime_folder::RuntimeFolder;
use crate::server_options::Endpoint;
use crate::{client, daemon, listening, signals, start_text};

/// Connections to a device's control socket at a time. What they take is part of the allowance beside the budget.
const CONTROL_CONNECTIONS_MAX: usize = 16;

/// Serves what `plan` says until asked to stop.
pub(crate) fn run(plan: Plan, folder: &RuntimeFolder) -> Result<()> {
    let (sender, events) = mpsc::channel();
    signals::watch(sender.clone())?;
    raise_open_files();
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

/// Everything that runs.
struct Server {
    devices: Arc<Devices>,
    /// NBD at one place for all devices, where the plan says so.
    shared: Option<Service>,
    /// NBD at a device's own socket, by name of the device.
    own: HashMap<String, Service>,
    /// Control sockets, by name of the device.
    control: HashMap<String, Serving>,
    memory: Memory,
    workers: Workers,
    _charges: [Charge; 2],
}

/// An NBD endpoint.
struct Service {
    exports: Arc<Exports>,
    serving: Serving,
}

impl Server {
    fn start(plan: Plan, folder: &RuntimeFolder, devices: Devices) -> Result<Self> {
        let memory = Memory::choose(plan.memory, Path::new("/"))?;
        let names: Vec<String> = plan.devices.iter().map(|device| device.name.clone()).collect();
        // The control socket claims a device's name, so it comes before anything that could disturb another server.
        let claims = names.iter().map(|name| listening::claim(folder, name)).collect::<Result<Vec<_>>>()?;
        let budget = Budget::new(memory.bytes);
        let charges = [hold(&budget, memory.buffers)?, hold(&budget, memory.connections)?];
        let bulk = memory.bulk(plan.workers.get());
        buffer::set_limit(memory.buffers - bulk.bytes() as u64);
        let driver = driver_choice(plan.driver);
        let options = WorkersOptions { count: plan.workers.get(), driver, look: plan.look, bulk: Some(bulk) };
        let workers = Workers::start(options).map_err(refused)?;
        let opening = Opening::new(&workers, &budget);
        let mut server = Self {
            devices: Arc::new(devices),
            shared: None,
            own: HashMap::new(),
            control: HashMap::new(),
            memory,
            workers,
            _charges: charges,
        };
        server.start_devices(plan.devices, &plan.endpoint, folder, &opening)?;
        server.start_control(names, claims);
        Ok(server)
    }

    /// Builds every device before any client can connect to one.
    fn start_devices(
        &mut self,
        plans: Vec<DevicePlan>,
        endpoint: &Endpoint,
        folder: &RuntimeFolder,
        opening: &Opening,
    ) -> Result<()> {
        let shared = listening::shared(endpoint)?;
        let endpoints = if shared.is_some() { 1 } else { plans.len() };
        let connections_max = (self.memory.connections_max() / endpoints).max(1);
        let limits = Limits { connections_max, ..Limits::default() };
        let built = plans.into_iter().map(|plan| build(plan, opening)).collect::<Result<Vec<_>>>()?;
        if let Some(listener) = shared {
            let (exports, address) = (Arc::new(Exports::new()), address_of(&listener));
            for device in built {
                self.devices.add(Arc::new(device.enter(&exports, address.clone())?));
            }
            self.shared = Some(self.offer(exports, listener, limits));
            return Ok(());
        }
        for device in built {
            let listener = listening::own(folder, &device.name)?;
            let exports = Arc::new(Exports::new());
            let device = device.enter(&exports, address_of(&listener))?;
            let service = self.offer(exports, listener, limits);
            self.own.insert(device.name().to_owned(), service);
            self.devices.add(Arc::new(device));
        }
        Ok(())
    }

    fn offer(&self, exports: Arc<Exports>, listener: Listener, limits: Limits) -> Service {
        let offered = exports.clone();
        let config = self.memory.session_limits();
        let new_session: NewSession = Arc::new(move || Box::new(NbdSession::new(offered.clone(), config)));
        Service { exports, serving: serve(listener, &self.workers, new_session, limits) }
    }

    fn start_control(&mut self, names: Vec<String>, claims: Vec<Listener>) {
        for (name, listener) in names.into_iter().zip(claims) {
            let devices = self.devices.clone();
            let new_session: NewSession = Arc::new(move || Box::new(ControlSession::new(devices.clone())));
            let limits = Limits { connections_max: CONTROL_CONNECTIONS_MAX, ..Limits::default() };
            let serving = serve(listener, &self.workers, new_session, limits);
            self.control.insert(name, serving);
        }
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
                    return Ok(self.stop(None)?);
                }
                Event::Change(Change::StopServer, promise) => return Ok(self.stop(Some(promise))?),
                Event::Change(Change::Stop { device }, promise) => self.stop_device(&device, promise),
                Event::Change(Change::Reset { device }, promise) => promise.keep(self.reset(&device)),
                Event::Change(Change::Set { device, attribute, value }, promise) => {
                    promise.keep(self.set(&device, &attribute, &value));
                }
            }
            if self.control.is_empty() {
                return Ok(self.stop(None)?);
            }
        }
        Ok(())
    }

    fn set(&self, device: &str, attribute: &str, value: &str) -> Result<(), Error> {
        let device = self.devices.find(device)?;
        // A reset takes the data from under connected clients, by whatever name it is asked for.
        let resets = device.stack.find(attribute)?.1 == "reset";
        let _reserved = resets.then(|| reserve(&device, "reset")).transpose()?;
        device.stack.store(attribute, value)
    }

    fn reset(&self, name: &str) -> Result<(), Error> {
        let device = self.devices.find(name)?;
        if device.stack.find("reset").is_err() {
            let message =
                format!("device {name} ({}) cannot be reset: only zram can", device.stack.describe());
            return Err(Error::new(Kind::NotSupported, message));
        }
        self.set(name, "reset", "1")
    }

    /// Stops one device. Its control socket goes last, so that the answer still travels over it.
    fn stop_device(&mut self, name: &str, promise: Promise) {
        match self.retire(name) {
            Ok(flushed) => promise.keep(flushed),
            Err(error) => return promise.keep(Err(error)),
        }
        if let Some(control) = self.control.remove(name) {
            control.stop();
        }
    }

    /// Takes a device away from its clients; returns how its last flush went.
    fn retire(&mut self, name: &str) -> Result<Result<(), Error>, Error> {
        let device = self.devices.find(name)?;
        if let Some(own) = self.own.remove(name) {
            own.serving.stop();
        } else if let Some(shared) = &self.shared {
            shared.exports.remove(name);
            see_out(&device, &*self.workers.env());
        }
        self.devices.remove(name);
        Ok(flush(&device, &*self.workers.env()))
    }

    /// Stops everything. The first failed flush is reported.
    fn stop(mut self, promise: Option<Promise>) -> Result<(), Failure> {
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

/// A device that is built but not reachable yet.
struct Built {
    name: String,
    read_only: bool,
    stack: Stack,
    aligned: Aligned,
    notes: Vec<String>,
}

fn build(plan: DevicePlan, opening: &Opening) -> Result<Built> {
    let built = opening.stack(&plan.stack).map_err(refused);
    let cannot = || format!("cannot build device {}", plan.name);
    let (stack, notes) = built.with_context(cannot)?;
    let aligned = opening.aligned(&stack).map_err(refused).with_context(cannot)?;
    Ok(Built { name: plan.name, read_only: plan.read_only, stack, aligned, notes })
}

impl Built {
    fn enter(self, exports: &Exports, address: Address) -> Result<Device> {
        let export = Export::new(self.name, self.aligned)?;
        let export = export.with_description(self.stack.describe())?.with_read_only(self.read_only);
        Ok(Device { export: exports.add(export)?, stack: self.stack, address, notes: self.notes })
    }
}

fn hold(budget: &Arc<Budget>, bytes: u64) -> Result<Charge> {
    let held = budget.hold(bytes);
    held.map_err(|kind| {
        anyhow::anyhow!("a budget of {} bytes has no room for buffers ({kind:?})", budget.limit())
    })
}

/// Keeps clients away, or says how many there are.
fn reserve(device: &Device, what: &str) -> Result<Reserved, Error> {
    device.export.reserve().map_err(|kind| {
        let (name, clients) = (device.name(), device.export.clients());
        let message = format!("device {name} cannot be {what} while clients are connected (now {clients})");
        Error::new(kind, format!("{message}: disconnect them first"))
    })
}
