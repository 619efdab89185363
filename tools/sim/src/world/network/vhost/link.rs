//! A virtual machine that has a device by vhost-user: it may be switched off in the midst of its requests, and the connection may be lost and
//! made anew while the machine goes on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::random::Random;
use spillway_core::session::Peer;
use spillway_core::shared_memory::{Conversation, HEAD_LEN, SharedMemory};
use spillway_core::sync::WaitList;
use spillway_core::{Env, IoBuf, Op, Phase, Reply, Request};
use spillway_export::Export;
use spillway_export::vhost_user::{Config, TransferLimits, VhostUserSession, protocol_feature, request};
use spillway_sim::pace::Pace;
use spillway_sim::rings::{EventDescriptor, MachineMemory, Rings};
use spillway_sim::world::World;

use super::super::parts::parts;
use super::ring::Ring;
use super::{Driver, Habits, Outcome};

/// Where the machine's memory begins for itself, and for its monitor.
const GUEST_AT: u64 = 0;
const MONITOR_AT: u64 = 0x7f00_0000_0000;

/// Features by their bits: flushes of the device, those of rings.
const FLUSH: u64 = 1 << 9;
const INDIRECT: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;

const VERSION: u32 = 1;
const ANSWER: u32 = 4;

/// What ends a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The machine is switched off.
    Off,
    /// The socket has broken, and the monitor connects again.
    Broken,
    /// The server was killed, and the monitor connects to the next one, which finds what was in flight.
    Killed,
    /// The server stops in order.
    Stopped,
}

/// One machine.
pub(crate) struct Link {
    world: Arc<World>,
    export: Arc<Export>,
    config: Config,
    habits: Habits,
    pace: Pace,
    memory: Arc<MachineMemory>,
    /// What outlives a connection besides.
    inflight: RefCell<Option<Arc<MachineMemory>>>,
    drivers: Vec<RefCell<Driver>>,
    rings: RefCell<Rings>,
    session: RefCell<Option<VhostUserSession>>,
    outcomes: RefCell<BTreeMap<u64, Outcome>>,
    tickets: Cell<u64>,
    ready: Cell<bool>,
    ending: Cell<Option<Ending>>,
    /// No answers come any more.
    closed: Cell<bool>,
    gone: Cell<Option<Ending>>,
    news: WaitList,
    random: RefCell<Random>,
}

impl Link {
    /// A machine that has `export`.
    pub(crate) fn new(
        world: &Arc<World>,
        export: &Arc<Export>,
        habits: Habits,
        pace: Pace,
        held_bytes_max: usize,
        seed: u64,
    ) -> Rc<Self> {
        let limits = TransferLimits { payload_len_max: habits.len_max as u32, held_bytes_max };
        let config = Config {
            queues: habits.queues,
            limits,
            buffered: false,
            in_memory: false,
            accept_empty: false,
            server: 1,
        };
        let memory = MachineMemory::new(habits.memory_len());
        let driver = |index| RefCell::new(Driver::new(&memory, habits, index));
        Rc::new(Self {
            world: world.clone(),
            export: export.clone(),
            config,
            habits,
            pace,
            drivers: (0..usize::from(habits.queues)).map(driver).collect(),
            memory,
            inflight: RefCell::default(),
            rings: RefCell::new(Rings::new(world, pace, seed)),
            session: RefCell::default(),
            outcomes: RefCell::default(),
            tickets: Cell::default(),
            ready: Cell::default(),
            ending: Cell::default(),
            closed: Cell::default(),
            gone: Cell::default(),
            news: WaitList::default(),
            random: RefCell::new(Random(seed)),
        })
    }

    /// Waits until its session is gone. Whether the server has ended it in order.
    pub(crate) async fn over(&self) -> bool {
        self.news.until(|| self.gone.get()).await == Ending::Stopped
    }

    /// Switches the machine off in the midst of whatever is asked.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.end(Ending::Off);
    }

    /// The server stops it in order.
    pub(crate) fn stop(&self) {
        self.end(Ending::Stopped);
    }

    /// The connection breaks, or the server is killed, and another is made.
    pub(crate) fn break_off(&self) {
        if self.ready.get() && self.ending.get().is_none() {
            let killed = self.below(2) == 0;
            self.end(if killed { Ending::Killed } else { Ending::Broken });
        }
    }

    fn end(&self, ending: Ending) {
        self.ending.set(Some(ending));
        self.news.wake_all();
    }

    /// Whether it takes no requests any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Whether it has come as far as requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.get()
    }

    /// It is ready for requests; false where it has ended before.
    pub(crate) async fn ready(&self) -> bool {
        let ready = || self.ready.get().then_some(true);
        self.news.until(|| ready().or(self.gone.get().map(|_| false))).await
    }

    /// Connects, again and again, until the session is gone for good.
    pub(crate) async fn listen(self: &Rc<Self>) {
        for index in 0..self.drivers.len() {
            let (link, interrupts) = (self.clone(), self.rings.borrow_mut().interrupts(index));
            self.world.spawn_here(Box::pin(async move { link.handle(index, &interrupts).await }));
        }
        let ending = loop {
            if !self.connect().await {
                break Ending::Off;
            }
            self.ready.set(true);
            self.news.wake_all();
            let ending = self.news.until(|| self.ending.take()).await;
            self.disconnect(ending).await;
            if matches!(ending, Ending::Off | Ending::Stopped) {
                break ending;
            }
        };
        (0..self.drivers.len()).for_each(|index| self.take_answers(index));
        self.closed.set(true);
        self.gone.set(Some(ending));
        (0..self.drivers.len()).for_each(|index| self.rings.borrow_mut().interrupts(index).tell());
        self.news.wake_all();
    }

    /// Does what `io::vhost` does when a connection is over, or the server with it.
    async fn disconnect(&self, ending: Ending) {
        let killed = ending == Ending::Killed;
        let phase = if killed { Phase::Aborting } else { Phase::Draining };
        let ended = self.rings.borrow_mut().end(phase);
        ended.await;
        if killed {
            *self.session.borrow_mut() = None;
            return;
        }
        let flushed = self.session.borrow_mut().as_mut().expect("it is connected").wind_down();
        flushed.await;
        *self.session.borrow_mut() = None;
    }

    /// Says what a monitor says; false where the server takes nobody.
    async fn connect(&self) -> bool {
        let mut session = VhostUserSession::new(self.export.clone(), self.config);
        if !session.introduce(Peer::Unknown) {
            return false;
        }
        *self.session.borrow_mut() = Some(session);
        let offered = self.number(request::GET_FEATURES).await;
        let habits = [
            (self.habits.event_index, EVENT_INDEX),
            (self.habits.indirect, INDIRECT),
            (!self.habits.write_through, FLUSH),
        ];
        let wanted = habits.iter().filter(|(on, _)| !on).fold(offered, |wanted, (_, bit)| wanted & !bit);
        self.tell(request::SET_FEATURES, &wanted.to_ne_bytes(), Vec::new()).await;
        let offered = self.number(request::GET_PROTOCOL_FEATURES).await;
        assert!(offered & protocol_feature::INFLIGHT_SHMFD != 0, "memory for requests in flight");
        self.tell(request::SET_PROTOCOL_FEATURES, &offered.to_ne_bytes(), Vec::new()).await;
        let region = [GUEST_AT, self.memory.len(), MONITOR_AT, 0].map(u64::to_ne_bytes);
        let table = [&words(&[1, 0])[..], region.as_flattened()].concat();
        let file = self.rings.borrow_mut().hand_over(&self.memory);
        self.tell(request::SET_MEM_TABLE, &table, vec![file]).await;
        self.share_inflight().await;
        for index in 0..self.drivers.len() {
            self.start(index).await;
        }
        true
    }

    /// Memory for requests in flight: what the last server had, or new.
    async fn share_inflight(&self) {
        let Habits { queues, slots, .. } = self.habits;
        let shape = [queues, Ring::size(slots)].map(u16::to_ne_bytes);
        let known = self.inflight.borrow().clone();
        let memory = match known {
            Some(memory) => memory,
            None => {
                let asked = [&[0; 16][..], shape.as_flattened(), &[0; 4]].concat();
                self.ask_server(request::GET_INFLIGHT_FD, &asked, Vec::new()).await;
                self.rings.borrow_mut().made().expect("it was made")
            }
        };
        let place = [memory.len(), 0].map(u64::to_ne_bytes);
        let body = [place.as_flattened(), shape.as_flattened(), &[0; 4]].concat();
        let file = self.rings.borrow_mut().hand_over(&memory);
        self.tell(request::SET_INFLIGHT_FD, &body, vec![file]).await;
        *self.inflight.borrow_mut() = Some(memory);
    }

    async fn start(&self, index: usize) {
        let (places, number) = (self.drivers[index].borrow().ring.places(), index as u32);
        let [entries, available, used] = places.map(|at| at + MONITOR_AT);
        let size = u32::from(Ring::size(self.habits.slots));
        self.tell(request::SET_VRING_NUM, &words(&[number, size]), Vec::new()).await;
        self.tell(request::SET_VRING_BASE, &words(&[number, 0]), Vec::new()).await;
        let places = [entries, used, available, 0].map(u64::to_ne_bytes);
        let addresses = [&words(&[number, 0])[..], places.as_flattened()].concat();
        self.tell(request::SET_VRING_ADDR, &addresses, Vec::new()).await;
        for event in [request::SET_VRING_CALL, request::SET_VRING_KICK] {
            let descriptor = self.rings.borrow().descriptor();
            self.tell(event, &(index as u64).to_ne_bytes(), vec![descriptor]).await;
        }
        self.tell(request::SET_VRING_ENABLE, &words(&[number, 1]), Vec::new()).await;
    }

    /// Sends a message that is not answered.
    async fn tell(&self, request: u32, body: &[u8], descriptors: Vec<OwnedFd>) {
        let answer = self.ask_server(request, body, descriptors).await;
        assert!(answer.is_empty(), "an answer to message {request}");
    }

    /// The number that answers a message.
    async fn number(&self, request: u32) -> u64 {
        let answer = self.ask_server(request, &[], Vec::new()).await;
        let (head, number) = answer.split_at(HEAD_LEN);
        assert_eq!(head, words(&[request, VERSION | ANSWER, 8]), "the head of an answer");
        u64::from_ne_bytes(number.try_into().expect("of eight bytes"))
    }

    async fn ask_server(&self, request: u32, body: &[u8], descriptors: Vec<OwnedFd>) -> Vec<u8> {
        if self.below(8) == 0 {
            let longest = self.pace.delay.as_nanos() as u64;
            self.world.sleep(Duration::from_nanos(self.below(longest + 1))).await;
        }
        let head = words(&[request, VERSION, body.len() as u32]);
        let head: &[u8; HEAD_LEN] = head.as_slice().try_into().expect("three numbers");
        let answer = {
            let mut session = self.session.borrow_mut();
            let session = session.as_mut().expect("it is connected");
            assert_eq!(session.body_len(head), Ok(body.len()));
            session.receive(head, body, descriptors, &mut *self.rings.borrow_mut())
        };
        answer.await.expect("the server takes what a monitor says").bytes
    }

    /// Takes answers whenever there is an interrupt, until the machine is off.
    async fn handle(&self, index: usize, interrupts: &Rc<EventDescriptor>) {
        while !self.closed.get() {
            self.take_answers(index);
            interrupts.told().await;
        }
    }

    fn take_answers(&self, index: usize) {
        let mut driver = self.drivers[index].borrow_mut();
        loop {
            while let Some((ticket, outcome)) = driver.take() {
                self.outcomes.borrow_mut().insert(ticket, outcome);
            }
            if driver.ring.listen() {
                break;
            }
        }
        self.news.wake_all();
    }

    /// Carries out `request` with this payload; nothing where the machine is off before.
    pub(crate) async fn ask(&self, request: Request, payload: Vec<u8>) -> Option<Reply> {
        let durable = self.habits.write_through && request.op != Op::Discard;
        let mut outcome = self.carry_out(&request, &payload).await?;
        // There is no such flag: a driver flushes afterwards.
        if request.flags.fua && !durable && outcome.is_ok() {
            outcome = self.carry_out(&Request::flush(), &[]).await?;
        }
        let mut buf = IoBuf::new(payload.len());
        let result = outcome.map(|content| buf[..content.len()].copy_from_slice(&content));
        Some(Reply { result, buf })
    }

    /// What a request comes to, in as many parts as it needs.
    async fn carry_out(&self, request: &Request, payload: &[u8]) -> Option<Outcome> {
        let range = request.range;
        let ranges = match request.op {
            Op::Read | Op::Write => parts(range, self.habits.len_max),
            _ => vec![range],
        };
        let mut tickets = Vec::new();
        for part in ranges {
            let from = (part.offset - range.offset) as usize;
            let content = if request.op == Op::Write { &payload[from..][..part.len as usize] } else { &[] };
            let part = Request { flags: request.flags, ..Request::bare(request.op, part) };
            tickets.push(self.begin(&part, content).await?);
        }
        let (mut content, mut failed) = (Vec::new(), None);
        for ticket in tickets {
            let outcome = || self.outcomes.borrow_mut().remove(&ticket).map(Some);
            let off = || self.closed.get().then_some(None);
            match self.news.until(|| outcome().or_else(off)).await? {
                Ok(more) => content.extend(more),
                Err(kind) => failed = Some(kind),
            }
        }
        Some(failed.map_or(Ok(content), Err))
    }

    /// Adds a request to one of the queues once it has room; the ticket of its outcome.
    async fn begin(&self, request: &Request, content: &[u8]) -> Option<u64> {
        let index = self.below(self.drivers.len() as u64) as usize;
        let slot = || self.drivers[index].borrow().free_slot().map(Some);
        let slot = self.news.until(|| self.closed.get().then_some(None).or_else(slot)).await?;
        let ticket = self.tickets.replace(self.tickets.get() + 1);
        let cut = if self.below(2) == 0 { self.below(request.range.len + 1) } else { u64::MAX };
        if self.drivers[index].borrow_mut().add(slot, ticket, request, content, cut) {
            self.rings.borrow().kick(index);
        }
        Some(ticket)
    }

    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
