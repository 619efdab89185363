//! Where clients reach the devices of a server: NBD at one place for all or at a socket for each, and control sockets.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::{Charge, Error};
use spillway_export::Exports;
use spillway_export::control::{ControlSession, HttpSession, Rights};
use spillway_export::nbd::{self, NbdSession};
use spillway_export::tls::TlsSession;
use spillway_export::vhost_user::{self, QUEUE_BYTES, TransferLimits, VhostUserSession, inflight_bytes_max};
use spillway_io::vhost::{NewConversation, VhostServing, serve_vhost};
use spillway_io::{ConnectionLimits, Listener, NewSession, Peers, Serving, Workers, serve};

use crate::address::Address;
use crate::server::building::Built;
use crate::server::device::{Device, Guest};
use crate::server::devices::Devices;
use crate::server::listening::http;
use crate::server::listening::tls::Protection;

/// Queues that a virtual machine may have.
pub(crate) const GUEST_QUEUES: u16 = 16;

/// Bytes to charge for each device that virtual machines may have.
pub(crate) const GUEST_BYTES: u64 =
    GUEST_QUEUES as u64 * QUEUE_BYTES + inflight_bytes_max(GUEST_QUEUES as usize);

/// Connections to a device's control socket at a time. What they take is part of the allowance beside the budget.
const CONTROL_CONNECTIONS_MAX: usize = 16;

/// HTTP connections at a time, as a browser takes six, and how long one may be idle. What they take is part of the same allowance.
const HTTP_CONNECTIONS_MAX: usize = 16;
const HTTP_IDLE: Duration = Duration::from_secs(75);

/// See the head of this file.
pub(crate) struct Endpoints {
    sessions: nbd::Config,
    /// What protects them.
    protection: Protection,
    /// How long a client may be idle.
    idle: Option<Duration>,
    /// How many connections each peer has.
    peers: Arc<Peers>,
    /// NBD at one place for all devices, where the plan says so.
    shared: Option<Service>,
    /// NBD at a device's own socket, by name of the device.
    own: HashMap<String, Service>,
    /// Control sockets, by name of the device.
    control: HashMap<String, Serving>,
    /// HTTP, where the plan says so, and how to get there.
    http: Option<(Serving, String)>,
    /// Sockets of virtual machine monitors, by name of the device, and what their queues take.
    guests: HashMap<String, (VhostServing, Charge)>,
}

/// Where the clients of a device that ends are connected.
pub(crate) struct Front {
    pub(crate) nbd: NbdFront,
    /// A virtual machine monitor, and what its queues take.
    pub(crate) guest: Option<(VhostServing, Charge)>,
}

impl Front {
    /// Nowhere.
    #[cfg(test)]
    pub(crate) fn closed() -> Self {
        Self { nbd: NbdFront::Closed, guest: None }
    }
}

/// Where the NBD clients of a device that ends are connected.
pub(crate) enum NbdFront {
    /// At its own socket.
    Own(Serving),
    /// At one that goes on serving other devices.
    Shared,
    /// At one that is stopping, or nowhere.
    Closed,
}

/// An NBD endpoint.
struct Service {
    exports: Arc<Exports>,
    address: Address,
    serving: Serving,
}

impl Endpoints {
    /// None yet; NBD sessions will have the limits `sessions`, and end once they were `idle` for so long; `peers` counts their
    /// connections.
    pub(crate) fn new(
        sessions: nbd::Config,
        protection: Protection,
        idle: Option<Duration>,
        peers: Arc<Peers>,
    ) -> Self {
        let speaks_tls = protection.policy != nbd::TlsPolicy::Off;
        assert_eq!(speaks_tls, protection.certificates.is_some(), "TLS, and certificates for it");
        Self {
            sessions: nbd::Config { tls: protection.policy, ..sessions },
            protection,
            idle,
            peers,
            shared: None,
            own: HashMap::new(),
            control: HashMap::new(),
            http: None,
            guests: HashMap::new(),
        }
    }

    /// Serves all devices at one socket, and those that are added later.
    pub(crate) fn serve_together(
        &mut self,
        built: Vec<Built>,
        listener: Listener,
        workers: &Workers,
        limits: ConnectionLimits,
    ) -> Result<Vec<Device>, Error> {
        assert!(self.shared.is_none() && self.own.is_empty(), "devices are served at two places");
        let (exports, address) = (Arc::new(Exports::new()), self.protection.address(&listener));
        let devices = built.into_iter().map(|device| device.enter(&exports, address.clone()));
        let devices = devices.collect::<Result<_, _>>()?;
        self.shared = Some(self.offer(exports, listener, workers, limits));
        Ok(devices)
    }

    /// Serves a further device at the socket of all.
    pub(crate) fn add_to_shared(&self, built: Built) -> Result<Device, Error> {
        let shared = self.shared.as_ref().expect("devices have sockets of their own, or one together");
        built.enter(&shared.exports, shared.address.clone())
    }

    /// Serves a device at a socket of its own.
    pub(crate) fn serve_alone(
        &mut self,
        built: Built,
        listener: Listener,
        workers: &Workers,
        limits: ConnectionLimits,
    ) -> Result<Device, Error> {
        assert!(self.shared.is_none(), "{} has a socket beside that of all", built.name);
        let exports = Arc::new(Exports::new());
        let device = built.enter(&exports, self.protection.address(&listener))?;
        let service = self.offer(exports, listener, workers, limits);
        let before = self.own.insert(device.name().to_owned(), service);
        assert!(before.is_none(), "device {} has two NBD sockets", device.name());
        Ok(device)
    }

    /// What protects the conversations with NBD clients.
    pub(crate) fn protection(&self) -> &Protection {
        &self.protection
    }

    /// Has connections from now on use the certificates as they are now.
    pub(crate) fn read_certificates(&self) {
        self.protection.read_again();
    }

    fn offer(
        &self,
        exports: Arc<Exports>,
        listener: Listener,
        workers: &Workers,
        limits: ConnectionLimits,
    ) -> Service {
        let (offered, address, config) = (exports.clone(), self.protection.address(&listener), self.sessions);
        let new_session: NewSession = match self.protection.certificates.clone() {
            None => Arc::new(move || Box::new(NbdSession::new(offered.clone(), config))),
            Some(certificates) => Arc::new(move || {
                Box::new(TlsSession::new(NbdSession::new(offered.clone(), config), certificates.clone()))
            }),
        };
        let listener = listener.counting(self.peers.clone());
        let serving = serve(listener, workers, new_session, ConnectionLimits { idle: self.idle, ..limits });
        Service { exports, address, serving }
    }

    /// Serves a device to virtual machine monitors at `listener`; `charge` is what [`GUEST_BYTES`] says.
    pub(crate) fn start_guest(
        &mut self,
        device: &Device,
        guest: &Guest,
        listener: Listener,
        workers: &Workers,
        charge: Charge,
    ) {
        let config = vhost_user::Config {
            queues: GUEST_QUEUES,
            limits: TransferLimits {
                payload_len_max: self.sessions.payload_len_max,
                held_bytes_max: self.sessions.held_bytes_max,
            },
            buffered: guest.buffered,
            in_memory: guest.in_memory,
            accept_empty: guest.plan.accept_empty,
            server: workers.env().random().max(1),
        };
        let export = device.export.clone();
        let new_conversation: NewConversation =
            Arc::new(move || Box::new(VhostUserSession::new(export.clone(), config)));
        let serving = serve_vhost(listener, device.name(), workers, new_conversation);
        let before = self.guests.insert(device.name().to_owned(), (serving, charge));
        assert!(before.is_none(), "device {} has two vhost-user sockets", device.name());
    }

    /// Has a guest know that a device has grown.
    pub(crate) fn grew(&self, device: &str) {
        if let Some((serving, _)) = self.guests.get(device) {
            serving.tell(&vhost_user::config_changed());
        }
    }

    /// Answers control clients at the socket of `device`.
    pub(crate) fn start_control(
        &mut self,
        device: &Device,
        listener: Listener,
        devices: &Arc<Devices>,
        workers: &Workers,
    ) {
        let path = listener.unix_path();
        let named = path.and_then(Path::file_stem).is_some_and(|stem| stem == device.name());
        assert!(named, "device {} is controlled at {path:?}", device.name());
        let devices = devices.clone();
        let new_session: NewSession = Arc::new(move || Box::new(ControlSession::new(devices.clone())));
        let limits =
            ConnectionLimits { connections_max: CONTROL_CONNECTIONS_MAX, ..ConnectionLimits::default() };
        let serving = serve(listener, workers, new_session, limits);
        let before = self.control.insert(device.name().to_owned(), serving);
        assert!(before.is_none(), "device {} has two control sockets", device.name());
    }

    /// Answers HTTP clients at `listener`, by the `rights` that they have.
    pub(crate) fn start_http(
        &mut self,
        listener: Listener,
        rights: Rights,
        devices: &Arc<Devices>,
        workers: &Workers,
    ) {
        let (devices, rights, place) = (devices.clone(), Arc::new(rights), http::described(&listener));
        let new_session: NewSession =
            Arc::new(move || Box::new(HttpSession::new(devices.clone(), rights.clone())));
        let limits = ConnectionLimits {
            connections_max: HTTP_CONNECTIONS_MAX,
            idle: Some(HTTP_IDLE),
            ..ConnectionLimits::default()
        };
        let before = self.http.replace((serve(listener, workers, new_session, limits), place));
        assert!(before.is_none(), "HTTP is served at two places");
    }

    /// How to get to HTTP.
    pub(crate) fn http_place(&self) -> Option<&str> {
        self.http.as_ref().map(|(_, place)| place.as_str())
    }

    /// Whether no device can be controlled any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty()
    }

    /// Lets no client find a device any more.
    pub(crate) fn take_front(&mut self, name: &str) -> Front {
        let nbd = match (self.own.remove(name), &self.shared) {
            (Some(service), _) => NbdFront::Own(service.serving),
            (None, Some(shared)) => {
                shared.exports.remove(name);
                NbdFront::Shared
            }
            (None, None) => NbdFront::Closed,
        };
        Front { nbd, guest: self.guests.remove(name) }
    }

    /// The control socket of a device.
    pub(crate) fn take_control(&mut self, name: &str) -> Option<Serving> {
        self.control.remove(name)
    }

    /// Stops the NBD socket of all devices. The future waits until its clients have left.
    pub(crate) fn stop_shared(&mut self) -> Option<impl Future<Output = ()> + use<>> {
        self.shared.take().map(|shared| shared.serving.stop())
    }

    /// Stops the control sockets and HTTP, all at once. The futures wait until their clients have left.
    pub(crate) fn stop_control(&mut self) -> Vec<impl Future<Output = ()> + use<>> {
        let http = self.http.take().map(|(serving, _)| serving);
        self.control.drain().map(|(_, serving)| serving).chain(http).map(Serving::stop).collect()
    }
}
