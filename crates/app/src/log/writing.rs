//! The log's own thread: takes lines out of the queue and writes them, whatever becomes of that.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use spillway_core::sync::Ordering;

use super::output::LogOutput;
use super::queue::{Backlog, Item, LogOrder, apart, count};

/// How long a place that takes nothing is waited for until orders are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// What it has.
pub(super) struct LogWriter {
    items: Receiver<Item>,
    /// Items that arrived before an order that was looked for.
    waiting: VecDeque<Item>,
    counts: Arc<Backlog>,
    output: LogOutput,
    /// The last line ends in its middle.
    torn: bool,
    /// Lines that were not written since the log last said so, and why.
    lost: u64,
    why: String,
}

impl LogWriter {
    /// Writes what comes through a queue with these `counts` to `output`.
    pub(super) fn new(items: Receiver<Item>, counts: Arc<Backlog>, output: LogOutput) -> Self {
        Self { items, waiting: VecDeque::new(), counts, output, torn: false, lost: 0, why: String::new() }
    }

    /// Writes until nobody can log any more.
    pub(super) fn run(mut self) {
        while let Some(item) = self.next() {
            match item {
                Item::Lines(lines) => {
                    let before = self.counts.waiting.fetch_sub(lines.len(), Ordering::Relaxed);
                    assert!(before >= lines.len(), "{} bytes were written of {before}", lines.len());
                    self.write_or_lose(&lines);
                }
                Item::Order(order) => _ = self.obey(order),
                Item::Settle(waiting) => {
                    self.account();
                    // Who waited no longer has gone on.
                    let _ = waiting.send(());
                }
            }
        }
    }

    /// The next item. Before it sleeps the log says what is missing.
    fn next(&mut self) -> Option<Item> {
        self.look_for_orders();
        self.waiting.pop_front().or_else(|| {
            self.account();
            self.items.recv().ok()
        })
    }

    /// Accounts for lines that found no room.
    fn account(&mut self) {
        let refused = self.counts.refused.swap(0, Ordering::Relaxed);
        if refused > 0 {
            self.lost += refused;
            self.why = "more at a time than could be written".to_owned();
        }
        self.say_what_is_lost();
    }

    fn write_or_lose(&mut self, lines: &[u8]) {
        self.say_what_is_lost();
        // What was lost is said before anything else.
        if self.lost > 0 || !self.deliver(lines) {
            self.lost += count(lines);
        }
    }

    fn say_what_is_lost(&mut self) {
        if self.lost > 0 {
            let (lost, why) = (self.lost, &self.why);
            let line = apart(|| tracing::warn!("log: lines not written: {lost} ({why})"));
            if self.deliver(&line) {
                self.lost = 0;
            }
        }
    }

    /// Writes lines, however long that takes; says whether they could be written.
    fn deliver(&mut self, line: &[u8]) -> bool {
        let written = self.write(line);
        if let Err(why) = &written {
            self.why = why.to_string();
        }
        written.is_ok()
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.output.make_room(line.len())?;
        let whole = if self.torn { [b"\n", line].concat() } else { line.to_vec() };
        let mut at = 0;
        while at < whole.len() {
            match self.output.write(&whole[at..], PATIENCE) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    at += count;
                    self.torn = at < whole.len();
                }
                // Elsewhere the line begins again.
                Err(why) if why.kind() == ErrorKind::TimedOut => {
                    at = if self.look_for_orders() { 0 } else { at };
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Obeys the orders among the items that have arrived; says whether lines go elsewhere by that.
    fn look_for_orders(&mut self) -> bool {
        let mut elsewhere = false;
        while let Ok(item) = self.items.try_recv() {
            match item {
                Item::Order(order) => elsewhere |= self.obey(order),
                other => self.waiting.push_back(other),
            }
        }
        elsewhere
    }

    /// Does what is asked for; says whether lines go elsewhere by that.
    fn obey(&mut self, order: LogOrder) -> bool {
        let elsewhere = match order {
            LogOrder::Reopen => self.reopen(),
            LogOrder::Replace(output) => {
                self.output = output;
                true
            }
        };
        self.torn &= !elsewhere;
        elsewhere
    }

    /// Opens the file again; says whether there is one and that worked.
    fn reopen(&mut self) -> bool {
        let outcome = self.output.reopen();
        let Some(path) = self.output.path().map(Path::display) else {
            tracing::info!("log: there is no file to open again, it is standard error");
            return false;
        };
        match &outcome {
            Ok(()) => tracing::info!("log: opened {path} again"),
            Err(why) => {
                tracing::warn!("log: cannot open {path} again ({why}); going on with the file that is open")
            }
        }
        outcome.is_ok()
    }
}
