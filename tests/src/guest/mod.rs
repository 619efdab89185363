//! A guest of QEMU that has a device by vhost-user: its file systems, a resize under it, servers that are killed while it writes, and power cuts.
//!
//! The guest is an [`emulated`](spillway_fixture::emulated) machine with two processors, and so two queues.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;

use crate::killed::{Served, enough};
use crate::versions::{Blocks, Step};
use crate::{Drive, Launch, Scratch, Server};
use spillway_fixture::emulated::{Machine, Recipe, System};

/// What the guest boots.
pub const RECIPE: Recipe = Recipe {
    folder: "guest",
    modules: &["virtio_pci", "virtio_blk", "ext4", "xfs"],
    programs: &[
        "spillway-guest",
        "/usr/sbin/mke2fs",
        "/usr/sbin/e2fsck",
        "/usr/sbin/mkfs.xfs",
        "/usr/sbin/xfs_repair",
    ],
    init: include_str!("init.sh"),
};

/// Bytes of a device, and what it grows to. XFS wants no less.
const SIZE: u64 = 320 << 20;
const GROWN: u64 = 384 << 20;

/// What writers write to while servers are killed.
const BLOCKS: Blocks = Blocks { size: 4096, each: 512 };

/// Steps of each writer, and of all together between two kills.
const STEPS: u64 = 1200;
const STEPS_BETWEEN_KILLS: u64 = 700;

/// Steps of each writer where the server is killed once: those that were told of no loss go on to their end.
const STEPS_OF_LOSS: u64 = 400;

/// Power cuts in a row, and disks that lose half of what was not flushed.
const CUTS: u64 = 3;
const LOSING: &str = "lost_percent = 50";

/// A stack under a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// `spillway ram`.
    Ram,
    /// `spillway disk` with its page cache.
    Disk,
    /// `spillway disk` without one: an acknowledged write is with the kernel.
    Uncached,
    /// `spillway cache`.
    Cache,
    /// The same, of which each acknowledged write survives.
    Committed,
}

/// Stacks whose guest uses file systems, and grows its device.
pub const STACKS: [Stack; 3] = [Stack::Ram, Stack::Disk, Stack::Cache];

/// Stacks that lose nothing when their server is killed.
pub const SURVIVORS: [Stack; 2] = [Stack::Uncached, Stack::Committed];

/// Stacks that lose what no flush has covered.
pub const FORGETFUL: [Stack; 2] = [Stack::Disk, Stack::Cache];

/// Stacks whose disks lose their power.
pub const DURABLE: [Stack; 3] = [Stack::Uncached, Stack::Disk, Stack::Cache];

struct Fixture {
    launch: Launch,
    socket: PathBuf,
    stack: Stack,
}

impl Fixture {
    fn new(stack: Stack) -> Self {
        let folder = Arc::new(Scratch::new());
        let file = |name: &str, bytes: u64| {
            let path = folder.join(name);
            File::create(&path).and_then(|file| file.set_len(bytes)).expect("the folder is ours");
            path
        };
        let (origin, cache) = (file("origin", SIZE), file("cache", SIZE / 4));
        Self::over(stack, folder, &origin, &cache)
    }

    fn over(stack: Stack, folder: Arc<Scratch>, origin: &Path, cache: &Path) -> Self {
        let launch = match stack {
            Stack::Ram => Launch::ram("320M"),
            Stack::Disk => Launch::disk(folder, origin),
            Stack::Uncached => Launch::disk(folder, origin).with("--page-cache", "none"),
            Stack::Cache => Launch::cache(folder, origin, cache),
            Stack::Committed => Launch::cache(folder, origin, cache).with("--ack", "committed"),
        };
        let socket = launch.folder().join("guest.sock");
        let launch = launch.with("--name", "guest").with("--vhost-user", &socket);
        Self { launch, socket, stack }
    }

    fn boot(&self, system: &System, words: &str) -> Machine {
        let memory = "memory-backend-memfd,id=memory,size=512M,share=on";
        let chardev = format!("socket,id=device,path={},reconnect=1", self.socket.display());
        let device = "vhost-user-blk-pci,chardev=device,num-queues=2";
        // Its modules want a processor of this century.
        let machine =
            ["-cpu", "max", "-object", memory, "-machine", "memory-backend=memory", "-chardev", &chardev];
        let arguments = machine.into_iter().chain(["-device", device]).map(str::to_owned);
        Machine::boot_with(system, &arguments.collect::<Vec<_>>(), words)
    }

    fn start(&self) -> Server {
        self.launch.clone().start()
    }
}

/// Two queues, discards, two file systems, and a device that grows under the guest.
pub fn files(system: &System, stack: Stack) {
    let fixture = Fixture::new(stack);
    let mut server = fixture.start();
    let machine = fixture.boot(system, "job=files");
    let device = machine.says("device");
    println!("    {stack:?}: {device}");
    assert_eq!(device, format!("{} sectors, 2 queues, write back", SIZE / 512));
    machine.says("grow");
    match stack {
        // The origin has to have grown before.
        Stack::Disk | Stack::Cache => {
            let origin = File::options().write(true).open(fixture.launch.folder().join("origin"));
            origin.and_then(|file| file.set_len(GROWN)).expect("the file is ours");
            server.spillway(&["resize", "guest"]).well();
        }
        _ => drop(server.spillway(&["resize", "guest", "384M"]).well()),
    }
    assert_eq!(machine.says("grown"), (GROWN / 512).to_string());
    machine.says("ended");
    machine.ends();
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "the server ended with an error");
}

/// Kills the server again and again while the guest writes, and starts another each time: nothing that was acknowledged is lost.
pub fn kills(system: &System, stack: Stack) {
    ends(system, stack, Signal::KILL);
}

/// The same with servers that stop in order.
pub fn stops(system: &System, stack: Stack) {
    ends(system, stack, Signal::TERM);
}

fn ends(system: &System, stack: Stack, signal: Signal) {
    let fixture = Fixture::new(stack);
    let mut server = fixture.start();
    let (mut served, mut ends) = (Served::new(BLOCKS), 0);
    let machine = fixture.boot(system, &writing(0, STEPS));
    machine.says("device");
    let mut witness = Witness::new(&mut served, 0);
    for heard in 1.. {
        let line = machine.line().expect("the machine is on");
        if line == "ended" {
            break;
        }
        witness.hear(&line);
        if heard % STEPS_BETWEEN_KILLS == 0 {
            server.signal(signal);
            server.ends();
            server = fixture.start();
            ends += 1;
        }
    }
    machine.ends();
    assert!(ends >= 4, "the server has ended {ends} times");
    println!("    {:?}: {ends} ends", fixture.stack);
    let device = server.client().read(0, BLOCKS.bytes() as usize).expect("a read");
    served.check(&device);
}

/// What the guest is to do, so that each writer does so many steps of a round.
fn writing(round: u64, count: u64) -> String {
    format!("job=write block={} each={} round={round} count={count}", BLOCKS.size, BLOCKS.each)
}

/// Hears what the guest's writers have done.
struct Witness<'a> {
    served: &'a mut Served,
    steps: Vec<Box<dyn Iterator<Item = Step>>>,
}

impl<'a> Witness<'a> {
    fn new(served: &'a mut Served, round: u64) -> Self {
        let steps = served.writers().iter().map(|written| Box::new(written.steps(round)) as Box<_>).collect();
        Self { served, steps }
    }

    fn hear(&mut self, line: &str) {
        let (word, writer) = line.split_once(' ').unwrap_or((line, ""));
        match (word, writer.parse::<usize>()) {
            ("step", Ok(writer)) => {
                let step = self.steps[writer].next().expect("they have no end");
                self.served.writers()[writer].done(&step);
            }
            ("flushed", Ok(writer)) => self.served.writers()[writer].flushed(),
            _ => panic!("the guest said {line}"),
        }
    }
}

/// The guest, the server and the disks lose their power while the guest writes: what a flush has covered is there afterwards. Needs root.
pub fn cuts(system: &System, stack: Stack) {
    let mut drives = [Drive::new("8M", &format!("torn = 0, {LOSING}")), Drive::new("3M", LOSING)];
    let fixture = Fixture::over(stack, Arc::default(), drives[0].path(), drives[1].path());
    let mut served = Served::new(BLOCKS);
    for round in 0..CUTS {
        let mut server = served.look(fixture.launch.clone());
        let machine = fixture.boot(system, &writing(round, u64::MAX));
        machine.says("device");
        let mut witness = Witness::new(&mut served, round);
        (0..enough(round)).for_each(|_| witness.hear(&machine.line().expect("the machine is on")));
        machine.kill().iter().for_each(|line| witness.hear(line));
        server.signal(Signal::KILL);
        server.ends();
        drives.iter().for_each(|drive| drive.cut_power(round));
        drives.iter_mut().for_each(Drive::power_on);
    }
    served.look(fixture.launch);
    println!("    {stack:?}: {CUTS} cuts");
}

/// Kills the server while the guest writes: the guest is told that writes were lost.
pub fn losses(system: &System, stack: Stack) {
    let fixture = Fixture::new(stack);
    let mut server = fixture.start();
    let machine = fixture.boot(system, &writing(0, STEPS_OF_LOSS));
    machine.says("device");
    (0..STEPS_BETWEEN_KILLS).for_each(|_| _ = machine.line().expect("the machine is on"));
    server.signal(Signal::KILL);
    server.ends();
    let server = fixture.start();
    let said = std::iter::from_fn(|| machine.line()).find(|line| line.starts_with("failed"));
    assert_eq!(said.as_deref(), Some("failed: writing"), "the guest was told nothing");
    server.says("a former server has lost writes");
    println!("    {:?}: the guest's flush has failed", fixture.stack);
}
