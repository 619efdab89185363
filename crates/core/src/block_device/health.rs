//! How a server of data is, as people see it: whether it answers, and whether it has room. Each change is said once.

use std::time::Duration;

use crate::block_device::storage::ConnectionStatus;
use crate::sync::Mutex;

/// How long a server refuses no write before it counts as full no longer. Longer than caches pause between two tries: no answer says that
/// there is room, because a write over an older one is never refused.
pub const ROOM_AFTER: Duration = Duration::from_secs(15);

/// Whether a server answers, by place in [`ConnectionStatus::STATES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It answers.
    Up = 1,
    /// Calls wait.
    Silent,
    /// Calls fail.
    Failing,
    /// Another client has taken the data over, for good.
    Fenced,
}

/// How a server is.
pub struct ServerHealth(Mutex<Now>);

struct Now {
    state: ServerState,
    since: Duration,
    lost: u64,
    /// Where it has no room: since when, and when it last refused a write.
    refusals: Option<(Duration, Duration)>,
}

impl ServerHealth {
    /// Of a server that is in `state` from `since` on.
    pub fn new(state: ServerState, since: Duration) -> Self {
        Self(Mutex::new(Now { state, since, lost: 0, refusals: None }))
    }

    /// Its state, and since when.
    pub fn state(&self) -> (ServerState, Duration) {
        let now = self.0.lock();
        (now.state, now.since)
    }

    /// It is in `state` now: how long it was in another, which people are told. `None` where nothing changes: calls that fail do so until
    /// one is answered.
    pub fn enter(&self, state: ServerState, at: Duration) -> Option<Duration> {
        let mut now = self.0.lock();
        let ended = now.state == ServerState::Fenced || now.state == state;
        if ended || (now.state, state) == (ServerState::Failing, ServerState::Silent) {
            return None;
        }
        let lasted = at.saturating_sub(now.since);
        now.lost += u64::from(now.state == ServerState::Up);
        (now.state, now.since) = (state, at);
        Some(lasted)
    }

    /// A write was refused for lack of room; true for the first one, which people are told of.
    pub fn refused(&self, at: Duration) -> bool {
        let mut now = self.0.lock();
        let since = now.refusals.map_or(at, |(since, _)| since);
        now.refusals.replace((since, at)).is_none()
    }

    /// Whether there is room again, as no write was refused for [`ROOM_AFTER`]; true once, for the call that people are told of.
    pub fn regains_room(&self, at: Duration) -> bool {
        self.0.lock().refusals.take_if(|&mut (_, last)| at >= last + ROOM_AFTER).is_some()
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.0.lock().refusals.is_some()
    }

    /// How it is at that time, for people.
    pub fn connection(&self, at: Duration) -> ConnectionStatus {
        let now = self.0.lock();
        let full = now.refusals.map(|(since, _)| since);
        let state = if now.state == ServerState::Up && full.is_some() { 5 } else { now.state as usize };
        ConnectionStatus {
            state: ConnectionStatus::STATES[state],
            lasts: at.saturating_sub(full.map_or(now.since, |since| since.max(now.since))),
            lost: now.lost,
            unflushed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_does_so_until_an_answer_and_what_is_fenced_for_good() {
        let at = Duration::from_secs;
        let health = ServerHealth::new(ServerState::Silent, at(0));
        assert_eq!(health.enter(ServerState::Up, at(1)), Some(at(1)));
        assert_eq!(health.enter(ServerState::Failing, at(3)), Some(at(2)));
        assert_eq!(health.enter(ServerState::Silent, at(4)), None);
        assert_eq!((health.state(), health.connection(at(5)).lost), ((ServerState::Failing, at(3)), 1));
        assert_eq!(health.enter(ServerState::Fenced, at(6)), Some(at(3)));
        assert_eq!(health.enter(ServerState::Up, at(7)), None);
    }

    #[test]
    fn no_room_lasts_until_nothing_was_refused_for_a_while() {
        let at = Duration::from_secs;
        let health = ServerHealth::new(ServerState::Up, at(0));
        assert!(!health.is_full() && !health.regains_room(at(100)));
        assert!(health.refused(at(100)) && !health.refused(at(110)));
        assert!(!health.regains_room(at(124)));
        assert_eq!(health.connection(at(124)).lasts, at(24));
        assert!(health.regains_room(at(125)) && !health.regains_room(at(126)));
        assert!(!health.is_full() && health.refused(at(130)));
    }
}
