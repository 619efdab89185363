//! One server under waves of hostile clients.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use super::Chance;
use super::attack::{Hand, Scene};
use super::bystander::{Bystander, Slowest};
use super::door::Wire;
use super::motif::Motif;
use super::reader::Reader;
use super::stacks::{Keeps, Stack, Target};
use super::web::Web;
use crate::counted::Counts;
use crate::raw::Client;
use crate::{Server, pattern};

/// What a server may take besides its budget, in bytes.
const ALLOWANCE: u64 = 64 << 20;

/// Requests of a client, more or less, after which a server may be killed.
const REQUESTS: u64 = 300;

/// Between two looks at what the clients have done.
const LOOK: Duration = Duration::from_millis(2);

/// Least budget share of one payload: an eighth of it for buffers, at least 16 MiB, and a quarter of those for one client.
const fn payload_max(memory: u64) -> u64 {
    let buffers = if memory / 8 < 16 << 20 { 16 << 20 } else { memory / 8 };
    buffers / 4
}

/// How much happens in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Waves of clients, one after the other.
    pub waves: u64,
    /// Threads of clients in a wave.
    pub hands: u64,
    /// Clients that a thread plays one after the other.
    pub clients: u64,
}

impl Size {
    /// A few seconds, for the test suite.
    pub const SHORT: Self = Self { waves: 3, hands: 4, clients: 6 };

    /// For the long run.
    pub const LONG: Self = Self { waves: 6, hands: 6, clients: 12 };
}

/// What a round came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests sent.
    pub requests: u64,
    /// Connections made, or tried.
    pub connections: u64,
    /// Machines whose queues were started.
    pub machines: u64,
    /// Most bytes counted at once by a server, and the limit then.
    pub counted: (u64, u64),
    /// Most bytes resident at once, and the limit then.
    pub resident: (u64, u64),
    /// Of the bystander.
    pub slowest: Slowest,
    /// Servers killed and started again.
    pub restarts: u64,
    /// What was broken, in words.
    pub violations: Vec<String>,
}

impl Report {
    /// Adds another round.
    pub fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.connections += other.connections;
        self.machines += other.machines;
        self.restarts += other.restarts;
        self.counted = nearer(self.counted, other.counted);
        self.resident = nearer(self.resident, other.resident);
        self.slowest = self.slowest.or(other.slowest);
        self.violations.extend(other.violations);
    }
}

/// The one that comes nearer to its limit, or is farther above it.
fn nearer(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let room = |(bytes, limit): (u64, u64)| limit as i64 - bytes as i64;
    if one == (0, 0) || room(other) < room(one) { other } else { one }
}

/// Runs the round of `seed`. Memory above the limit is reported; anything else that is broken panics.
pub fn run(stack: &Stack, seed: u64, size: Size) -> Report {
    let mut chance = Chance::new(seed);
    let target = stack.target(&mut chance);
    let bystanders = target.exports.iter().map(|&export| Bystander::new(export, chance.fork())).collect();
    let mut round = Round { target, size, chance, bystanders, report: Report::default() };
    let mut server = round.start();
    if seed.is_multiple_of(2) {
        round.fill();
    }
    for wave in 0..size.waves {
        let theme = round.theme();
        let killed = round.keeps() && round.chance.one_in(3);
        let broken = round.wave(&mut server, theme, killed);
        if !broken.is_empty() {
            eprintln!("{}", server.log());
            let named = broken.into_iter().map(|what| format!("wave {wave}, {theme:?}: {what}"));
            round.report.violations.extend(named);
            break;
        }
        if killed {
            server = round.restart(server);
        }
    }
    round.end()
}

struct Round {
    target: Target,
    size: Size,
    chance: Chance,
    bystanders: Vec<Bystander>,
    report: Report,
}

impl Round {
    fn limit(&self) -> u64 {
        self.target.memory + ALLOWANCE
    }

    fn start(&self) -> Server {
        self.target.launch.clone().counted(self.limit()).start()
    }

    fn keeps(&self) -> bool {
        self.target.exports.iter().any(|export| export.keeps != Keeps::Nothing)
    }

    /// Writes noise until the budget is full, or the cache: what comes then finds no room.
    fn fill(&self) {
        const STEP: u64 = 1 << 20;
        let noise = pattern::random(2, 0, STEP as usize);
        for export in &self.target.exports {
            let mut client = self.target.door.client(export.name).expect("nobody else is there");
            let full =
                (0..self.target.memory).step_by(STEP as usize).find(|&at| client.write(at, &noise).is_err());
            let endless = export.keeps != Keeps::Nothing;
            assert!(full.is_some() || endless, "noise of {} bytes fits in the budget", self.target.memory);
        }
    }

    /// What all clients of a wave do, where they agree.
    fn theme(&mut self) -> Option<Motif> {
        let agreed = !self.chance.one_in(4);
        agreed.then(|| Motif::draw(&mut self.chance, payload_max(self.target.memory)))
    }

    /// One wave, with the bystanders beside it. Returns what was broken once every client is gone and the server has noticed, or,
    /// where the server is to be `killed`, once it is, in the middle of everything.
    fn wave(&mut self, server: &mut Server, theme: Option<Motif>, killed: bool) -> Vec<String> {
        let before = server.vitals().descriptors;
        let Self { target, size, chance, bystanders, report } = self;
        let web = target.web.as_ref().map(|rights| Web::of(server, rights.clone()));
        let scene = Scene::new(target, web.as_ref(), payload_max(target.memory));
        let reader = web.as_ref().map(Reader::enter);
        let over = AtomicBool::new(false);
        let enough = if killed { chance.below(size.hands * size.clients * REQUESTS) } else { u64::MAX };
        let broken = std::thread::scope(|scope| {
            let entered = bystanders.iter_mut().map(|bystander| (bystander.enter(&target.door), bystander));
            let over = &over;
            let bystanders: Vec<_> = entered
                .map(|(client, bystander)| scope.spawn(move || behave(bystander, client, over, killed)))
                .collect();
            let reader = reader.map(|reader| scope.spawn(move || watch(reader, over, killed)));
            let hands = (0..size.hands).map(|_| Hand::new(&scene, chance.fork(), theme));
            let hands: Vec<_> = hands.map(|hand| scope.spawn(|| hand.play(size.clients))).collect();
            while !hands.iter().all(|hand| hand.is_finished()) && scene.requests.load(Relaxed) < enough {
                std::thread::sleep(LOOK);
            }
            let broken = over_budget(target, server, report);
            if killed {
                server.signal(Signal::KILL);
                server.ends();
            }
            over.store(true, Relaxed);
            hands.into_iter().chain(bystanders).chain(reader).for_each(passes_on_its_panic);
            broken
        });
        if !killed {
            server.settles_at(before);
            assert!(server.lives(), "the server ended");
        }
        report.requests += scene.requests.into_inner();
        report.connections += scene.connections.into_inner();
        report.machines += scene.machines.into_inner();
        broken
    }

    /// Starts a server again that was killed: what it promised to keep is there.
    fn restart(&mut self, killed: Server) -> Server {
        drop(killed);
        let server = self.start();
        self.report.restarts += 1;
        self.bystanders.iter_mut().for_each(|bystander| bystander.finds_everything(&self.target.door));
        server
    }

    fn end(mut self) -> Report {
        for bystander in self.bystanders {
            self.report.requests += bystander.requests;
            self.report.slowest = self.report.slowest.or(bystander.slowest);
        }
        self.report
    }
}

/// A bystander is served until it is over; by a server that is killed, until then.
fn behave(bystander: &mut Bystander, client: Client<Wire>, over: &AtomicBool, killed: bool) {
    let lived = bystander.live(client, || over.load(Relaxed));
    assert!(killed || lived.is_ok(), "a client that behaves is not served: {lived:?}");
}

/// The same of a client over HTTP.
fn watch(mut reader: Reader, over: &AtomicBool, killed: bool) {
    let lived = reader.live(|| over.load(Relaxed));
    assert!(killed || lived.is_ok(), "a reader of HTTP is not served: {lived:?}");
}

fn passes_on_its_panic(thread: ScopedJoinHandle<'_, ()>) {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Compares both witnesses with the limit.
fn over_budget(target: &Target, server: &Server, report: &mut Report) -> Vec<String> {
    let limit = target.memory + ALLOWANCE;
    let (counts, resident) = (server.counts(), server.vitals().resident_max);
    report.counted = nearer(report.counted, (counts.sum_max, limit));
    report.resident = nearer(report.resident, (resident, limit + target.mapped));
    let mib = |bytes: u64| bytes >> 20;
    let Counts { sum_max, allocated_max, regions_max, broken, .. } = counts;
    let counted = (broken != 0).then(|| {
        let parts = format!("{} allocated, {} in regions", mib(allocated_max), mib(regions_max));
        format!("{} MiB counted ({parts}), allowed are {}", mib(sum_max), mib(limit))
    });
    let limit = limit + target.mapped;
    let seen =
        (resident > limit).then(|| format!("{} MiB resident, allowed are {}", mib(resident), mib(limit)));
    counted.into_iter().chain(seen).collect()
}
