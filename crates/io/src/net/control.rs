//! What stands between a server and each of its connections: its end, and how far the peer is behind.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::Shutdown;
use spillway_core::sync::{AtomicBool, AtomicU64, Ordering};

use crate::net::peer::{self, Account};

/// Bytes a second that a peer has to send of a payload that it began, and to take of its replies.
pub(crate) const RATE_MIN: u64 = 64 << 10;

/// The server's hand on a connection.
#[derive(Default)]
pub(crate) struct Control {
    pub(crate) shutdown: Shutdown,
    /// A new connection waits for the place of this handshake.
    asked: AtomicBool,
    /// The conversation ends.
    ends: AtomicBool,
    /// What the peer has to take.
    pub(crate) untaken: Stall,
    /// The rest of what the peer has begun to send.
    pub(crate) owing: Stall,
    /// Nothing is asked of the server, nothing is due, and nothing comes.
    pub(crate) idle: Stall,
    /// Of a TCP connection.
    socket: Option<Arc<OwnedFd>>,
}

impl Control {
    /// That of a connection from `peer` on `socket`.
    pub(crate) fn of_connection(socket: &Arc<OwnedFd>, peer: Account) -> Self {
        let socket = (!matches!(peer, Account::User(_))).then(|| socket.clone());
        Self { socket, ..Self::default() }
    }

    /// Whether the host of the connection has vanished.
    pub(crate) fn has_vanished(&self) -> bool {
        self.socket.as_deref().is_some_and(peer::has_vanished)
    }

    /// Asks for the place of this handshake; the connection answers in its turn.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.shutdown.wake();
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// The connection is about to answer.
    pub(crate) fn hear(&self) {
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Notes whether the conversation ends once what is pending is answered; one that does never goes on.
    pub(crate) fn note_end(&self, ends: bool) {
        if ends && !self.ends() {
            self.ends.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// How far the peer is behind [`RATE_MIN`] with memory that is held for it.
    pub(crate) fn stalled_for(&self, now: Duration) -> Duration {
        self.untaken.lasts(now).max(self.owing.lasts(now))
    }
}

/// How far a peer is behind with something that it has to send or to take.
///
/// It is behind by the time since that began, less a second for each [`RATE_MIN`] bytes: at that rate it never is, and at
/// half of it by half of the time. Written by the connection's worker only.
#[derive(Default)]
pub(crate) struct Stall {
    /// Coarse microseconds plus one, moved on by what came; 0 while nothing is due.
    since: AtomicU64,
}

impl Stall {
    /// Something is due from now on, if nothing was.
    pub(crate) fn begin(&self, now: Duration) {
        if self.since.load(Ordering::Relaxed) == 0 {
            self.since.store(micros(now) + 1, Ordering::Relaxed);
        }
    }

    /// So much of it came.
    pub(crate) fn progress(&self, bytes: usize, now: Duration) {
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 {
            let paid = bytes as u64 * 1_000_000 / RATE_MIN;
            self.since.store((since + paid).min(micros(now) + 1), Ordering::Relaxed);
        }
    }

    /// Nothing is due any more.
    pub(crate) fn end(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// For how long.
    pub(crate) fn lasts(&self, now: Duration) -> Duration {
        match self.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_sub(Duration::from_micros(since - 1)),
        }
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// A connection's place in the server that admitted it; given back when dropped.
pub(crate) trait Admission {
    /// The answer of a connection that was asked to give way, whose peer has been `silent` for so long. True if it has to go.
    fn gives_way(&self, silent: Duration) -> bool;

    /// The connection's handshake is complete.
    fn establish(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_stall_lasts_until_the_end_of_what_is_due() {
        let control = Control::default();
        control.untaken.begin(secs(1));
        control.untaken.begin(secs(5));
        control.owing.begin(secs(9));
        assert_eq!(control.stalled_for(secs(11)), secs(10));
        control.untaken.end();
        assert_eq!(control.stalled_for(secs(11)), secs(2));
        control.owing.end();
        assert_eq!(control.stalled_for(secs(11)), Duration::ZERO);
    }

    /// How far a peer is behind after a minute in which it sent so many bytes each second.
    fn behind_after_a_minute(bytes_a_second: u64) -> Duration {
        let control = Control::default();
        control.owing.begin(secs(100));
        for second in 101..=160 {
            control.owing.progress(bytes_a_second as usize, secs(second));
        }
        control.stalled_for(secs(160))
    }

    #[test]
    fn a_trickle_is_a_stall_and_the_least_rate_is_none() {
        assert!(behind_after_a_minute(1) > Duration::from_millis(59_990));
        assert_eq!(behind_after_a_minute(RATE_MIN / 2), secs(30));
        assert_eq!(behind_after_a_minute(RATE_MIN), Duration::ZERO);
        assert_eq!(behind_after_a_minute(RATE_MIN * 100), Duration::ZERO);
    }

    #[test]
    fn nobody_saves_up_for_later() {
        let control = Control::default();
        control.owing.begin(secs(1));
        control.owing.progress(1 << 30, secs(2));
        assert_eq!(control.stalled_for(secs(62)), secs(60));
        control.owing.end();
        control.owing.progress(1 << 20, secs(70));
        assert_eq!(control.stalled_for(secs(80)), Duration::ZERO, "nothing is due");
    }
}
