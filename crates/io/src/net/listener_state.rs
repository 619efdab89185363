//! What the acceptor of a listener, its connections and its owner share: who is connected, and how all end.
//!
//! Locks: the table of connections, then one connection's waker.

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spillway_core::session::Session;
use spillway_core::sync::{AtomicU64, Mutex, Ordering, WaitList};
use spillway_core::{Phase, Report, Shutdown};

use crate::net::connection::Connection;
use crate::net::control::{Admission, Control};
use crate::net::peer::{Account, peer_of};
use crate::net::peers::{PeerGuard, Peers};
use crate::net::table::{Capacity, ConnectionTable, GRACE_MIN, Vacancy};
use crate::runtime::driver::WAKES_MAX;
use crate::runtime::pool::{LoadGuard, ThreadPool};

/// Makes the session of a new connection, on the worker that serves it.
pub type NewSession = Arc<dyn Fn() -> Box<dyn Session> + Send + Sync>;

/// The acceptor has one until it has ended, and the listener with it, and so does each connection: its job is done with the last of them.
pub(crate) type OpenListener = Arc<Report<()>>;

/// Part of a socket's connections that may shake hands at a time: one in so many.
const HANDSHAKES_SHARE: usize = 4;

/// Connections of one worker, from all sockets. A task has at most one wake in a worker's queue: half of it leaves room for
/// everything else.
const WORKER_CONNECTIONS_MAX: usize = WAKES_MAX / 2;

/// Seconds between two lines about the same trouble.
const COMPLAINT_INTERVAL_S: u64 = 10;

/// What a server puts up with.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections at a time; further ones are closed at once. A quarter of them may be unfinished handshakes, of which the
    /// oldest give way to newcomers where their peers are silent.
    pub connections_max: usize,
    /// Age at which an unfinished handshake is closed.
    pub handshake: Duration,
    /// How far a peer may be behind 64 KiB a second in taking its replies, or in sending the rest of a payload, while others
    /// wait for the memory that these take.
    pub stall: Duration,
    /// The same where the conversation ends, because the server stops or for another reason.
    pub stop_grace: Duration,
    /// How long a connection may be idle, if there is a limit: nothing is asked, answered or due, and nothing comes.
    pub idle: Option<Duration>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(60),
            stop_grace: Duration::from_secs(10),
            idle: None,
        }
    }
}

/// What acceptor, connections and [`Serving`](crate::Serving) share.
pub(crate) struct ListenerState {
    pub(crate) pool: Arc<ThreadPool>,
    new_session: NewSession,
    pub(crate) limits: ConnectionLimits,
    /// What each peer has, at other sockets too.
    peers: Arc<Peers>,
    /// Of the acceptor, and of connections that are not in the table yet.
    pub(crate) acceptor: Shutdown,
    table: Mutex<ConnectionTable>,
    /// Woken when a handshake is complete, or a connection gone.
    changes: WaitList,
    next_number: AtomicU64,
    complained_s: AtomicU64,
}

impl ListenerState {
    /// With nobody in it.
    pub(crate) fn new(
        pool: Arc<ThreadPool>,
        new_session: NewSession,
        limits: ConnectionLimits,
        peers: Arc<Peers>,
    ) -> Self {
        assert!(limits.connections_max > 0, "a listener has room for a connection");
        Self {
            pool,
            new_session,
            limits,
            peers,
            acceptor: Shutdown::default(),
            table: Mutex::default(),
            changes: WaitList::default(),
            next_number: AtomicU64::new(1),
            complained_s: AtomicU64::new(0),
        }
    }

    /// Connections now.
    pub(crate) fn connections(&self) -> usize {
        self.table.lock().len()
    }

    /// Asks the acceptor and all connections to end.
    pub(crate) fn end(&self, phase: Phase) {
        self.acceptor.ask(phase);
        // A connection that is not in the table yet reads that of the acceptor under its lock.
        self.end_where(phase, |_| true);
    }

    /// Asks those connections to end of which `holds` is true.
    fn end_where(&self, phase: Phase, holds: impl Fn(&Control) -> bool) {
        let all = self.table.lock().controls();
        all.iter().filter(|control| holds(control)).for_each(|control| control.shutdown.ask(phase));
    }

    pub(crate) fn stopping(&self) -> bool {
        self.acceptor.phase() != Phase::Serving
    }

    /// Closes handshakes that last too long, connections whose hosts have vanished or, where that is asked for, that are idle for long; and,
    /// where others wait for buffers or for their end, those that are too slow to take theirs or to send the rest of what they began.
    pub(crate) fn close_late(&self) {
        let now = self.pool.clock.coarse_now();
        self.table.lock().close_older_than(self.limits.handshake, self.pool.clock.now());
        self.end_where(Phase::Aborting, |control| {
            let vanished = control.has_vanished();
            if vanished {
                tracing::info!("a host has vanished: its connection is closed");
            }
            vanished
        });
        if let Some(limit) = self.limits.idle {
            // Not by winding down: a request that comes meanwhile would be refused, and its client would not try it elsewhere.
            self.end_where(Phase::Aborting, |control| control.idle.lasts(now) >= limit);
        }
        let (others_wait, ConnectionLimits { stall, stop_grace, .. }) =
            (self.pool.buffers.waiting() > 0, self.limits);
        self.end_where(Phase::Aborting, |control| {
            let stalled = control.stalled_for(now);
            others_wait && stalled > stall || control.ends() && stalled > stop_grace
        });
    }

    /// Waits until one more connection of `peer` may enter, or none may for good.
    async fn room(&self, peer: Account) -> Vacancy {
        loop {
            let mut settled = pin!(self.changes.until(|| self.look_for_room(peer)));
            // Time makes room as well: a peer has been silent for long enough.
            let mut pause = pin!(compio::time::sleep(GRACE_MIN / 2));
            let outcome = poll_fn(|context| {
                self.acceptor.watch(0, context.waker());
                match settled.as_mut().poll(context) {
                    Poll::Ready(room) => Poll::Ready(Some(room)),
                    Poll::Pending => pause.as_mut().poll(context).map(|()| None),
                }
            });
            if let Some(room) = outcome.await {
                return room;
            }
        }
    }

    fn look_for_room(&self, peer: Account) -> Option<Vacancy> {
        let connections_max = self.limits.connections_max;
        let handshakes_max = connections_max.div_ceil(HANDSHAKES_SHARE);
        let capacity = Capacity { connections_max, handshakes_max };
        let room = self.table.lock().make_room(capacity, peer, self.pool.clock.now());
        match room {
            _ if self.stopping() => Some(Vacancy::No),
            Vacancy::Later => None,
            settled => Some(settled),
        }
    }

    pub(crate) async fn admit(self: &Arc<Self>, socket: OwnedFd, peer: Account, open: OpenListener) {
        let Some(entered) = self.peers.enter(peer) else { return self.refuse(peer) };
        match self.room(peer).await {
            Vacancy::Now => {}
            Vacancy::Crowded(count) => return self.refuse_for_others(peer, count),
            Vacancy::No | Vacancy::Later => return self.complain_of(self.limits.connections_max),
        }
        let (worker, load) = self.pool.emptiest();
        if load >= WORKER_CONNECTIONS_MAX {
            return self.complain_of(load * self.pool.workers());
        }
        let socket = Arc::new(socket);
        let control = Arc::new(Control::of_connection(&socket, peer));
        let guard = ConnectionGuard::new(self.clone(), (peer, entered), control.clone(), worker, open);
        let (state, client) = (self.clone(), peer_of(&socket));
        self.pool.thread(worker).post(Box::new(move || {
            let mut session = (state.new_session)();
            session.introduce(client);
            Box::pin(Connection::new(socket, session, control, state.pool.clone(), Box::new(guard)))
        }));
    }

    /// A peer has as many as each may.
    fn refuse(&self, peer: Account) {
        self.peers.refuse();
        let most = self.peers.limit().expect("without a limit nobody is refused");
        self.complain(&format!(
            "{peer}: {most} connections are open, the limit for each peer: a new one was closed"
        ));
    }

    fn refuse_for_others(&self, peer: Account, connections: usize) {
        self.peers.refuse();
        self.complain(&format!(
            "{peer}: {connections} connections are open and few places are left for others: a new one was closed"
        ));
    }

    fn complain_of(&self, connections: usize) {
        if !self.stopping() {
            self.complain(&format!("{connections} connections are open, the limit: a new one was closed"));
        }
    }

    /// Says so, but not for each connection of a flood.
    pub(crate) fn complain(&self, what: &str) {
        let now = self.pool.clock.coarse_now().as_secs() + COMPLAINT_INTERVAL_S;
        let last = self.complained_s.load(Ordering::Relaxed);
        if now >= last + COMPLAINT_INTERVAL_S {
            self.complained_s.store(now, Ordering::Relaxed);
            tracing::warn!("{what}");
        }
    }
}

/// A connection is in the table until this is dropped.
struct ConnectionGuard {
    state: Arc<ListenerState>,
    number: u64,
    _load: LoadGuard,
    _entered: PeerGuard,
    _open: OpenListener,
}

impl ConnectionGuard {
    fn new(
        state: Arc<ListenerState>,
        (peer, entered): (Account, PeerGuard),
        control: Arc<Control>,
        worker: usize,
        open: OpenListener,
    ) -> Self {
        let number = state.next_number.fetch_add(1, Ordering::Relaxed);
        let load = state.pool.add_load(worker);
        let mut table = state.table.lock();
        control.shutdown.ask(state.acceptor.phase());
        table.enter(number, peer, control, state.pool.clock.now());
        drop(table);
        Self { state, number, _load: load, _entered: entered, _open: open }
    }
}

impl Admission for ConnectionGuard {
    fn gives_way(&self, silent: Duration) -> bool {
        let gone = self.state.table.lock().gives_way(self.number, silent, self.state.pool.clock.now());
        self.state.changes.wake_all();
        gone
    }

    fn establish(&self) {
        self.state.table.lock().establish(self.number);
        self.state.changes.wake_all();
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.state.table.lock().leave(self.number);
        self.state.changes.wake_all();
    }
}
