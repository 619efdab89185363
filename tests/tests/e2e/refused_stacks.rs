//! The system refuses calls of a server with a write cache, a page cache, a spill file or a mount: what can be tried again is, errors of files
//! reach who asked, and nothing that was flushed is lost, nor anything read that was not written.
//!
//! `SPILLWAY_REFUSALS=100` draws so many single refusals for each row of a table, besides the one that refuses all calls.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::refused::{PARTS, write_meanwhile};
use spillway_tests::{Acknowledged, Launch, PART, Refusal, Refusing, Scratch, Server, Way};

/// Set to draw more single refusals.
const DRAWS: &str = "SPILLWAY_REFUSALS";

/// Bytes of a device.
const SIZE: u64 = PARTS * PART as u64;

/// A server to be examined, whose device is `d`.
struct Stack {
    launch: fn(Arc<Scratch>) -> Launch,
    mounted: bool,
    /// A command that is given again and again while calls are refused.
    beside: &'static [&'static str],
    /// What is acknowledged when a server ends in order is there at the next start.
    durable: bool,
}

const CACHED: Stack = Stack { launch: cached, mounted: false, beside: &["drain", "d"], durable: true };
const PAGED: Stack = Stack { launch: paged, mounted: false, beside: &[], durable: true };
const SPILLING: Stack =
    Stack { launch: spilling, mounted: false, beside: &["set", "d", "writeback", "huge"], durable: false };
const MOUNTED: Stack = Stack { launch: mounted, mounted: true, beside: &[], durable: true };

/// Its folder keeps the files of a server that has ended.
fn sparse(folder: &Scratch, name: &str) -> PathBuf {
    let path = folder.join(name);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    file.and_then(|file| file.set_len(SIZE)).expect("a sparse file");
    path
}

fn cached(folder: Arc<Scratch>) -> Launch {
    let (origin, cache) = (sparse(&folder, "origin"), sparse(&folder, "cache"));
    Launch::cache(folder, &origin, &cache)
}

fn paged(folder: Arc<Scratch>) -> Launch {
    let origin = sparse(&folder, "origin");
    let launch = Launch::disk(folder, &origin).with("--page-cache", "writeback");
    launch.with("--page-cache-bytes-max", "2M")
}

/// Nothing of it outlasts its server, so that it has a folder of its own.
fn spilling(_: Arc<Scratch>) -> Launch {
    let launch = Launch::ram(&SIZE.to_string());
    let spill = launch.folder().join("spill");
    launch.with("--spill", spill).with("--spill-size", "64M")
}

fn mounted(folder: Arc<Scratch>) -> Launch {
    let origin = sparse(&folder, "origin");
    Launch::disk(folder, &origin).with("--page-cache", "none").mounted()
}

impl Stack {
    fn start(&self, folder: &Arc<Scratch>, driver: &str) -> Server {
        (self.launch)(folder.clone()).with("--name", "d").with("--driver", driver).start()
    }

    fn way(&self, server: &Server) -> io::Result<Way> {
        if self.mounted { Way::by_file(&server.file("d")) } else { Way::by_socket(server.socket()) }
    }
}

type Rows = &'static [(&'static str, &'static [&'static str])];

/// What a server outlives as if nothing had been.
const BOTH: Rows = &[("statx", &["ENOMEM"]), ("getpeername,getsockopt", &["ENOBUFS"])];
const IO_URING: Rows = &[("io_uring_enter", &["ENOMEM", "EAGAIN", "EBUSY", "EINTR"])];
const POLL: Rows = &[
    ("pwritev2", &["EINTR", "EAGAIN"]),
    ("pread64", &["EINTR", "EAGAIN"]),
    ("fdatasync,fallocate", &["EINTR"]),
];
const MOUNT: Rows = &[("read", &["ENOMEM", "EINTR", "EIO"]), ("writev", &["ENOMEM", "EINTR"])];

/// What its files may say.
const ERRORS: Rows = &[
    ("pwritev2", &["EIO", "ENOSPC"]),
    ("pread64", &["EIO"]),
    ("fdatasync", &["EIO", "ENOSPC"]),
    ("fallocate", &["EIO", "ENOSPC"]),
    ("ftruncate", &["EIO", "ENOSPC"]),
    ("pwritev2,fdatasync,fallocate,ftruncate", &["EIO", "ENOSPC"]),
];

/// Calls of an end.
const END: Rows = &[
    ("recvfrom", &["ENOMEM", "EINTR"]),
    ("sendto", &["ENOBUFS"]),
    ("umount2", &["EBUSY", "EINTR"]),
    ("unlink", &["EIO"]),
    ("statx,open,openat", &["EMFILE"]),
    ("read", &["ENOMEM"]),
    ("clone3", &["EAGAIN"]),
    ("mmap,mprotect,madvise", &["ENOMEM"]),
];

/// Calls that not every stack makes.
const RARE: &[&str] = &["statx", "getpeername,getsockopt", "pread64", "fallocate", "ftruncate"];

/// Calls on files of which each error counts, so that these end before strace does.
const FILES: &[&str] = &["pwritev2", "pread64", "fdatasync,fallocate"];

fn examine(stack: &Stack, driver: &str, tables: &[Rows], act: fn(&Stack, &str, Refusal)) {
    let draws: u64 = std::env::var(DRAWS).map_or(1, |number| number.parse().expect("a number"));
    let mut random = u64::from(std::process::id());
    for (call, errnos) in tables.concat() {
        for errno in errnos {
            act(stack, driver, Refusal::of(call, errno));
            for _ in 0..draws {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let first = 1 + (random >> 33) as u32 % 8;
                act(stack, driver, Refusal { first, last: Some(first), ..Refusal::of(call, errno) });
            }
        }
    }
}

/// A server with something written, what clients wrote while its calls were refused, and the folder.
fn refused(stack: &Stack, driver: &str, refusal: &Refusal) -> (Server, Vec<Acknowledged>, Arc<Scratch>) {
    println!("{driver}: {refusal:?}");
    let folder = Arc::new(Scratch::new());
    let server = stack.start(&folder, driver);
    let mut first = Acknowledged::new(0);
    stack.way(&server).and_then(|mut way| first.write_some(&mut way)).expect("nothing is refused yet");
    let beside = || {
        if !stack.beside.is_empty() {
            server.spillway(stack.beside);
        }
    };
    let rare = RARE.contains(&refusal.call);
    let meanwhile = write_meanwhile(&server, refusal, rare, &|| stack.way(&server), &beside);
    (server, meanwhile.into_iter().chain([first]).collect(), folder)
}

fn outlives(stack: &Stack, driver: &str, refusal: Refusal) {
    let last = refusal.last.or(FILES.contains(&refusal.call).then_some(6));
    let (mut server, mut written, folder) = refused(stack, driver, &Refusal { last, ..refusal });
    assert!(server.lives(), "{refusal:?}: {:?}\n{}", server.ends(), server.log());
    let mut way = stack.way(&server).expect("nothing is refused any more");
    written.iter_mut().for_each(|written| {
        written.check(&mut way);
        written.write_some(&mut way).expect("nothing is refused any more");
    });
    drop(way);
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{refusal:?}: {}", server.log());
    drop(server);
    is_there(stack, driver, &folder, &written);
}

/// Another server finds what was acknowledged.
fn is_there(stack: &Stack, driver: &str, folder: &Arc<Scratch>, written: &[Acknowledged]) {
    if stack.durable {
        let server = stack.start(folder, driver);
        let mut way = stack.way(&server).expect("it serves");
        written.iter().for_each(|written| written.check(&mut way));
    }
}

/// Errors reach who asked; what was acknowledged is read all the same, and what was flushed is there at the next start.
fn says_so(stack: &Stack, driver: &str, refusal: Refusal) {
    let (mut server, mut written, folder) = refused(stack, driver, &refusal);
    assert!(server.lives(), "{refusal:?}: {:?}\n{}", server.ends(), server.log());
    let mut way = stack.way(&server).expect("it serves");
    written.iter().for_each(|written| written.check(&mut way));
    drop(way);
    server.signal(Signal::TERM);
    let code = server.ends().code();
    assert!([Some(0), Some(1)].contains(&code), "{refusal:?}: {code:?}: {}", server.log());
    if code == Some(1) {
        written.iter_mut().for_each(Acknowledged::keep_durable);
    }
    drop(server);
    is_there(stack, driver, &folder, &written);
}

/// Asked to end while a few calls are refused, it does.
fn ends(stack: &Stack, driver: &str, refusal: Refusal) {
    println!("{driver}: {refusal:?} at the end");
    let folder = Arc::new(Scratch::new());
    let mut server = stack.start(&folder, driver);
    let mut written = Acknowledged::new(0);
    stack.way(&server).and_then(|mut way| written.write_some(&mut way)).expect("nothing is refused yet");
    let last = Some(refusal.last.unwrap_or(2));
    let refusing = Refusing::begin(server.pid(), &Refusal { last, ..refusal }, &server.folder());
    server.signal(Signal::TERM);
    let code = server.ends().code();
    assert!([Some(0), Some(1)].contains(&code), "{refusal:?}: {code:?}: {}", server.log());
    drop((refusing, server));
    is_there(stack, driver, &folder, &[written]);
}

#[test]
fn with_io_uring_a_write_cache_outlives_what_the_system_refuses() {
    examine(&CACHED, "io_uring", &[BOTH, IO_URING], outlives);
}

#[test]
fn with_polling_a_write_cache_outlives_what_the_system_refuses() {
    examine(&CACHED, "poll", &[BOTH, POLL], outlives);
    examine(&CACHED, "poll", &[ERRORS], says_so);
}

#[test]
fn with_polling_a_page_cache_outlives_what_the_system_refuses() {
    examine(&PAGED, "poll", &[BOTH, POLL], outlives);
    examine(&PAGED, "poll", &[ERRORS], says_so);
}

#[test]
fn with_io_uring_a_spill_file_outlives_what_the_system_refuses() {
    examine(&SPILLING, "io_uring", &[BOTH, IO_URING], outlives);
}

#[test]
fn with_polling_a_spill_file_outlives_what_the_system_refuses() {
    examine(&SPILLING, "poll", &[BOTH, POLL], outlives);
    examine(&SPILLING, "poll", &[ERRORS], says_so);
}

#[test]
fn with_io_uring_a_mount_outlives_what_the_system_refuses() {
    examine(&MOUNTED, "io_uring", &[MOUNT, IO_URING], outlives);
}

#[test]
fn with_polling_a_mount_outlives_what_the_system_refuses() {
    examine(&MOUNTED, "poll", &[MOUNT, POLL], outlives);
    examine(&MOUNTED, "poll", &[ERRORS], says_so);
}

#[test]
fn a_server_ends_where_the_system_refuses_calls_of_the_end() {
    for stack in [CACHED, PAGED, SPILLING, MOUNTED] {
        examine(&stack, "io_uring", &[END, IO_URING], ends);
        examine(&stack, "poll", &[END, POLL, ERRORS], ends);
    }
}
