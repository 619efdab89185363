//! The operations that this crate hands to a driver.
//!
//! Each owns its buffer and a reference to its descriptor until the kernel is done with both, even if nobody waits for
//! the answer. Under io_uring an operation is one submission entry; under poll it is a non-blocking try repeated on
//! readiness (sockets), or a call on a blocking thread (files).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Poll;

use compio::driver::{Decision, IourOpCode, OpEntry, OpType, PollOpCode};
use io_uring::{opcode, types::Fd};
use rustix::net::RecvFlags;
use spillway_core::IoBuf;

/// Receives into the window of `buf`.
pub(crate) struct Receive {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) buf: IoBuf,
}

impl Receive {
    fn call(&mut self, flags: RecvFlags) -> io::Result<usize> {
        let (count, _) = rustix::net::recv(&self.fd, &mut self.buf[..], flags)?;
        Ok(count)
    }
}

/// Receives what is there, without waiting.
pub(crate) fn receive_now(fd: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    let (count, _) = rustix::net::recv(fd, bytes, RecvFlags::DONTWAIT)?;
    Ok(count)
}

// SAFETY: the entry points into the buffer's heap memory and names the descriptor; both are owned by the operation, which
// the driver keeps until it has completed.
unsafe impl IourOpCode for Receive {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let (address, len) = (self.buf.as_mut_ptr(), self.buf.len() as u32);
        opcode::Recv::new(Fd(self.fd.as_raw_fd()), address, len).build().into()
    }

    fn call_blocking(&mut self, (): &mut ()) -> io::Result<usize> {
        self.call(RecvFlags::empty())
    }
}

// SAFETY: `op_type` names the descriptor that `pre_submit` waits for.
unsafe impl PollOpCode for Receive {
    type Control = ();

    fn pre_submit(&mut self, (): &mut ()) -> io::Result<Decision> {
        match self.call(RecvFlags::DONTWAIT) {
            Ok(count) => Ok(Decision::Completed(count)),
            Err(error) if would_block(&error) => Ok(Decision::wait_readable(self.fd.as_raw_fd())),
            Err(error) => Err(error),
        }
    }

    fn op_type(&mut self, (): &mut ()) -> Option<OpType> {
        Some(OpType::fd(self.fd.as_raw_fd()))
    }

    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        match self.call(RecvFlags::DONTWAIT) {
            Err(error) if would_block(&error) => Poll::Pending,
            outcome => Poll::Ready(outcome),
        }
    }
}

/// What to wait for on a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// There is something to receive or to accept.
    Readable,
    /// The same, where of several that wait for it one is enough. Under io_uring the kernel wakes only that one.
    ReadableAlone,
    /// There is room to send.
    Writable,
    /// The peer is entirely gone. io_uring only: the poll driver has no way to ask for it.
    HangUp,
}

/// Completes once `event` holds.
pub(crate) struct Await {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) event: Event,
}

// SAFETY: the entry points to no memory and the descriptor is owned by the operation.
unsafe impl IourOpCode for Await {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        // Errors and hang-ups are always reported; asking for nothing else waits for just these.
        let mask = match self.event {
            Event::Readable => i32::from(libc::POLLIN),
            Event::ReadableAlone => i32::from(libc::POLLIN) | libc::EPOLLEXCLUSIVE,
            Event::Writable => i32::from(libc::POLLOUT),
            Event::HangUp => 0,
        };
        opcode::PollAdd::new(Fd(self.fd.as_raw_fd()), mask as u32).build().into()
    }
}

// SAFETY: `op_type` names the descriptor that `pre_submit` waits for.
unsafe impl PollOpCode for Await {
    type Control = ();

    fn pre_submit(&mut self, (): &mut ()) -> io::Result<Decision> {
        let fd: RawFd = self.fd.as_raw_fd();
        match self.event {
            Event::Readable | Event::ReadableAlone => Ok(Decision::wait_readable(fd)),
            Event::Writable => Ok(Decision::wait_writable(fd)),
            Event::HangUp => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn op_type(&mut self, (): &mut ()) -> Option<OpType> {
        Some(OpType::fd(self.fd.as_raw_fd()))
    }

    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(0))
    }
}

/// Whether a non-blocking call found nothing to do.
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
