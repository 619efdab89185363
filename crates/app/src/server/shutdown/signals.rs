//! What signals do to a server, and to any command one: SIGCHLD, which the program that started it may ignore.
//!
//! | signal | |
//! | --- | --- |
//! | SIGINT, SIGTERM, SIGQUIT | ask the server to stop; one that comes a second or more after that ends the process at once |
//! | SIGHUP | asks the server to stop, unless it was ignored at the start; never ends the process at once |
//! | SIGPWR, SIGXCPU | ask the server to stop |
//! | SIGUSR1 | has the log file opened again, and certificates read again |
//! | SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXFSZ | nothing |
//! | SIGTTOU, SIGPIPE | ignored |
//! | all others | as the system has it |
//!
//! While a command runs beside it, SIGINT and SIGQUIT are for that, and ask the server for nothing: see `command`.
//!
//! All that a server handles it unblocks at its start: a signal that its starter has blocked would never arrive.
//!
//! One cause may send a signal several times within a moment: a terminal that hangs up sends SIGHUP, and so does its shell; `timeout` signals its
//! command and then its group; SIGXCPU comes each second. None of that asks for an end without a flush.
//!
//! The end at once acts inside the signal's own delivery, so that it works whatever the other threads are doing. SIGXFSZ does nothing so that a
//! write past the limit of file sizes fails by EFBIG; SIGTTOU is ignored so that a log line from the background of a terminal is written and stops
//! nobody. The language's runtime ignores SIGPIPE before `main`.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGTTOU, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use spillway_io::signals::{ignore, is_ignored, leave, unblock};

use crate::log;
use crate::server::event::Event;

/// Ask the server to stop, and end it at once when they come again.
const INSISTENT: [i32; 3] = [SIGINT, SIGTERM, SIGQUIT];

/// Those of them that a terminal sends by its keys, to every program in its foreground.
pub(crate) const OF_KEYS: [i32; 2] = [SIGINT, SIGQUIT];

/// Ask the server to stop.
const PATIENT: [i32; 3] = [SIGHUP, Signal::POWER.as_raw(), SIGXCPU];

/// Do nothing.
const WITHOUT_EFFECT: [i32; 6] = [SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXFSZ];

/// How long all signals are one.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// Pause between two looks for signals where waiting for them is refused.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Longest wait for the word of a signal: that is a byte in a socket, and the system may have had no memory for it.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Lets this program wait for programs that it starts, whatever the one that started it ignores.
pub(crate) fn await_children() -> Result<()> {
    leave(SIGCHLD).context("cannot wait for other programs")
}

/// Whether the server was asked to stop, so long ago that the same signal once more ends it at once.
#[derive(Default)]
pub(crate) struct Asked {
    before: Arc<AtomicBool>,
    /// The same, where the keys of a terminal are for the server.
    by_keys: Arc<AtomicBool>,
    command_runs: AtomicBool,
}

impl Asked {
    /// The keys of the terminal are for a command from now on.
    pub(crate) fn command_begins(&self) {
        self.command_runs.store(true, Ordering::SeqCst);
    }

    /// The keys of the terminal are for the server from now on.
    pub(crate) fn command_has_ended(&self) {
        self.command_runs.store(false, Ordering::SeqCst);
        if self.before.load(Ordering::SeqCst) {
            self.by_keys.store(true, Ordering::SeqCst);
        }
    }

    fn note(&self) {
        self.before.store(true, Ordering::SeqCst);
        // In this order: one of this and `command_has_ended` sees the other.
        if !self.command_runs.load(Ordering::SeqCst) {
            self.by_keys.store(true, Ordering::SeqCst);
        }
    }

    fn is_for_command(&self, signal: i32) -> bool {
        OF_KEYS.contains(&signal) && self.command_runs.load(Ordering::SeqCst)
    }
}

/// Sends [`Event::Signal`] for each signal from now on that asks the server to stop, also for one that was sent before and blocked. While a
/// command runs beside it, those of a terminal are for that as well, and do not end the server at once.
pub(crate) fn watch(events: Sender<Event>) -> Result<Arc<Asked>> {
    let asking =
        INSISTENT.into_iter().chain(PATIENT).filter(|&signal| signal != SIGHUP || !is_ignored(SIGHUP));
    let watched = asking.chain([SIGUSR1]);
    let [before, by_keys] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    for signal in INSISTENT {
        let asked = if OF_KEYS.contains(&signal) { &by_keys } else { &before };
        flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
    }
    let asked = Arc::new(Asked { before, by_keys, command_runs: AtomicBool::new(false) });
    let (read, write) = UnixStream::pair().context("cannot watch for signals")?;
    read.set_read_timeout(Some(WAIT_MAX)).context("cannot watch for signals")?;
    let signals = SignalDelivery::with_pipe(read, write, SignalOnly, watched);
    let signals = signals.context("cannot watch for signals")?;
    for signal in WITHOUT_EFFECT {
        flag::register(signal, Arc::default())?;
    }
    ignore(SIGTTOU).context("cannot ignore a signal")?;
    unblock(&[&INSISTENT[..], &PATIENT, &[SIGUSR1], &WITHOUT_EFFECT].concat())
        .context("cannot unblock signals")?;
    let noted = asked.clone();
    let forward = move || forward(signals, &events, &noted);
    thread::Builder::new().name("signals".into()).spawn(forward).context("cannot start a thread")?;
    Ok(asked)
}

/// Passes signals on.
fn forward(mut signals: SignalDelivery<UnixStream, SignalOnly>, events: &Sender<Event>, asked: &Asked) {
    while let Ok(Some(arrived)) = signals.poll_pending(&mut wait) {
        arrived.for_each(|signal| pass_on(signal, events, asked));
    }
}

/// Marks that the server was `asked` to stop once its first request is over.
fn pass_on(signal: i32, events: &Sender<Event>, asked: &Asked) {
    if signal == SIGUSR1 {
        log::reopen();
        let _ = events.send(Event::ReadAgain);
        return;
    }
    // A server that stops already listens no more.
    let _ = events.send(Event::Signal(signal));
    if !asked.is_for_command(signal) && !asked.before.load(Ordering::SeqCst) {
        thread::sleep(ONE_REQUEST);
        asked.note();
        tracing::info!("SIGINT, SIGTERM and SIGQUIT end the server at once from now on, without a flush");
    }
}

/// Waits until signals may have arrived, or long enough. Where the system refuses to say, it is time to look.
fn wait(read: &mut UnixStream) -> io::Result<bool> {
    let refused = read.read(&mut [0]).is_err_and(|why| why.kind() != io::ErrorKind::WouldBlock);
    if refused {
        thread::sleep(LOOK_PAUSE);
    }
    Ok(true)
}
