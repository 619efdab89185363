//! Bars: progress of long work on standard error, where that is a terminal.
//!
//! All figures are the server's, which lists the long work of its devices, also of those that end. A command that waits for a change asks for
//! them beside it; one that copies by itself reports what it does, so that others see it too, and draws the answer. A bar is one line, behind
//! which the cursor returns to the beginning: what another program writes to the terminal meanwhile replaces it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;
use spillway_core::WorkKind;
use spillway_export::control::{ControlReply, Operation, WorkRow};

use super::connection::Connection;
use super::listing::LOOK_PATIENCE;
use crate::plain::plain;
use crate::runtime_folder::RuntimeFolder;

/// Between two looks; the first look is so long after the beginning.
const EVERY: Duration = Duration::from_millis(200);

/// Characters of a bar.
const BAR: usize = 20;

/// Columns where the terminal does not say how many it has.
const COLUMNS: usize = 80;

/// Clears the line.
const CLEAR: &str = "\r\x1b[K";

/// A line on a terminal; gone when this is dropped.
struct Bar {
    shown: bool,
}

impl Bar {
    /// `None` where there is no terminal.
    fn new() -> Option<Self> {
        stderr().is_terminal().then_some(Self { shown: false })
    }

    /// Shows this work, or nothing where there is none.
    fn draw(&mut self, rows: &[WorkRow]) {
        if rows.is_empty() {
            return self.clear();
        }
        let columns = tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col));
        let line = line(rows, if columns == 0 { COLUMNS } else { columns });
        self.write(&format!("{CLEAR}{line}\r"));
        self.shown = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.write(CLEAR);
        }
    }

    fn write(&self, text: &str) {
        // The work goes on whatever becomes of the terminal.
        let _ = stderr().write_all(text.as_bytes());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the line says, shorter than `columns`, so that it never wraps.
fn line(rows: &[WorkRow], columns: usize) -> String {
    let room = columns.saturating_sub(1);
    let texts: Vec<_> = rows.iter().map(|row| format!("{}: {}", row.title(), row.words())).collect();
    let mut forms = vec![texts.join("; ")];
    if let [row] = rows {
        forms.insert(0, format!("{}: {}", row.title(), row.figures()));
        forms.splice(
            ..0,
            row.share().map(|share| format!("{} {} {}", row.title(), bar(share), row.figures())),
        );
    }
    let forms: Vec<_> = forms.iter().map(|form| plain(form)).collect();
    let fits = forms.iter().find(|form| form.chars().count() <= room);
    fits.or(forms.last()).into_iter().flat_map(|form| form.chars()).take(room).collect()
}

fn bar(share: f64) -> String {
    let full = (share * BAR as f64) as usize;
    assert!(full <= BAR, "{share} is a part of one");
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
}

/// Shows the long work of these devices while `work` runs.
pub(super) fn beside<T>(devices: &[(RuntimeFolder, String)], work: impl FnOnce() -> T) -> T {
    let Some(bar) = Bar::new() else { return work() };
    let (running, over) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| watch(devices, bar, over));
        let outcome = work();
        drop(running);
        outcome
    })
}

/// Looks until the work is over, or no server answers any more.
fn watch(devices: &[(RuntimeFolder, String)], mut bar: Bar, over: Receiver<()>) {
    let mut connections: Option<Vec<(Connection, &str)>> = None;
    while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(EVERY) {
        let connections = connections.get_or_insert_with(|| {
            let open = devices.iter().map(|(folder, device)| Some((connect(folder, device)?, &**device)));
            open.flatten().collect()
        });
        let mut rows = Vec::new();
        connections.retain_mut(|(connection, device)| {
            let found = works(connection, &Operation::Work {});
            rows.extend(found.iter().flatten().filter(|row| row.device == *device).cloned());
            found.is_some()
        });
        if connections.is_empty() {
            return;
        }
        bar.draw(&rows);
    }
}

/// A connection whose answers are waited for briefly; `None` where there is none.
fn connect(folder: &RuntimeFolder, device: &str) -> Option<Connection> {
    let mut connection = Connection::open(folder, device).ok()?;
    connection.wait_at_most(LOOK_PATIENCE);
    Some(connection)
}

/// `None` where the server does not answer, ends, or lists no work.
fn works(connection: &mut Connection, operation: &Operation) -> Option<Vec<WorkRow>> {
    match connection.ask(operation) {
        Ok(ControlReply::Work(rows)) => Some(rows),
        _ => None,
    }
}

/// Reports to the server of a device what this command does with it.
pub(super) struct Reporter {
    device: String,
    kind: WorkKind,
    total: Option<u64>,
    /// Gone once the server does not take reports: the work goes on without.
    connection: Option<Connection>,
    bar: Option<Bar>,
    next: Instant,
}

impl Reporter {
    /// Begins work of `total` bytes, where that is known.
    pub(super) fn begin(folder: &RuntimeFolder, device: &str, kind: WorkKind, total: Option<u64>) -> Self {
        let (connection, next) = (connect(folder, device), Instant::now());
        let mut reporter = Self { device: device.to_owned(), kind, total, connection, bar: Bar::new(), next };
        reporter.reach(0);
        reporter
    }

    /// So many bytes are done.
    pub(super) fn reach(&mut self, done: u64) {
        let now = Instant::now();
        let Some(connection) = self.connection.as_mut().filter(|_| now >= self.next) else { return };
        self.next = now + EVERY;
        let (device, kind, total) = (self.device.clone(), self.kind.name().to_owned(), self.total);
        match works(connection, &Operation::Report { device, kind, done, total }) {
            Some(rows) => self.bar.iter_mut().for_each(|bar| bar.draw(&rows)),
            None => (self.connection, self.bar) = (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(device: &str, done: u64, total: Option<u64>) -> WorkRow {
        WorkRow {
            device: device.into(),
            kind: "drain".into(),
            done,
            total,
            bytes_per_second: Some((120 << 20) as f64),
            seconds_left: total.map(|_| 12.0),
            ..WorkRow::default()
        }
    }

    #[test]
    fn a_line_says_as_much_as_there_is_room_for() {
        let one = [row("ram0", 430 << 20, Some(1000 << 20))];
        for (columns, text) in [
            (80, "draining ram0 [########------------] 43 % of 1000M, 120M/s, 12 s left"),
            (60, "draining ram0: 43 % of 1000M, 120M/s, 12 s left"),
            (40, "draining ram0: 43 %, 12 s left"),
            (20, "draining ram0: 43 %"),
            (1, ""),
            (0, ""),
        ] {
            assert_eq!(line(&one, columns), text);
        }
        let several = [row("a", 0, None), row("b\x1b[2J", 7, Some(7))];
        assert_eq!(line(&several, 80), "draining a: 0B; draining b\\u001b[2J: 100 %, 12 s left");
    }

    #[test]
    fn bars_have_one_length() {
        assert_eq!(
            (bar(0.0), bar(1.0)),
            (format!("[{}]", "-".repeat(BAR)), format!("[{}]", "#".repeat(BAR)))
        );
        assert!((0..=100).all(|percent| bar(f64::from(percent) / 100.0).len() == BAR + 2));
    }
}
