//! Clients that go on while calls of their server are refused.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::{Acknowledged, Refusal, Refusing, Server, Way, until};

/// Parts of the device, of which the first is left to who looks at it before and after.
pub const PARTS: u64 = 3;

/// Connections of a writer.
const ROUNDS: usize = 30;

/// Refusals that are waited for before the server is let go of.
const REFUSED_MIN: usize = 3;

/// What clients, which open the device `way`, have had acknowledged while calls were refused. Meanwhile `beside` is done again and again.
/// Calls that are `rare` may not be made at all.
pub fn write_meanwhile(
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
