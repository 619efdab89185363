//! What the two ends of a stream share: a pipe in each direction, and who waits for news of them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use spillway_core::sync::WaitList;

use crate::pace::{Chance, Pace};

/// What a stream is like.
#[derive(Clone, Copy, Debug)]
pub struct StreamShape {
    /// Bytes that it holds in each direction, at least one.
    pub room: usize,
    /// How fast its ends are.
    pub pace: Pace,
}

/// How the server's end has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOutcome {
    /// The session has finished, and everything that it had to say is sent or lost with its client.
    Finished,
    /// The client has closed first, and the session has hung up.
    HungUp,
}

/// Whose end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// One direction.
pub(super) struct Pipe {
    pub(super) bytes: RefCell<VecDeque<u8>>,
    room: usize,
    /// No more is put in; or nobody takes out any more.
    pub(super) closed: Cell<bool>,
}

impl Pipe {
    pub(super) fn new(room: usize) -> Self {
        Self { bytes: RefCell::default(), room: room.max(1), closed: Cell::default() }
    }

    /// Puts in what fits of `bytes`, and says how many that were.
    pub(super) fn put(&self, bytes: &[u8]) -> usize {
        let mut held = self.bytes.borrow_mut();
        let count = bytes.len().min(self.room - held.len());
        held.extend(&bytes[..count]);
        assert!(held.len() <= self.room, "a pipe holds no more than it has room for");
        count
    }

    /// Takes out at most `count_max` bytes.
    pub(super) fn take(&self, count_max: usize) -> Vec<u8> {
        let mut held = self.bytes.borrow_mut();
        let count = count_max.min(held.len());
        let (first, second) = held.as_slices();
        let from_first = count.min(first.len());
        let taken = [&first[..from_first], &second[..count - from_first]].concat();
        held.drain(..count);
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.borrow().is_empty()
    }
}

/// What both ends share.
pub(super) struct Ends {
    pub(super) to_server: Pipe,
    pub(super) to_client: Pipe,
    /// Wakes the client's tasks.
    pub(super) news: WaitList,
    /// Wake the task of an end that has a session.
    pub(super) server: RefCell<Option<Waker>>,
    pub(super) client: RefCell<Option<Waker>>,
    pub(super) outcome: Cell<Option<SessionOutcome>>,
    /// Nothing arrives at an end that has a session, not even that the other has closed.
    pub(super) silent: Cell<bool>,
    pub(super) chance: Chance,
}

impl Ends {
    /// The task of that side is woken from now on.
    pub(super) fn register(&self, side: Side, waker: &Waker) {
        let place = if side == Side::Server { &self.server } else { &self.client };
        *place.borrow_mut() = Some(waker.clone());
    }

    /// Has the server's task look again.
    pub(super) fn wake_server(&self) {
        let waker = self.server.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Has the client's tasks look again.
    pub(super) fn wake_client(&self) {
        let waker = self.client.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
        self.news.wake_all();
    }

    pub(super) fn wake_peer_of(&self, side: Side) {
        if side == Side::Server { self.wake_client() } else { self.wake_server() }
    }

    /// Whether an end with a session knows that `pipe` is closed.
    pub(super) fn is_closed(&self, pipe: &Pipe) -> bool {
        pipe.closed.get() && !self.silent.get()
    }

    /// Nothing arrives from now on, or all that is on its way does.
    pub(super) fn set_silent(&self, silent: bool) {
        if self.silent.replace(silent) && !silent {
            self.wake_server();
            self.wake_client();
        }
    }

    /// Both directions are closed, and what was under way is lost.
    pub(super) fn cut(&self) {
        self.silent.set(false);
        for pipe in [&self.to_server, &self.to_client] {
            pipe.closed.set(true);
            pipe.bytes.borrow_mut().clear();
        }
        self.wake_server();
        self.wake_client();
    }
}
