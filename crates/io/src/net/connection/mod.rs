//! One connection: a socket, a session, and the loop between them.
//!
//! The whole connection is one task with one hand-written poll, a *turn*. It goes round as long as there is something to do
//! and its share of [`work`] lasts; then the other connections of the worker have their turns. A round:
//!
//! ```text
//!   take what was received -> session -> poll the session -> send its output -> ask what to receive next
//! ```
//!
//! A small receive is always in flight while the session takes bytes. Where it comes back full, what else has arrived is
//! fetched at once with one large receive into a pooled buffer: a busy stream is read half a megabyte at a time, and an
//! idle connection costs 16 KiB. Large payloads are received where they belong. Output is sent by non-blocking gathering
//! sends; only a full socket makes the loop wait for writability. For a moment it then waits for nothing else, so that what
//! a peer with a deep queue asks for meanwhile wakes nobody and is received together.
//!
//! Ends: the session has finished and its output is sent; or the peer is gone or the server aborts, then the session
//! hangs up first. Dropping a connection shuts its socket down, so that no operation on it stays behind.

mod handshake;
mod sending;
mod watch;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use compio::BufResult;
use compio::runtime::Submit;
use spillway_core::session::{Intake, Session};
use spillway_core::{IoBuf, LocalFuture, Phase, work};

use crate::net::control::{Admission, Control};
use crate::runtime::op::{Receive, receive_now, shortage_passes, would_block};
use crate::runtime::pool::{BULK_LEN, ThreadPool, others_first};
use crate::runtime::waits::is_shortage;

use handshake::Handshake;
use sending::{Full, linger, send_now, shut};
use watch::Watch;

/// Bytes of the receive that is always in flight.
const RECEIVE_LEN: usize = 16 << 10;

/// Units of work for a round, besides the bytes that it moves: a few system calls.
const ROUND_UNITS: u32 = 20;

/// Why a connection ends without its session having finished.
struct Gone;

/// What asking the session for its next intake led to.
#[derive(PartialEq, Eq)]
enum Asked {
    /// A receive is in flight; it will wake the task.
    Receiving,
    /// The socket has to get room first, or time to pass; either will wake the task.
    Waiting,
    /// The session got bytes and has to be polled.
    Fed,
    /// The session takes nothing until it is polled after some change.
    Paused,
}

pub(crate) struct Connection {
    socket: Arc<OwnedFd>,
    session: Box<dyn Session>,
    control: Arc<Control>,
    pool: Arc<ThreadPool>,
    /// The receive in flight, and whether its buffer is a payload's.
    receiving: Option<(Submit<Receive>, bool)>,
    /// Received, not yet taken by the session. While there is some, nothing but payload is received.
    kept: IoBuf,
    /// The buffer of the small receive while none is in flight.
    spare: IoBuf,
    /// The last receive filled its buffer: more has probably arrived.
    more: bool,
    full: Option<Full>,
    /// The system had no memory for a receive: none is tried meanwhile.
    pause: Option<LocalFuture<()>>,
    watch: Watch,
    listening: bool,
    wound_down: bool,
    handshake: Handshake,
}

impl Connection {
    /// To be made and polled on the thread that serves it.
    pub(crate) fn new(
        socket: Arc<OwnedFd>,
        session: Box<dyn Session>,
        control: Arc<Control>,
        pool: Arc<ThreadPool>,
        admission: Box<dyn Admission>,
    ) -> Self {
        Self {
            socket,
            session,
            control,
            handshake: Handshake::new(admission, &pool.clock),
            pool,
            receiving: None,
            kept: IoBuf::empty(),
            spare: IoBuf::empty(),
            more: false,
            full: None,
            pause: None,
            watch: Watch::new(),
            listening: false,
            wound_down: false,
        }
    }

    /// One round. True if another one is worth while at once, false if something will wake the task or the turn is spent.
    fn round(&mut self, context: &mut Context<'_>) -> Result<bool, Gone> {
        // A finished session takes nothing more; whether its peer still reads is seen by sending.
        if !self.session.finished() {
            self.take_received(context)?;
            if self.more && self.kept.is_empty() {
                self.ask(context)?;
            }
        }
        self.session.poll(context);
        self.control.note_end(self.wound_down || self.session.ends());
        let sent = self.send(context)?;
        if self.session.finished() {
            return Ok(false);
        }
        let asked = self.ask(context)?;
        self.watch_peer(&asked);
        Ok(match asked {
            Asked::Receiving | Asked::Waiting => false,
            Asked::Fed => true,
            // What was sent may have made room for what the session waits for.
            Asked::Paused => sent || (!work::spent() && self.peer_is_watched(context)?),
        })
    }

    /// Notes whether the peer has said what it wants, and whether it has to go on sending.
    fn watch_peer(&mut self, asked: &Asked) {
        let receiving = *asked == Asked::Receiving;
        let pending = self.session.pending() > 0 || !self.session.output().is_empty();
        if pending || self.session.owed() && !receiving || self.session.stays() {
            self.control.idle.end();
        } else {
            self.control.idle.begin(self.pool.clock.coarse_now());
        }
        if !self.handshake.is_complete() && self.session.established() {
            self.handshake.complete();
        }
        // While it pauses, the rest is not wanted yet.
        if !self.session.owed() || *asked == Asked::Paused {
            self.control.owing.end();
        } else if receiving {
            self.control.owing.begin(self.pool.clock.coarse_now());
        }
    }

    /// Hands the session what the receive in flight has brought. True if it has completed.
    fn take_received(&mut self, context: &mut Context<'_>) -> Result<bool, Gone> {
        let Some((receive, payload)) = &mut self.receiving else { return Ok(false) };
        let Poll::Ready(BufResult(result, Receive { buf, .. })) = Pin::new(receive).poll(context) else {
            return Ok(false);
        };
        let payload = *payload;
        self.receiving = None;
        match result {
            Ok(count) => self.feed(buf, count, payload).map(|()| true),
            Err(error) if would_block(&error) || is_shortage(&error) => {
                self.pause = (!would_block(&error)).then(shortage_passes);
                self.feed_nothing(buf, payload);
                Ok(true)
            }
            Err(_) => Err(Gone),
        }
    }

    fn feed(&mut self, mut buf: IoBuf, count: usize, payload: bool) -> Result<(), Gone> {
        if count == 0 {
            return Err(Gone);
        }
        self.control.owing.progress(count, self.pool.clock.coarse_now());
        self.control.idle.end();
        self.handshake.progress(&self.pool.clock);
        self.more = count == buf.len();
        work::spend_bytes(count, work::BYTES_COPIED);
        assert!(self.kept.is_empty(), "received over bytes that the session had not taken");
        if payload {
            self.session.returned(buf, count);
            return Ok(());
        }
        buf.narrow(0, count);
        self.kept = buf;
        self.offer_kept();
        Ok(())
    }

    fn feed_nothing(&mut self, buf: IoBuf, payload: bool) {
        self.more = false;
        if payload {
            self.session.returned(buf, 0);
        } else {
            self.recycle(buf);
        }
    }

    fn recycle(&mut self, mut buf: IoBuf) {
        if buf.capacity() == RECEIVE_LEN {
            buf.widen(RECEIVE_LEN);
            self.spare = buf;
        }
    }

    /// Asks the session what it takes, and gets it: from what was kept, from what has arrived, or by a receive.
    fn ask(&mut self, context: &mut Context<'_>) -> Result<Asked, Gone> {
        if self.receiving.is_some() {
            return Ok(Asked::Receiving);
        }
        self.pause.take_if(|pause| pause.as_mut().poll(context).is_ready());
        if self.pause.is_some() {
            return Ok(Asked::Waiting);
        }
        match self.session.intake() {
            Intake::Pause => Ok(Asked::Paused),
            Intake::Bytes if !self.kept.is_empty() => Ok(self.offer_kept()),
            Intake::Payload(buf) if !self.kept.is_empty() => Ok(self.copy_kept(buf)),
            Intake::Payload(buf) if self.more => self.fetch(buf, true),
            Intake::Payload(buf) => self.receive(buf, true, context),
            Intake::Bytes if self.full.as_mut().is_some_and(|full| full.is_patient(context)) => {
                Ok(Asked::Waiting)
            }
            Intake::Bytes => {
                let bulk = if self.more { self.pool.bulk.try_take(BULK_LEN) } else { None };
                match bulk {
                    Some(buf) => self.fetch(buf, false),
                    None => {
                        let buf = self.take_spare();
                        self.receive(buf, false, context)
                    }
                }
            }
        }
    }

    fn take_spare(&mut self) -> IoBuf {
        let spare = std::mem::take(&mut self.spare);
        if spare.is_empty() { IoBuf::new(RECEIVE_LEN) } else { spare }
    }

    fn offer_kept(&mut self) -> Asked {
        let used = self.session.receive(&self.kept);
        self.use_kept(used);
        if used > 0 { Asked::Fed } else { Asked::Paused }
    }

    fn copy_kept(&mut self, mut buf: IoBuf) -> Asked {
        let count = buf.len().min(self.kept.len());
        buf[..count].copy_from_slice(&self.kept[..count]);
        self.use_kept(count);
        self.session.returned(buf, count);
        Asked::Fed
    }

    fn use_kept(&mut self, used: usize) {
        assert!(used <= self.kept.len(), "a session took {used} of {} bytes", self.kept.len());
        let left = self.kept.len() - used;
        self.kept.narrow(used, left);
        if left == 0 {
            let buf = std::mem::take(&mut self.kept);
            self.recycle(buf);
        }
    }

    /// Receives what has arrived, without waiting.
    fn fetch(&mut self, mut buf: IoBuf, payload: bool) -> Result<Asked, Gone> {
        match receive_now(&self.socket, &mut buf) {
            Ok(count) => self.feed(buf, count, payload)?,
            Err(error) if would_block(&error) || is_shortage(&error) => self.feed_nothing(buf, payload),
            Err(_) => {
                self.feed_nothing(buf, payload);
                return Err(Gone);
            }
        }
        Ok(Asked::Fed)
    }

    /// Starts a receive; where the driver has it done at once, the session is fed.
    fn receive(&mut self, buf: IoBuf, payload: bool, context: &mut Context<'_>) -> Result<Asked, Gone> {
        assert!(self.receiving.is_none(), "a receive begins while another is in flight");
        let receive = Receive { fd: self.socket.clone(), buf };
        self.receiving = Some((compio::runtime::submit(receive), payload));
        Ok(if self.take_received(context)? { Asked::Fed } else { Asked::Receiving })
    }

    /// While nothing is received, only this notices that the peer has gone. Never asks for another round.
    fn peer_is_watched(&mut self, context: &mut Context<'_>) -> Result<bool, Gone> {
        if self.watch.sees_hang_up(&self.socket, context) { Err(Gone) } else { Ok(false) }
    }

    /// Sends until everything is sent, the socket is full or the turn is spent. True if anything was sent.
    fn send(&mut self, context: &mut Context<'_>) -> Result<bool, Gone> {
        let mut sent = false;
        while !self.session.output().is_empty() {
            self.full.take_if(|full| full.has_room(context));
            if self.full.is_some() {
                break;
            }
            match send_now(&self.socket, self.session.output()) {
                Ok(count) => {
                    self.session.output().advance(count);
                    self.control.untaken.progress(count, self.pool.clock.coarse_now());
                    self.handshake.progress(&self.pool.clock);
                    sent = true;
                    work::spend_bytes(count, work::BYTES_COPIED);
                    if work::spent() {
                        break;
                    }
                }
                Err(error) if would_block(&error) || is_shortage(&error) => {
                    let shortage = !would_block(&error);
                    if !shortage {
                        self.control.untaken.begin(self.pool.clock.coarse_now());
                    }
                    self.full = Some(Full::new(&self.socket, shortage));
                }
                Err(_) => return Err(Gone),
            }
        }
        if self.session.output().is_empty() {
            self.control.untaken.end();
        }
        Ok(sent)
    }

    fn check_running(&mut self, context: &Context<'_>) -> Result<(), Gone> {
        if !self.listening {
            self.control.shutdown.watch(0, context.waker());
            self.listening = true;
        }
        match self.control.shutdown.phase() {
            Phase::Serving => {}
            Phase::Draining if self.wound_down => {}
            Phase::Draining => {
                self.wound_down = true;
                self.session.wind_down();
            }
            Phase::Aborting => return Err(Gone),
        }
        Ok(())
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, Gone> {
        let _turn = work::turn(work::TURN);
        self.check_running(context)?;
        loop {
            work::spend(ROUND_UNITS);
            let again = self.round(context)?;
            if self.session.finished() && self.session.output().is_empty() {
                return Ok(Poll::Ready(()));
            }
            if work::spent() {
                others_first(context);
                return Ok(Poll::Pending);
            }
            if !again {
                return Ok(Poll::Pending);
            }
        }
    }

    fn gives_way(&mut self, context: &mut Context<'_>) -> bool {
        self.handshake.gives_way(&self.control, &self.pool.clock, context)
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let connection = self.get_mut();
        match connection.turn(context) {
            Ok(Poll::Ready(())) => {
                let mut buf = connection.take_spare();
                linger(&connection.socket, &mut buf);
            }
            Ok(Poll::Pending) if !connection.gives_way(context) => return Poll::Pending,
            Ok(Poll::Pending) | Err(Gone) => connection.session.hang_up(),
        }
        Poll::Ready(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        shut(&self.socket);
    }
}
