//! A terminal for a program: a pseudo terminal, and what one that understands a few control sequences (ECMA-48) would show.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use crate::until;

/// A program on a terminal of its own, which is killed when this is dropped.
pub struct Terminal {
    child: Child,
    /// The side that people sit at.
    ours: Option<File>,
    /// The side of the program.
    theirs: OwnedFd,
    modes_before: String,
    display: Display,
}

impl Terminal {
    /// Runs `command` on a terminal of so many columns and rows.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let ours =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it is ours");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = open(name, flags, Mode::empty()).expect("it is unlocked");
        fcntl_setfl(&ours, OFlags::RDWR | OFlags::NONBLOCK).expect("it is ours");
        set_size(&theirs, columns, rows);
        let end = || theirs.try_clone().expect("a descriptor can be had twice");
        // The program is the first of a session of its own, whose keys and hang-up it gets.
        let mut session = behind("setsid", &["--ctty"], command);
        session.env("TERM", "xterm");
        let modes_before = modes(&theirs);
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid is installed");
        let display = Display::new(columns, rows);
        Self { child, ours: Some(ours.into()), theirs, modes_before, display }
    }

    /// Types keys.
    pub fn types(&mut self, keys: &str) {
        let ours = self.ours.as_mut().expect("it has not hung up");
        ours.write_all(keys.as_bytes()).expect("a terminal takes a few keys");
    }

    /// What it shows now, a line a row.
    pub fn text(&mut self) -> String {
        let mut bytes = [0; 4096];
        while let Some(ours) = &mut self.ours {
            match ours.read(&mut bytes) {
                Ok(count) => self.display.take(&bytes[..count]),
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) => panic!("the terminal cannot be read: {why}"),
            }
        }
        self.display.text()
    }

    /// Waits until it shows `words`, and returns all that it shows.
    pub fn shows(&mut self, words: &str) -> String {
        until(&format!("the terminal shows '{words}'"), || {
            Some(self.text()).filter(|shown| shown.contains(words))
        })
    }

    /// Waits until it does not show `words` any more, and returns all that it shows.
    pub fn hides(&mut self, words: &str) -> String {
        until(&format!("the terminal hides '{words}'"), || {
            Some(self.text()).filter(|shown| !shown.contains(words))
        })
    }

    /// Gives it another size.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        // What was sent before is for the size before.
        self.text();
        self.display.resize(columns, rows);
        set_size(&self.theirs, columns, rows);
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("the kernel's ids fit");
        kill_process(Pid::from_raw(id).expect("an id is not 0"), signal).expect("it is our child");
    }

    /// Waits for the end of the program.
    pub fn ends(&mut self) -> ExitStatus {
        until("the program on the terminal ends", || {
            self.text();
            self.child.try_wait().expect("it is our child")
        })
    }

    /// Panics unless the terminal is as it was before the program: its modes, its first screen, and a cursor.
    #[track_caller]
    pub fn is_restored(&mut self) {
        let shown = self.text();
        assert_eq!(modes(&self.theirs), self.modes_before, "the modes differ");
        assert!(!self.display.alternate && self.display.cursor, "it still shows\n{shown}");
    }

    /// Closes the terminal, as a window is closed.
    pub fn hang_up(&mut self) {
        self.ours = None;
    }
}

/// The same command, started by another program that is given before it.
pub fn behind(program: &str, arguments: &[&str], command: &Command) -> Command {
    let mut whole = Command::new(program);
    whole.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => whole.env(name, value),
            None => whole.env_remove(name),
        };
    }
    whole
}

fn set_size(terminal: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("it is ours");
}

fn modes(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).expect("it is a terminal"))
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the terminal showed:\n{}", self.display.text());
        }
    }
}

/// Cells of a terminal.
struct Display {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// The first screen, while the other one is shown.
    first: Vec<Vec<char>>,
    alternate: bool,
    cursor: bool,
    /// Bytes of a sequence that is not whole yet.
    pending: Vec<u8>,
}

impl Display {
    fn new(columns: u16, rows: u16) -> Self {
        let cells = vec![vec![' '; columns.into()]; rows.into()];
        let (first, pending) = (cells.clone(), Vec::new());
        Self { cells, row: 0, column: 0, first, alternate: false, cursor: true, pending }
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        for cells in [&mut self.cells, &mut self.first] {
            cells.resize(rows.into(), Vec::new());
            cells.iter_mut().for_each(|row| row.resize(columns.into(), ' '));
        }
        self.move_to(self.row, self.column);
    }

    fn text(&self) -> String {
        self.cells.iter().map(|row| format!("{}\n", String::from_iter(row).trim_end())).collect()
    }

    fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.pending);
        let mut rest = &bytes[..];
        while let Some((&byte, behind)) = rest.split_first() {
            rest = match byte {
                0x1b => match self.sequence(behind) {
                    Some(behind) => behind,
                    None => break,
                },
                _ => {
                    self.put(byte.into());
                    behind
                }
            };
        }
        self.pending = rest.to_vec();
    }

    /// Carries out what follows an escape; `None` where that is not whole.
    fn sequence<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (&kind, rest) = bytes.split_first()?;
        if kind != b'[' {
            return Some(rest);
        }
        let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
        let parameters = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.control(rest[end], &parameters);
        Some(&rest[end + 1..])
    }

    fn control(&mut self, what: u8, parameters: &str) {
        let number = |at| parameters.split(';').nth(at).and_then(|part| part.parse().ok()).unwrap_or(1);
        match (what, parameters) {
            (b'H', _) => self.move_to(number(0) - 1, number(1) - 1),
            (b'J', "2") => self.clear(),
            (b'J', _) => {
                self.clear_line();
                self.cells.iter_mut().skip(self.row + 1).for_each(|row| row.fill(' '));
            }
            (b'K', _) => self.clear_line(),
            (b'h' | b'l', "?25") => self.cursor = what == b'h',
            (b'h' | b'l', "?1049") => self.switch(what == b'h'),
            _ => {}
        }
    }

    fn switch(&mut self, alternate: bool) {
        if alternate != self.alternate {
            std::mem::swap(&mut self.cells, &mut self.first);
            self.alternate = alternate;
        }
        if alternate {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.cells.iter_mut().for_each(|row| row.fill(' '));
    }

    fn clear_line(&mut self) {
        self.cells[self.row][self.column..].fill(' ');
    }

    fn move_to(&mut self, row: usize, column: usize) {
        self.row = row.min(self.cells.len() - 1);
        self.column = column.min(self.cells[0].len() - 1);
    }

    fn put(&mut self, character: char) {
        match character {
            '\r' => self.column = 0,
            '\n' if self.row + 1 == self.cells.len() => {
                self.cells.rotate_left(1);
                self.cells[self.row].fill(' ');
            }
            '\n' => self.row += 1,
            ' '.. => {
                self.cells[self.row][self.column] = character;
                self.move_to(self.row, self.column + 1);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_shows_what_sequences_say() {
        let mut display = Display::new(5, 3);
        display.take(b"one\r\n\x1b[?1049h\x1b[?25l\x1b[2;");
        assert!(display.alternate && !display.cursor && display.text() == "\n\n\n");
        display.take(b"3H\x1b[1mab\x1b[0m\x1b[1;1Hx\x1b[K");
        assert_eq!(display.text(), "x\n  ab\n\n");
        display.take(b"\x1b[2J\x1b[?25h\x1b[?1049l");
        assert_eq!((display.text().as_str(), display.alternate, display.cursor), ("one\n\n\n", false, true));
        display.take(b"\r\n1\r\n2\r\n3");
        assert_eq!(display.text(), "1\n2\n3\n", "it scrolls");
        display.resize(2, 2);
        assert_eq!(display.text(), "1\n2\n");
    }

    #[test]
    fn a_program_has_its_terminal_alone() {
        let mut command = Command::new("sh");
        command.args(["-c", "tty; stty size; read line; echo it said $line; exit 3"]);
        let mut terminal = Terminal::start(&command, 30, 7);
        terminal.shows("7 30");
        terminal.types("hello\r");
        terminal.shows("it said hello");
        assert_eq!(terminal.ends().code(), Some(3));
        terminal.is_restored();
    }
}
