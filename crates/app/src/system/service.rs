//! What a service manager hears of a server, by the protocol of sd_notify(3). Without one nothing is said, and nothing runs.
//!
//! | said | when |
//! | --- | --- |
//! | `READY=1` | clients can connect, or the command beside the server has begun |
//! | `STATUS=` | what is served; at the end, what is waited for; at the start and the end, progress of long work |
//! | `EXTEND_TIMEOUT_USEC=` | every 10 s of a start, of an end, and while an end is put off: none is given up while it goes on |
//! | `WATCHDOG=1` | three times in the time that the manager allows, as long as every worker runs its tasks |
//! | `STOPPING=1` | the end has begun |

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::{Env, Place, Works, task};
use spillway_export::control::work::in_words;
use spillway_io::Workers;

/// Where the manager listens: a path, or the name of an abstract socket behind an `@`.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Microseconds after which it takes a server that says nothing for dead.
const WATCHDOG: &str = "WATCHDOG_USEC";

/// What a manager tells this process alone.
pub(crate) const VARIABLES: [&str; 3] = [SOCKET, WATCHDOG, "WATCHDOG_PID"];

/// Between two extensions of a start or an end.
const PAUSE: Duration = Duration::from_secs(10);

/// Between two looks at long work that a start or an end waits for.
const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// One in so many looks is logged.
const LOGGED: u32 = 10;

/// An extension, by 30 s.
const EXTEND: &str = "EXTEND_TIMEOUT_USEC=30000000";

static SUPERVISOR: OnceLock<Supervisor> = OnceLock::new();

struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
    serving: AtomicBool,
    /// An end waits that was asked for, by a manager or not.
    waiting: AtomicBool,
}

impl Supervisor {
    /// Where `address` says. The watchdog is for this process unless it names another.
    fn at(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match address.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(address)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not listen holds nobody up.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            address,
            watchdog,
            serving: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
        })
    }

    fn tell(&self, text: &str) {
        if let Err(why) = self.socket.send_to_addr(text.as_bytes(), &self.address) {
            tracing::debug!("the service manager hears nothing: {why}");
        }
    }

    /// How often it is told that the server goes on.
    fn pause(&self) -> Duration {
        self.watchdog.map_or(PAUSE, |time| PAUSE.min(time / 3).max(Duration::from_millis(1)))
    }

    /// Says that the server goes on: where it serves, only if all of its workers have shown that they are `alive`.
    fn tick(&self, alive: &[AtomicBool]) {
        let serves = self.serving.load(Ordering::Relaxed);
        if !serves || self.waiting.load(Ordering::Relaxed) {
            self.tell(EXTEND);
        }
        if serves && self.watchdog.is_some() && alive.iter().all(|one| one.load(Ordering::Relaxed)) {
            alive.iter().for_each(|one| one.store(false, Ordering::Relaxed));
            self.tell("WATCHDOG=1");
        }
    }
}

/// Takes notice of a service manager that has started this process.
pub(crate) fn begin() {
    let Some(address) = std::env::var_os(SOCKET) else { return };
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(std::process::id()));
    let watchdog = number(WATCHDOG).filter(|&micros| is_ours && micros > 0).map(Duration::from_micros);
    match Supervisor::at(&address, watchdog) {
        Ok(supervisor) => _ = SUPERVISOR.set(supervisor),
        Err(why) => tracing::warn!("{SOCKET}={}: {why}: no service manager is told", address.display()),
    }
}

/// Has the manager hear from now on that the server goes on.
pub(crate) fn watch(workers: &Workers) {
    let Some(supervisor) = SUPERVISOR.get() else { return };
    let alive: Arc<[AtomicBool]> = (0..workers.count()).map(|_| AtomicBool::new(false)).collect();
    for index in 0..workers.count() {
        let (alive, env) = (alive.clone(), workers.env());
        let show = move || async move {
            loop {
                alive[index].store(true, Ordering::Relaxed);
                env.sleep(supervisor.pause() / 2).await;
            }
        };
        workers.run_on(index, task(show));
    }
    let env = workers.env();
    let tell = move || async move {
        loop {
            env.sleep(supervisor.pause()).await;
            supervisor.tick(&alive);
        }
    };
    workers.env().spawn(Place::Background, task(tell));
}

/// Clients can connect to these devices.
pub(crate) fn ready<'a>(names: impl Iterator<Item = &'a str>) {
    let Some(supervisor) = SUPERVISOR.get() else { return };
    supervisor.serving.store(true, Ordering::Relaxed);
    let names = names.collect::<Vec<_>>().join(", ");
    supervisor.tell(&format!("READY=1\nSTATUS=serving {names}"));
}

/// The end is put off. A manager that has not asked for it goes on to see the server as running, and ends it in its own way.
pub(crate) fn waiting() {
    let Some(supervisor) = SUPERVISOR.get() else { return };
    supervisor.waiting.store(true, Ordering::Relaxed);
    supervisor.tell(EXTEND);
}

/// The end has begun.
pub(crate) fn stopping() {
    let Some(supervisor) = SUPERVISOR.get() else { return };
    supervisor.serving.store(false, Ordering::Relaxed);
    supervisor.tell(&format!("STOPPING=1\nSTATUS=stopping\n{EXTEND}"));
}

/// Awaits a part of a start or an end, and says meanwhile what of the long work of its device is done, in the log too.
pub(crate) async fn reported<T>(env: &dyn Env, works: &Works, part: impl Future<Output = T>) -> T {
    let mut part = pin!(part);
    let mut looks: u32 = 0;
    loop {
        if let Some(done) = within(env, STATUS_PAUSE, part.as_mut()).await {
            return done;
        }
        looks += 1;
        let Some(words) = in_words(works.progress().into_iter().map(Into::into)) else { continue };
        status(&words);
        if looks.is_multiple_of(LOGGED) {
            tracing::info!("{words}");
        }
    }
}

/// Says how far a start or an end is; nothing while the server serves.
fn status(text: &str) {
    let Some(supervisor) = SUPERVISOR.get() else { return };
    if !supervisor.serving.load(Ordering::Relaxed) {
        supervisor.tell(&format!("STATUS={text}"));
    }
}

/// Says, in the log too, what the end waits for.
pub(crate) fn warn(text: &str) {
    tracing::warn!("{text}");
    if let Some(supervisor) = SUPERVISOR.get() {
        supervisor.tell(&format!("STATUS={}", text.replace('\n', " ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(listener: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 256];
        listener.recv(&mut bytes).ok().map(|count| String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    fn supervisor(watchdog: Option<u64>) -> (Supervisor, UnixDatagram) {
        let name = format!("spillway-service-{}-{watchdog:?}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        (
            Supervisor::at(OsStr::new(&format!("@{name}")), watchdog.map(Duration::from_secs)).unwrap(),
            listener,
        )
    }

    #[test]
    fn a_worker_that_does_not_run_keeps_the_watchdog_silent() {
        let (supervisor, listener) = supervisor(Some(3));
        let alive = [AtomicBool::new(true), AtomicBool::new(true)];
        supervisor.tick(&alive);
        assert_eq!(heard(&listener).as_deref(), Some(EXTEND), "the start goes on");
        supervisor.serving.store(true, Ordering::Relaxed);
        supervisor.tick(&alive);
        assert_eq!(heard(&listener).as_deref(), Some("WATCHDOG=1"));
        alive[0].store(true, Ordering::Relaxed);
        supervisor.tick(&alive);
        assert_eq!(heard(&listener), None, "the second worker hangs");
        alive[1].store(true, Ordering::Relaxed);
        supervisor.tick(&alive);
        assert_eq!(heard(&listener).as_deref(), Some("WATCHDOG=1"));
        assert_eq!(supervisor.pause(), Duration::from_secs(1));
    }

    #[test]
    fn without_a_watchdog_a_server_that_serves_says_nothing() {
        let (supervisor, listener) = supervisor(None);
        supervisor.serving.store(true, Ordering::Relaxed);
        supervisor.tick(&[AtomicBool::new(true)]);
        assert_eq!(heard(&listener), None);
        drop(listener);
        supervisor.tell("nobody hears it");
    }
}
