//! `spillway ram -- COMMAND`: a program that a server runs beside itself, and whose end is its own.
//!
//! It has the server's terminal and standard streams, and the devices until it ends: none is stopped before. SIGINT and SIGQUIT are for the
//! command, as for one that a shell runs: a terminal sends them to both, and only one in another process group is told by the server. Any
//! other signal that asks the server to stop asks the command too, and the server stops once that has ended. It is killed where the server
//! ends without order.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpgid, getpgrp, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGTERM};
use spillway_io::{Before, PASSED_VARIABLES, end_with_us};

use crate::exit::code_of_program;
use crate::server::event::Event;
use crate::system::service;

/// How long it may take to end before the log says what is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where it finds the path of a device's file, if there is one.
const FILE: &str = "SPILLWAY_FILE";

/// A program that runs, or has ended.
pub(crate) struct RunningCommand {
    name: String,
    id: Pid,
    process: OwnedFd,
    ended: Receiver<u8>,
    /// The signal that has asked it to end last.
    asked: Option<i32>,
}

impl RunningCommand {
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
        [FILE]
            .into_iter()
            .chain(service::VARIABLES)
            .chain(PASSED_VARIABLES)
            .for_each(|name| _ = command.env_remove(name));
        let command = before.restore_for(end_with_us(command.args(arguments).envs(environment)));
        let child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        let id = Pid::from_child(&child);
        let process = pidfd_open(id, PidfdFlags::empty()).context("cannot watch a program")?;
        let (sender, ended) = channel();
        let wait = move || {
            // A server that waits no longer needs no answer.
            let _ = sender.send(wait_for(child));
            let _ = events.send(Event::CommandEnded);
        };
        thread::Builder::new().name("command".into()).spawn(wait).context("cannot start a thread")?;
        Ok(Self { name, id, process, ended, asked: None })
    }

    /// Passes a signal of the keys on, unless the terminal has sent it to both.
    pub(crate) fn hears(&self, signal: i32) {
        // One that has just ended is in no group.
        if getpgid(Some(self.id)).is_ok_and(|group| group != getpgrp()) {
            self.send(signal);
        }
    }

    fn send(&self, signal: i32) {
        let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        match pidfd_send_signal(&self.process, signal) {
            // It has just ended.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(why) => tracing::warn!("{self} cannot be asked to end ({why}): end it yourself"),
        }
    }

    /// Asks it to end, by SIGTERM but for a hangup, once by each.
    pub(crate) fn ask(&mut self, signal: Option<i32>) {
        let signal = signal.filter(|&signal| signal == SIGHUP).unwrap_or(SIGTERM);
        if self.asked.replace(signal) != Some(signal) {
            self.send(signal);
        }
    }

    /// Asks it to end, and waits for that; its exit code as a shell has it.
    pub(crate) fn end(mut self, signal: Option<i32>) -> u8 {
        self.ask(signal);
        match self.ended.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => {
                service::warn(&format!(
                    "the server stops once {self} has ended, or without a flush by SIGTERM"
                ));
                self.ended.recv().unwrap_or(1)
            }
            code => code.unwrap_or(1),
        }
    }
}

impl fmt::Display for RunningCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.id.as_raw_nonzero())
    }
}

fn wait_for(mut child: Child) -> u8 {
    match child.wait() {
        Ok(status) => code_of_program(status),
        Err(why) => {
            tracing::error!("cannot learn how a program has ended: {why}");
            1
        }
    }
}

/// What it finds of a device in its environment.
pub(crate) fn environment(
    name: &str,
    uri: String,
    file: Option<&OsStr>,
) -> impl Iterator<Item = (&'static str, OsString)> {
    let named = [("SPILLWAY_NAME", name.into()), ("SPILLWAY_URI", uri.into())];
    named.into_iter().chain(file.map(|path| (FILE, path.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn ended(words: &[&str], signal: Option<i32>) -> u8 {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let (events, _events) = mpsc::channel();
        RunningCommand::start(&words, Before::now(), [], events).unwrap().end(signal)
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
        let running = RunningCommand::start(&words, Before::now(), [], sender).unwrap();
        assert!(matches!(events.recv(), Ok(Event::CommandEnded)));
        assert_eq!(running.end(None), 7);
    }

    #[test]
    fn one_that_cannot_be_run_is_named() {
        let (events, _events) = mpsc::channel();
        let error =
            RunningCommand::start(&["/no/such/program".into()], Before::now(), [], events).err().unwrap();
        assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
    }
}
