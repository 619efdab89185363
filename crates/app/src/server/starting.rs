//! How a server starts: its memory, its threads, its devices, and then its clients.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use anyhow::{Context, Result};
use spillway_core::{Aligned, Budget, Charge, Error, Job, Place, block_on};
use spillway_io::{AllowedNetworks, ConnectionLimits, Listener, OnFailure, Peers, Workers, WorkersOptions};

use super::Server;
use crate::cli::plan::{DevicePlan, ServerPlan};
use crate::cli::server_options::ServerConfig;
use crate::exit::{Exit, refused};
use crate::memory::ServerMemory;
use crate::runtime_folder::RuntimeFolder;
use crate::server::building::opening::StackOpener;
use crate::server::building::{Builder, Built};
use crate::server::devices::Devices;
use crate::server::endpoints::{Endpoints, GUEST_BYTES};
use crate::server::event::{Event, outcome};
use crate::server::listening::passed::PassedSockets;
use crate::server::listening::tls::Protection;
use crate::server::listening::{self, hosts, http};
use crate::server::mounting::{MountMemory, Mounting};
use crate::server::own;
use crate::server::shutdown::signals::Asked;
use crate::system::service;

impl Server {
    /// Starts what `plan` says. The server's own thread asks itself by `to_self`.
    pub(super) fn start(
        mut plan: ServerPlan,
        folder: &RuntimeFolder,
        asked: Arc<Asked>,
        to_self: Sender<Event>,
        events: Receiver<Event>,
    ) -> Result<Self> {
        let (passed, hosts) = (PassedSockets::take(&plan.server)?, hosts::allowed(&plan.server)?);
        let memory = ServerMemory::choose(plan.server.memory, Path::new("/"))?;
        // The control socket claims a device's name, so it comes before anything that could disturb another server.
        let protection = Protection::choose(&plan.server)?;
        let claims = plan.devices.iter_mut().map(|device| {
            let (number, listener) = listening::claim_numbered(folder, &device.name)?;
            device.take_number(number);
            Ok(listener)
        });
        let claims = claims.collect::<Result<Vec<_>>>()?;
        let budget = Budget::new(memory.bytes);
        let charges = memory.charge(&budget)?;
        let failures = to_self.clone();
        // Where nobody listens any more, the server stops.
        let on_failure: OnFailure = Arc::new(move |error| _ = failures.send(Event::Failed(error)));
        let options = WorkersOptions { on_failure, ..plan.server.workers_options(&memory) };
        let buffers = options.buffers.clone();
        let workers = Workers::start(options).map_err(refused)?;
        service::watch(&workers);
        let opening = StackOpener::new(&workers, &budget, protection.origins.clone());
        let builder = Builder {
            folder: folder.clone(),
            opening,
            mount: plan.server.mount.clone(),
            own_sockets: plan.server.socket.is_none() && plan.server.listen.is_none() && passed.nbd.is_none(),
            connection_bytes: protection.connection_bytes(),
            aliases: plan.aliases().map(str::to_owned).collect(),
        };
        let peers = Peers::new(plan.server.peer_connections_max);
        let own =
            own::attributes(budget, memory.clone(), buffers, workers.count(), hosts.clone(), peers.clone());
        let idle = plan.server.idle_timeout.map(Duration::from_secs);
        let registry = builder.opening.registry().clone();
        let mut server = Self {
            devices: Arc::new(Devices::new(workers.env(), own, registry, to_self.clone())),
            mounting: None,
            endpoints: Endpoints::new(memory.session_limits(), protection, idle, peers),
            builder,
            building: 0,
            jobs: Vec::new(),
            failed: None,
            command: None,
            code: Exit::Success as u8,
            leaves: false,
            signal: None,
            asked,
            to_self,
            events,
            memory,
            workers,
            _charges: charges,
        };
        match server.begin(plan, claims, passed, hosts) {
            Ok(()) => Ok(server),
            Err(error) => Err(server.fail(error)),
        }
    }

    /// Lets clients in.
    fn begin(
        &mut self,
        plan: ServerPlan,
        claims: Vec<Listener>,
        passed: PassedSockets,
        hosts: Arc<AllowedNetworks>,
    ) -> Result<()> {
        let (adds, mount) = (plan.adds(), plan.server.mount.as_deref());
        let budget = self.builder.opening.budget();
        let room = mount.map(|_| MountMemory::hold(&self.workers, budget, &self.memory)).transpose()?;
        let guests = plan.devices.iter().filter(|device| device.guest.is_some());
        let charges = guests.map(|_| budget.hold(GUEST_BYTES)).collect::<Result<Vec<_>, _>>();
        let charges = charges.map_err(|kind| {
            refused(Error::new(kind, "the memory budget has no room for vhost-user: give --memory more"))
        })?;
        let http = http::listen(&self.builder.folder, &plan.server, passed.http)?;
        let shared = listening::shared(&self.builder.folder, &plan.server, passed.nbd)?;
        hosts::expect_port(&plan.server, http.iter().map(|(listener, _)| listener).chain(&shared))?;
        let shared = shared.map(|listener| listener.allowing(hosts.clone()));
        self.start_devices(plan.devices, &plan.server, shared)?;
        self.start_guests(&plan.server, charges)?;
        if let Some((place, room)) = mount.zip(room) {
            let (devices, workers) = (&self.devices, &self.workers);
            let (config, memory) = (&plan.server, &self.memory);
            self.mounting = Some(Mounting::begin(config, place, devices, workers, memory, room, adds)?);
            self.builder.opening.mounted(place);
        }
        let all = self.devices.all();
        assert_eq!(all.len(), claims.len(), "devices, and names that are claimed for them");
        for (device, listener) in all.iter().zip(claims) {
            self.endpoints.start_control(device, listener, &self.devices, &self.workers);
        }
        if let Some((listener, rights)) = http {
            let listener = listener.allowing(hosts);
            self.endpoints.start_http(listener, rights, &self.devices, &self.workers);
        }
        Ok(())
    }

    /// Lets virtual machine monitors in.
    fn start_guests(&mut self, config: &ServerConfig, charges: Vec<Charge>) -> Result<()> {
        let devices = self.devices.all();
        let guests = devices.iter().filter(|device| device.guest.is_some()).count();
        assert_eq!(guests, charges.len(), "devices with guests, and what is charged for each");
        let asked_for = devices.iter().filter_map(|device| Some((device, device.guest.as_ref()?)));
        for ((device, guest), charge) in asked_for.zip(charges) {
            let (folder, access) = (&self.builder.folder, config.socket_access(true)?);
            let listener = listening::unix(folder, &guest.plan.path, access)?;
            self.endpoints.start_guest(device, guest, listener, &self.workers, charge);
        }
        Ok(())
    }

    /// Builds every device before any client can connect to one.
    fn start_devices(
        &mut self,
        plans: Vec<DevicePlan>,
        config: &ServerConfig,
        shared: Option<Listener>,
    ) -> Result<()> {
        let protection = self.endpoints.protection();
        shared.iter().try_for_each(|listener| protection.expect_private(listener, config.insecure))?;
        assert_eq!(shared.is_none(), self.builder.own_sockets, "devices that are added have other sockets");
        assert!(self.devices.all().is_empty(), "devices are started once");
        let endpoints = if shared.is_some() { 1 } else { plans.len() };
        let all = self.memory.connections_max(protection.connection_bytes());
        let connections_max = (all / endpoints).max(1);
        let limits = ConnectionLimits { connections_max, ..ConnectionLimits::default() };
        let built = self.build_all(plans)?;
        if let Some(listener) = shared {
            let devices = self.endpoints.serve_together(built, listener, &self.workers, limits)?;
            devices.into_iter().for_each(|device| self.devices.add(Arc::new(device)));
            return Ok(());
        }
        let (folder, mut rest) = (self.builder.folder.clone(), built.into_iter());
        while let Some(device) = rest.next() {
            match listening::private(&folder, &folder.nbd_socket(&device.name)) {
                Ok(listener) => {
                    let device = self.endpoints.serve_alone(device, listener, &self.workers, limits)?;
                    self.devices.add(Arc::new(device));
                }
                Err(error) => {
                    [device].into_iter().chain(rest).for_each(|device| self.end_unused(device));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Builds devices, at last those that take what memory is left, with room kept for what each takes besides.
    fn build_all(&self, plans: Vec<DevicePlan>) -> Result<Vec<Built>> {
        let budget = self.builder.opening.budget();
        // Not all take so much: where there is none, the one that does says so.
        let mut kept: Vec<_> = plans.iter().map(|_| budget.hold(Aligned::BYTES_MAX).ok()).collect();
        let mut plans: Vec<_> = plans.into_iter().enumerate().collect();
        plans.sort_by_key(|(_, plan)| plan.takes_what_is_left());
        let mut built: Vec<(usize, Built)> = Vec::new();
        for (place, plan) in plans {
            match self.build(plan, kept.pop().flatten()) {
                Ok(device) => built.push((place, device)),
                Err(error) => {
                    built.into_iter().for_each(|(_, device)| self.end_unused(device));
                    return Err(error);
                }
            }
        }
        assert!(kept.is_empty(), "room is kept for devices that are none");
        built.sort_by_key(|(place, _)| *place);
        Ok(built.into_iter().map(|(_, built)| built).collect())
    }

    /// Ends a device that no client could reach.
    fn end_unused(&self, device: Built) {
        block_on(Job::spawn(&*self.workers.env(), Place::Background, move || device.end()));
    }

    fn build(&self, plan: DevicePlan, kept: Option<Charge>) -> Result<Built> {
        let cannot = format!("cannot build device {}", plan.name);
        let builder = self.builder.clone();
        let building = move || async move { builder.build(plan, kept).await };
        let built = outcome(Job::spawn(&*self.workers.env(), Place::Background, building));
        block_on(built).map_err(refused).context(cannot)
    }
}
