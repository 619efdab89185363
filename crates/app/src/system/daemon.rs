//! `--background`: a server that leaves the terminal once clients can connect.
//!
//! The program starts itself again as a child with the same arguments and [`MARK`] in its environment, so that nothing is
//! forked that already has threads. The child becomes the leader of a session of its own, says what there is to say on its
//! standard output, ends that by [`READY`] and lets go of the three standard streams. The parent passes everything on, as far as
//! anybody takes it, and ends well at `READY`; where the child ends before it, the parent ends with the child's exit code.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write, stdout};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use spillway_io::keep_descriptors_from;
use spillway_io::patient::write_all;

use crate::exit::{Exit, code_of_program};
use crate::words;

/// Environment variable that tells the child what it is.
const MARK: &str = "SPILLWAY_BACKGROUND_CHILD";

/// The byte that ends the child's words. No text that is printed contains it.
const READY: u8 = 0;

/// How long the parent may take to read.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether this process is the child.
pub(crate) fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the child, passes on what it says and returns the exit code for the parent.
pub(crate) fn launch() -> Result<u8> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(MARK, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    // Locks and pipes of who starts it end with that, unless a word names one, which is still to be opened.
    if !std::env::args_os().any(|word| names_descriptor(&word.to_string_lossy())) {
        keep_descriptors_from(&mut command);
    }
    let mut child = command.spawn().context("cannot start the background process")?;
    let words = child.stdout.take().expect("its standard output was asked to be a pipe");
    if relay(words, &mut stdout())? {
        return Ok(0);
    }
    let status = child.wait().context("cannot learn how the background process ended")?;
    Ok(failed_code(status))
}

fn names_descriptor(word: &str) -> bool {
    ["/dev/fd/", "/proc/self/fd/"].iter().any(|place| word.contains(place))
}

/// Copies until [`READY`] or the end; says whether `READY` came, whatever becomes of the copy.
fn relay(mut from: impl Read, to: &mut impl Write) -> Result<bool> {
    let (mut bytes, mut copied) = ([0; 4096], Ok(()));
    loop {
        let count = match from.read(&mut bytes) {
            Err(why) if why.kind() == ErrorKind::Interrupted => continue,
            count => count.context("cannot read from the background process")?,
        };
        let ready = bytes[..count].iter().position(|&byte| byte == READY);
        copied =
            copied.and_then(|()| to.write_all(&bytes[..ready.unwrap_or(count)])).and_then(|()| to.flush());
        if ready.is_some() || count == 0 {
            words::report(copied);
            return Ok(ready.is_some());
        }
    }
}

/// A child that ended without being ready did not succeed, whatever it says.
fn failed_code(status: ExitStatus) -> u8 {
    code_of_program(status).max(Exit::Failed as u8)
}

/// Leaves the terminal's session. Called in the child before it starts threads.
pub(crate) fn leave_session() -> Result<()> {
    rustix::process::setsid().context("cannot leave the terminal's session")?;
    Ok(())
}

/// Tells the parent that clients can connect, and lets go of the standard streams and of the working folder.
pub(crate) fn ready() -> Result<()> {
    write_all(stdout(), &[READY], PATIENCE).context("the starting process is gone")?;
    let null =
        OpenOptions::new().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/").context("cannot leave the working folder")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn words_are_passed_on_up_to_the_mark() {
        let mut out = Vec::new();
        assert!(relay(&b"started\n\0ignored"[..], &mut out).unwrap());
        assert_eq!(out, b"started\n");
        assert!(!relay(&b"half"[..], &mut out).unwrap(), "an end without the mark is a failed start");
    }

    #[test]
    fn a_child_that_was_never_ready_is_a_failure() {
        // As wait(2) has it: a code in the second byte, or a signal in the first.
        let failed = |status| failed_code(ExitStatus::from_raw(status));
        assert_eq!((failed(4 << 8), failed(0), failed(9)), (4, 1, 137));
    }
}
