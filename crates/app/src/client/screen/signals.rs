//! The signals that concern a program on a terminal.

use std::io;
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::{emulate_default_handler, raise};
use spillway_io::signals::is_ignored;

/// What a signal means to a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGINT: the user wants it to end.
    Interrupt,
    /// SIGWINCH: the terminal has another size.
    Resized,
    /// SIGCONT: another program has used the terminal.
    Continued,
    /// Any other: the program ends by it, as one does that handles no signal.
    End(i32),
}

/// Signals, in the order of their numbers, that have arrived.
pub(super) struct Signals(SignalDelivery<UnixStream, SignalOnly>);

impl Signals {
    /// Watches from now on. A hang-up that was ignored at the start stays ignored.
    pub(super) fn watch() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let all = [SIGINT, SIGWINCH, SIGCONT, SIGTERM, SIGQUIT, SIGHUP];
        let watched = all.into_iter().filter(|&signal| signal != SIGHUP || !is_ignored(SIGHUP));
        SignalDelivery::with_pipe(read, write, SignalOnly, watched).map(Self)
    }

    /// Becomes readable when a signal arrives.
    pub(super) fn arrival(&self) -> &UnixStream {
        self.0.get_read()
    }

    /// Those that have arrived since the last call.
    pub(super) fn arrived(&mut self) -> impl Iterator<Item = Signal> + use<> {
        self.0.pending().map(|number| match number {
            SIGINT => Signal::Interrupt,
            SIGWINCH => Signal::Resized,
            SIGCONT => Signal::Continued,
            other => Signal::End(other),
        })
    }
}

/// Ends the program by a signal that does so by default.
pub(super) fn end_by(signal: i32) -> ! {
    let outcome = emulate_default_handler(signal);
    unreachable!("signal {signal} ends a program: {outcome:?}")
}

/// Stops the program as Ctrl-Z does, until a shell continues it. Where no shell could, the system lets it go on at once.
pub(super) fn stop_until_continued() -> io::Result<()> {
    raise(SIGTSTP)
}
