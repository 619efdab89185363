//! The loop of one reader of a mount.
//!
//! The whole reader is one task with one hand-written poll, a turn as a connection has it. A message is read as soon as the
//! exchange takes one, without waiting; only where there is none does the reader wait for the descriptor. Of several that wait
//! the kernel wakes one, which may take nothing by then: it goes on listening, and wakes the others for what it hears. Replies are
//! written at once: that never blocks.
//!
//! A read or a reply that the system refuses is tried again after a pause: the kernel answers nobody by itself, and a request without an
//! answer keeps its program for ever.
//!
//! Ends: the mount is gone, or it is aborted. Reading tells of the first; a reader that takes nothing looks for it each second,
//! so that a device which never answers keeps nobody in a mount that was aborted.

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::{Errno, read, writev};
use spillway_core::exchange::{Exchange, Inbox, Message};
use spillway_core::{LocalFuture, Phase, work};

use super::mount::is_connected;
use super::readers::ReaderGuard;
use crate::runtime::op::{Awaited, Readiness, shortage_passes};
use crate::runtime::pool::others_first;
use crate::runtime::waits::is_shortage;

/// Bytes to charge for each reader besides its buffers: what it gets however short memory is, its first pending requests and its
/// structures.
pub const READER_BYTES: u64 = 64 << 10;

/// Pause between looks for the mount, while nothing is read from it.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Units of work for a round: two system calls.
const ROUND_UNITS: u32 = 10;

/// The mount is gone, or the reader has to go.
struct Gone;

pub(super) struct FuseReader {
    fd: Arc<OwnedFd>,
    exchange: Box<dyn Exchange>,
    inbox: Inbox,
    readable: Option<Awaited>,
    /// A reply that was refused.
    unsent: Option<Message>,
    /// After a refusal.
    pause: Option<LocalFuture<()>>,
    /// The next look for the mount, while nothing is read.
    look: Option<LocalFuture<()>>,
    listening: bool,
    /// Last, so that it is given up when everything else is gone.
    guard: ReaderGuard,
}

impl FuseReader {
    /// To be made and polled on the thread that serves it; `guard` is dropped at its end.
    pub(super) fn new(
        fd: Arc<OwnedFd>,
        exchange: Box<dyn Exchange>,
        inbox: Inbox,
        guard: ReaderGuard,
    ) -> Self {
        Self {
            fd,
            exchange,
            inbox,
            readable: None,
            unsent: None,
            pause: None,
            look: None,
            listening: false,
            guard,
        }
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Result<(), Gone> {
        let _turn = work::turn(work::TURN);
        self.check_running(context)?;
        loop {
            work::spend(ROUND_UNITS);
            if self.pauses(context) {
                return Ok(());
            }
            self.exchange.poll(context);
            self.reply()?;
            self.inbox.take_back(&mut *self.exchange);
            if work::spent() {
                others_first(context);
                return Ok(());
            }
            if self.pause.is_some() {
                continue;
            }
            if !self.exchange.takes() {
                self.pass_on(context);
                return self.look_for_mount(context);
            }
            if !self.read(context)? {
                return Ok(());
            }
            self.reply()?;
        }
    }

    fn check_running(&mut self, context: &Context<'_>) -> Result<(), Gone> {
        if !self.listening {
            self.guard.shutdown().watch(0, context.waker());
            self.listening = true;
        }
        if self.guard.shutdown().phase() == Phase::Serving { Ok(()) } else { Err(Gone) }
    }

    /// Reads a message and hands it over; false where none is there: the next will wake the task.
    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, Gone> {
        self.look = None;
        let fill = |message: &mut [u8]| {
            read(&self.fd, message).inspect(|&len| work::spend_bytes(len, work::BYTES_COPIED))
        };
        match self.inbox.receive(&mut *self.exchange, fill) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(self.is_readable(context)),
            // A signal, or a request that was withdrawn.
            Err(Errno::INTR | Errno::NOENT) => Ok(true),
            Err(Errno::NODEV | Errno::CONNABORTED) => Err(Gone),
            Err(why) => {
                self.begin_pause("a read", why);
                Ok(true)
            }
        }
    }

    fn is_readable(&mut self, context: &mut Context<'_>) -> bool {
        let fd = &self.fd;
        let wait = self.readable.get_or_insert_with(|| Awaited::new(fd, Readiness::ReadableAlone));
        let ready = wait.holds(context);
        if ready {
            self.readable = None;
        }
        ready
    }

    /// Nothing is read for now. What the kernel woke this reader for, and no other, is left to the others.
    fn pass_on(&mut self, context: &mut Context<'_>) {
        if self.readable.is_some() && self.is_readable(context) {
            self.guard.wake_others();
        }
    }

    fn begin_pause(&mut self, refused: &str, why: Errno) {
        assert!(self.pause.is_none(), "nothing is tried in a pause");
        tracing::debug!("the system refuses {refused} of a mount: {why}; trying again");
        self.pause = Some(shortage_passes());
    }

    /// Whether a pause goes on; its end wakes the task.
    fn pauses(&mut self, context: &mut Context<'_>) -> bool {
        self.pause.take_if(|pause| pause.as_mut().poll(context).is_ready());
        self.pause.is_some()
    }

    /// Whether the mount is there, each second. It wakes the task.
    fn look_for_mount(&mut self, context: &mut Context<'_>) -> Result<(), Gone> {
        loop {
            let look = self.look.get_or_insert_with(|| Box::pin(compio::time::sleep(LOOK_PAUSE)));
            if look.as_mut().poll(context).is_pending() {
                return Ok(());
            }
            self.look = None;
            if !is_connected(&self.fd) {
                return Err(Gone);
            }
        }
    }

    fn reply(&mut self) -> Result<(), Gone> {
        while self.pause.is_none()
            && let Some(message) = self.unsent.take().or_else(|| self.exchange.next_reply())
        {
            work::spend_bytes(message.body.len(), work::BYTES_COPIED);
            match send(&self.fd, &message) {
                // The kernel waits no longer for one that was withdrawn.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Err(Gone),
                Err(why) if is_shortage(&why.into()) => {
                    self.unsent = Some(message);
                    self.begin_pause("a reply", why);
                }
                Err(why) => {
                    let error = io::Error::from(why);
                    tracing::error!(%error, bytes = message.bytes(), "a reply was refused by the kernel");
                }
            }
        }
        Ok(())
    }
}

fn send(fd: &OwnedFd, message: &Message) -> rustix::io::Result<usize> {
    let slices = [IoSlice::new(message.head()), IoSlice::new(&message.body)];
    writev(fd, if message.body.is_empty() { &slices[..1] } else { &slices })
}

impl Future for FuseReader {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let reader = self.get_mut();
        match reader.turn(context) {
            Ok(()) => Poll::Pending,
            Err(Gone) => {
                reader.exchange.hang_up();
                Poll::Ready(())
            }
        }
    }
}
