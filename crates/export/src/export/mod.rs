//! What is served: a device, and who its clients are.
//!
//! An [`Export`] counts its connected clients, so that a change which no client may see (a reset) is possible only in
//! their absence: [`Export::reserve`] refuses while there are any, and refuses newcomers while it is held. Clients that
//! come by its alias, a second name under which they can only read, count as all others.
//!
//! A block device of the kernel outlives its server, with what it has not written yet. The next server keeps the export for it: others are
//! refused until that client is back, or its block device is gone.
//!
//! Lock order: the locks of the clients and of who it is kept for are leaves, never held while the device is asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use spillway_core::session::Peer;
use spillway_core::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, WaitList, fence};
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

/// A device under a name, and perhaps a second one.
pub struct Export {
    name: String,
    description: String,
    device: Aligned,
    read_only: bool,
    hidden: bool,
    alias: Option<Alias>,
    clients: AtomicUsize,
    is_awaited: IsAwaited,
    /// Where it is kept, with its number of clients [`RESERVED`].
    kept: Mutex<Option<KeptFor>>,
    arrivals: AtomicU64,
    /// How often its content was discarded as a whole.
    eras: AtomicU64,
    /// Who the clients are, by their tickets.
    peers: Mutex<BTreeMap<u64, Peer>>,
    /// Watched by sessions, by their tickets. It ends the clients of this export while others on the same socket stay.
    pub(crate) shutdown: Shutdown,
    /// Woken whenever a client has left.
    left: WaitList,
    pub(crate) counters: Counts,
    latencies: Option<Arc<Latencies>>,
}

/// In [`Export::clients`]: reserved, nobody may connect.
const RESERVED: usize = usize::MAX;

/// In [`Export::clients`], beside the number: the one client has the device to itself.
const ALONE: usize = 1 << (usize::BITS - 2);

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
            clients: AtomicUsize::new(0),
            is_awaited: Box::new(|| false),
            kept: Mutex::default(),
            arrivals: AtomicU64::new(0),
            eras: AtomicU64::new(0),
            peers: Mutex::default(),
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
        if (self.is_awaited)() {
            self.clients = AtomicUsize::new(RESERVED);
            self.kept = Mutex::new(Some(KeptFor { client: None, alone: true }));
        }
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
        match self.clients.load(Ordering::Relaxed) {
            RESERVED => 0,
            clients => clients & !ALONE,
        }
    }

    /// Who the clients are, in the order in which they connected. Others may have come or gone since they were counted.
    pub fn peers(&self) -> Vec<Peer> {
        self.peers.lock().values().copied().collect()
    }

    /// Whether a client that loses its connection now comes back, and sends again what was not answered.
    pub(crate) fn comes_back(&self) -> bool {
        (self.is_awaited)()
    }

    /// Whether its one client has the device to itself.
    pub fn is_held(&self) -> bool {
        self.clients.load(Ordering::Relaxed) == ALONE | 1
    }

    /// Gives the device to its one client alone, until that leaves: no other connects. [`Kind::Busy`] unless there is exactly one, which
    /// does not have it yet. Only who is a client itself knows which one that is.
    pub fn hold(&self) -> Result<(), Kind> {
        self.turn(1, ALONE | 1)?;
        // Its session may count as idle by now.
        self.shutdown.wake();
        Ok(())
    }

    /// Whether it is kept for a client of before.
    pub fn is_kept(&self) -> bool {
        self.keep_while_awaited();
        self.kept.lock().is_some()
    }

    /// Keeps it for `client`, which is that of before or brings it back; with the device to itself where `alone`. [`Kind::Busy`] while it has
    /// clients, or a guard keeps them away.
    pub fn keep_for(&self, client: Peer, alone: bool) -> Result<(), Kind> {
        let mut kept = self.kept.lock();
        if kept.is_none() {
            self.turn(0, RESERVED)?;
        }
        *kept = Some(KeptFor { client: Some(client), alone });
        Ok(())
    }

    /// Keeps it no longer where that client will not come back.
    fn keep_while_awaited(&self) {
        let mut kept = self.kept.lock();
        if kept.is_some() && !(self.is_awaited)() {
            *kept = None;
            self.turn(RESERVED, 0).expect("a kept export is reserved");
        }
    }

    /// Has `clients` in place of `before`; [`Kind::Busy`] where it has others.
    fn turn(&self, before: usize, clients: usize) -> Result<(), Kind> {
        let turned = self.clients.compare_exchange(before, clients, Ordering::AcqRel, Ordering::Relaxed);
        turned.map(drop).map_err(|_| Kind::Busy)
    }

    /// Keeps clients away for as long as the guard lives; [`Kind::Busy`] while there are any, or another guard.
    pub fn reserve(self: &Arc<Self>) -> Result<Reserved, Kind> {
        self.keep_while_awaited();
        self.turn(0, RESERVED).map(|()| Reserved(self.clone()))
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
        self.return_of(peer).or_else(|| self.count_in())?;
        let ticket = self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.peers.lock().insert(ticket, peer);
        let connected = Connected { export: self.clone(), ticket };
        // With the fence of `close`: either this sees it closed, or `emptied` sees the client.
        fence(Ordering::SeqCst);
        // Asked only now: while the client is counted the size can only grow.
        (!self.is_closed() && self.device.geometry().size > 0).then_some(connected)
    }

    /// Counts in the client that it is kept for.
    fn return_of(&self, peer: Peer) -> Option<()> {
        let mut kept = self.kept.lock();
        let returns = |kept: &mut KeptFor| kept.client == Some(peer);
        let KeptFor { alone, .. } = kept.take_if(returns)?;
        self.turn(RESERVED, if alone { ALONE | 1 } else { 1 }).ok()
    }

    fn count_in(&self) -> Option<()> {
        self.keep_while_awaited();
        let one_more = |clients: usize| (clients < ALONE - 1).then(|| clients + 1);
        self.clients.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more).ok().map(drop)
    }

    /// Counts a client out. One that had the device to itself may have lost its connection, and come back.
    fn count_out(&self) {
        let mut kept = self.kept.lock();
        if self.clients.load(Ordering::Relaxed) == ALONE | 1 && (self.is_awaited)() {
            *kept = Some(KeptFor { client: None, alone: true });
            return self.turn(ALONE | 1, RESERVED).expect("the one client leaves");
        }
        let one_less = |clients: usize| if clients == ALONE | 1 { Some(0) } else { clients.checked_sub(1) };
        let before = self.clients.fetch_update(Ordering::Release, Ordering::Relaxed, one_less);
        assert!(before.is_ok_and(|before| before != RESERVED), "a client left that was not counted");
    }

    /// Asks every client to leave: its session answers what it has received, flushes and closes. No other connects, not even
    /// one that has found the export already: take it from its list first. [`Export::emptied`] tells when the last has left.
    pub fn close(&self) {
        self.shutdown.ask(Phase::Draining);
        // With the fence of `connect`.
        fence(Ordering::SeqCst);
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
        let before = self.0.clients.swap(0, Ordering::Release);
        assert_eq!(before, RESERVED, "a reservation was dropped that nobody had");
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
        let peer = self.export.peers.lock().remove(&self.ticket);
        assert!(peer.is_some(), "client {} leaves {}, and is none", self.ticket, self.export.name);
        self.export.count_out();
        self.export.left.wake_all();
    }
}

#[cfg(test)]
mod tests;
