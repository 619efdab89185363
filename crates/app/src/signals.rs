//! SIGINT and SIGTERM: the first asks the server to stop, the second ends the process at once. SIGUSR1 has the log's file opened again.
//!
//! The second acts inside the signal's own delivery, so that it works whatever the other threads are doing. SIGPIPE is
//! ignored by the language's runtime before `main`. SIGXFSZ does nothing, so that a write past the limit of file sizes fails by EFBIG.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::event::Event;
use crate::log;

/// Sends [`Event::Signal`] for the first signal from now on.
pub(crate) fn watch(events: Sender<Event>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).context("cannot watch for signals")?;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the check comes before the mark, so that the first signal passes it.
        flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
        flag::register(signal, asked.clone())?;
    }
    flag::register(SIGXFSZ, Arc::default())?;
    let forward = move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                log::reopen();
            } else if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).context("cannot start a thread")?;
    Ok(())
}
