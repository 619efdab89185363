//! Sessions on sockets: accepting, dealing connections to workers, and stopping.
//!
//! A connection is dealt to the worker with the fewest, whichever socket they came from, and stays there. [`Serving::stop`] ends in order: no new
//! connections, each session winds down and sends what it owes, then the sockets close. A peer that does not take its
//! replies is waited for only so long.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::{Job, Phase, Shutdown, task};

use crate::net::listener_state::{ConnectionLimits, ListenerState, NewSession, OpenListener};
use crate::net::socket::Listener;
use crate::net::table::GRACE_MIN;
use crate::runtime::env::yield_now;
use crate::runtime::op::{Awaited, Readiness, shortage_passes};
use crate::runtime::workers::Workers;

/// Connections accepted in a row before other tasks get their turn.
const ACCEPTS_MAX: usize = 64;

/// How often stalls and old handshakes are looked for, at least.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Serves a session to each client of `listener`.
pub fn serve(
    listener: Listener,
    workers: &Workers,
    new_session: NewSession,
    limits: ConnectionLimits,
) -> Serving {
    let pool = workers.pool().clone();
    let state = Arc::new(ListenerState::new(pool.clone(), new_session, limits, listener.peers.clone()));
    let ((ended, report), of) = (Job::new(), state.clone());
    pool.front().post(task(move || accept_all(Arc::new(report), of, listener)));
    let watched = Arc::downgrade(&state);
    pool.front().post(Box::new(move || Box::pin(watch(watched, limits))));
    Serving { state, ended: Some(ended) }
}

/// A listener and its connections.
pub struct Serving {
    state: Arc<ListenerState>,
    // Taken by stop and abort; a drop without either aborts.
    ended: Option<Job<()>>,
}

impl Serving {
    /// Connections now.
    pub fn connections(&self) -> usize {
        self.state.connections()
    }

    /// Stops accepting, and lets every session finish what it has received and send its replies. The future waits for that.
    pub fn stop(self) -> impl Future<Output = ()> + 'static {
        self.end(Phase::Draining)
    }

    /// Stops accepting, and ends every session where it is. The future waits for that.
    pub fn abort(self) -> impl Future<Output = ()> + 'static {
        self.end(Phase::Aborting)
    }

    fn end(mut self, phase: Phase) -> impl Future<Output = ()> + 'static {
        let ended = self.ended.take().expect("it ends once");
        self.state.end(phase);
        async move { _ = ended.await }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.ended.is_some() {
            self.state.end(Phase::Aborting);
        }
    }
}

async fn accept_all(open: OpenListener, state: Arc<ListenerState>, listener: Listener) {
    while !state.stopping() {
        match accept_some(&state, &open, &listener).await {
            Ok(()) => await_connection(&listener, &state.acceptor).await,
            Err(error) => {
                state.complain(&format!(
                    "no connection could be accepted on {listener}: {error}; trying again"
                ));
                shortage_passes().await;
            }
        }
    }
    drop(listener);
    drop(open);
}

/// Accepts until nobody waits. An error is a shortage: it will come again at once.
async fn accept_some(state: &Arc<ListenerState>, open: &OpenListener, listener: &Listener) -> io::Result<()> {
    for count in 1.. {
        match listener.accept() {
            Ok((socket, peer)) => state.admit(socket, peer, open.clone()).await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The connection died before it was taken; the next one may live.
            Err(error) if is_of_connection(&error) => {}
            Err(error) => return Err(error),
        }
        if state.stopping() {
            break;
        }
        if count % ACCEPTS_MAX == 0 {
            yield_now().await;
        }
    }
    Ok(())
}

/// Whether accept(2) reports an error of the connection that it takes off the queue, and none of its own.
fn is_of_connection(error: &io::Error) -> bool {
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    let of_connection = [
        libc::ECONNABORTED,
        libc::EINTR,
        libc::ENETDOWN,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EHOSTUNREACH,
        libc::EOPNOTSUPP,
        libc::ENETUNREACH,
    ];
    of_connection.contains(&errno)
}

/// Waits for a connection or the end.
pub(crate) async fn await_connection(listener: &Listener, acceptor: &Shutdown) {
    let readable = Awaited::new(&listener.fd, Readiness::Readable);
    acceptor.unless(Phase::Draining, readable).await;
}

/// Closes connections that are late with something, from time to time.
async fn watch(state: std::sync::Weak<ListenerState>, limits: ConnectionLimits) {
    let shortest = limits.stall.min(limits.handshake).min(limits.stop_grace);
    let interval = WATCH_INTERVAL.min(shortest / 2).max(GRACE_MIN);
    loop {
        compio::time::sleep(interval).await;
        let Some(state) = state.upgrade() else { return };
        state.close_late();
    }
}
