//! Operations on files, for both drivers.

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use compio::BufResult;
use compio::buf::IntoInner;
use compio::driver::op::Asyncify;
use compio::driver::{Decision, IourOpCode, OpEntry, PollOpCode};
use io_uring::{opcode, types};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{ReadWriteFlags, pread, pwritev2};
use spillway_core::IoBuf;
use spillway_core::buffer::Buffers;

/// What to do with the file.
#[derive(Clone, Copy)]
pub(super) enum Act {
    Read,
    /// Durable: on the medium before it completes.
    Write {
        durable: bool,
    },
    Sync,
    Allocate {
        mode: FallocateFlags,
        len: u64,
    },
    /// Of a block device.
    Discard {
        len: u64,
    },
}

/// `BLKDISCARD` of `linux/fs.h`, `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// One operation, on its buffer from `done` on.
pub(super) struct FileOp {
    fd: Arc<OwnedFd>,
    act: Act,
    at: u64,
    done: usize,
    pub(super) buf: IoBuf,
}

impl FileOp {
    pub(super) fn new(fd: &Arc<OwnedFd>, act: Act, at: u64, buf: IoBuf, done: usize) -> Self {
        Self { fd: fd.clone(), act, at, done, buf }
    }

    /// Whether it allocates or frees.
    pub(super) fn changes_room(&self) -> bool {
        matches!(self.act, Act::Allocate { .. } | Act::Discard { .. })
    }

    /// Runs the operation once; the result is a count of bytes or an errno.
    pub(super) async fn run(self) -> (Result<usize, i32>, Self) {
        let BufResult(result, op) = compio::runtime::submit(self).await;
        (result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)), op)
    }

    fn call(&mut self) -> io::Result<usize> {
        let at = self.at;
        let count = match self.act {
            Act::Read => pread(&self.fd, &mut self.buf[self.done..], at)?,
            Act::Write { durable } => {
                let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                pwritev2(&self.fd, &[IoSlice::new(&self.buf[self.done..])], at, flags)?
            }
            Act::Sync => fdatasync(&self.fd).map(|()| 0)?,
            Act::Allocate { mode, len } => fallocate(&self.fd, mode, at, len).map(|()| 0)?,
            Act::Discard { len } => discard(&self.fd, at, len).map(|()| 0)?,
        };
        Ok(count)
    }
}

fn discard(fd: &OwnedFd, at: u64, len: u64) -> io::Result<()> {
    let range = [at, len];
    // SAFETY: the call reads two words at the address that it is given.
    match unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

// SAFETY: the entry points into the buffer's heap memory and names the descriptor; both are owned by the operation, which
// the driver keeps until it has completed.
unsafe impl IourOpCode for FileOp {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let fd = types::Fd(self.fd.as_raw_fd());
        let at = self.at;
        match self.act {
            Act::Read => {
                let window = &mut self.buf[self.done..];
                opcode::Read::new(fd, window.as_mut_ptr(), window.len() as u32).offset(at).build()
            }
            Act::Write { durable } => {
                let window = &self.buf[self.done..];
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let write = opcode::Write::new(fd, window.as_ptr(), window.len() as u32);
                write.offset(at).rw_flags(flags).build()
            }
            Act::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Act::Allocate { mode, len } => {
                opcode::Fallocate::new(fd, len).offset(at).mode(mode.bits() as i32).build()
            }
            Act::Discard { .. } => return OpEntry::Blocking,
        }
        .into()
    }

    fn call_blocking(&mut self, (): &mut ()) -> io::Result<usize> {
        self.call()
    }
}

// SAFETY: the operation never waits for readiness.
unsafe impl PollOpCode for FileOp {
    type Control = ();

    fn pre_submit(&mut self, (): &mut ()) -> io::Result<Decision> {
        Ok(Decision::Blocking)
    }

    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(self.call())
    }
}

/// Runs a call that can only block on a thread of its own, whose buffers are those of this thread's engine. Needs a runtime of this crate on
/// the thread that polls it.
pub fn on_blocking_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    let buffers = Buffers::here();
    let op = Asyncify::new(move || {
        buffers.enter();
        BufResult(Ok(0), call())
    });
    async move { compio::runtime::submit(op).await.1.into_inner() }
}
