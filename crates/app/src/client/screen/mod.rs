//! A terminal that is redrawn in place, and its keys.
//!
//! It promises to restore the terminal however the view ends: when it is dropped, before a panic is reported, before a signal ends the
//! program, and while the program is stopped by Ctrl-Z. It draws with attributes of characters only, never with colours.
//!
//! States: *taken* (raw mode, the alternate screen, no cursor) and *restored*.

mod keys;
mod paint;
mod signals;

use std::io::{self, IsTerminal, Stdout, stdin, stdout};
use std::panic;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui_core::layout::Rect;
use ratatui_core::terminal::{Terminal, TerminalOptions, Viewport};
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};

use keys::Keys;
use signals::{Signal, Signals};

pub(super) use keys::Key;
pub(super) use paint::Line;
#[cfg(test)]
pub(super) use paint::paint;

/// How long the bytes of one key may be apart. After an escape that stands alone for longer, that was the key.
const KEY_PATIENCE: Duration = Duration::from_millis(50);

/// Columns and rows of a terminal that does not know its size, such as a serial line.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScreenEvent {
    /// A key was pressed.
    Key(Key),
    /// The terminal has another size, or lost what it showed.
    Redraw,
    /// The time has come.
    Due,
}

/// See the head of this file.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    signals: Signals,
    keys: Keys,
    _taken: Taken,
}

impl Screen {
    /// Whether standard input and output are a terminal that can be redrawn.
    pub(super) fn is_possible() -> bool {
        let is_able = std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
        is_able && stdin().is_terminal() && stdout().is_terminal()
    }

    /// Takes the terminal.
    pub(super) fn open() -> Result<Self> {
        let signals = Signals::watch().context("cannot watch for signals")?;
        let _taken = Taken::take().context("cannot draw on the terminal")?;
        let options = TerminalOptions { viewport: Viewport::Fixed(area()) };
        let terminal = Terminal::with_options(CrosstermBackend::new(stdout()), options)?;
        Ok(Self { terminal, signals, keys: Keys::default(), _taken })
    }

    /// Shows the lines that `compose` makes for so many columns and rows.
    pub(super) fn show(&mut self, compose: impl FnOnce(usize, usize) -> Vec<Line>) -> Result<()> {
        let area = area();
        let resized = self.terminal.get_frame().area() != area;
        let resize = if resized { self.terminal.resize(area) } else { Ok(()) };
        let lines = compose(area.width.into(), area.height.into());
        let drawn = resize
            .and_then(|()| self.terminal.draw(|frame| paint::paint(&lines, frame.buffer_mut())).map(drop));
        drawn.context("cannot draw on the terminal")
    }

    /// Waits for a key until `due`.
    pub(super) fn wait(&mut self, due: Instant) -> Result<ScreenEvent> {
        loop {
            match self.keys.next() {
                Some(Key::Suspend) => return self.suspend(),
                Some(key) => return Ok(ScreenEvent::Key(key)),
                None => {}
            }
            let left = due.saturating_duration_since(Instant::now());
            let patience = if self.keys.is_unfinished() { left.min(KEY_PATIENCE) } else { left };
            match self.poll(patience)? {
                (_, true) => {
                    if let Some(event) = self.signalled()? {
                        return Ok(event);
                    }
                }
                (true, false) => self.read()?,
                (false, false) if self.keys.is_unfinished() => self.keys.finish(),
                (false, false) => return Ok(ScreenEvent::Due),
            }
        }
    }

    /// Waits for input and signals: which of them there are.
    fn poll(&self, patience: Duration) -> Result<(bool, bool)> {
        let (input, timeout) = (stdin(), Timespec::try_from(patience).expect("at most an hour"));
        let mut both =
            [PollFd::new(&input, PollFlags::IN), PollFd::new(self.signals.arrival(), PollFlags::IN)];
        match poll(&mut both, Some(&timeout)) {
            // A signal that is watched for has made the other descriptor readable.
            Err(Errno::INTR) => Ok((false, true)),
            ready => {
                ready.context("cannot wait for keys")?;
                Ok((!both[0].revents().is_empty(), !both[1].revents().is_empty()))
            }
        }
    }

    fn read(&mut self) -> Result<()> {
        let mut bytes = [0; 256];
        match read(stdin(), &mut bytes) {
            Ok(0) | Err(Errno::IO) => bail!("the terminal was closed"),
            Err(Errno::INTR | Errno::AGAIN) => {}
            count => self.keys.take(&bytes[..count.context("cannot read keys")?]),
        }
        Ok(())
    }

    fn signalled(&mut self) -> Result<Option<ScreenEvent>> {
        let mut event = None;
        for signal in self.signals.arrived() {
            event = Some(match signal {
                Signal::Interrupt => return Ok(Some(ScreenEvent::Key(Key::Interrupt))),
                Signal::Resized => ScreenEvent::Redraw,
                Signal::Continued => self.retake()?,
                Signal::End(number) => {
                    restore();
                    signals::end_by(number);
                }
            });
        }
        Ok(event)
    }

    /// Gives the terminal to the shell until that continues this program.
    fn suspend(&mut self) -> Result<ScreenEvent> {
        restore();
        signals::stop_until_continued().context("cannot stop")?;
        self.retake()
    }

    /// Takes the terminal again from a program that has used it meanwhile.
    fn retake(&mut self) -> Result<ScreenEvent> {
        restore();
        take().context("cannot draw on the terminal")?;
        self.terminal.resize(area()).context("cannot draw on the terminal")?;
        Ok(ScreenEvent::Redraw)
    }
}

/// A terminal that is restored at the end of this.
struct Taken;

impl Taken {
    fn take() -> io::Result<Self> {
        let logged = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            restore();
            logged(what);
        }));
        let taken = Self;
        take()?;
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        restore();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal, as far as it is still there.
fn restore() {
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

fn area() -> Rect {
    let known = size().ok().filter(|(width, height)| *width > 0 && *height > 0);
    let (width, height) = known.unwrap_or(SIZE_UNKNOWN);
    Rect::new(0, 0, width, height)
}
