//! Signals that end a benchmark: it takes down what it has started, and then ends. A second one ends it at once.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code, that of a program which SIGINT has ended.
pub(crate) const CODE: u8 = 130;

static CAME: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From here on a signal is kept for [`check`].
pub(crate) fn keep() -> Result<()> {
    let came = CAME.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, CODE.into(), came.clone())?;
        flag::register(signal, came.clone())?;
    }
    Ok(())
}

/// Whether a signal came.
pub(crate) fn came() -> bool {
    CAME.get().is_some_and(|came| came.load(Ordering::Relaxed))
}

/// Fails once a signal came.
pub(crate) fn check() -> Result<()> {
    ensure!(!came(), "interrupted");
    Ok(())
}

/// Tells a part, which leads a process group of its own, and what it runs.
pub(crate) fn forward(part: &Child) -> Result<()> {
    Ok(kill_process_group(Pid::from_child(part), Signal::INT)?)
}
