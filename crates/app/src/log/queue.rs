//! Lines on their way into the log: bounded, so that a thread that logs never waits for a place that takes nothing.
//!
//! Threads put whole lines in, without a lock; the log's own thread takes them out. Lines that find no room are counted.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use spillway_core::sync::{AtomicU64, AtomicUsize, Ordering};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::output::LogOutput;

/// Most bytes of lines that wait.
const QUEUED_BYTES_MAX: usize = 256 << 10;

/// Bytes beyond these for a panic, with its backtrace.
const PANIC_BYTES_MAX: usize = 64 << 10;

/// The target of events about panics, which find room in a full queue.
pub(super) const PANIC: &str = "panic";

thread_local! {
    /// Where the events of this thread go instead of the queue, while it is set.
    static APART: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// What goes through the queue.
pub(super) enum Item {
    /// Whole lines.
    Lines(Vec<u8>),
    /// All lines before are to be written or lost: who waits for that is told.
    Settle(Sender<()>),
    /// Something else to do. It is done between two lines, before lines that wait.
    Order(LogOrder),
}

/// What the log's thread is asked for besides writing.
pub(super) enum LogOrder {
    /// Open the file again by its path.
    Reopen,
    /// Write there from now on.
    Replace(LogOutput),
}

/// The end that threads which log have.
pub(super) struct LogQueue {
    items: Sender<Item>,
    counts: Arc<Backlog>,
}

/// What both ends know.
#[derive(Default)]
pub(super) struct Backlog {
    /// Bytes of lines that wait.
    pub(super) waiting: AtomicUsize,
    /// Lines that found no room and that nobody has accounted for.
    pub(super) refused: AtomicU64,
}

impl LogQueue {
    /// A queue whose items arrive at the receiver.
    pub(super) fn new() -> (Self, Receiver<Item>) {
        let (items, arriving) = channel();
        (Self { items, counts: Arc::default() }, arriving)
    }

    /// What both ends know; who takes lines out uncounts them.
    pub(super) fn counts(&self) -> Arc<Backlog> {
        self.counts.clone()
    }

    /// Lets whole lines in if there is room, and never waits for it. Those about a panic have room of their own, which they are cut to.
    pub(super) fn push(&self, lines: &[u8], panic: bool) {
        let lines = if panic { cut(lines, PANIC_BYTES_MAX) } else { lines.to_vec() };
        let bytes_max = QUEUED_BYTES_MAX + if panic { PANIC_BYTES_MAX } else { 0 };
        let before = self.counts.waiting.fetch_add(lines.len(), Ordering::Relaxed);
        if before + lines.len() <= bytes_max {
            self.send(Item::Lines(lines));
        } else {
            self.counts.waiting.fetch_sub(lines.len(), Ordering::Relaxed);
            self.counts.refused.fetch_add(count(&lines), Ordering::Relaxed);
        }
    }

    /// Has the log's thread get something, where there is one.
    pub(super) fn send(&self, item: Item) {
        let _ = self.items.send(item);
    }

    /// Waits until all that was let in is dealt with, but no longer than `patience`; says whether it is.
    pub(super) fn wait_until_settled(&self, patience: Duration) -> bool {
        let (sender, settled) = channel();
        self.send(Item::Settle(sender));
        settled.recv_timeout(patience).is_ok()
    }
}

/// A beginning of `lines` that is no longer than `bytes_max`, and ends as a line does.
fn cut(lines: &[u8], bytes_max: usize) -> Vec<u8> {
    match lines.get(..bytes_max - 1) {
        Some(beginning) => [beginning, b"\n"].concat(),
        None => lines.to_vec(),
    }
}

/// How many lines these are.
pub(super) fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// What `speak` logs, in the form of the log.
pub(super) fn apart(speak: impl FnOnce()) -> Vec<u8> {
    APART.set(Some(Vec::new()));
    speak();
    APART.take().unwrap_or_default()
}

/// The way of one event into the queue.
pub(super) struct QueueWriter<'a> {
    queue: &'a LogQueue,
    panic: bool,
}

impl Write for QueueWriter<'_> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        APART.with_borrow_mut(|apart| match apart {
            Some(apart) => apart.extend_from_slice(lines),
            None => self.queue.push(lines, self.panic),
        });
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the ways into a queue for the formatter.
pub(super) struct QueueWriters(pub(super) &'static LogQueue);

impl<'a> MakeWriter<'a> for QueueWriters {
    type Writer = QueueWriter<'a>;

    fn make_writer(&'a self) -> QueueWriter<'a> {
        QueueWriter { queue: self.0, panic: false }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> QueueWriter<'a> {
        QueueWriter { queue: self.0, panic: event.target() == PANIC }
    }
}
