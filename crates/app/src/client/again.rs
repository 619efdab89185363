//! Text that is printed again and again, for programs and files.

use std::io::stdout;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connection::is_read;

/// Prints what `text` makes every so often, and `between` before each but the first: `count` times, or until the reader of standard output
/// leaves. A text that takes longer than `every` delays the next one.
pub(super) fn print_every(
    every: Duration,
    count: Option<u64>,
    between: &str,
    mut text: impl FnMut() -> Result<String>,
) -> Result<()> {
    let mut due = Instant::now();
    for number in 1.. {
        let before = if number == 1 { "" } else { between };
        if !is_read(&format!("{before}{}", text()?))? || count == Some(number) {
            break;
        }
        due = (due + every).max(Instant::now());
        if has_left_before(due)? {
            break;
        }
    }
    Ok(())
}

/// Waits until `due`, or until nobody reads standard output any more: whether that is so.
fn has_left_before(due: Instant) -> Result<bool> {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec::try_from(left).expect("at most an hour");
        let out = stdout();
        // No event is asked for: an error and a hang-up are told all the same.
        match poll(&mut [PollFd::new(&out, PollFlags::empty())], Some(&timeout)) {
            Err(Errno::INTR) => {}
            told => {
                if told.context("cannot wait on standard output")? > 0 {
                    return Ok(true);
                }
            }
        }
    }
}
