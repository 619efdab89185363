//! Clients that reach a device over NBD, through a mount, or in a virtual machine: by the sessions that ship, over streams that are late, cut
//! into pieces and broken, by messages that are late and read in another order, or by rings in memory that is shared.
//!
//! Several clients share a connection, so that requests overtake each other in it and all are lost with it. A request that is
//! withdrawn closes its connection in the midst of whatever is sent, and the next one opens another; or in a mount its client is killed, and
//! what a reader has of it is waited for; or a machine is switched off, or loses its connection and goes on with another. What was lost may still be carried out until the session is gone.

mod fuse;
mod link;
mod nbd;
mod parts;
mod vhost;
mod way;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spillway_core::buffer::ALIGNMENT;
use spillway_core::random::Random;
use spillway_core::sync::{Semaphore, WaitList};
use spillway_core::{Aligned, ByteRange, Env, Error, Reply, Request};
use spillway_export::{Export, Exports, Reserved};
use spillway_sim::workload::Act;
use spillway_sim::world::World;

use fuse::Gone;

use link::{Link, NAME};
pub use way::Way;

/// Why there is no reply.
pub(crate) enum Lost {
    /// Nobody waits for it.
    Withdrawn,
    /// Its connection has ended: it may be carried out until [`Link::over`].
    Link(Rc<Link>),
    /// Not all of it was sent, and nothing is under way: the server takes no clients any more, or its client was killed.
    Unsent,
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
    /// Times that sessions were broken off: requests that they left under way have their memory until they end, though others were made in
    /// their place and were answered.
    broken_off: Cell<u64>,
    /// Requests that were lost, and whose sessions are not gone.
    lost: Rc<Cell<usize>>,
    settled: Rc<WaitList>,
    closing: Cell<bool>,
}

impl Network {
    pub(crate) fn new(world: &Arc<World>, device: &Aligned, way: Way) -> Result<Self, Error> {
        let exports = Arc::new(Exports::new());
        let export = exports.add(Export::new(NAME, device.clone())?.timed_by(world.clone()))?;
        Ok(Self {
            world: world.clone(),
            exports,
            export,
            way,
            random: RefCell::new(Random(way.seed)),
            links: (0..way.links).map(|_| (Semaphore::new(1), RefCell::default())).collect(),
            sessions: Rc::default(),
            broken_off: Cell::default(),
            lost: Rc::default(),
            settled: Rc::default(),
            closing: Cell::default(),
        })
    }

    /// Bytes that all sessions and what they left hold together at most, where the longest request is of so many sectors.
    pub(crate) fn bytes_max(&self, sectors: u64) -> u64 {
        (self.sessions.get() + self.broken_off.get()) * self.way.bytes_max(sectors)
    }

    /// Bytes of the buffers of a request with a payload of so many: a kernel cuts it at boundaries of pages, and each part has a buffer.
    pub(crate) fn bytes_for(&self, payload: u64) -> u64 {
        if self.way.is_cut() && payload > 0 { payload + ALIGNMENT as u64 } else { payload }
    }

    /// What clients do in place of `act`: in a file a hole is all that discards anything, and reads as zero; and what a driver that does not
    /// flush writes is durable.
    pub(crate) fn act(&self, act: Act) -> Act {
        match act {
            Act::Discard { fua } if self.way.is_mounted() => Act::Zero { fua, no_hole: false },
            Act::Write { look, .. } if self.way.writes_through() => Act::Write { look, fua: true },
            Act::Zero { no_hole, .. } if self.way.writes_through() => Act::Zero { fua: true, no_hole },
            _ => act,
        }
    }

    /// Whether clients are told that something has failed, and not what.
    pub(crate) fn has_one_error(&self) -> bool {
        self.way.has_one_error()
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
        let mut answer = pin!(link.ask(client, request, payload));
        let reply = poll_fn(|context| {
            loop {
                if let Poll::Ready(reply) = answer.as_mut().poll(context) {
                    return Poll::Ready(reply);
                }
                match patience.as_mut().map(|patience| patience.as_mut().poll(context)) {
                    Some(Poll::Ready(())) if link.withdraw(client, &self.random) => {
                        self.broken_off.set(self.broken_off.get() + 1);
                        patience = None;
                    }
                    Some(Poll::Ready(())) => return Poll::Ready(Err(Gone::Connection)),
                    _ => return Poll::Pending,
                }
            }
        });
        let reply = reply.await;
        if let Err(Gone::Connection) = reply {
            link.close();
            self.once_over(link.clone(), || {});
        }
        reply.map_err(|gone| if gone == Gone::Client { Lost::Unsent } else { Lost::Link(link.clone()) })
    }

    /// The connection of `client`: the one there is, or a new one. Nothing where the server takes none.
    async fn link(&self, client: u8) -> Option<Rc<Link>> {
        let (turn, slot) = &self.links[usize::from(client) % self.links.len()];
        let _turn = turn.hold().await;
        let open = slot.borrow().clone().filter(|link| !link.is_closed());
        if open.is_some() || self.closing.get() {
            // A mount goes once nobody uses it.
            return open.filter(|link| !self.closing.get() || link.mount().is_none());
        }
        let link = self.connect();
        slot.replace(Some(link.clone()));
        link.ready().await.then_some(link)
    }

    fn connect(&self) -> Rc<Link> {
        let seed = self.random.borrow_mut().draw();
        let link = Rc::new(Link::new(&self.world, &self.way, &self.exports, &self.export, seed));
        self.sessions.set(self.sessions.get() + 1);
        let (listening, sessions) = (link.clone(), self.sessions.clone());
        self.world.spawn_here(Box::pin(async move {
            listening.listen().await;
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

    /// Whether the device serves a request for `range` as one, with nothing that was lost beside it.
    pub(crate) fn serves_alone(&self, range: ByteRange) -> bool {
        self.is_settled() && self.way.is_one_request(range)
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
            link.close();
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

    /// The server stops: it takes no clients, completes what it has received, flushes and closes. Whether it has done so to its end.
    pub(crate) async fn close(&self) -> bool {
        self.closing.set(true);
        let links: Vec<_> = self.links.iter().filter_map(|(_, slot)| slot.borrow().clone()).collect();
        self.exports.remove(NAME);
        self.export.close();
        links.iter().for_each(|link| link.stop());
        let mut finished = false;
        for mount in links.iter().filter_map(|link| link.mount()) {
            mount.unmount().await;
            // A mount has no last flush: the server's is for all that it serves.
            finished = self.export.device().submit(Request::flush()).await.result.is_ok();
        }
        self.export.emptied().await;
        for link in links.into_iter().filter(|link| link.is_greeted()) {
            finished |= link.over().await;
        }
        finished
    }
}
