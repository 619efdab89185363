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

impl Side {
    pub(super) fn peer(self) -> Self {
        if self == Self::Server { Self::Client } else { Self::Server }
    }
}

/// One direction.
pub(super) struct Pipe {
    pub(super) bytes: RefCell<VecDeque<u8>>,
    room: usize,
}

impl Pipe {
    fn new(room: usize) -> Self {
        Self { bytes: RefCell::default(), room: room.max(1) }
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
    /// To each side.
    pipes: [Pipe; 2],
    /// One of them has closed.
    pub(super) closed: Cell<bool>,
    /// Wakes the client's tasks.
    pub(super) news: WaitList,
    /// Wake the task of each side that has a session.
    wakers: [RefCell<Option<Waker>>; 2],
    pub(super) outcome: Cell<Option<SessionOutcome>>,
    /// Nothing arrives at an end that has a session, not even that the other has closed.
    pub(super) silent: Cell<bool>,
    pub(super) chance: Chance,
}

impl Ends {
    pub(super) fn new(shape: StreamShape, seed: u64) -> Self {
        Self {
            pipes: [Pipe::new(shape.room), Pipe::new(shape.room)],
            closed: Cell::default(),
            news: WaitList::default(),
            wakers: [RefCell::default(), RefCell::default()],
            outcome: Cell::default(),
            silent: Cell::default(),
            chance: Chance::new(seed),
        }
    }

    /// What is on its way to that side.
    pub(super) fn to(&self, side: Side) -> &Pipe {
        &self.pipes[side as usize]
    }

    /// The task of that side is woken from now on.
    pub(super) fn register(&self, side: Side, waker: &Waker) {
        *self.wakers[side as usize].borrow_mut() = Some(waker.clone());
    }

    /// Has the tasks of that side look again.
    pub(super) fn wake(&self, side: Side) {
        let waker = self.wakers[side as usize].borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
        if side == Side::Client {
            self.news.wake_all();
        }
    }

    /// Whether an end with a session knows that one is closed.
    pub(super) fn is_known_closed(&self) -> bool {
        self.closed.get() && !self.silent.get()
    }

    /// Nothing arrives from now on, or all that is on its way does.
    pub(super) fn set_silent(&self, silent: bool) {
        if self.silent.replace(silent) && !silent {
            self.wake_both();
        }
    }

    /// One end has closed.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.wake_both();
    }

    /// Both ends are closed, and what was under way is lost.
    pub(super) fn cut(&self) {
        self.silent.set(false);
        self.pipes.iter().for_each(|pipe| pipe.bytes.borrow_mut().clear());
        self.close();
    }

    fn wake_both(&self) {
        self.wake(Side::Server);
        self.wake(Side::Client);
    }

    /// Waits until the server's session is gone.
    pub(super) async fn over(&self) -> SessionOutcome {
        self.news.until(|| self.outcome.get()).await
    }
}
