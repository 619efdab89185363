//! An end with a session: does for it what `io::connection` does on a socket.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::session::{Intake, Session};
use spillway_core::{IoBuf, work};

use super::ends::{Ends, Pipe, SessionOutcome, Side};
use crate::pace::{Pace, Tempo};
use crate::world::World;

/// An end with a session.
pub(super) struct Endpoint {
    pub(super) side: Side,
    session: Box<dyn Session>,
    pub(super) ends: Rc<Ends>,
    tempo: Tempo,
    /// Received, and not yet taken by the session.
    kept: Vec<u8>,
    /// A window of the session's that waits for a payload.
    lent: Option<IoBuf>,
}

impl Endpoint {
    /// That of `side`, with nothing received or lent.
    pub(super) fn new(
        side: Side,
        session: Box<dyn Session>,
        ends: &Rc<Ends>,
        world: &Arc<World>,
        pace: Pace,
    ) -> Self {
        let (ends, tempo) = (ends.clone(), Tempo::new(world, &ends.chance, pace));
        Self { side, session, ends, tempo, kept: Vec::new(), lent: None }
    }

    fn incoming(&self) -> &Pipe {
        self.ends.to(self.side)
    }

    /// Lets the session go on for a turn.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Poll<SessionOutcome> {
        self.ends.register(self.side, context.waker());
        let Some(_turn) = self.tempo.turn(context) else { return Poll::Pending };
        loop {
            work::spend(1);
            self.session.poll(context);
            let sent = self.send();
            if self.session.finished() && self.session.output().is_empty() {
                return Poll::Ready(SessionOutcome::Finished);
            }
            // Asked after the poll, which may have found what the session waited for.
            let Some(fed) = self.feed() else {
                self.session.hang_up();
                return Poll::Ready(SessionOutcome::HungUp);
            };
            if work::spent() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !fed && !sent {
                return Poll::Pending;
            }
        }
    }

    /// Hands the session what it takes of what has arrived: whether that was anything, or nothing where the client is gone.
    fn feed(&mut self) -> Option<bool> {
        if self.session.finished() {
            // Whether its peer still reads is seen by sending.
            return (!self.ends.is_known_closed()).then_some(false);
        }
        let lent = self.lent.take();
        let intake = lent.map_or_else(|| self.session.intake(), Intake::Payload);
        let gone = self.ends.is_known_closed() && self.incoming().is_empty() && self.kept.is_empty();
        match intake {
            // A driver that receives nothing looks whether its peer is there.
            Intake::Pause => (!self.ends.is_known_closed()).then_some(false),
            Intake::Bytes | Intake::Payload(_) if gone => None,
            Intake::Bytes => Some(self.feed_bytes()),
            Intake::Payload(buf) => Some(self.feed_payload(buf)),
        }
    }

    fn feed_bytes(&mut self) -> bool {
        if self.kept.is_empty() {
            self.kept = self.arrived(usize::MAX);
        }
        if self.kept.is_empty() {
            return false;
        }
        let used = self.session.receive(&self.kept);
        assert!(used <= self.kept.len(), "a session took {used} of {} bytes", self.kept.len());
        self.kept.drain(..used);
        used > 0
    }

    fn feed_payload(&mut self, mut buf: IoBuf) -> bool {
        let count = buf.len().min(self.kept.len());
        let mut bytes: Vec<u8> = self.kept.drain(..count).collect();
        if bytes.is_empty() {
            bytes = self.arrived(buf.len());
        }
        if bytes.is_empty() {
            self.lent = Some(buf);
            return false;
        }
        buf[..bytes.len()].copy_from_slice(&bytes);
        self.session.returned(buf, bytes.len());
        true
    }

    /// Some of the bytes that are here.
    fn arrived(&self, count_max: usize) -> Vec<u8> {
        let held = self.incoming().bytes.borrow().len().min(count_max);
        if held == 0 || self.ends.silent.get() {
            return Vec::new();
        }
        let bytes = self.incoming().take(1 + self.ends.chance.below(held as u64) as usize);
        self.ends.wake(self.side.peer());
        bytes
    }

    /// Sends what there is room for. What nobody reads any more is lost.
    fn send(&mut self) -> bool {
        let ends = self.ends.clone();
        let (outgoing, lost) = (ends.to(self.side.peer()), ends.is_known_closed());
        let output = self.session.output();
        let mut slices = Vec::new();
        output.gather(&mut slices, 16);
        let put = |slice: &std::io::IoSlice<'_>| if lost { slice.len() } else { outgoing.put(slice) };
        let sent = slices.iter().map(put).sum();
        drop(slices);
        output.advance(sent);
        if sent > 0 {
            self.ends.wake(self.side.peer());
        }
        sent > 0
    }
}
