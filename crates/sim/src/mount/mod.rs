//! What lies between a kernel and the [`Exchange`]s that read from a mount, as `/dev/fuse` does: messages that stay whole, each read
//! late, and by the reader that comes first, until the connection is aborted.
//!
//! [`Mount`] is the kernel's end. The server's is a task for each reader, which does for its exchange what `io::fuse` does on a
//! descriptor: it reads while the exchange takes messages, into buffers of which no device gets the last, polls it, writes its replies,
//! and gives it a turn of [`work`](spillway_core::work) at a time. Eight bytes from the ninth on are the number of a message, and of the
//! reply to it; as in the kernel, only its reader can reply to a message, and only once.

mod queue;
mod reader;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use spillway_core::exchange::{Exchange, MessageBuffers, MessageFormat};
use spillway_core::{Budget, Env};

use crate::pace::{Pace, Tempo};
use crate::world::World;
use queue::MessageQueue;
use reader::FuseReader;

/// The kernel's end of a mount.
pub struct Mount {
    queue: Rc<MessageQueue>,
    tempo: Tempo,
}

impl Mount {
    /// Has a task of `world` read for each of the exchanges from now on. `seed` decides what is late, and who reads what.
    pub fn connect(
        world: &Arc<World>,
        exchanges: Vec<Box<dyn Exchange>>,
        format: MessageFormat,
        pace: Pace,
        seed: u64,
    ) -> Self {
        let queue = Rc::new(MessageQueue::new(exchanges.len(), seed));
        let buffers = MessageBuffers::new(format, exchanges.len(), &Budget::new(Budget::UNLIMITED))
            .expect("an unlimited budget has room");
        for (index, exchange) in exchanges.into_iter().enumerate() {
            let mut reader = FuseReader::new(index, exchange, queue.clone(), world, buffers.inbox(), pace);
            let queue = queue.clone();
            world.spawn_here(Box::pin(async move {
                poll_fn(|context| reader.turn(context)).await;
                // The exchange is gone before anybody hears of it.
                drop(reader);
                queue.leave();
            }));
        }
        let tempo = Tempo::new(world, &queue.chance, pace);
        Self { queue, tempo }
    }

    /// Lets a reader have `message`; nothing where the connection is aborted. `answered`: a reply has to come.
    pub fn send(&self, message: Vec<u8>, answered: bool) {
        self.queue.put(message, answered);
    }

    /// Takes the message of that number back; false where it has been read.
    pub fn take_back(&self, number: u64) -> bool {
        self.queue.take_back(number)
    }

    /// The next reply; `None` where none will come any more.
    pub async fn receive(&self) -> Option<Vec<u8>> {
        self.tempo.be_late().await;
        self.queue.reply().await
    }

    /// Ends the connection. Nothing is read any more, and what readers reply from now on is lost.
    pub fn abort(&self) {
        self.queue.abort();
    }

    /// Whether the connection has ended.
    pub fn is_aborted(&self) -> bool {
        self.queue.is_aborted()
    }

    /// Waits until all readers are gone, and their exchanges with them.
    pub async fn over(&self) {
        self.queue.left().await;
    }
}
