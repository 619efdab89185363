//! A running server: from a [`ServerPlan`] to sockets, and back to nothing.
//!
//! One thread, the one that called [`run`], owns the server: it starts everything, then waits for [`Event`]s. What takes long, building a device and
//! ending one, is a job on a background thread. Attributes and sizes are changed by who asks. Clients are served by the workers, which never
//! wait for this thread, and it never waits for a device before the end.
//!
//! Order of the end: the command ends; the mount goes, which is refused while a file below it is open; no new NBD clients; each device ends as
//! [`shutdown`] says, all at once; control clients get their answers; sockets go away; threads end.

use std::ffi::OsString;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result};
use spillway_core::{Charge, Error, Job, Kind, Place, block_on};
use spillway_export::Reserved;
use spillway_export::control::added_name;
use spillway_io::{Before, ConnectionLimits, Workers};

use crate::cli::plan::ServerPlan;
use crate::exit::{Failure, refused};
use crate::memory::ServerMemory;
use crate::runtime_folder::RuntimeFolder;
use crate::system::{self, daemon, service};
use crate::{log, words};

mod building;
mod command;
pub(crate) mod device;
mod devices;
mod endpoints;
mod event;
mod listening;
mod mounting;
mod own;
pub(crate) mod shutdown;
mod start_text;
mod starting;

use building::{ADDED_CONNECTIONS_MAX, Builder, Built, DeviceClaim, expect_room};
use command::RunningCommand;
use device::occupants::expect_detached;
use device::{Device, changes};
use devices::Devices;
use endpoints::{Endpoints, NbdFront};
use event::{Event, ReplySender, outcome};
use mounting::Mounting;
use shutdown::signals::{self, Asked, OF_KEYS};
use shutdown::{Stopping, end};

/// Serves what `plan` says until asked to stop, or until `command` ends, where there is one; the exit code.
pub(crate) fn run(plan: ServerPlan, command: &[OsString], folder: &RuntimeFolder) -> Result<u8> {
    let (sender, events) = mpsc::channel();
    let before = Before::now();
    system::raise_open_files();
    // Before the first thread, which is that of signals.
    system::become_io_flusher();
    if plan.server.lock_memory {
        system::lock_memory()?;
    }
    let asked = signals::watch(sender.clone())?;
    service::begin();
    let mut server = Server::start(plan, folder, asked, sender, events)?;
    let ready =
        if command.is_empty() { server.say_ready(folder) } else { server.start_command(command, before) };
    match ready {
        Ok(()) => {
            service::ready(server.devices.all().iter().map(|device| device.name()));
            server.run()
        }
        Err(error) => Err(server.fail(error)),
    }
}

/// Everything that runs.
struct Server {
    devices: Arc<Devices>,
    /// The devices as files, where the plan says so.
    mounting: Option<Mounting>,
    endpoints: Endpoints,
    builder: Builder,
    /// Devices that are being added.
    building: usize,
    /// Devices that are being added, and those that end, which may fail.
    jobs: Vec<Job<Result<(), Error>>>,
    /// Why a device that has ended could not be flushed, the first one.
    failed: Option<Error>,
    /// The program that runs beside it.
    command: Option<RunningCommand>,
    /// The exit code: without one, or once it has ended.
    code: u8,
    /// It waits until the kernel swaps to none of its devices, and ends.
    leaves: bool,
    /// The first signal that has asked it to stop.
    signal: Option<i32>,
    asked: Arc<Asked>,
    to_self: Sender<Event>,
    events: Receiver<Event>,
    memory: ServerMemory,
    workers: Workers,
    _charges: [Charge; 2],
}

impl Server {
    /// Ends a server whose start failed, in order: clients may have written already.
    fn fail(mut self, error: anyhow::Error) -> anyhow::Error {
        if self.unmount().is_err() {
            // Dropped, it goes out of sight at least.
            self.mounting = None;
        }
        match self.stop(None, None) {
            Ok(_) => error,
            Err(failure) => error.context(failure),
        }
    }

    /// Has a device built that is to be added.
    fn add(&mut self, reply: ReplySender<u32>) {
        if let Err(error) = expect_room(self.devices.all().len() + self.building) {
            return reply.done(Err(error));
        }
        self.building += 1;
        let (builder, to_self) = (self.builder.clone(), self.to_self.clone());
        self.spawn(move || async move {
            let built = builder.build_added().await.map(Box::new);
            // Where nobody listens any more, the server stops.
            let _ = to_self.send(Event::Built(built, reply));
            Ok(())
        });
    }

    /// Takes a device in that was built.
    fn admit(&mut self, claim: DeviceClaim, built: Built) -> Result<u32, Error> {
        let DeviceClaim { number, control, own } = claim;
        assert_eq!(built.name, added_name(number), "a device is built under the name of another");
        if self.devices.find(&built.name).is_ok() {
            // Its name looked free.
            let text = format!("device {}: its control socket was removed; restart its server", built.name);
            return Err(Error::new(Kind::Busy, text));
        }
        let device = match own {
            Some((listener, charge)) => {
                let limits = ConnectionLimits {
                    connections_max: ADDED_CONNECTIONS_MAX,
                    ..ConnectionLimits::default()
                };
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

    /// Starts the program beside this server, in place of a start text.
    fn start_command(&mut self, words: &[OsString], before: Before) -> Result<()> {
        tracing::info!("{}", self.start_text(None));
        self.asked.command_begins();
        let meanwhile: Vec<Event> = self.events.try_iter().collect();
        let ends = meanwhile.iter().find_map(Event::ends_the_server);
        for event in meanwhile {
            let _ = self.to_self.send(event);
        }
        // Who has asked for the end wants no command.
        if let Some(code) = ends {
            self.code = code;
            self.asked.command_has_ended();
            return Ok(());
        }
        let devices = self.devices.all();
        let first = devices.first().context("a server has a device")?;
        let file = first.file.as_deref().map(Path::as_os_str);
        let environment = command::environment(first.name(), first.address.uri(first.name()), file);
        self.command = Some(RunningCommand::start(words, before, environment, self.to_self.clone())?);
        Ok(())
    }

    fn start_text(&self, log: Option<&Path>) -> String {
        let devices = self.devices.all();
        let devices: Vec<&Device> = devices.iter().map(|device| &**device).collect();
        let driver = self.workers.driver().to_string();
        let (workers, http) = (self.workers.count(), self.endpoints.http_place());
        start_text::compose(&devices, &self.memory, workers, &driver, http, log)
    }

    /// Serves until a signal, a client, a failure, the last device's end or that of the command stops the server.
    fn run(mut self) -> Result<u8> {
        while let Ok(event) = self.events.recv() {
            match event {
                Event::Signal(number) => {
                    if let Some(command) = &self.command
                        && OF_KEYS.contains(&number)
                    {
                        command.hears(number);
                        continue;
                    }
                    tracing::info!("signal {number}: stopping");
                    self.signal.get_or_insert(number);
                    let swap = self.swap();
                    if swap.is_empty() {
                        return Ok(self.stop(None, Some(number))?);
                    }
                    // It may be what detaches them.
                    self.command.iter_mut().for_each(|command| command.ask(Some(number)));
                    self.wait_for_swapoff(Some(number), swap);
                }
                Event::Leave(signal, swap) => {
                    let folder = &self.builder.folder;
                    if swap.iter().all(|device| expect_detached(device, folder).is_ok()) {
                        return Ok(self.stop(None, signal)?);
                    }
                    self.look_again(signal, swap);
                }
                Event::ReadAgain => self.endpoints.read_certificates(),
                Event::CommandEnded => {
                    self.end_command(None);
                    match self.swap() {
                        swap if swap.is_empty() => break,
                        swap => self.wait_for_swapoff(None, swap),
                    }
                }
                Event::Failed(error) => {
                    tracing::error!("{}: stopping", error.message());
                    return Ok(self.stop(None, None).and(Err(refused(error)))?);
                }
                Event::Stop(reply) => match self.expect_no_command().and_then(|()| self.close_files()) {
                    Ok(()) => return Ok(self.stop(Some(reply), None)?),
                    Err(error) => reply.done(Err(error)),
                },
                Event::StopDevice(device, reply) => self.stop_device(&device, reply),
                Event::RemoveDevice(device, reply) => self.remove_device(&device, reply),
                Event::Hold(device, opener, reply) => reply.done(self.hold(&device, opener)),
                Event::Grew(device, before, reply) => {
                    self.mounting.iter().for_each(|mounting| mounting.grew(&device, before));
                    self.endpoints.grew(&device);
                    reply.done(Ok(()));
                }
                Event::Add(reply) => self.add(reply),
                Event::Built(built, reply) => {
                    assert!(self.building > 0, "a device is built that nobody asked for");
                    self.building -= 1;
                    reply.done(built.and_then(|built| self.admit(built.0, built.1)));
                }
            }
            if self.endpoints.is_empty() {
                break;
            }
        }
        Ok(self.stop(None, None)?)
    }

    fn hold(&self, name: &str, opener: Option<u32>) -> Result<(), Error> {
        mounting::hold(&*self.devices.find(name)?, self.mounting.as_ref(), opener)
    }

    /// [`Kind::Busy`] while a program runs beside this server, which has its devices until it ends.
    fn expect_no_command(&self) -> Result<(), Error> {
        let Some(command) = &self.command else { return Ok(()) };
        let text = format!("{command} runs beside this server: end that, and the server stops");
        Err(Error::new(Kind::Busy, text))
    }

    fn stop_device(&mut self, name: &str, reply: ReplySender) {
        match self.expect_no_command().and_then(|()| self.take(name)) {
            Ok(stopping) => self.spawn(move || stopping.stop(reply)),
            Err(error) => reply.done(Err(error)),
        }
    }

    /// Stops a device that nobody uses.
    fn remove_device(&mut self, name: &str, reply: ReplySender) {
        // The command knows of the first one, and may make and remove others.
        let known = self.devices.all().first().is_some_and(|first| first.name() == name);
        let free = if known { self.expect_no_command() } else { Ok(()) };
        let unused = free.and_then(|()| self.expect_unused(name));
        match unused.and_then(|unused| Ok((unused, self.take(name)?))) {
            Ok((unused, stopping)) => self.spawn(move || stopping.remove(unused, reply)),
            Err(error) => reply.done(Err(error)),
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

    /// Takes a device out of this server: nobody finds it any more. [`Kind::Busy`] while its file is open.
    fn take(&mut self, name: &str) -> Result<Stopping, Error> {
        self.close_file(name)?;
        let device = self.devices.find(name)?;
        self.devices.remove(&device);
        let (front, control) = (self.endpoints.take_front(name), self.endpoints.take_control(name));
        assert!(!matches!(front.nbd, NbdFront::Closed), "device {name} was served nowhere");
        assert!(control.is_some(), "device {name} had no control socket");
        Ok(Stopping { device, front, control, env: self.workers.env() })
    }

    /// Has something done that the end of the server waits for.
    fn spawn<F>(&mut self, work: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        let (done, jobs) = std::mem::take(&mut self.jobs).into_iter().partition(Job::is_done);
        self.jobs = jobs;
        self.wait_for(done);
        self.jobs.push(Job::spawn(&*self.workers.env(), Place::Background, work));
    }

    fn wait_for(&mut self, jobs: Vec<Job<Result<(), Error>>>) {
        for job in jobs {
            if let Err(error) = block_on(outcome(job)) {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Waits for the end of the command, if there is one; the keys of the terminal are for the server from then on.
    fn end_command(&mut self, signal: Option<i32>) {
        if let Some(command) = self.command.take() {
            self.code = command.end(signal);
        }
        self.asked.command_has_ended();
    }

    /// Stops everything, first the command, which a `signal` may have been sent to; its exit code. The first failed flush is reported, of those
    /// too whose devices have ended before.
    fn stop(mut self, reply: Option<ReplySender>, signal: Option<i32>) -> Result<u8, Failure> {
        service::stopping();
        let devices = self.devices.all();
        // Who asks for the end of one or of all from now on waits for that. Who has asked for something, or does so later, is answered that the
        // server stops.
        devices.iter().for_each(|device| device.end.begin());
        self.events = mpsc::channel().1;
        self.end_command(signal);
        let code = self.code;
        self.unmount_in_time(signal.or(self.signal));
        assert!(self.mounting.is_none(), "devices end below a mount");
        let shared = self.endpoints.stop_shared();
        // Side by side: one that takes long keeps no other from being flushed.
        for device in devices {
            let (front, env) = (self.endpoints.take_front(device.name()), self.workers.env());
            self.spawn(move || async move { end(&device, front, &*env).await });
        }
        let jobs = std::mem::take(&mut self.jobs);
        self.wait_for(jobs);
        shared.into_iter().for_each(block_on);
        let flushed = self.failed.take().map_or(Ok(()), Err);
        if let Some(reply) = reply {
            reply.done(Ok(()));
        }
        self.endpoints.stop_control().into_iter().for_each(block_on);
        self.workers.stop();
        flushed.map(|()| code).map_err(Failure::from)
    }
}

#[cfg(test)]
mod tests;
