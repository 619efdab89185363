//! Operations on files, for both drivers.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use compio::BufResult;
use compio::driver::{Decision, IourOpCode, OpEntry, PollOpCode};
use io_uring::{opcode, types};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{ReadWriteFlags, pread, pwritev2};
use spillway_core::IoBuf;

use crate::mutant;
use crate::runtime::turns::{Turns, is_polling};

/// What to do with the file.
#[derive(Clone, Copy)]
pub(super) enum FileAction {
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
    turns: Arc<Turns>,
    act: FileAction,
    at: u64,
    done: usize,
    pub(super) buf: IoBuf,
}

impl FileOp {
    pub(super) fn new(
        fd: &Arc<OwnedFd>,
        turns: &Arc<Turns>,
        act: FileAction,
        at: u64,
        buf: IoBuf,
        done: usize,
    ) -> Self {
        assert!(done <= buf.len(), "{done} bytes are done of a buffer of {}", buf.len());
        Self { fd: fd.clone(), turns: turns.clone(), act, at, done, buf }
    }

    /// Whether it allocates or frees.
    pub(super) fn changes_room(&self) -> bool {
        matches!(self.act, FileAction::Allocate { .. } | FileAction::Discard { .. })
    }

    /// Runs the operation once; the result is a count of bytes or an errno.
    pub(super) async fn run(self) -> (Result<usize, i32>, Self) {
        let (result, op) = if self.blocks() {
            self.call_on_a_thread().await
        } else {
            let BufResult(result, op) = compio::runtime::submit(self).await;
            match result {
                // The kernel had no thread for it (io-wq), so that it was never begun: one of ours makes the call.
                Err(why) if why.raw_os_error() == Some(libc::ECANCELED) => op.call_on_a_thread().await,
                result => (result, op),
            }
        };
        (result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)), op)
    }

    /// Whether the thread's driver has no way to make the call but to wait for it.
    fn blocks(&self) -> bool {
        is_polling() || matches!(self.act, FileAction::Discard { .. })
    }

    async fn call_on_a_thread(mut self) -> (io::Result<usize>, Self) {
        let turns = self.turns.clone();
        turns.call(move || (self.call(), self)).await
    }

    fn call(&mut self) -> io::Result<usize> {
        let at = self.at;
        let count = match self.act {
            FileAction::Read => pread(&self.fd, &mut self.buf[self.done..], at)?,
            FileAction::Write { durable } => {
                let durable = durable && !mutant::on("io: poll writes without RWF_DSYNC");
                let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                pwritev2(&self.fd, &[IoSlice::new(&self.buf[self.done..])], at, flags)?
            }
            FileAction::Sync if mutant::on("io: poll skips fdatasync") => 0,
            FileAction::Sync => fdatasync(&self.fd).map(|()| 0)?,
            FileAction::Allocate { mode, len } => fallocate(&self.fd, mode, at, len).map(|()| 0)?,
            FileAction::Discard { len } => discard(&self.fd, at, len).map(|()| 0)?,
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
            FileAction::Read => {
                let window = &mut self.buf[self.done..];
                opcode::Read::new(fd, window.as_mut_ptr(), window.len() as u32).offset(at).build()
            }
            FileAction::Write { durable } => {
                let window = &self.buf[self.done..];
                let durable = durable && !mutant::on("io: io_uring writes without RWF_DSYNC");
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let write = opcode::Write::new(fd, window.as_ptr(), window.len() as u32);
                write.offset(at).rw_flags(flags).build()
            }
            FileAction::Sync if mutant::on("io: io_uring skips fdatasync") => opcode::Nop::new().build(),
            FileAction::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            FileAction::Allocate { mode, len } => {
                opcode::Fallocate::new(fd, len).offset(at).mode(mode.bits() as i32).build()
            }
            FileAction::Discard { .. } => unreachable!("a ring has no discard: a thread makes it"),
        }
        .into()
    }
}

// SAFETY: the operation waits for nothing: a driver that polls is never given one, see `FileOp::run`.
unsafe impl PollOpCode for FileOp {
    type Control = ();

    fn pre_submit(&mut self, (): &mut ()) -> io::Result<Decision> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
