//! A byte stream between a client and a [`Session`], as a socket is: with room for so many bytes in each direction, that arrive
//! late and in pieces, until one end closes.
//!
//! [`Stream`] is the client's end. The server's is a task that does for the session what `io::connection` does on a socket: it
//! receives what the session takes, polls it, sends its output, and gives it a turn of [`work`](spillway_core::work) at a time. What a client
//! has sent before it closes is still read by the server, which then sees the end and hangs up.

mod end;
mod ends;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use spillway_core::Env;
use spillway_core::session::Session;

use crate::pace::Tempo;
use crate::world::World;
use end::Endpoint;
use ends::{Ends, Side};

pub use ends::{SessionOutcome, StreamShape};

/// The client's end of a stream.
pub struct Stream {
    ends: Rc<Ends>,
    tempo: Tempo,
}

impl Stream {
    /// Connects to `session`, which is served by a task of `world` from now on. `seed` decides what is late, and the pieces.
    pub fn connect(world: &Arc<World>, session: Box<dyn Session>, shape: StreamShape, seed: u64) -> Self {
        let ends = Rc::new(Ends::new(shape, seed));
        serve(world, Endpoint::new(Side::Server, session, &ends, world, shape.pace));
        let tempo = Tempo::new(world, &ends.chance, shape.pace);
        Self { ends, tempo }
    }

    /// Sends all of `bytes`, as far as the server takes them; false where an end has closed first.
    pub async fn send(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.tempo.be_late().await;
            let piece = 1 + self.ends.chance.below(rest.len() as u64) as usize;
            let sent = self.ends.news.until(|| {
                if self.ends.closed.get() {
                    return Some(None);
                }
                let sent = self.ends.to(Side::Server).put(&rest[..piece]);
                (sent > 0).then_some(Some(sent))
            });
            let Some(sent) = sent.await else { return false };
            rest = &rest[sent..];
            self.ends.wake(Side::Server);
        }
        true
    }

    /// Appends at least one byte to `bytes`; false where none will come any more.
    pub async fn receive(&self, bytes: &mut Vec<u8>) -> bool {
        self.tempo.be_late().await;
        let pipe = self.ends.to(Side::Client);
        let arrived = self.ends.news.until(|| (!pipe.is_empty() || self.ends.closed.get()).then_some(()));
        arrived.await;
        let held = pipe.bytes.borrow().len();
        if held == 0 {
            return false;
        }
        bytes.extend(pipe.take(1 + self.ends.chance.below(held as u64) as usize));
        self.ends.wake(Side::Server);
        true
    }

    /// The client's socket is closed. What the server sends from now on is lost.
    pub fn close(&self) {
        self.ends.to(Side::Client).bytes.borrow_mut().clear();
        self.ends.closed.set(true);
        self.ends.wake(Side::Client);
        self.ends.wake(Side::Server);
    }

    /// Whether one of the ends has closed.
    pub fn is_closed(&self) -> bool {
        self.ends.closed.get()
    }

    /// Waits until the session is gone.
    pub async fn over(&self) -> SessionOutcome {
        self.ends.over().await
    }
}

/// A stream with a session at each end.
#[derive(Clone)]
pub struct Cable(Rc<Ends>);

impl Cable {
    /// Connects the sessions, each of which is served by a task of `world` from now on. `seed` decides what is late, and the pieces.
    pub fn connect(
        world: &Arc<World>,
        client: Box<dyn Session>,
        server: Box<dyn Session>,
        shape: StreamShape,
        seed: u64,
    ) -> Self {
        let ends = Rc::new(Ends::new(shape, seed));
        serve(world, Endpoint::new(Side::Server, server, &ends, world, shape.pace));
        serve(world, Endpoint::new(Side::Client, client, &ends, world, shape.pace));
        Self(ends)
    }

    /// Both ends lose the connection, and what was on its way is lost.
    pub fn cut(&self) {
        self.0.cut();
    }

    /// Nothing arrives at either end from now on, not even that the other has closed; or all of it does, as over a network that is cut in
    /// two, and heals.
    pub fn set_silent(&self, silent: bool) {
        self.0.set_silent(silent);
    }

    /// Whether an end has closed.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// Waits until the server's session is gone.
    pub async fn over(&self) -> SessionOutcome {
        self.0.over().await
    }
}

/// Has a task run an end to its end.
fn serve(world: &Arc<World>, mut end: Endpoint) {
    world.spawn_here(Box::pin(async move {
        let outcome = poll_fn(|context| end.turn(context)).await;
        // The session is gone before anybody hears of it.
        let (ends, side) = (end.ends.clone(), end.side);
        drop(end);
        if side == Side::Server {
            ends.outcome.set(Some(outcome));
        }
        ends.close();
    }));
}
