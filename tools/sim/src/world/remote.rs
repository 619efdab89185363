//! An origin behind a network: a server of its own over the stack's disk, and a client of it.
//!
//! Connections break, nothing arrives over them for a while, dials are refused for a while, and the server loses its power: then it
//! comes back with what its disk kept, without what no flush has covered, and for a while able to do less. The client promises that
//! nobody notices, so models know nothing of it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::env::LocalFuture;
use spillway_core::random::Random;
use spillway_core::sync::{AtomicBool, AtomicUsize, Changes, Mutex, Ordering};
use spillway_core::{Aligned, BlockDevice, Budget, Env, Error, Kind, Storage};
use spillway_export::nbd::client::{Dial, NbdOrigin, NewSession, Settings};
use spillway_export::nbd::{Config, NbdSession};
use spillway_export::{Export, Exports};
use spillway_layers::file::File;
use spillway_sim::disk::Disk;
use spillway_sim::pace::Pace;
use spillway_sim::stream::{Cable, StreamShape};
use spillway_sim::world::World;

use super::power::{Power, Powered};

/// Name of the export.
const NAME: &str = "origin";

/// Bytes of buffers that sessions of server and client may hold, which the stack does not pay for.
pub(crate) const BYTES_MAX: u64 = 4 << 20;

/// How long a server is waited for that takes nothing again, and where outages are to last longer than requests wait.
const PATIENCE: Duration = Duration::from_secs(30);
const IMPATIENCE: Duration = Duration::from_millis(20);

/// Troubles of one server.
const TROUBLES_MAX: u64 = 6;

/// Opens the export of a new server over `disk`.
pub(crate) async fn open(
    world: &Arc<World>,
    disk: &Arc<Disk>,
    budget: &Arc<Budget>,
    impatient: bool,
) -> Result<Arc<dyn Storage>, Error> {
    let mut random = Random(world.random());
    let one_of = |random: &mut Random, values: &[u64]| values[random.below(values.len() as u64) as usize];
    let shape = StreamShape {
        room: one_of(&mut random, &[700, 5_000, 1 << 20]) as usize,
        pace: Pace {
            turn: one_of(&mut random, &[60, 2_000]) as u32,
            delay: Duration::from_micros(one_of(&mut random, &[0, 20, 500])),
        },
    };
    let settings = Settings {
        tls: None,
        address: "the server".into(),
        export: NAME.into(),
        read_only: false,
        timeout: if impatient { Some(IMPATIENCE) } else { disk.may_fail().then_some(PATIENCE) },
        connections: one_of(&mut random, &[1, 2, 3]) as usize,
        journal_bytes: one_of(&mut random, &[32 << 10, 128 << 10, 1 << 20]) as usize,
    };
    let server = Arc::new(Server {
        world: world.clone(),
        disk: disk.clone(),
        shape,
        timeout: settings.timeout,
        running: Mutex::default(),
        weak: AtomicBool::new(false),
        broken: Changes::default(),
        silent: AtomicBool::new(false),
        breaks: AtomicUsize::new(0),
        connections: AtomicUsize::new(0),
        changed: Changes::default(),
    });
    server.start()?;
    let dial = Arc::new(Dialer(server.clone()));
    let origin = NbdOrigin::open(settings, None, dial, world.clone(), budget).await?;
    world.spawn_here(Box::pin(trouble(server, random)));
    Ok(Arc::new(origin))
}

/// A server, while it has power and while it has none.
struct Server {
    world: Arc<World>,
    disk: Arc<Disk>,
    shape: StreamShape,
    /// How long its client's requests wait.
    timeout: Option<Duration>,
    running: Mutex<Option<Running>>,
    /// It starts with an export that can only be read.
    weak: AtomicBool,
    /// Connections fall silent or are there again, or are to be cut: how often that was.
    broken: Changes,
    silent: AtomicBool,
    breaks: AtomicUsize,
    /// Sessions that are not gone.
    connections: AtomicUsize,
    changed: Changes,
}

/// What a server loses with its power.
struct Running {
    exports: Arc<Exports>,
    file: Arc<File>,
    power: Arc<Power>,
}

impl Server {
    fn start(&self) -> Result<(), Error> {
        let power = Power::on(&self.world);
        let file = Arc::new(File::new(self.disk.clone(), Arc::new(Powered(power.clone()))));
        let exports = Arc::new(Exports::new());
        let device = Aligned::charged(file.clone(), &Budget::new(Budget::UNLIMITED))?;
        exports.add(Export::new(NAME, device)?.with_read_only(self.weak.load(Ordering::SeqCst)))?;
        *self.running.lock() = Some(Running { exports, file, power });
        Ok(())
    }

    fn cut_connections(&self) {
        self.breaks.fetch_add(1, Ordering::SeqCst);
        self.broken.wake_all();
    }

    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }

    /// Nothing arrives for a while: what was sent arrives afterwards, also from who has given the connection up meanwhile.
    async fn fall_silent(&self, time: Duration) {
        for (silent, time) in [(true, time), (false, Duration::ZERO)] {
            self.silent.store(silent, Ordering::SeqCst);
            self.broken.wake_all();
            self.world.sleep(time).await;
        }
    }

    /// Whether it must not lose its power: what a flush has not done no client can know, and what it could not do none can make good.
    fn must_run(&self) -> bool {
        self.disk.has_ignored() || self.disk.has_forgotten()
    }

    /// The power goes, and comes back after a while.
    async fn restart(&self, pause: Duration) {
        match self.must_run() {
            true => self.cut_connections(),
            false => self.power_cycle(pause).await,
        }
    }

    async fn power_cycle(&self, pause: Duration) {
        let Running { exports, file, power } = self.running.lock().take().expect("it runs");
        drop((exports, file));
        // First, so that nobody hears what becomes of requests without power.
        self.cut_connections();
        self.changed.until(|| (self.connections.load(Ordering::SeqCst) == 0).then_some(())).await;
        power.switch_off();
        power.is_off().await;
        self.disk.restart();
        self.world.sleep(pause).await;
        self.start().expect("it started before");
    }

    /// It comes back able to do less, which no client may take, and after a while as it was.
    async fn weaken(&self, time: Duration) {
        if self.must_run() {
            return self.cut_connections();
        }
        for (weak, time) in [(true, time), (false, Duration::ZERO)] {
            self.weak.store(weak, Ordering::SeqCst);
            self.power_cycle(Duration::ZERO).await;
            self.world.sleep(time).await;
        }
    }

    /// What precedes the first connection of a client that has none: nothing of those that it had is under way any more, and a disk that
    /// has become larger is opened again, since a server takes the size that it finds.
    async fn settle(&self) -> Result<(), Error> {
        self.changed.until(|| (self.connections.load(Ordering::SeqCst) == 0).then_some(())).await;
        let power = self.running.lock().as_ref().map(|running| running.power.clone());
        let Some(power) = power else { return Ok(()) };
        power.is_off().await;
        let is_old = |running: &Running| self.disk.bytes() > running.file.size();
        let old = self.running.lock().as_ref().is_some_and(is_old);
        if old { self.start() } else { Ok(()) }
    }

    async fn connect(self: &Arc<Self>, channel: usize, session: NewSession) -> Result<(), Error> {
        if channel == 0 {
            self.settle().await?;
        }
        // What asks for a connection arrives as late as everything else.
        self.broken.until(|| (!self.is_silent()).then_some(())).await;
        let exports = self.running.lock().as_ref().map(|running| running.exports.clone());
        let exports = exports.ok_or_else(|| Error::new(Kind::NoDevice, "connection refused"))?;
        let config = Config { held_bytes_max: 64 << 10, ..Config::default() };
        let served = Box::new(NbdSession::new(exports, config));
        let cable = Cable::connect(&self.world, session(), served, self.shape, self.world.random());
        let (server, before) = (self.clone(), self.breaks.load(Ordering::SeqCst));
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.world.spawn_here(Box::pin(async move {
            let (mut fate, mut over) = (pin!(server.befall(&cable, before)), pin!(cable.over()));
            std::future::poll_fn(|context| {
                let _ = fate.as_mut().poll(context);
                over.as_mut().poll(context).map(drop)
            })
            .await;
            server.connections.fetch_sub(1, Ordering::SeqCst);
            server.changed.wake_all();
        }));
        Ok(())
    }

    /// Has a connection fall silent and be cut with all others; `before`: how often that was before it was made. Never ends.
    async fn befall(&self, cable: &Cable, before: usize) {
        let is_cut = || self.breaks.load(Ordering::SeqCst) > before;
        while !is_cut() {
            let silent = self.is_silent();
            cable.set_silent(silent);
            self.world.count_breaks(silent.into());
            self.broken.until(|| (is_cut() || self.is_silent() != silent).then_some(())).await;
        }
        // One end may have closed in the silence, which the other is to see.
        cable.set_silent(false);
        if !cable.is_closed() {
            self.world.count_breaks(1);
            cable.cut();
        }
        std::future::pending().await
    }
}

/// Has things go wrong, so many times.
async fn trouble(server: Arc<Server>, mut random: Random) {
    // By a chance of its own, so that other stories are what they were. Where requests wait for so long only, a disk may need that time.
    let mut odd = Random(random.0 ^ 0x6f64_6473);
    let is_odd = server.timeout != Some(PATIENCE) && odd.below(3) == 0;
    for _ in 0..random.below(TROUBLES_MAX + 1) {
        let longest = 1 << (4 + random.below(17));
        server.world.sleep(Duration::from_micros(random.below(longest))).await;
        if is_odd && odd.below(2) == 0 {
            let time = Duration::from_micros(odd.below(longest));
            match odd.below(2) {
                0 => server.weaken(time).await,
                // At times for longer than a request waits for its answer.
                _ if server.timeout.is_none() && odd.below(8) == 0 => {
                    server.fall_silent(Duration::from_secs(115 + odd.below(40))).await;
                }
                _ => server.fall_silent(time).await,
            }
            continue;
        }
        match random.below(3) {
            0 => server.cut_connections(),
            _ => server.restart(Duration::from_micros(random.below(longest))).await,
        }
    }
}

struct Dialer(Arc<Server>);

impl Dial for Dialer {
    fn dial(&self, channel: usize, session: NewSession) -> LocalFuture<Result<(), Error>> {
        let server = self.0.clone();
        Box::pin(async move {
            server.world.sleep(server.shape.pace.delay).await;
            server.connect(channel, session).await
        })
    }
}
