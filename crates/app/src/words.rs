//! What the program says beside its log: words that nobody reads are no reason to end, or to wait.

use std::io::{ErrorKind, Result, stderr, stdout};
use std::time::Duration;

use spillway_io::patient::write_all;

use crate::plain::plain;

/// How long a reader may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says on standard output what a server says at its start. The server goes on whatever becomes of it.
pub(crate) fn announce(text: &str) {
    report(write_all(stdout(), text.as_bytes(), PATIENCE));
}

/// Logs that a start text could not be written. That nobody reads it is no failure.
pub(crate) fn report(written: Result<()>) {
    match written {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => {
            tracing::warn!("standard output takes no start text: {why}");
        }
        _ => {}
    }
}

/// Says why the program fails; without waiting for a reader unless there was one a moment ago.
pub(crate) fn complain(error: &anyhow::Error, is_read: bool) {
    let patience = if is_read { PATIENCE } else { Duration::ZERO };
    // The exit code says that it fails.
    let _ = write_all(stderr(), format!("spillway: {}\n", plain(&format!("{error:#}"))).as_bytes(), patience);
}
