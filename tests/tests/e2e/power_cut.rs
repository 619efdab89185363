//! Power cuts: durable data survives the loss of the caches of all disks. The released program runs with both drivers, as root.
//!
//! Builds that leave out one sync prove that the tests notice it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, flag, header_with};
use spillway_tests::{Cluster, Drive, Launch, Scratch, Server, pattern, text, until};

use crate::rbd;

const MIB: usize = 1 << 20;

/// Bytes of a disk.
const SIZE: &str = "8M";

/// A file of one.
const ORIGIN: &str = "origin";

/// Cuts in a row.
const ROUNDS: u64 = 3;

/// A drive that loses all unflushed data.
const ALL: &str = "lost_percent = 100";

/// A build of the server, and its driver.
#[derive(Clone, Copy)]
struct Program {
    driver: &'static str,
    mutant: Option<&'static str>,
}

const IO_URING: Program = Program { driver: "io_uring", mutant: None };
const POLL: Program = Program { driver: "poll", mutant: None };

impl Program {
    fn launch(self, launch: Launch) -> Launch {
        let launch = launch.with("--driver", self.driver);
        match self.mutant {
            Some(name) => launch.with_mutant(name),
            None => launch,
        }
    }
}

/// Options of a server over one disk, or over two with a write cache.
struct Stack {
    options: &'static [(&'static str, &'static str)],
    cached: bool,
    /// The origin is a sparse file of a file system on the disk.
    sparse: bool,
}

const FILE: Stack = Stack { options: &[("--page-cache", "none")], cached: false, sparse: false };
const SPARSE: Stack = Stack { sparse: true, ..FILE };
const PAGED: Stack =
    Stack { options: &[("--page-cache", "writeback"), ("--page-cache-bytes-max", "2M")], ..FILE };
const LIMITED: Stack = Stack {
    options: &[
        ("--page-cache", "writeback"),
        ("--page-cache-bytes-max", "4M"),
        ("--at-risk-bytes-max", "1M"),
        ("--at-risk-seconds-max", "1"),
    ],
    ..FILE
};
const CACHED: Stack = Stack { options: &[("--pause-writeback", "0")], cached: true, ..FILE };
const MAPPED: Stack = Stack { options: &[("--mode", "p"), ("--low-watermark", "10")], cached: true, ..FILE };
const STACKS: [Stack; 6] = [FILE, SPARSE, PAGED, LIMITED, CACHED, MAPPED];

/// Disks, and the server that uses them.
struct Fixture<'a> {
    drives: Vec<Drive>,
    stack: &'a Stack,
    program: Program,
    folder: Arc<Scratch>,
    /// Power cuts so far.
    cuts: u64,
}

impl<'a> Fixture<'a> {
    /// The origin keeps blocks of 4 KiB whole, as its clients expect here; the disk of a cache tears them.
    fn new(stack: &'a Stack, program: Program, lost: &str) -> Self {
        let options = format!("torn = 0, {lost}");
        let mut drives = match stack.sparse {
            true => vec![with_sparse_file(&options)],
            false => vec![Drive::new(SIZE, &options)],
        };
        if stack.cached {
            drives.push(Drive::new("3M", lost));
        }
        Self { drives, stack, program, folder: Arc::default(), cuts: 0 }
    }

    fn launch(&self) -> Launch {
        let (folder, disk) = (self.folder.clone(), &self.drives[0]);
        let launch = match self.drives.get(1) {
            Some(cache) => Launch::cache(folder, disk.path(), cache.path()),
            None if self.stack.sparse => Launch::disk(folder, &disk.folder().join(ORIGIN)),
            None => Launch::disk(folder, disk.path()),
        };
        let launch = self.stack.options.iter().fold(launch, |launch, (name, value)| launch.with(name, value));
        self.program.launch(launch.with("--name", "d"))
    }

    fn cut_power(&mut self, seed: u64) {
        self.cuts += 1;
        self.drives.iter().for_each(|drive| drive.cut_power(seed));
        self.drives.iter_mut().for_each(Drive::power_on);
    }

    /// Whether a MiB that `act` writes and makes durable survives a power cut.
    fn keeps(&mut self, act: Act) -> bool {
        let content = pattern::random(self.cuts, 0, MIB);
        let mut server = self.launch().mounted().start();
        act(&mut server, &content);
        kill(server);
        self.cut_power(1);
        let server = self.launch().start();
        server.client().read(MIB as u64, MIB).expect("a read") == content
    }
}

/// A file system with a file that nothing was written to.
fn with_sparse_file(options: &str) -> Drive {
    let drive = Drive::with_files("64M", options);
    let file = File::create(drive.folder().join(ORIGIN)).expect("a file");
    file.set_len(8 << 20).and_then(|()| file.sync_all()).expect("there is room");
    File::open(drive.folder()).and_then(|folder| folder.sync_all()).expect("a folder");
    drive
}

fn kill(mut server: Server) {
    if server.lives() {
        server.signal(Signal::KILL);
        server.ends();
    }
}

/// Writes a MiB to the second one of a device and makes it durable.
type Act = fn(&mut Server, &[u8]);

fn write(server: &Server, content: &[u8]) -> Client {
    let mut client = server.client();
    client.write(MIB as u64, content).expect("a write");
    client
}

fn flush(server: &mut Server, content: &[u8]) {
    write(server, content).ask(command::FLUSH, 0, 0).expect("a flush");
}

fn write_durably(server: &mut Server, content: &[u8]) {
    let mut client = server.client();
    for (index, bytes) in content.chunks(64 << 10).enumerate() {
        let at = MIB + index * bytes.len();
        let header = header_with(flag::FUA, command::WRITE, 7, at as u64, bytes.len() as u32);
        client.stream.write_all(&header).and_then(|()| client.stream.write_all(bytes)).expect("a socket");
        assert_eq!(client.reply().expect("an answer").0, 0, "a write fails");
    }
}

fn stop(server: &mut Server, content: &[u8]) {
    drop(write(server, content));
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
}

/// Waits until a limit in seconds has flushed the write.
fn wait(server: &mut Server, content: &[u8]) {
    let _client = write(server, content);
    until("the write is durable", || server.value("d", "at_risk_seconds").is_null().then_some(()));
}

/// Through the mount.
fn sync(server: &mut Server, content: &[u8]) {
    let file = File::options().write(true).open(server.file("d")).expect("it is mounted");
    file.write_all_at(content, MIB as u64).and_then(|()| file.sync_all()).expect("a file");
}

fn load(server: &mut Server, content: &[u8]) {
    let image = server.folder().write("image", [&[0; MIB], content].concat());
    server.spillway(&["load", "d", text(&image)]).well();
}

fn detach(server: &mut Server, content: &[u8]) {
    let device = server.spillway(&["attach", "d", "--via", "loop"]).well().out;
    let bytes = [&[0; MIB], content].concat();
    File::options()
        .write(true)
        .open(device.trim())
        .and_then(|mut file| file.write_all(&bytes))
        .expect("a device");
    server.spillway(&["detach", "d"]).well();
}

fn what_was_flushed_survives(program: Program) {
    for stack in &STACKS {
        let (mut fixture, mut written) =
            (Fixture::new(stack, program, "lost_percent = 50"), Served::default());
        for round in 0..ROUNDS {
            written.kill(fixture.launch(), round);
            fixture.cut_power(round);
        }
        written.look(fixture.launch());
    }
}

#[test]
fn what_was_flushed_survives_power_cuts_of_every_stack() {
    what_was_flushed_survives(IO_URING);
}

#[test]
fn what_was_flushed_survives_power_cuts_of_every_stack_on_the_other_driver() {
    what_was_flushed_survives(POLL);
}

/// A host dies, and its SSD loses what it had not flushed; the cluster lives on with all that had reached it. The cache misses no block
/// that the image lacks, and does not take what it wrote back itself for the work of another host.
#[test]
fn what_was_flushed_survives_power_cuts_of_a_cache_device_while_its_cluster_lives_on() {
    let (cluster, mut drive) = (Cluster::shared(), Drive::new("3M", "lost_percent = 50"));
    let image = cluster.image("behind a cache that loses power", rbd::SIZE);
    // The cluster keeps the lock for a dead host for a while.
    let launch = |drive: &Drive| {
        let launch = rbd::cached_on(cluster, Arc::default(), &image, drive.path());
        launch.with("--pause-writeback", "0").flag("--take-over")
    };
    let mut written = Served::default();
    for round in 0..ROUNDS {
        written.kill(launch(&drive), round);
        drive.cut_power(round);
        drive.power_on();
    }
    let mut server = written.look(launch(&drive));
    server.spillway(&["hand-over", "d"]).well();
    assert!(server.ends().success(), "{}", server.log());
    written.check(&cluster.export(&image));
}

#[test]
fn every_way_to_make_a_write_durable_survives_a_power_cut() {
    for program in [IO_URING, POLL] {
        for (number, stack) in STACKS.iter().enumerate() {
            let acts: [(&str, Act); 6] = [
                ("flush", flush),
                ("FUA", write_durably),
                ("stop", stop),
                ("fsync", sync),
                ("load", load),
                ("detach", detach),
            ];
            let mut fixture = Fixture::new(stack, program, ALL);
            for (name, act) in acts {
                assert!(fixture.keeps(act), "{name} of stack {number} with {}", program.driver);
            }
        }
        assert!(Fixture::new(&LIMITED, program, ALL).keeps(wait), "a limit with {}", program.driver);
    }
}

/// Whether an origin that was made longer has its new length after a power cut, once the device has it.
fn keeps_length(program: Program) -> bool {
    let mut fixture = Fixture::new(&SPARSE, program, ALL);
    let server = fixture.launch().start();
    let origin = fixture.drives[0].folder().join(ORIGIN);
    File::options().write(true).open(&origin).and_then(|file| file.set_len(12 << 20)).expect("a file");
    server.spillway(&["resize", "d"]).well();
    kill(server);
    fixture.cut_power(1);
    fs::metadata(&origin).expect("a file").len() == 12 << 20
}

#[test]
fn the_new_length_of_an_origin_survives_a_power_cut() {
    [IO_URING, POLL].into_iter().for_each(|program| assert!(keeps_length(program), "{}", program.driver));
}

/// Whether a saved image has its name and all its bytes after a power cut.
fn saves(program: Program) -> bool {
    let mut drive = Drive::with_files("64M", ALL);
    let server = program.launch(Launch::ram("8M")).start();
    let content = pattern::random(1, 0, MIB);
    drop(write(&server, &content));
    let image = drive.folder().join("image");
    server.spillway(&["save", "ram0", text(&image)]).well();
    drive.cut_power(1);
    drive.power_on();
    let wanted = [vec![0; MIB], content, vec![0; 6 * MIB]].concat();
    fs::read(&image).is_ok_and(|found| found == wanted)
}

#[test]
fn a_saved_image_survives_a_power_cut() {
    assert!(saves(IO_URING));
}

#[test]
fn the_spill_file_of_a_stopped_device_survives_a_power_cut() {
    for program in [IO_URING, POLL] {
        let mut drive = Drive::with_files("64M", ALL);
        let spill = drive.folder().join("pages.spill");
        let launch = program.launch(Launch::ram("16M")).with("--spill", &spill).with("--spill-size", "36M");
        let mut server = launch.start();
        let content = pattern::random(1, 0, MIB);
        drop(write(&server, &content));
        server.spillway(&["set", "ram0", "writeback", "page_indexes=256-511"]).well();
        server.spillway(&["stop", "ram0"]).well();
        assert!(server.ends().success());
        drive.cut_power(1);
        drive.power_on();
        let pages = crate::spill_reader::pages(&fs::read(&spill).expect("the file is there"));
        assert!(pages.keys().copied().eq(256..512), "{} pages", pages.len());
        assert!(pages.into_values().flatten().eq(content), "a page is not as it was written");
    }
}

/// A build without one of the syncs loses the data of the test that needs it.
#[test]
fn a_missing_sync_is_seen() {
    let with = |program: Program, mutant| Program { mutant: Some(mutant), ..program };
    let acts: [(&Stack, Program, &'static str, Act); 9] = [
        (&FILE, IO_URING, "io: io_uring skips fdatasync", flush),
        (&FILE, POLL, "io: poll skips fdatasync", flush),
        (&FILE, IO_URING, "io: io_uring writes without RWF_DSYNC", write_durably),
        (&FILE, POLL, "io: poll writes without RWF_DSYNC", write_durably),
        (&MAPPED, IO_URING, "io: a mapping skips msync", flush),
        (&PAGED, IO_URING, "io: io_uring skips fdatasync", stop),
        (&LIMITED, POLL, "io: poll skips fdatasync", wait),
        (&FILE, IO_URING, "load: skip the flush", load),
        (&FILE, IO_URING, "detach: skip the flush", detach),
    ];
    for (stack, program, mutant, act) in acts {
        assert!(!Fixture::new(stack, with(program, mutant), ALL).keeps(act), "{mutant}: nothing was lost");
    }
    assert!(!keeps_length(with(IO_URING, "io: io_uring skips fdatasync")), "the length is there");
    for mutant in ["save: take the name before the image is durable", "save: leave the folder as it is"] {
        assert!(!saves(with(IO_URING, mutant)), "{mutant}: nothing was lost");
    }
}
