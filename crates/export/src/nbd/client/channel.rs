//! The calls for one connection.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use super::call::PendingCall;
use super::negotiation::Described;

/// What a connection is to do next.
pub(super) enum ChannelWork {
    Call(PendingCall),
    /// Wait.
    Nothing,
    /// Nobody needs the connection any more: end once everything is answered.
    Leave,
    /// End at once.
    Close,
}

/// How far the connection of a channel is.
#[derive(Clone, Default)]
pub(super) enum ConnectionState {
    #[default]
    Begun,
    Established(Described),
    /// Why it is over.
    Ended(String),
}

/// Whether the connection of a channel is to end.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Closing {
    #[default]
    No,
    /// Once all that was sent is answered: nothing of it lands after what another connection sends.
    Answered,
    AtOnce,
}

/// The calls for one connection.
#[derive(Default)]
pub(super) struct Channel {
    /// The round of its connection.
    pub(super) round: u64,
    pub(super) progress: ConnectionState,
    /// Whether calls are sent, and not only what is replayed.
    pub(super) open: bool,
    pub(super) closing: Closing,
    pub(super) calls: VecDeque<PendingCall>,
    pub(super) replays: VecDeque<PendingCall>,
    pub(super) waker: Option<Waker>,
}

impl Channel {
    /// When the oldest of the calls was first sent, by whatever connection.
    pub(super) fn first_sent(&self) -> Option<Duration> {
        self.calls.iter().filter_map(|call| call.first_sent).min()
    }
}
