//! A reader: does for an exchange what `io::fuse` does on a descriptor.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::exchange::{Exchange, Inbox};
use spillway_core::work;

use super::queue::MessageQueue;
use crate::pace::{Pace, Tempo};
use crate::world::World;

/// One reader.
pub(super) struct FuseReader {
    index: usize,
    exchange: Box<dyn Exchange>,
    queue: Rc<MessageQueue>,
    inbox: Inbox,
    tempo: Tempo,
}

impl FuseReader {
    pub(super) fn new(
        index: usize,
        exchange: Box<dyn Exchange>,
        queue: Rc<MessageQueue>,
        world: &Arc<World>,
        inbox: Inbox,
        pace: Pace,
    ) -> Self {
        let tempo = Tempo::new(world, &queue.chance, pace);
        Self { index, exchange, queue, inbox, tempo }
    }

    /// Lets the exchange go on for a turn; it has hung up where that is the last.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.queue.listen(self.index, context.waker());
        let Some(_turn) = self.tempo.turn(context) else { return Poll::Pending };
        loop {
            work::spend(1);
            self.exchange.poll(context);
            self.reply();
            self.inbox.take_back(&mut *self.exchange);
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

    /// Reads a message and hands it over; false where none is there.
    fn read(&mut self) -> bool {
        // A signal.
        if self.queue.chance.below(16) == 0 {
            return true;
        }
        let fill = |buf: &mut [u8]| {
            let Some(message) = self.queue.take(self.index) else { return Err(()) };
            assert!(message.len() <= buf.len(), "a message of {} bytes is longer than agreed", message.len());
            buf[..message.len()].copy_from_slice(&message);
            Ok(message.len())
        };
        self.inbox.receive(&mut *self.exchange, fill).is_ok()
    }

    fn reply(&mut self) {
        while let Some(message) = self.exchange.next_reply() {
            self.queue.answer(self.index, [message.head(), &message.body].concat());
        }
    }
}
