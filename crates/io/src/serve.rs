//! Sessions on sockets: accepting, dealing connections to workers, and stopping.
//!
//! A connection is dealt to the worker with the fewest and stays there. [`Serving::stop`] ends in order: no new
//! connections, each session winds down and sends what it owes, then the sockets close. A peer that does not take its
//! replies is waited for only so long.
//!
//! Locks: the list of connections, then one connection's waker.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::Thread;
use std::time::Duration;

use spillway_core::buffer;
use spillway_core::session::Session;
use spillway_core::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};

use crate::connection::{Connection, Control, Order};
use crate::driver::WAKES_MAX;
use crate::env::yield_now;
use crate::op::{Await, Event};
use crate::socket::Listener;
use crate::workers::{Pool, Workers};

/// Makes the session of a new connection, on the worker that serves it.
pub type NewSession = Arc<dyn Fn() -> Box<dyn Session> + Send + Sync>;

/// Connections accepted in a row before other tasks get their turn.
const ACCEPTS_MAX: usize = 64;

/// Pause after the system had no descriptor or memory for a connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Seconds between two lines about the same trouble.
const COMPLAINT_INTERVAL_S: u64 = 10;

/// What a server puts up with.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; further ones are closed at once.
    pub connections_max: usize,
    /// How long a peer may refuse its replies, or send nothing of the rest of a payload, while others wait for the memory
    /// that these take.
    pub stall: Duration,
    /// The same while the server stops.
    pub stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections_max: 1024, stall: Duration::from_secs(60), stop_grace: Duration::from_secs(10) }
    }
}

/// Serves a session to each client of `listener`.
pub fn serve(listener: Listener, workers: &Workers, new_session: NewSession, limits: Limits) -> Serving {
    let pool = workers.pool().clone();
    let loads = (0..pool.workers()).map(|_| AtomicUsize::new(0)).collect();
    // A task has at most one wake in a worker's queue: half of it for connections leaves room for everything else.
    let most = pool.workers() * WAKES_MAX / 2;
    let limits = Limits { connections_max: limits.connections_max.min(most), ..limits };
    let hall = Arc::new(Hall {
        pool: pool.clone(),
        new_session,
        limits,
        loads,
        order: AtomicU32::new(Order::Serve as u32),
        open: AtomicUsize::new(0),
        connections: Mutex::new(HashMap::new()),
        next_id: AtomicU64::new(1),
        complained_s: AtomicU64::new(0),
        stopper: Mutex::new(None),
    });
    let acceptor = Arc::new(Control::new(Order::Serve));
    // The acceptor counts as open until it has ended, and the listener with it.
    let admission = Admission::new(hall.clone(), acceptor.clone(), None);
    let (host, control) = (hall.clone(), acceptor);
    pool.front().post(Box::new(move || Box::pin(accept_all(host, listener, control, admission))));
    let watched = Arc::downgrade(&hall);
    pool.front().post(Box::new(move || Box::pin(watch_stalls(watched))));
    Serving { hall: Some(hall) }
}

/// A listener and its connections.
pub struct Serving {
    // Taken by stop and abort; a drop without either aborts.
    hall: Option<Arc<Hall>>,
}

impl Serving {
    /// Connections now.
    pub fn connections(&self) -> usize {
        self.hall.as_ref().map_or(0, |hall| hall.loads.iter().map(|load| load.load(Ordering::Relaxed)).sum())
    }

    /// Stops accepting, lets every session finish what it has received and send its replies, and waits for that. Blocks:
    /// not to be called on a worker.
    pub fn stop(mut self) {
        if let Some(hall) = self.hall.take() {
            hall.order(Order::WindDown);
            hall.wait_until_empty();
        }
    }

    /// Stops accepting, ends every session where it is, and waits for that. Blocks: not to be called on a worker.
    pub fn abort(mut self) {
        if let Some(hall) = self.hall.take() {
            hall.order(Order::Abort);
            hall.wait_until_empty();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(hall) = self.hall.take() {
            hall.order(Order::Abort);
        }
    }
}

/// What acceptor, connections and [`Serving`] share.
struct Hall {
    pool: Arc<Pool>,
    new_session: NewSession,
    limits: Limits,
    /// Connections of each worker.
    loads: Vec<AtomicUsize>,
    order: AtomicU32,
    /// Connections, and the acceptor.
    open: AtomicUsize,
    connections: Mutex<HashMap<u64, Arc<Control>>>,
    next_id: AtomicU64,
    complained_s: AtomicU64,
    stopper: Mutex<Option<Thread>>,
}

impl Hall {
    fn order(&self, order: Order) {
        self.order.fetch_max(order as u32, Ordering::AcqRel);
        // Whoever is not in the list yet reads the order under the list's lock.
        let all: Vec<_> = self.connections.lock().values().cloned().collect();
        all.iter().for_each(|control| control.order(order));
    }

    fn ordered(&self) -> Order {
        Order::of(self.order.load(Ordering::Acquire))
    }

    fn stopping(&self) -> bool {
        self.ordered() != Order::Serve
    }

    fn wait_until_empty(&self) {
        *self.stopper.lock() = Some(std::thread::current());
        while self.open.load(Ordering::Acquire) > 0 {
            self.abort_stalled(self.limits.stop_grace);
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    fn abort_stalled(&self, grace: Duration) {
        let now = self.pool.clock.coarse_now();
        let all: Vec<_> = self.connections.lock().values().cloned().collect();
        for control in all.iter().filter(|control| control.stalled_for(now) > grace) {
            control.order(Order::Abort);
        }
    }

    fn admit(self: &Arc<Self>, socket: OwnedFd) {
        let open = self.open.load(Ordering::Acquire) - 1;
        if open >= self.limits.connections_max {
            self.complain(&format!("{open} connections are open, the limit: a new one was closed"));
            return;
        }
        let loads = self.loads.iter().enumerate();
        let (worker, _) =
            loads.min_by_key(|(_, load)| load.load(Ordering::Relaxed)).expect("one worker at least");
        let control = Arc::new(Control::new(Order::Serve));
        let admission = Admission::new(self.clone(), control.clone(), Some(worker));
        let hall = self.clone();
        self.pool.seat(worker).post(Box::new(move || {
            let session = (hall.new_session)();
            Box::pin(Connection::new(socket, session, control, hall.pool.clone(), admission))
        }));
    }

    /// Says so, but not for each connection of a flood.
    fn complain(&self, what: &str) {
        let now = self.pool.clock.coarse_now().as_secs() + COMPLAINT_INTERVAL_S;
        let last = self.complained_s.load(Ordering::Relaxed);
        if now >= last + COMPLAINT_INTERVAL_S {
            self.complained_s.store(now, Ordering::Relaxed);
            tracing::warn!("{what}");
        }
    }
}

/// A place in the hall; given back when dropped.
pub(crate) struct Admission {
    hall: Arc<Hall>,
    id: u64,
    worker: Option<usize>,
}

impl Admission {
    fn new(hall: Arc<Hall>, control: Arc<Control>, worker: Option<usize>) -> Self {
        let id = hall.next_id.fetch_add(1, Ordering::Relaxed);
        hall.open.fetch_add(1, Ordering::AcqRel);
        if let Some(worker) = worker {
            hall.loads[worker].fetch_add(1, Ordering::Relaxed);
        }
        let mut connections = hall.connections.lock();
        control.order(hall.ordered());
        connections.insert(id, control);
        drop(connections);
        Self { hall, id, worker }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.hall.connections.lock().remove(&self.id);
        if let Some(worker) = self.worker {
            self.hall.loads[worker].fetch_sub(1, Ordering::Relaxed);
        }
        self.hall.open.fetch_sub(1, Ordering::AcqRel);
        if let Some(stopper) = &*self.hall.stopper.lock() {
            stopper.unpark();
        }
    }
}

async fn accept_all(hall: Arc<Hall>, listener: Listener, control: Arc<Control>, admission: Admission) {
    while !hall.stopping() {
        match accept_some(&hall, &listener).await {
            Ok(()) => await_connection(&listener, &control).await,
            Err(error) => {
                hall.complain(&format!(
                    "no connection could be accepted on {listener}: {error}; trying again"
                ));
                compio::time::sleep(SHORTAGE_PAUSE).await;
            }
        }
    }
    drop(listener);
    drop(admission);
}

/// Accepts until nobody waits. An error is a shortage: it will come again at once.
async fn accept_some(hall: &Arc<Hall>, listener: &Listener) -> io::Result<()> {
    for count in 1.. {
        match listener.accept() {
            Ok(socket) => hall.admit(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if is_shortage(&error) => return Err(error),
            // The connection died before it was taken; the next one may live.
            Err(_) => {}
        }
        if hall.stopping() {
            break;
        }
        if count % ACCEPTS_MAX == 0 {
            yield_now().await;
        }
    }
    Ok(())
}

fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EINVAL, libc::EBADF].contains(&errno)
}

/// Waits for a connection or an order.
async fn await_connection(listener: &Listener, control: &Control) {
    let mut readable = compio::runtime::submit(Await { fd: listener.fd.clone(), event: Event::Readable });
    poll_fn(|context| {
        control.listen(context.waker());
        if control.ordered() != Order::Serve {
            return Poll::Ready(());
        }
        Pin::new(&mut readable).poll(context).map(|_| ())
    })
    .await;
}

/// While somebody waits for buffers, closes the connections that have long not taken theirs, or not
/// sent the rest of what they began.
async fn watch_stalls(hall: std::sync::Weak<Hall>) {
    loop {
        compio::time::sleep(Duration::from_secs(1)).await;
        let Some(hall) = hall.upgrade() else { return };
        if buffer::waiting() > 0 {
            hall.abort_stalled(hall.limits.stall);
        }
    }
}
