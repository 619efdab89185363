//! The loop of one reader of a mount.
//!
//! The whole reader is one task with one hand-written poll, a turn as a connection has it. A message is read as soon as the
//! exchange takes one, without waiting; only where there is none does the reader wait for the descriptor. Of several that wait
//! the kernel wakes one, which may take nothing by then: it goes on listening, and wakes the others for what it hears. Replies are
//! written at once: that never blocks.
//!
//! A device that does not answer keeps payloads in the buffers that they were read into. Each reader has one that no device gets, so
//! that requests for others are read.
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
use spillway_core::buffer::{ALIGNMENT, Workspace};
use spillway_core::exchange::{Exchange, Message};
use spillway_core::{IoBuf, LocalFuture, Phase, work};

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

/// Buffers that messages are read into.
#[derive(Clone)]
pub struct MessageBuffers {
    /// What they are taken from; room for one each reader at least.
    pub workspace: Workspace,
    /// Longest message in bytes.
    pub message_len_max: usize,
    /// Bytes of a message in front of what is to lie at the start of a page.
    pub payload_offset: usize,
    /// Shortest message whose buffer an exchange may keep for a device, in bytes.
    pub kept_len_min: usize,
}

impl MessageBuffers {
    /// Bytes of the workspace that one buffer takes.
    pub fn bytes_each(message_len_max: usize, payload_offset: usize) -> usize {
        (ALIGNMENT - payload_offset + message_len_max).next_multiple_of(ALIGNMENT)
    }

    fn len(&self) -> usize {
        Self::bytes_each(self.message_len_max, self.payload_offset)
    }

    /// One more, unless devices have them all. A reader's first is there: there is room for one each.
    pub(super) fn try_take(&self) -> Option<IoBuf> {
        self.workspace.try_take(self.len()).map(|buf| self.open(buf))
    }

    /// Sets the window to where a message goes.
    fn open(&self, mut buf: IoBuf) -> IoBuf {
        buf.widen(self.len());
        buf.narrow(ALIGNMENT - self.payload_offset, self.message_len_max);
        buf
    }
}

/// The mount is gone, or the reader has to go.
struct Gone;

pub(super) struct FuseReader {
    fd: Arc<OwnedFd>,
    exchange: Box<dyn Exchange>,
    buffers: MessageBuffers,
    /// For the next message. Absent while the exchange has it, and takes nothing.
    buf: Option<IoBuf>,
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
    /// To be made and polled on the thread that serves it, with its first buffer; `guard` is dropped at its end.
    pub(super) fn new(
        fd: Arc<OwnedFd>,
        exchange: Box<dyn Exchange>,
        buffers: MessageBuffers,
        buf: IoBuf,
        guard: ReaderGuard,
    ) -> Self {
        Self {
            fd,
            exchange,
            buffers,
            buf: Some(buf),
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
            self.take_back();
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

    fn take_back(&mut self) {
        if let Some(buf) = self.exchange.returned() {
            self.buf.get_or_insert_with(|| self.buffers.open(buf));
        }
    }

    /// Reads a message and hands it over; false where none is there: the next will wake the task.
    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, Gone> {
        self.look = None;
        let mut buf = self.buf.take().expect("an exchange without a buffer in it takes messages");
        match read(&self.fd, &mut buf[..]) {
            Ok(len) => {
                work::spend_bytes(len, work::BYTES_COPIED);
                buf.narrow(0, len);
                self.hand_over(buf);
                Ok(true)
            }
            Err(why) => {
                self.buf = Some(buf);
                match why {
                    Errno::AGAIN => Ok(self.is_readable(context)),
                    // A signal, or a request that was withdrawn.
                    Errno::INTR | Errno::NOENT => Ok(true),
                    Errno::NODEV | Errno::CONNABORTED => Err(Gone),
                    why => {
                        self.begin_pause("a read", why);
                        Ok(true)
                    }
                }
            }
        }
    }

    fn hand_over(&mut self, message: IoBuf) {
        let spare = (message.len() >= self.buffers.kept_len_min).then(|| self.buffers.try_take()).flatten();
        let back = self.exchange.receive(message, spare.is_none());
        self.buf = back.map(|buf| self.buffers.open(buf)).or(spare);
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
