//! Clients that reach a device over NBD: through the sessions that ship, over streams that are late, cut into pieces and broken.
//!
//! Several clients share a connection, so that requests overtake each other in it and all are lost with it. A request that is
//! withdrawn closes its connection in the midst of whatever is sent; the next one opens another. What was lost may still be
//! carried out until the session is gone.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spillway_core::buffer::{Buffers, bytes_for};
use spillway_core::random::Random;
use spillway_core::sync::{Semaphore, WaitList};
use spillway_core::{Aligned, Env, Error, IoBuf, Op, Reply, Request, SECTOR};
use spillway_export::nbd::{CONNECTION_BYTES, Config, NbdSession};
use spillway_export::{Export, Exports, Reserved};
use spillway_sim::stream::{Outcome, Shape, Stream};
use spillway_sim::world::World;

use crate::nbd::{Connection, Style};

/// Name of the export.
const NAME: &str = "device";

/// Connections at a time.
const LINKS_MAX: u64 = 3;

/// How clients reach the device in a story.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub(crate) style: Style,
    links: u64,
    requests_max: usize,
    held_bytes_max: usize,
    shape: Shape,
    /// Buffers have hardly room for two requests.
    short: bool,
    seed: u64,
}

impl Way {
    /// A way of its own for each `random`.
    pub fn draw(random: &mut Random) -> Self {
        let mut one_of = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        let style = [Style::Simple, Style::Structured, Style::Extended][one_of(&[0, 1, 2]) as usize];
        let room = one_of(&[700, 5_000, 1 << 20, 1 << 20]) as usize;
        let turn = one_of(&[15, 60, 2_000]) as u32;
        let delay = Duration::from_micros(one_of(&[0, 20, 500, 20_000]));
        Self {
            style,
            links: one_of(&[1, 2, LINKS_MAX]),
            requests_max: one_of(&[1, 3, 1024]) as usize,
            held_bytes_max: one_of(&[6_000, 20 << 10, 8 << 20]) as usize,
            shape: Shape { room, turn, delay },
            short: one_of(&[0, 0, 1]) == 1,
            seed: random.draw(),
        }
    }

    /// Buffers for it, where the longest request is of so many sectors.
    pub(crate) fn buffers(&self, sectors: u64) -> Buffers {
        match self.short {
            true => Buffers::new(2 * longest(sectors) + (128 << 10)),
            false => Buffers::default(),
        }
    }

    /// Bytes that a session holds at most, as `export::nbd::memory` says.
    fn bytes_max(&self, sectors: u64) -> u64 {
        let held = (self.held_bytes_max as u64).max(longest(sectors)) + longest(sectors);
        held + CONNECTION_BYTES
    }
}

fn longest(sectors: u64) -> u64 {
    bytes_for((sectors * SECTOR) as usize) as u64
}

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

/// Why there is no reply.
pub(crate) enum Lost {
    /// Nobody waits for it.
    Withdrawn,
    /// Its connection has ended: it may be carried out until [`Link::over`].
    Link(Rc<Link>),
    /// It was never sent: the server takes no clients any more.
    Unsent,
}

impl Link {
    /// Waits until the session is gone: none of its requests is carried out after that.
    pub(crate) async fn over(&self) -> Outcome {
        self.stream.over().await
    }

    /// The connection is ready for requests; false where it has ended before.
    async fn ready(&self, hello: &[u8]) -> bool {
        if !self.stream.send(hello).await {
            return false;
        }
        let ended = || self.gone.get() || self.connection.borrow().is_refused();
        let ready = || self.connection.borrow().is_ready().then_some(true);
        let ready = self.news.until(|| ready().or(ended().then_some(false))).await;
        if !ready {
            self.stream.close();
        }
        ready
    }

    /// Takes what the server sends, until its session is gone.
    async fn listen(self: Rc<Self>) {
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
    async fn ask(&self, request: Request, payload: Vec<u8>) -> Option<Reply> {
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

/// The device's export, and the connections to it.
pub(crate) struct Network {
    world: Arc<World>,
    exports: Arc<Exports>,
    export: Arc<Export>,
    way: Way,
    random: RefCell<Random>,
    links: Vec<(Semaphore, RefCell<Option<Rc<Link>>>)>,
    /// Those that are not gone.
    sessions: Rc<Cell<u64>>,
    /// Requests that were lost, and whose sessions are not gone.
    lost: Rc<Cell<usize>>,
    settled: Rc<WaitList>,
    closing: Cell<bool>,
}

impl Network {
    pub(crate) fn new(world: &Arc<World>, device: &Aligned, way: Way) -> Result<Self, Error> {
        let exports = Arc::new(Exports::new());
        let export = exports.add(Export::new(NAME, device.clone())?)?;
        Ok(Self {
            world: world.clone(),
            exports,
            export,
            way,
            random: RefCell::new(Random(way.seed)),
            links: (0..way.links).map(|_| (Semaphore::new(1), RefCell::default())).collect(),
            sessions: Rc::default(),
            lost: Rc::default(),
            settled: Rc::default(),
            closing: Cell::default(),
        })
    }

    /// Bytes that all sessions together hold at most, where the longest request is of so many sectors.
    pub(crate) fn bytes_max(&self, sectors: u64) -> u64 {
        self.sessions.get() * self.way.bytes_max(sectors)
    }

    /// Carries out a request of `client`. `withdraw`: its connection is closed soon, the sooner the smaller that is.
    pub(crate) async fn ask(
        &self,
        client: u8,
        mut request: Request,
        withdraw: Option<u8>,
    ) -> Result<Reply, Lost> {
        // What a client has is no buffer of the server's.
        let payload = std::mem::take(&mut request.buf).to_vec();
        let link = self.link(client).await.ok_or(Lost::Unsent)?;
        let mut patience = withdraw.map(|step| {
            let longest = [0, 30, 300, 5_000][usize::from(step) % 4];
            self.world.sleep(Duration::from_micros(self.random.borrow_mut().below(longest + 1)))
        });
        let mut answer = pin!(link.ask(request, payload));
        let reply = poll_fn(|context| {
            if let Poll::Ready(reply) = answer.as_mut().poll(context) {
                return Poll::Ready(reply);
            }
            match patience.as_mut().map(|patience| patience.as_mut().poll(context)) {
                Some(Poll::Ready(())) => Poll::Ready(None),
                _ => Poll::Pending,
            }
        });
        let reply = reply.await;
        if reply.is_none() {
            link.stream.close();
            self.once_over(link.clone(), || {});
        }
        reply.ok_or_else(|| Lost::Link(link.clone()))
    }

    /// The connection of `client`: the one there is, or a new one. Nothing where the server takes none.
    async fn link(&self, client: u8) -> Option<Rc<Link>> {
        let (turn, slot) = &self.links[usize::from(client) % self.links.len()];
        let _turn = turn.hold().await;
        let open = slot.borrow().clone().filter(|link| !link.stream.is_closed());
        if open.is_some() || self.closing.get() {
            return open;
        }
        let link = self.connect();
        slot.replace(Some(link.clone()));
        let hello = crate::nbd::hello(self.way.style, NAME);
        link.ready(&hello).await.then_some(link)
    }

    fn connect(&self) -> Rc<Link> {
        let Way { requests_max, held_bytes_max, shape, style, .. } = self.way;
        let config = Config { requests_max, held_bytes_max, ..Config::default() };
        let session = Box::new(NbdSession::new(self.exports.clone(), config));
        let seed = self.random.borrow_mut().draw();
        let link = Rc::new(Link {
            stream: Stream::connect(&self.world, session, shape, seed),
            connection: RefCell::new(Connection::new(style)),
            sending: Semaphore::new(1),
            news: WaitList::default(),
            gone: Cell::default(),
        });
        self.sessions.set(self.sessions.get() + 1);
        let (listening, sessions) = (link.clone().listen(), self.sessions.clone());
        self.world.spawn_here(Box::pin(async move {
            listening.await;
            sessions.set(sessions.get() - 1);
        }));
        link
    }

    /// Has `then` done once the session of `link` is gone.
    pub(crate) fn once_over(&self, link: Rc<Link>, then: impl FnOnce() + 'static) {
        self.lost.set(self.lost.get() + 1);
        let (lost, settled) = (self.lost.clone(), self.settled.clone());
        self.world.spawn_here(Box::pin(async move {
            link.over().await;
            then();
            lost.set(lost.get() - 1);
            settled.wake_all();
        }));
    }

    /// Whether nothing that was lost can be carried out any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.lost.get() == 0
    }

    /// Waits until nothing that was lost can be carried out any more.
    pub(crate) async fn settled(&self) {
        self.settled.until(|| self.is_settled().then_some(())).await;
    }

    /// Closes all connections, and keeps clients away for as long as the result lives, as a server does before a reset.
    pub(crate) async fn reserve(&self) -> Reserved {
        self.hang_up().await;
        self.export.reserve().expect("nobody is connected")
    }

    async fn hang_up(&self) {
        let open = |(_, slot): &(Semaphore, RefCell<Option<Rc<Link>>>)| slot.take();
        for link in self.links.iter().filter_map(open).collect::<Vec<_>>() {
            link.stream.close();
            link.over().await;
        }
        self.settled().await;
    }

    /// All clients go for good, in the midst of what they asked for.
    pub(crate) async fn leave(&self) {
        self.closing.set(true);
        self.hang_up().await;
    }

    /// Whether the server is ending its clients' connections.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// The server stops: it takes no clients, completes what it has received, flushes and closes. Whether a session has done so to its end.
    pub(crate) async fn close(&self) -> bool {
        self.closing.set(true);
        let links: Vec<_> = self.links.iter().filter_map(|(_, slot)| slot.borrow().clone()).collect();
        self.exports.remove(NAME);
        self.export.close();
        self.export.emptied().await;
        let mut finished = false;
        for link in links.into_iter().filter(|link| link.connection.borrow().is_ready()) {
            finished |= link.over().await == Outcome::Finished;
        }
        finished
    }
}
