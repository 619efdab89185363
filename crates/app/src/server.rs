//! A running server: from a [`ServerPlan`] to sockets, and back to nothing.
//!
//! One thread, the one that called [`run`], owns the server: it starts everything, then waits for [`Event`]s. An attribute or a size is changed by a
//! task on a background thread, one at a time for each device; a device that is added is built, and one that goes is stopped, on a thread of its own. Clients are served by the workers, which never wait for this
//! thread, and it never waits for a device before the end.
//!
//! Order of the end: the mount goes, which is refused while a file below it is open; commands that take long end early; no new NBD clients;
//! what was received is answered; devices are flushed, all at once; control clients get their answers; sockets go away; threads end.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use anyhow::{Context, Result};
use spillway_core::{Aligned, Budget, Charge, Error, Kind, Value};
use spillway_export::Reserved;
use spillway_export::control::Change;
use spillway_io::{Limits, Listener, OnFailure, Workers, WorkersOptions};

use crate::arrival::{ADDED_CONNECTIONS_MAX, Arrival, Arrivals, Built};
use crate::background::{in_background, wait_for};
use crate::beside::Beside;
use crate::changes::{self, LEAVING};
use crate::device::Device;
use crate::devices::Devices;
use crate::ending::{Leaving, end, ended, wind_down};
use crate::endpoints::Endpoints;
use crate::event::{Event, Promise};
use crate::exit::{Failure, refused};
use crate::memory::Memory;
use crate::mounting::{Mounting, Room};
use crate::opening::StackOpener;
use crate::plan::{DevicePlan, ServerPlan};
use crate::runtime_folder::RuntimeFolder;
use crate::server_options::ServerConfig;
use crate::{daemon, listening, log, signals, start_text, system, words};

/// Devices of a server from which on none is added.
const DEVICES_MAX: usize = 64;

/// Pause between two looks whether the mount is still in use, once a signal has asked the server to stop.
const UNMOUNT_PAUSE: Duration = Duration::from_millis(100);

/// Pause between two attempts at a change that clients who are leaving are in the way of.
const LEAVING_PAUSE: Duration = Duration::from_millis(20);

/// Serves what `plan` says until asked to stop.
pub(crate) fn run(plan: ServerPlan, folder: &RuntimeFolder) -> Result<()> {
    let (sender, events) = mpsc::channel();
    system::raise_open_files();
    // Before the first thread, which is that of signals.
    system::become_io_flusher();
    signals::watch(sender.clone())?;
    let server = Server::start(plan, folder, Devices::new(sender))?;
    match server.say_ready(folder) {
        Ok(()) => server.run(&events),
        Err(error) => Err(server.fail(error)),
    }
}

/// Everything that runs.
struct Server {
    devices: Arc<Devices>,
    /// The devices as files, where the plan says so.
    mounting: Option<Mounting>,
    endpoints: Endpoints,
    /// Devices that are being built or stopped, while this thread answers others.
    beside: Beside,
    arrivals: Arrivals,
    /// Devices that are being built.
    arriving: usize,
    /// Why devices that have left could not be flushed.
    failures: (Sender<Error>, Receiver<Error>),
    /// Changes that are being made, or are to be tried again, on background threads.
    tasks: Vec<Receiver<()>>,
    memory: Memory,
    workers: Workers,
    _charges: [Charge; 2],
}

impl Server {
    fn start(plan: ServerPlan, folder: &RuntimeFolder, devices: Devices) -> Result<Self> {
        let memory = Memory::choose(plan.server.memory, Path::new("/"))?;
        // The control socket claims a device's name, so it comes before anything that could disturb another server.
        let claims = plan.devices.iter().map(|device| listening::claim(folder, &device.name));
        let claims = claims.collect::<Result<Vec<_>>>()?;
        let budget = Budget::new(memory.bytes);
        let charges = memory.charge(&budget)?;
        let events = devices.events().clone();
        // Where nobody listens any more, the server stops.
        let on_failure: OnFailure = Arc::new(move |error| _ = events.send(Event::Failed(error)));
        let options = WorkersOptions { on_failure, ..plan.server.workers_options(&memory) };
        let workers = Workers::start(options).map_err(refused)?;
        let opening = StackOpener::new(&workers, &budget);
        let arrivals = Arrivals {
            folder: folder.clone(),
            opening,
            mount: plan.server.mount.clone(),
            own_sockets: plan.server.socket.is_none() && plan.server.listen.is_none(),
        };
        let idle = plan.server.idle_timeout.map(Duration::from_secs);
        let mut server = Self {
            devices: Arc::new(devices),
            mounting: None,
            endpoints: Endpoints::new(memory.session_limits(), idle),
            beside: Beside::default(),
            arrivals,
            arriving: 0,
            failures: mpsc::channel(),
            tasks: Vec::new(),
            memory,
            workers,
            _charges: charges,
        };
        match server.begin(plan, claims) {
            Ok(()) => Ok(server),
            Err(error) => Err(server.fail(error)),
        }
    }

    /// Lets clients in.
    fn begin(&mut self, plan: ServerPlan, claims: Vec<Listener>) -> Result<()> {
        let (adds, mount) = (plan.adds(), plan.server.mount.as_deref());
        let budget = self.arrivals.opening.budget();
        let room = mount.map(|_| Room::hold(&self.workers, budget, &self.memory)).transpose()?;
        self.start_devices(plan.devices, &plan.server)?;
        if let Some((place, room)) = mount.zip(room) {
            let (devices, workers) = (&self.devices, &self.workers);
            let (config, memory) = (&plan.server, &self.memory);
            self.mounting = Some(Mounting::begin(config, place, devices, workers, memory, room, adds)?);
            self.arrivals.opening.mounted(place);
        }
        for (device, listener) in self.devices.all().iter().zip(claims) {
            self.endpoints.start_control(device, listener, &self.devices, &self.workers);
        }
        Ok(())
    }

    /// Ends a server whose start failed, in order: clients may have written already.
    fn fail(mut self, error: anyhow::Error) -> anyhow::Error {
        if self.unmount().is_err() {
            // Dropped, it goes out of sight at least.
            self.mounting = None;
        }
        match self.stop(None) {
            Ok(()) => error,
            Err(failure) => error.context(failure),
        }
    }

    /// Builds every device before any client can connect to one.
    fn start_devices(&mut self, plans: Vec<DevicePlan>, config: &ServerConfig) -> Result<()> {
        let shared = listening::shared(&self.arrivals.folder, config)?;
        let endpoints = if shared.is_some() { 1 } else { plans.len() };
        let connections_max = (self.memory.connections_max() / endpoints).max(1);
        let limits = Limits { connections_max, ..Limits::default() };
        let built = self.build_all(plans)?;
        if let Some(listener) = shared {
            let devices = self.endpoints.serve_together(built, listener, &self.workers, limits)?;
            devices.into_iter().for_each(|device| self.devices.add(Arc::new(device)));
            return Ok(());
        }
        for device in built {
            let listener = listening::own(&self.arrivals.folder, &device.name)?;
            let device = self.endpoints.serve_alone(device, listener, &self.workers, limits)?;
            self.devices.add(Arc::new(device));
        }
        Ok(())
    }

    /// Builds devices, at last those that take what memory is left, with room kept for what each takes besides.
    fn build_all(&self, plans: Vec<DevicePlan>) -> Result<Vec<Built>> {
        let budget = self.arrivals.opening.budget();
        // Not all take so much: where there is none, the one that does says so.
        let mut kept: Vec<_> = plans.iter().map(|_| budget.hold(Aligned::BYTES_MAX).ok()).collect();
        let mut plans: Vec<_> = plans.into_iter().enumerate().collect();
        plans.sort_by_key(|(_, plan)| plan.takes_what_is_left());
        let build = |(place, plan)| Ok((place, self.build(plan, kept.pop().flatten())?));
        let mut built = plans.into_iter().map(build).collect::<Result<Vec<_>>>()?;
        built.sort_by_key(|(place, _)| *place);
        Ok(built.into_iter().map(|(_, built)| built).collect())
    }

    fn build(&self, plan: DevicePlan, kept: Option<Charge>) -> Result<Built> {
        let cannot = format!("cannot build device {}", plan.name);
        let Arrivals { opening, mount, .. } = &self.arrivals;
        Built::new(plan, mount.as_deref(), opening, kept).map_err(refused).context(cannot)
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
        let device = match own {
            Some((listener, charge)) => {
                let limits = Limits { connections_max: ADDED_CONNECTIONS_MAX, ..Limits::default() };
                let device = self.endpoints.serve_alone(built, listener, &self.workers, limits)?;
                Device { _connections: Some(charge), ..device }
            }
            None => self.endpoints.add_to_shared(built)?,
        };
        let device = Arc::new(device);
        self.devices.add(device.clone());
        self.mounting.iter().for_each(|mounting| mounting.add(&device, &self.devices));
        self.endpoints.start_control(&device, control, &self.devices, &self.workers);
        Ok(number)
    }

    /// Says that clients can connect, and leaves the terminal where that is asked for.
    fn say_ready(&self, folder: &RuntimeFolder) -> Result<()> {
        if !daemon::is_child() {
            words::announce(&self.start_text(None));
            return Ok(());
        }
        let devices = self.devices.all();
        let first = devices.first().context("a server has a device")?;
        let log = log::keep_in(&folder.log(first.name()))?;
        words::announce(&self.start_text(Some(&log)));
        daemon::ready()
    }

    fn start_text(&self, log: Option<&Path>) -> String {
        let devices = self.devices.all();
        let devices: Vec<&Device> = devices.iter().map(|device| &**device).collect();
        let driver = self.workers.driver().to_string();
        start_text::compose(&devices, &self.memory, self.workers.count(), &driver, log)
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
                Event::Failed(error) => {
                    tracing::error!("{}: stopping", error.message());
                    self.unmount_in_time(events);
                    return Ok(self.stop(None).and(Err(refused(error)))?);
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
            if self.endpoints.is_empty() {
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
        self.change(device, promise, async move |device| {
            changes::set(&device, &*env, &attribute, value).await
        });
    }

    fn resize(&mut self, device: &str, size: Option<u64>, promise: Promise) {
        self.change(device, promise, async move |device| device.stack.grow(size).await);
    }

    fn hold(&self, name: &str, opener: Option<u32>) -> Result<(), Error> {
        changes::hold(&*self.devices.find(name)?, self.mounting.as_ref(), opener)
    }

    fn reset(&mut self, name: &str, promise: Promise) {
        match self.devices.find(name).and_then(|device| changes::can_be_reset(&device)) {
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
            Ok((unused, thread, leaving)) => thread.run(move || leaving.remove(unused, promise)),
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
        changes::expect_unused(&device)
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
        let (own, control) = self.endpoints.remove(name);
        let failures = self.failures.0.clone();
        Ok(Leaving { device, own, control, env: self.workers.env(), failures })
    }

    /// Stops everything. The first failed flush is reported, of those too whose devices have left before.
    fn stop(mut self, promise: Option<Promise>) -> Result<(), Failure> {
        let (devices, env) = (self.devices.all(), self.workers.env());
        devices.iter().for_each(|device| wind_down(device));
        self.endpoints.stop_nbd();
        // Side by side: one that takes long keeps no other from being flushed.
        let ends: Vec<_> = devices.iter().map(|device| end(device, &*env)).collect();
        let flushed = ends.iter().map(ended).fold(Ok(()), Result::and);
        self.beside.join();
        self.tasks.drain(..).for_each(|task| _ = wait_for(&task));
        if let Some(promise) = promise {
            promise.keep(flushed.clone());
        }
        self.endpoints.stop_control();
        self.workers.stop();
        self.failures.1.try_iter().map(Err).fold(flushed, Result::and).map_err(Failure::from)
    }
}

#[cfg(test)]
mod tests;
