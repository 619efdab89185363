//! Sessions on sockets: accepting, dealing connections to workers, and stopping.
//!
//! A connection is dealt to the worker with the fewest, whichever socket they came from, and stays there. [`Serving::stop`] ends in order: no new
//! connections, each session winds down and sends what it owes, then the sockets close. A peer that does not take its
//! replies is waited for only so long.
//!
//! Locks: the roll of connections, then one connection's waker.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::thread::Thread;
use std::time::Duration;

use spillway_core::session::Session;
use spillway_core::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, WaitList};

use crate::connection::Connection;
use crate::control::{Admission, Control, Order};
use crate::driver::WAKES_MAX;
use crate::env::yield_now;
use crate::op::{Await, Event};
use crate::pool::Pool;
use crate::roll::{Capacity, GRACE_MIN, Roll, Vacancy};
use crate::socket::{Listener, peer_of};
use crate::workers::Workers;

/// Makes the session of a new connection, on the worker that serves it.
pub type NewSession = Arc<dyn Fn() -> Box<dyn Session> + Send + Sync>;

/// Connections accepted in a row before other tasks get their turn.
const ACCEPTS_MAX: usize = 64;

/// Part of a socket's connections that may shake hands at a time: one in so many.
const HANDSHAKES_SHARE: usize = 4;

/// Connections of one worker, from all sockets. A task has at most one wake in a worker's queue: half of it leaves room for
/// everything else.
const WORKER_CONNECTIONS_MAX: usize = WAKES_MAX / 2;

/// How often stalls and old handshakes are looked for, at least.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after the system had no descriptor or memory for a connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Seconds between two lines about the same trouble.
const COMPLAINT_INTERVAL_S: u64 = 10;

/// What a server puts up with.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; further ones are closed at once. A quarter of them may be unfinished handshakes, of which the
    /// oldest give way to newcomers where their peers are silent.
    pub connections_max: usize,
    /// Age at which an unfinished handshake is closed.
    pub handshake: Duration,
    /// How far a peer may be behind 64 KiB a second in taking its replies, or in sending the rest of a payload, while others
    /// wait for the memory that these take.
    pub stall: Duration,
    /// The same while the server stops.
    pub stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(60),
            stop_grace: Duration::from_secs(10),
        }
    }
}

/// Serves a session to each client of `listener`.
pub fn serve(listener: Listener, workers: &Workers, new_session: NewSession, limits: Limits) -> Serving {
    let pool = workers.pool().clone();
    let acceptor = Arc::new(Control::new(Order::Serve));
    let hall = Arc::new(Hall {
        pool: pool.clone(),
        new_session,
        limits,
        order: AtomicU32::new(Order::Serve as u32),
        // The acceptor counts as open until it has ended, and the listener with it.
        open: AtomicUsize::new(1),
        acceptor,
        roll: Mutex::default(),
        changes: WaitList::default(),
        next_number: AtomicU64::new(1),
        complained_s: AtomicU64::new(0),
        stopper: Mutex::new(None),
    });
    let accepting = Accepting(hall.clone());
    pool.front().post(Box::new(move || Box::pin(accept_all(accepting, listener))));
    let watched = Arc::downgrade(&hall);
    pool.front().post(Box::new(move || Box::pin(watch(watched, limits))));
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
        self.hall.as_ref().map_or(0, |hall| hall.roll.lock().len())
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
    order: AtomicU32,
    /// Connections, and the acceptor.
    open: AtomicUsize,
    acceptor: Arc<Control>,
    roll: Mutex<Roll>,
    /// Woken when a handshake is complete or a connection gone.
    changes: WaitList,
    next_number: AtomicU64,
    complained_s: AtomicU64,
    stopper: Mutex<Option<Thread>>,
}

impl Hall {
    fn order(&self, order: Order) {
        self.order.fetch_max(order as u32, Ordering::AcqRel);
        self.acceptor.order(order);
        // A connection that is not in the roll yet reads the order under its lock.
        let all = self.roll.lock().controls();
        all.iter().for_each(|control| control.order(order));
    }

    fn ordered(&self) -> Order {
        Order::of(self.order.load(Ordering::Acquire))
    }

    /// A connection, or the acceptor, is gone.
    fn leave(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
        if let Some(stopper) = &*self.stopper.lock() {
            stopper.unpark();
        }
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
        let all = self.roll.lock().controls();
        for control in all.iter().filter(|control| control.stalled_for(now) > grace) {
            control.order(Order::Abort);
        }
    }

    fn close_old_handshakes(&self) {
        self.roll.lock().close_older_than(self.limits.handshake, self.pool.clock.now());
    }

    /// Waits until one more connection may enter; false where all places are taken for good.
    async fn room(&self) -> bool {
        loop {
            let mut settled = pin!(self.changes.until(|| self.look_for_room()));
            // Time makes room as well: a peer has been silent for long enough.
            let mut pause = pin!(compio::time::sleep(GRACE_MIN / 2));
            let outcome = poll_fn(|context| {
                self.acceptor.listen(context.waker());
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

    fn look_for_room(&self) -> Option<bool> {
        let connections_max = self.limits.connections_max;
        let handshakes_max = connections_max.div_ceil(HANDSHAKES_SHARE);
        let capacity = Capacity { connections_max, handshakes_max };
        let room = self.roll.lock().make_room(capacity, self.pool.clock.now());
        match room {
            _ if self.stopping() => Some(false),
            Vacancy::Now => Some(true),
            Vacancy::Later => None,
            Vacancy::No => Some(false),
        }
    }

    async fn admit(self: &Arc<Self>, socket: OwnedFd) {
        if !self.room().await {
            return self.complain_of(self.limits.connections_max);
        }
        let (worker, load) = self.pool.emptiest();
        if load >= WORKER_CONNECTIONS_MAX {
            return self.complain_of(load * self.pool.workers());
        }
        let control = Arc::new(Control::new(Order::Serve));
        let guard = ConnectionGuard::new(self.clone(), control.clone(), worker);
        let (hall, peer) = (self.clone(), peer_of(&socket));
        self.pool.thread(worker).post(Box::new(move || {
            let mut session = (hall.new_session)();
            session.introduce(peer);
            Box::pin(Connection::new(socket, session, control, hall.pool.clone(), Box::new(guard)))
        }));
    }

    fn complain_of(&self, connections: usize) {
        if !self.stopping() {
            self.complain(&format!("{connections} connections are open, the limit: a new one was closed"));
        }
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

/// A connection is in the roll until this is dropped.
struct ConnectionGuard {
    hall: Arc<Hall>,
    number: u64,
    worker: usize,
}

impl ConnectionGuard {
    fn new(hall: Arc<Hall>, control: Arc<Control>, worker: usize) -> Self {
        let number = hall.next_number.fetch_add(1, Ordering::Relaxed);
        hall.open.fetch_add(1, Ordering::AcqRel);
        hall.pool.thread(worker).connections.fetch_add(1, Ordering::Relaxed);
        let mut roll = hall.roll.lock();
        control.order(hall.ordered());
        roll.enter(number, control, hall.pool.clock.now());
        drop(roll);
        Self { hall, number, worker }
    }
}

impl Admission for ConnectionGuard {
    fn gives_way(&self, silent: Duration) -> bool {
        let gone = self.hall.roll.lock().gives_way(self.number, silent, self.hall.pool.clock.now());
        self.hall.changes.wake_all();
        gone
    }

    fn establish(&self) {
        self.hall.roll.lock().establish(self.number);
        self.hall.changes.wake_all();
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.hall.roll.lock().leave(self.number);
        self.hall.pool.thread(self.worker).connections.fetch_sub(1, Ordering::Relaxed);
        self.hall.changes.wake_all();
        self.hall.leave();
    }
}

/// The acceptor's place in the hall; given back when dropped.
struct Accepting(Arc<Hall>);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.leave();
    }
}

async fn accept_all(accepting: Accepting, listener: Listener) {
    let hall = accepting.0.clone();
    while !hall.stopping() {
        match accept_some(&hall, &listener).await {
            Ok(()) => await_connection(&listener, &hall.acceptor).await,
            Err(error) => {
                hall.complain(&format!(
                    "no connection could be accepted on {listener}: {error}; trying again"
                ));
                compio::time::sleep(SHORTAGE_PAUSE).await;
            }
        }
    }
    drop(listener);
    drop(accepting);
}

/// Accepts until nobody waits. An error is a shortage: it will come again at once.
async fn accept_some(hall: &Arc<Hall>, listener: &Listener) -> io::Result<()> {
    for count in 1.. {
        match listener.accept() {
            Ok(socket) => hall.admit(socket).await,
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

/// Closes handshakes that last too long and, while others wait for buffers, the connections that are too slow to take
/// theirs or to send the rest of what they began.
async fn watch(hall: std::sync::Weak<Hall>, limits: Limits) {
    let interval = WATCH_INTERVAL.min(limits.stall / 2).min(limits.handshake / 2).max(GRACE_MIN);
    loop {
        compio::time::sleep(interval).await;
        let Some(hall) = hall.upgrade() else { return };
        hall.close_old_handshakes();
        if hall.pool.buffers.waiting() > 0 {
            hall.abort_stalled(hall.limits.stall);
        }
    }
}
