//! A connection to a session that ships, over a stream that is late, cut into pieces and broken.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use spillway_core::session::Session;
use spillway_core::sync::{Semaphore, WaitList};
use spillway_core::{IoBuf, Op, Reply, Request};
use spillway_sim::stream::{SessionOutcome, Stream, StreamShape};
use spillway_sim::world::World;

use super::{Connection, Style, hello};

/// One connection.
pub(crate) struct Link {
    stream: Stream,
    connection: RefCell<Connection>,
    /// Requests are sent one after the other.
    sending: Semaphore,
    news: WaitList,
    /// Nothing more comes from the server.
    gone: Cell<bool>,
}

impl Link {
    /// Connects to `session`.
    pub(crate) fn new(
        world: &Arc<World>,
        session: Box<dyn Session>,
        style: Style,
        shape: StreamShape,
        seed: u64,
    ) -> Self {
        Self {
            stream: Stream::connect(world, session, shape, seed),
            connection: RefCell::new(Connection::new(style)),
            sending: Semaphore::new(1),
            news: WaitList::default(),
            gone: Cell::default(),
        }
    }

    /// Waits until the session is gone.
    pub(crate) async fn over(&self) -> SessionOutcome {
        self.stream.over().await
    }

    /// Closes it in the midst of whatever is sent.
    pub(crate) fn close(&self) {
        self.stream.close();
    }

    /// Whether one of its ends has closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.stream.is_closed()
    }

    /// Whether it has come as far as requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.connection.borrow().is_ready()
    }

    /// The connection is ready for requests to `export`; false where it has ended before.
    pub(crate) async fn ready(&self, export: &str) -> bool {
        let hello = hello(self.connection.borrow().style, export);
        if !self.stream.send(&hello).await {
            return false;
        }
        let ended = || self.gone.get() || self.connection.borrow().is_refused();
        let ready = || self.is_ready().then_some(true);
        let ready = self.news.until(|| ready().or(ended().then_some(false))).await;
        if !ready {
            self.stream.close();
        }
        ready
    }

    /// Takes what the server sends, until its session is gone.
    pub(crate) async fn listen(&self) {
        let mut bytes = Vec::new();
        while self.stream.receive(&mut bytes).await {
            self.connection.borrow_mut().receive(&mut bytes);
            self.news.wake_all();
        }
        self.stream.close();
        self.gone.set(true);
        self.news.wake_all();
        self.over().await;
    }

    /// Carries out `request` with this payload; nothing where the connection ends first.
    pub(crate) async fn ask(&self, request: Request, payload: Vec<u8>) -> Option<Reply> {
        let (reads, len) = (request.op == Op::Read, payload.len());
        let cookie = {
            let _turn = self.sending.hold().await;
            let (cookie, bytes) = self.connection.borrow_mut().request(&request, &payload);
            self.stream.send(&bytes).await.then_some(cookie)?
        };
        let completion = || self.connection.borrow_mut().take_completion(cookie);
        let completion = self.news.until(|| completion().map(Some).or(self.gone.get().then_some(None)));
        let (result, data) = completion.await?;
        let mut buf = IoBuf::new(len);
        if reads {
            buf.copy_from_slice(&data);
        }
        Some(Reply { result, buf })
    }
}
