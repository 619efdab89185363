//! What is served: a device, and who its clients are.
//!
//! An [`Export`] counts its connected clients, so that a change which no client may see (a reset) is possible only in
//! their absence: [`Export::reserve`] refuses while there are any, and refuses newcomers while it is held. Clients that
//! come by its alias, a second name under which they can only read, count as all others.
//!
//! A block device of the kernel outlives its server, with what it has not written yet. The next server keeps the export for it: others are
//! refused until that client is back, or its block device is gone.
//!
//! Lock order: the lock of the clients is a leaf, never held while the device is asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use spillway_core::session::Peer;
use spillway_core::sync::{AtomicBool, AtomicU64, Mutex, Ordering, WaitList};
use spillway_core::{Aligned, Env, Error, Geometry, Kind, Latencies, OperationLatency, Phase, Shutdown};

use crate::statistics::{Counts, Statistics};

/// Longest name or description in bytes, as in the NBD protocol.
const TEXT_LEN_MAX: usize = 4096;

/// A second name of an export, under which clients can only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The name.
    pub name: String,
    /// Whether lists leave it out.
    pub hidden: bool,
}

/// Whether a client that has lost its connection will come back.
type IsAwaited = Box<dyn Fn() -> bool + Send + Sync>;

/// Who may connect to an export that is kept.
#[derive(Clone, Copy)]
struct KeptFor {
    /// Not known yet where absent.
    client: Option<Peer>,
    /// It has the device to itself from then on.
    alone: bool,
}

/// Who the clients of an export are, and who may become one.
#[derive(Default)]
struct Clients {
    /// By their tickets.
    peers: BTreeMap<u64, Peer>,
    arrivals: u64,
    /// A guard keeps clients away: there is none.
    reserved: bool,
    /// Only where there is no client.
    kept: Option<KeptFor>,
}

/// A device under a name, and perhaps a second one.
pub struct Export {
    name: String,
    description: String,
    device: Aligned,
    read_only: bool,
    hidden: bool,
    alias: Option<Alias>,
    clients: Mutex<Clients>,
    /// The one client has the device to itself. Changed by who has the lock of the clients; sessions ask for it with each request.
    held: AtomicBool,
    is_awaited: IsAwaited,
    /// How often its content was discarded as a whole.
    eras: AtomicU64,
    /// Watched by sessions, by their tickets. It ends the clients of this export while others on the same socket stay.
    pub(crate) shutdown: Shutdown,
    /// Woken whenever a client has left.
    left: WaitList,
    pub(crate) counters: Counts,
    latencies: Option<Arc<Latencies>>,
}

impl Export {
    /// Serves `device` as `name`: UTF-8 without NUL, at most 4096 bytes, which may be empty; else [`Kind::Invalid`].
    pub fn new(name: impl Into<String>, device: Aligned) -> Result<Self, Error> {
        let name = name.into();
        check_text("an export's name", &name)?;
        Ok(Self {
            name,
            description: String::new(),
            device,
            read_only: false,
            hidden: false,
            alias: None,
            clients: Mutex::default(),
            held: AtomicBool::new(false),
            is_awaited: Box::new(|| false),
            eras: AtomicU64::new(0),
            shutdown: Shutdown::default(),
            left: WaitList::default(),
            counters: Counts::default(),
            latencies: None,
        })
    }

    /// Adds a description for people, under the rules of a name, and with the errors of [`Export::new`].
    pub fn with_description(mut self, description: impl Into<String>) -> Result<Self, Error> {
        self.description = description.into();
        check_text("an export's description", &self.description)?;
        Ok(self)
    }

    /// Refuses writes of clients, even where the device would take them.
    pub fn with_read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Leaves its own name out of lists. Who knows it, connects as before.
    pub fn with_hidden(mut self, hidden: bool) -> Self {
        self.hidden = hidden;
        self
    }

    /// Also offers the device under the name of its alias, which has the rules and errors of [`Export::new`] and is another name.
    pub fn with_alias(mut self, alias: Option<Alias>) -> Result<Self, Error> {
        if let Some(alias) = &alias {
            check_text("an export's read-only name", &alias.name)?;
            if alias.name == self.name {
                let name = &self.name;
                return Err(Error::invalid(format!("'{name}' is also the read-only name: choose another")));
            }
        }
        self.alias = alias;
        Ok(self)
    }

    /// Keeps it for a client of before, for as long as `is_awaited` says that this will come back.
    pub fn kept_while(mut self, is_awaited: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.is_awaited = Box::new(is_awaited);
        self.keep_if_awaited(&mut self.clients.lock());
        self
    }

    /// Times requests by the clock of `env`, for [`Export::latencies`].
    pub fn timed_by(mut self, env: Arc<dyn Env>) -> Self {
        self.latencies = Some(Latencies::new(env));
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether lists leave its own name out.
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// Its second name.
    pub fn alias(&self) -> Option<&Alias> {
        self.alias.as_ref()
    }

    /// The description; empty for none.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The device.
    pub fn device(&self) -> &Aligned {
        &self.device
    }

    /// The device as clients see it: read-only as well where the export is.
    pub fn geometry(&self) -> Geometry {
        let geometry = self.device.geometry();
        Geometry { read_only: geometry.read_only || self.read_only, ..geometry }
    }

    /// Number of connected clients.
    pub fn clients(&self) -> usize {
        self.clients.lock().peers.len()
    }

    /// Who the clients are, in the order in which they connected. Others may have come or gone since they were counted.
    pub fn peers(&self) -> Vec<Peer> {
        self.clients.lock().peers.values().copied().collect()
    }

    /// Whether a client that loses its connection now comes back, and sends again what was not answered.
    pub(crate) fn comes_back(&self) -> bool {
        (self.is_awaited)()
    }

    /// Whether its one client has the device to itself.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Gives the device to its one client alone, until that leaves: no other connects. [`Kind::Busy`] unless there is exactly one, which
    /// does not have it yet. Only who is a client itself knows which one that is.
    pub fn hold(&self) -> Result<(), Kind> {
        let clients = self.clients.lock();
        if clients.peers.len() != 1 || self.held.swap(true, Ordering::Relaxed) {
            return Err(Kind::Busy);
        }
        drop(clients);
        // Its session may count as idle by now.
        self.shutdown.wake();
        Ok(())
    }

    /// Whether it is kept for a client of before.
    pub fn is_kept(&self) -> bool {
        let mut clients = self.clients.lock();
        self.keep_while_awaited(&mut clients);
        clients.kept.is_some()
    }

    /// Keeps it for `client`, which is that of before or brings it back; with the device to itself where `alone`. [`Kind::Busy`] while it has
    /// clients, or a guard keeps them away.
    pub fn keep_for(&self, client: Peer, alone: bool) -> Result<(), Kind> {
        let mut clients = self.clients.lock();
        if clients.reserved || !clients.peers.is_empty() {
            return Err(Kind::Busy);
        }
        clients.kept = Some(KeptFor { client: Some(client), alone });
        Ok(())
    }

    /// Keeps it for the client that had it alone, if that comes back.
    fn keep_if_awaited(&self, clients: &mut Clients) {
        if (self.is_awaited)() {
            clients.kept = Some(KeptFor { client: None, alone: true });
        }
    }

    /// Keeps it no longer where that client will not come back.
    fn keep_while_awaited(&self, clients: &mut Clients) {
        if clients.kept.is_some() && !(self.is_awaited)() {
            clients.kept = None;
        }
    }

    /// Keeps clients away for as long as the guard lives; [`Kind::Busy`] while there are any, or another guard.
    pub fn reserve(self: &Arc<Self>) -> Result<Reserved, Kind> {
        let mut clients = self.clients.lock();
        self.keep_while_awaited(&mut clients);
        if clients.reserved || clients.kept.is_some() || !clients.peers.is_empty() {
            return Err(Kind::Busy);
        }
        clients.reserved = true;
        Ok(Reserved(self.clone()))
    }

    /// What clients know of the content is gone.
    pub fn begin_era(&self) {
        self.eras.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes with each [`Export::begin_era`].
    pub(crate) fn era(&self) -> u64 {
        self.eras.load(Ordering::Relaxed)
    }

    /// Counts a client in, or `None` where the export is closed, reserved, held or kept for another, or has no size.
    pub(crate) fn connect(self: &Arc<Self>, peer: Peer) -> Option<Connected> {
        let connected = Connected { export: self.clone(), ticket: self.count_in(peer)? };
        // Asked only once the client is counted: either this sees it closed, or `emptied` sees the client; and the size can only grow.
        (!self.is_closed() && self.device.geometry().size > 0).then_some(connected)
    }

    /// The ticket of a client that is counted from now on.
    fn count_in(&self, peer: Peer) -> Option<u64> {
        let mut clients = self.clients.lock();
        let returned = clients.kept.take_if(|kept| kept.client == Some(peer));
        self.keep_while_awaited(&mut clients);
        if clients.reserved || clients.kept.is_some() || self.is_held() {
            return None;
        }
        self.held.store(returned.is_some_and(|kept| kept.alone), Ordering::Relaxed);
        let ticket = clients.arrivals;
        clients.arrivals += 1;
        clients.peers.insert(ticket, peer);
        Some(ticket)
    }

    /// Asks every client to leave: its session answers what it has received, flushes and closes. No other connects, not even
    /// one that has found the export already: take it from its list first. [`Export::emptied`] tells when the last has left.
    pub fn close(&self) {
        self.shutdown.ask(Phase::Draining);
    }

    /// Whether its clients are to leave, and no other connects.
    pub(crate) fn is_closed(&self) -> bool {
        self.shutdown.phase() != Phase::Serving
    }

    /// Waits until no client is connected.
    pub async fn emptied(&self) {
        self.left.until(|| (self.clients() == 0).then_some(())).await;
    }

    /// What clients did so far.
    pub fn statistics(&self) -> Statistics {
        self.counters.statistics()
    }

    /// How long requests took, of each operation that was asked for; nothing where no clock times them.
    pub fn latencies(&self) -> Vec<OperationLatency> {
        self.latencies.iter().flat_map(|latencies| latencies.shown()).collect()
    }

    /// Where requests are timed, if they are.
    pub(crate) fn timer(&self) -> Option<&Arc<Latencies>> {
        self.latencies.as_ref()
    }
}

fn check_text(what: &str, text: &str) -> Result<(), Error> {
    if text.len() > TEXT_LEN_MAX {
        let len = text.len();
        return Err(Error::invalid(format!(
            "{what} has {len} bytes, at most {TEXT_LEN_MAX} are allowed: shorten it"
        )));
    }
    if text.contains('\0') {
        return Err(Error::invalid(format!("{what} holds a NUL character, which is not allowed: remove it")));
    }
    Ok(())
}

/// Nobody is connected to the export and nobody can, until this is dropped.
pub struct Reserved(Arc<Export>);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.clients.lock().reserved = false;
    }
}

/// One client of an export, for as long as it lives.
pub(crate) struct Connected {
    export: Arc<Export>,
    ticket: u64,
}

impl Connected {
    pub(crate) fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// Has the task woken when the export wants its clients to leave.
    pub(crate) fn watch(&self, waker: &Waker) {
        self.export.shutdown.watch(self.ticket, waker);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.export.shutdown.forget(self.ticket);
        let mut clients = self.export.clients.lock();
        let peer = clients.peers.remove(&self.ticket);
        assert!(peer.is_some(), "client {} leaves {}, and is none", self.ticket, self.export.name);
        // One that had the device to itself may have lost its connection, and come back.
        if self.export.held.swap(false, Ordering::Relaxed) {
            self.export.keep_if_awaited(&mut clients);
        }
        drop(clients);
        self.export.left.wake_all();
    }
}

#[cfg(test)]
mod tests;
