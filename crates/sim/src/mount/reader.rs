//! A reader: does for an exchange what `io::fuse` does on a descriptor.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::buffer::ALIGNMENT;
use spillway_core::exchange::Exchange;
use spillway_core::{Budget, IoBuf, Workspace, work};

use super::queue::{Format, MessageQueue};
use crate::pace::{Pace, Tempo};
use crate::world::World;

/// Messages that may be held for each reader: the one that is read, and one whose payload a device has.
const MESSAGES_EACH: usize = 2;

/// Buffers that messages are read into, for all readers.
#[derive(Clone)]
pub(super) struct MessageBuffers {
    workspace: Workspace,
    format: Format,
}

impl MessageBuffers {
    pub(super) fn new(format: Format, readers: usize) -> Self {
        let bytes = readers * MESSAGES_EACH * Self::len(format);
        let workspace = Workspace::new("messages of the mount", &Budget::new(Budget::UNLIMITED), bytes);
        Self { workspace: workspace.expect("an unlimited budget has room"), format }
    }

    fn len(format: Format) -> usize {
        (ALIGNMENT - format.payload_offset + format.len_max).next_multiple_of(ALIGNMENT)
    }

    fn try_take(&self) -> Option<IoBuf> {
        self.workspace.try_take(Self::len(self.format)).map(|buf| self.open(buf))
    }

    fn open(&self, mut buf: IoBuf) -> IoBuf {
        buf.widen(Self::len(self.format));
        buf.narrow(ALIGNMENT - self.format.payload_offset, self.format.len_max);
        buf
    }
}

/// One reader.
pub(super) struct FuseReader {
    index: usize,
    exchange: Box<dyn Exchange>,
    queue: Rc<MessageQueue>,
    buffers: MessageBuffers,
    /// For the next message. Absent while the exchange has it, and takes nothing.
    buf: Option<IoBuf>,
    tempo: Tempo,
}

impl FuseReader {
    pub(super) fn new(
        index: usize,
        exchange: Box<dyn Exchange>,
        queue: Rc<MessageQueue>,
        world: &Arc<World>,
        buffers: MessageBuffers,
        pace: Pace,
    ) -> Self {
        let (buf, tempo) = (buffers.try_take(), Tempo::new(world, &queue.chance, pace));
        Self { index, exchange, queue, buffers, buf, tempo }
    }

    /// Lets the exchange go on for a turn; it has hung up where that is the last.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.queue.listen(self.index, context.waker());
        let Some(_turn) = self.tempo.turn(context) else { return Poll::Pending };
        loop {
            work::spend(1);
            self.exchange.poll(context);
            self.reply();
            self.take_back();
            if work::spent() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            // `io::fuse` looks for that each second, where the exchange takes nothing.
            if self.queue.is_aborted() {
                self.exchange.hang_up();
                return Poll::Ready(());
            }
            if !self.exchange.takes() || !self.read() {
                return Poll::Pending;
            }
            self.reply();
        }
    }

    fn take_back(&mut self) {
        if let Some(buf) = self.exchange.returned() {
            self.buf.get_or_insert_with(|| self.buffers.open(buf));
        }
    }

    /// Reads a message and hands it over; false where none is there.
    fn read(&mut self) -> bool {
        // A signal.
        if self.queue.chance.below(16) == 0 {
            return true;
        }
        let Some(message) = self.queue.take(self.index) else { return false };
        let mut buf = self.buf.take().expect("an exchange without a buffer in it takes messages");
        assert!(message.len() <= buf.len(), "a message of {} bytes is longer than agreed", message.len());
        buf[..message.len()].copy_from_slice(&message);
        buf.narrow(0, message.len());
        let keeps = message.len() >= self.buffers.format.kept_len_min;
        let spare = keeps.then(|| self.buffers.try_take()).flatten();
        let back = self.exchange.receive(buf, spare.is_none());
        self.buf = back.map(|buf| self.buffers.open(buf)).or(spare);
        true
    }

    fn reply(&mut self) {
        while let Some(message) = self.exchange.next_reply() {
            self.queue.answer(self.index, [message.head(), &message.body].concat());
        }
    }
}
