//! The operations that this crate hands to a driver.
//!
//! Each owns its buffer and a reference to its descriptor until the kernel is done with both, even if nobody waits for
//! the answer. Under io_uring an operation is one submission entry; under poll it is a non-blocking try repeated on
//! readiness (sockets), or a call on a blocking thread (files).

use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use compio::BufResult;
use compio::driver::{Decision, IourOpCode, OpEntry, OpType, PollOpCode};
use compio::runtime::Submit;
use io_uring::{opcode, types::Fd};
use rustix::net::RecvFlags;
use spillway_core::{IoBuf, LocalFuture};

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
pub(crate) enum Readiness {
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
struct Await {
    fd: Arc<OwnedFd>,
    event: Readiness,
}

// SAFETY: the entry points to no memory and the descriptor is owned by the operation.
unsafe impl IourOpCode for Await {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        // Errors and hang-ups are always reported; asking for nothing else waits for just these.
        let mask = match self.event {
            Readiness::Readable => i32::from(libc::POLLIN),
            Readiness::ReadableAlone => i32::from(libc::POLLIN) | libc::EPOLLEXCLUSIVE,
            Readiness::Writable => i32::from(libc::POLLOUT),
            Readiness::HangUp => 0,
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
            Readiness::Readable | Readiness::ReadableAlone => Ok(Decision::wait_readable(fd)),
            Readiness::Writable => Ok(Decision::wait_writable(fd)),
            Readiness::HangUp => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn op_type(&mut self, (): &mut ()) -> Option<OpType> {
        Some(OpType::fd(self.fd.as_raw_fd()))
    }

    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(0))
    }
}

/// Pause before something is tried again that the system refused for want of memory or descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

/// The pause itself.
pub(crate) fn shortage_passes() -> LocalFuture<()> {
    Box::pin(compio::time::sleep(SHORTAGE_PAUSE))
}

/// A wait for an event, which survives that the system refuses it: then it is asked for again after a pause.
pub(crate) struct Awaited {
    fd: Arc<OwnedFd>,
    event: Readiness,
    step: Step,
}

enum Step {
    Asked(Submit<Await>),
    Refused(LocalFuture<()>),
}

impl Awaited {
    /// On the thread that waits.
    pub(crate) fn new(fd: &Arc<OwnedFd>, event: Readiness) -> Self {
        Self { fd: fd.clone(), event, step: Step::ask(fd, event) }
    }

    /// The same, asked for after a pause.
    pub(crate) fn after_pause(fd: &Arc<OwnedFd>, event: Readiness) -> Self {
        Self { fd: fd.clone(), event, step: Step::Refused(shortage_passes()) }
    }

    /// Whether the event holds. Where not, it wakes the task.
    pub(crate) fn holds(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(self).poll(context).is_ready()
    }
}

/// Ready once the event holds.
impl Future for Awaited {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            this.step = match &mut this.step {
                Step::Asked(wait) => match ready!(Pin::new(wait).poll(context)) {
                    BufResult(Ok(_), _) => return Poll::Ready(()),
                    BufResult(Err(_), _) => Step::Refused(shortage_passes()),
                },
                Step::Refused(pause) => {
                    ready!(pause.as_mut().poll(context));
                    Step::ask(&this.fd, this.event)
                }
            };
        }
    }
}

impl Step {
    fn ask(fd: &Arc<OwnedFd>, event: Readiness) -> Self {
        Self::Asked(compio::runtime::submit(Await { fd: fd.clone(), event }))
    }
}

/// Whether a non-blocking call found nothing to do.
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{DriverChoice, Local};

    /// A wait for a regular file is refused by epoll.
    #[test]
    fn a_refused_wait_is_asked_for_again_and_holds_once_there_is_something() {
        let local = Local::new(DriverChoice::Poll).unwrap();
        let fd = Arc::new(OwnedFd::from(File::open("/proc/self/exe").unwrap()));
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        local.block_on(async {
            let mut awaited = Awaited::new(&fd, Readiness::Readable);
            poll_fn(|context| {
                assert!(!awaited.holds(context));
                Poll::Ready(())
            })
            .await;
            assert!(matches!(awaited.step, Step::Refused(_)), "it is asked for again after a pause");
            // SAFETY: both are open, and the file behind the first is used by nobody.
            assert!(unsafe { libc::dup2(receiver.as_raw_fd(), fd.as_raw_fd()) } >= 0);
            sender.write_all(&[1]).unwrap();
            awaited.await;
        });
    }
}
