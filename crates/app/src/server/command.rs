//! `spillway ram -- COMMAND`: a program that a server runs beside itself, and whose end is its own.
//!
//! It has the server's terminal and standard streams. A signal that asks the server to stop is passed on to it, and the server stops once it
//! has ended: until then it may use the device. It is killed where the server ends without order.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stdin};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use spillway_io::{Before, end_with_us};

use crate::server::event::Event;

/// How long it may take to end before the log says what is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Signals that a terminal sends to all programs in its foreground.
const OF_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::HUP];

/// A program that runs, or has ended.
pub(crate) struct Running {
    name: String,
    process: OwnedFd,
    ended: Receiver<u8>,
}

impl Running {
    /// Starts `words` with `environment` besides this program's own, and what that had `before`. Its end is an event. To be called on the thread of `main`.
    pub(crate) fn start(
        words: &[OsString],
        before: Before,
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
        events: Sender<Event>,
    ) -> Result<Self> {
        let (program, arguments) = words.split_first().context("a command has a name")?;
        let name = program.to_string_lossy().into_owned();
        let mut command = Command::new(program);
        let command = before.restore_for(end_with_us(command.args(arguments).envs(environment)));
        let child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        let process =
            pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context("cannot watch a program")?;
        let (sender, ended) = channel();
        let wait = move || {
            // A server that waits no longer needs no answer.
            let _ = sender.send(wait_for(child));
            let _ = events.send(Event::CommandEnded);
        };
        thread::Builder::new().name("command".into()).spawn(wait).context("cannot start a thread")?;
        Ok(Self { name, process, ended })
    }

    /// Waits for its end, after it was asked for that by the signal that asks the server, or by SIGTERM; its exit code as a shell has it.
    pub(crate) fn end(self, signal: Option<i32>) -> u8 {
        let signal = signal.and_then(Signal::from_named_raw).unwrap_or(Signal::TERM);
        if !(OF_TERMINAL.contains(&signal) && stdin().is_terminal()) {
            // One that has just ended is not there to be told.
            let _ = pidfd_send_signal(&self.process, signal);
        }
        match self.ended.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    "{} is asked to end; the server stops after it, or at once by another signal",
                    self.name
                );
                self.ended.recv().unwrap_or(1)
            }
            code => code.unwrap_or(1),
        }
    }
}

fn wait_for(mut child: Child) -> u8 {
    match child.wait() {
        Ok(status) => code_of(status),
        Err(why) => {
            tracing::error!("cannot learn how a program has ended: {why}");
            1
        }
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let number = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(number).unwrap_or(1)
}

/// What it finds of a device in its environment.
pub(crate) fn environment(
    name: &str,
    uri: String,
    file: Option<&OsStr>,
) -> impl Iterator<Item = (&'static str, OsString)> {
    let named = [("SPILLWAY_NAME", name.into()), ("SPILLWAY_URI", uri.into())];
    named.into_iter().chain(file.map(|path| ("SPILLWAY_FILE", path.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn ended(words: &[&str], signal: Option<i32>) -> u8 {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let (events, _events) = mpsc::channel();
        Running::start(&words, Before::now(), [], events).unwrap().end(signal)
    }

    #[test]
    fn a_command_that_is_asked_to_end_says_how_it_did() {
        assert_eq!(ended(&["sleep", "1000"], None), 128 + 15);
        assert_eq!(ended(&["sleep", "1000"], Some(15)), 128 + 15);
    }

    #[test]
    fn the_end_of_a_command_is_an_event_and_its_code_stays() {
        let (sender, events) = mpsc::channel();
        let words = ["sh", "-c", "exit 7"].map(OsString::from);
        let running = Running::start(&words, Before::now(), [], sender).unwrap();
        assert!(matches!(events.recv(), Ok(Event::CommandEnded)));
        assert_eq!(running.end(None), 7);
    }

    #[test]
    fn one_that_cannot_be_run_is_named() {
        let (events, _events) = mpsc::channel();
        let error = Running::start(&["/no/such/program".into()], Before::now(), [], events).err().unwrap();
        assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
    }
}
