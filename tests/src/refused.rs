//! Servers whose calls are refused, one kind after the other, while clients go on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::{Acknowledged, Launch, Refusal, Refusing, Scratch, Server, Way, until};

/// Parts of the device, of which the first is left to who looks at it before and after.
pub const PARTS: u64 = 3;

/// Connections of a writer.
const ROUNDS: usize = 30;

/// Refusals that are waited for before the server is let go of.
const REFUSED_MIN: usize = 3;

/// Set to draw more single refusals.
const DRAWS: &str = "SPILLWAY_REFUSALS";

/// A server to be examined, whose device is `d`.
pub struct Stack {
    /// Its server, with files in this folder.
    pub launch: fn(Arc<Scratch>) -> Launch,
    /// Clients use its file in the mount.
    pub mounted: bool,
    /// A command that is given again and again while calls are refused.
    pub beside: &'static [&'static str],
    /// What is acknowledged when a server ends in order is there at the next start.
    pub durable: bool,
}

impl Stack {
    fn start(&self, folder: &Arc<Scratch>, driver: &str) -> Server {
        (self.launch)(folder.clone()).with("--name", "d").with("--driver", driver).start()
    }

    fn way(&self, server: &Server) -> io::Result<Way> {
        if self.mounted { Way::by_file(&server.file("d")) } else { Way::by_socket(server.socket()) }
    }
}

/// Calls, and what the system may answer.
pub type Rows = &'static [(&'static str, &'static [&'static str])];

/// Calls that not every stack makes.
const RARE: &[&str] = &["statx", "getpeername,getsockopt", "pread64", "fallocate", "ftruncate", "clone3"];

/// Calls on files, and replies of a mount, of which each error counts, so that these end before strace does.
const FILES: &[&str] = &["pwritev2", "pread64", "fdatasync", "fdatasync,fallocate", "writev"];

/// Has `act` examine a server for each row: all calls are refused, and then single ones.
pub fn examine(stack: &Stack, driver: &str, tables: &[Rows], act: fn(&Stack, &str, Refusal)) {
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

/// Clients go on with whatever fails meanwhile; then they find what they wrote, and so does the next server.
pub fn outlives(stack: &Stack, driver: &str, refusal: Refusal) {
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
pub fn says_so(stack: &Stack, driver: &str, refusal: Refusal) {
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
pub fn ends(stack: &Stack, driver: &str, refusal: Refusal) {
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

/// What clients, which open the device `way`, have had acknowledged while calls were refused. Meanwhile `beside` is done again and again.
/// Calls that are `rare` may not be made at all.
fn write_meanwhile(
    server: &Server,
    refusal: &Refusal,
    rare: bool,
    way: &(dyn Fn() -> io::Result<Way> + Sync),
    beside: &(dyn Fn() + Sync),
) -> Vec<Acknowledged> {
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _killed = KilledByPanic(server);
        let refusing = Refusing::begin(server.pid(), refusal, &server.folder());
        let clients: Vec<_> =
            (1..PARTS).map(|part| scope.spawn(move || write_until(over, way, part))).collect();
        scope.spawn(move || repeat_until(over, beside));
        let done = || {
            refusal.last.is_none() && refusing.refused() >= REFUSED_MIN
                || clients.iter().all(|client| client.is_finished())
        };
        until("calls are refused", || done().then_some(()));
        assert!(rare || refusal.first > 1 || refusing.refused() > 0, "{refusal:?}: no such call was made");
        drop(refusing);
        until("clients end", || {
            over.store(true, Ordering::Relaxed);
            clients.iter().all(|client| client.is_finished()).then_some(())
        });
        clients.into_iter().map(|client| client.join().expect("it ends")).collect()
    })
}

/// Requests to a file of a mount that nobody answers end only with its server.
struct KilledByPanic<'a>(&'a Server);

impl Drop for KilledByPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.signal(Signal::KILL);
        }
    }
}

fn write_until(over: &AtomicBool, way: &dyn Fn() -> io::Result<Way>, part: u64) -> Acknowledged {
    let mut written = Acknowledged::new(part);
    for _ in 0..ROUNDS {
        if over.load(Ordering::Relaxed) {
            break;
        }
        // A server that is out of descriptors or memory hangs up, and one whose disk fails says so.
        let _ = way().and_then(|mut way| written.write_some(&mut way));
    }
    written
}

fn repeat_until(over: &AtomicBool, beside: &dyn Fn()) {
    while !over.load(Ordering::Relaxed) {
        beside();
        thread::yield_now();
    }
}
