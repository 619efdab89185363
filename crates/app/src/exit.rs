//! Exit codes, failures that know theirs, and signals that end a server.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use spillway_core::{Error, Kind};

/// What the documented exit codes mean; shown by `spillway --help`.
pub(crate) const TABLE: &str = "\
Exit codes:
  0    success; for a server: it was asked to stop, and has flushed each device that it had
  1    failure; the message says what, why and what to do
  2    wrong usage: an option, a value or the configuration file
  3    there is no such server, device or attribute
  4    in use: the name or socket is taken, a client is connected, or the file is open
  any  of a server with a COMMAND: that of the command, 128 + N where signal N has ended it, or kept it from running
  130  ended at once by a second SIGINT (Ctrl-C); 131 by a second SIGQUIT, 143 by a second SIGTERM";

/// What the documented signals do; shown by `spillway --help`.
pub(crate) const SIGNALS: &str = "\
Signals of a server:
  SIGINT, SIGTERM, SIGQUIT  stop in order; sent again after a second or more: end at once, without a flush
                            beside a COMMAND SIGINT and SIGQUIT are for that alone
  SIGHUP                    stop in order, unless it was ignored at the start (nohup)
  SIGUSR1                   open --log-file again, as after a log rotation; read certificates again";

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All went well.
    Success = 0,
    /// Something failed.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// No such server, device or attribute.
    Missing = 3,
    /// In use by another.
    Busy = 4,
}

/// A failure with an exit code other than 1.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// A failure that ends the program by `exit`.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// The command line or the configuration is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// A server's refusal, as the client program reports it.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, message) = (error.kind, error.to_string());
        let exit = if kind == Kind::NotFound { Exit::Missing } else { refused(error).exit };
        Self::new(exit, message)
    }
}

/// A start that something refused: in use, wrongly asked for, or failed.
pub(crate) fn refused(error: Error) -> Failure {
    let exit = match error.kind {
        Kind::Busy => Exit::Busy,
        Kind::Invalid | Kind::Range | Kind::TooLong | Kind::NotBlock | Kind::NotFolder => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::new(exit, error.message())
}

/// An error that refuses nothing, whatever kind a disk or the server of an origin gave it: its exit code is 1.
pub(crate) fn failed(error: Error) -> Error {
    match Failure::from(error.clone()).exit {
        Exit::Failed => error,
        _ => Error::new(Kind::Io, error.message()),
    }
}

/// The exit code of a failed run.
pub(crate) fn code_of(error: &anyhow::Error) -> Exit {
    let known = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
    known.map_or(Exit::Failed, |failure| failure.exit)
}

/// How another program has ended, as a shell has it.
pub(crate) fn code_of_program(status: ExitStatus) -> u8 {
    let number = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(number).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_code_is_found_below_any_context() {
        let busy = Failure::from(Error::new(Kind::Busy, "taken"));
        let error = Err::<(), _>(busy).context("starting").unwrap_err();
        assert_eq!(code_of(&error), Exit::Busy);
        assert_eq!(format!("{error:#}"), "starting: taken (EBUSY)");
        assert_eq!(code_of(&anyhow::anyhow!("plain")), Exit::Failed);
    }

    #[test]
    fn a_value_that_is_not_allowed_is_wrong_usage_at_start_and_later() {
        let wrong = || Error::invalid("max_comp_streams cannot be 0");
        assert_eq!((Failure::from(wrong()).exit, refused(wrong()).exit), (Exit::Usage, Exit::Usage));
    }
}
