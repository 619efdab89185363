//! Origin `file`: a file or block device of the operating system.
//!
//! Promises: what a flush or a FUA write has acknowledged is durable as far as the kernel and the drive tell the truth; a
//! flush that failed once fails for ever, because the kernel forgets what it could not write. One writer at a time: the
//! file or device is locked against a second one. A request that is dropped while the kernel has it finishes on its own,
//! and a later request that overlaps it waits for that.
//!
//! Needs: a runtime of this crate on the thread that polls an answer.
//!
//! ```text
//!   submit -> InHand: waits for overlapping detached writes -> works -> reply
//!                \ dropped at work: the work becomes a task, its range is listed until it is done
//! ```
//!
//! Without O_DIRECT the kernel's page cache lies below, with it nothing does. Memory that is not aligned well enough for
//! O_DIRECT goes through a buffer that is. Locks: the list of detached ranges is a leaf.

mod detached;
mod extents;
mod op;
mod open;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::fs::FallocateFlags;
use spillway_core::sync::{AtomicBool, AtomicU32, Ordering};
use spillway_core::{
    Answer, BlockDevice, ByteRange, Extent, Geometry, IoBuf, Kind, LocalFuture, Op, Reply, Request,
    Submission,
};

use crate::workers::{can_spawn, spawn_detached};
use detached::Detached;
use op::{Act, FileOp};

pub use open::{Direct, FileOptions, Opened};

/// Zeroes written at a time where the file system has no faster way.
const ZEROES_LEN: u64 = 256 << 10;

/// A file or block device.
pub struct FileOrigin {
    backing: Arc<Backing>,
}

struct Backing {
    fd: Arc<OwnedFd>,
    geometry: Geometry,
    block_device: bool,
    /// Alignment of memory that the kernel asks for; 1 without O_DIRECT.
    memory_alignment: usize,
    /// Cleared when the file system turns out not to know the call.
    punches: AtomicBool,
    zeroes: AtomicBool,
    /// Errno of the first flush that failed, 0 for none.
    flush_errno: AtomicU32,
    detached: Detached,
}

impl BlockDevice for FileOrigin {
    fn geometry(&self) -> Geometry {
        self.backing.geometry
    }

    fn submit(&self, request: Request) -> Submission {
        let range = request.range;
        let backing = self.backing.clone();
        let work = Box::pin(async move { backing.carry_out(request).await });
        Answer::Pending(Box::pin(InHand {
            backing: self.backing.clone(),
            range,
            waiting: None,
            begun: false,
            work: Some(work),
        }))
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        if self.backing.block_device {
            return Answer::Done(Ok(vec![Extent::stored(range.len)]));
        }
        let backing = self.backing.clone();
        let block = self.backing.geometry.block_size.bytes();
        Answer::pending(op::on_blocking_thread(move || {
            Ok(extents::find(&backing.fd, range, block, count_max))
        }))
    }
}

/// A request from its submission to its answer.
struct InHand {
    backing: Arc<Backing>,
    range: ByteRange,
    /// Present while a detached write overlaps.
    waiting: Option<LocalFuture<()>>,
    begun: bool,
    /// Absent once answered.
    work: Option<LocalFuture<Reply>>,
}

impl InHand {
    fn poll_begin(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.waiting.is_none() && self.backing.detached.is_empty() {
            return Poll::Ready(());
        }
        let (backing, range) = (&self.backing, self.range);
        let wait = self.waiting.get_or_insert_with(|| {
            let backing = backing.clone();
            Box::pin(async move { backing.detached.clear_of(range).await })
        });
        ready!(wait.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(())
    }
}

impl Future for InHand {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        if !self.begun {
            ready!(self.poll_begin(context));
            self.begun = true;
        }
        let work = self.work.as_mut().expect("not polled after its answer");
        let reply = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(reply)
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        // Without a runtime there is no task to finish it; the operation itself keeps its buffer until the kernel is done.
        if !self.begun || !can_spawn() {
            return;
        }
        let listed = Detached::list(&self.backing, self.range);
        spawn_detached(async move {
            work.await;
            drop(listed);
        });
    }
}

impl Backing {
    async fn carry_out(&self, request: Request) -> Reply {
        let Request { op, range, flags, buf } = request;
        match op {
            Op::Read => self.read(range.offset, buf).await,
            Op::Write => self.write(range.offset, buf, flags.fua).await,
            Op::WriteZeroes => {
                let result = self.write_zeroes(range, flags.no_hole).await;
                Reply { result: self.durable_if(flags.fua, result).await, buf }
            }
            Op::Discard => {
                let result = self.discard(range).await;
                Reply { result: self.durable_if(flags.fua, result).await, buf }
            }
            Op::Flush => Reply { result: self.flush().await, buf },
        }
    }

    fn fits(&self, buf: &IoBuf) -> bool {
        (buf.as_ptr() as usize).is_multiple_of(self.memory_alignment)
    }

    async fn read(&self, offset: u64, mut buf: IoBuf) -> Reply {
        if self.fits(&buf) {
            let (result, buf) = self.transfer(Act::Read, offset, buf).await;
            return Reply { result, buf };
        }
        let (result, bounce) = self.transfer(Act::Read, offset, IoBuf::new(buf.len())).await;
        if result.is_ok() {
            buf.copy_from_slice(&bounce);
        }
        Reply { result, buf }
    }

    async fn write(&self, offset: u64, buf: IoBuf, fua: bool) -> Reply {
        let act = Act::Write { durable: fua };
        if self.fits(&buf) {
            let (result, buf) = self.transfer(act, offset, buf).await;
            return Reply { result, buf };
        }
        let (result, _) = self.transfer(act, offset, IoBuf::copy_of(&buf)).await;
        Reply { result, buf }
    }

    /// Reads or writes the whole buffer, continuing where the kernel stops short.
    async fn transfer(&self, act: Act, offset: u64, buf: IoBuf) -> (Result<(), Kind>, IoBuf) {
        let len = buf.len();
        let mut op = FileOp::new(&self.fd, act, offset, buf);
        while op.done < len {
            let (result, back) = op.run().await;
            op = back;
            match result {
                // A read past the end of a file that was cut after it was opened.
                Ok(0) => return (Err(Kind::Io), op.buf),
                Ok(count) => op.done += count,
                Err(errno) if is_transient(errno) => {}
                Err(errno) => return (Err(Kind::of_errno(errno)), op.buf),
            }
        }
        (Ok(()), op.buf)
    }

    /// An operation without payload, by its errno.
    async fn perform(&self, act: Act, offset: u64) -> Result<(), i32> {
        let mut op = FileOp::new(&self.fd, act, offset, IoBuf::empty());
        loop {
            let (result, back) = op.run().await;
            op = back;
            match result {
                Ok(_) => return Ok(()),
                Err(errno) if is_transient(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    async fn durable_if(&self, fua: bool, result: Result<(), Kind>) -> Result<(), Kind> {
        if fua && result.is_ok() { self.flush().await } else { result }
    }

    async fn flush(&self) -> Result<(), Kind> {
        if self.geometry.read_only {
            return Ok(());
        }
        if let Err(errno) = self.perform(Act::Sync, 0).await {
            let first =
                self.flush_errno.compare_exchange(0, errno as u32, Ordering::AcqRel, Ordering::Acquire);
            if first.is_ok() {
                tracing::error!(
                    "a flush failed with errno {errno}: data may be lost, all further flushes fail"
                );
            }
        }
        match self.flush_errno.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(Kind::of_errno(errno as i32)),
        }
    }

    async fn discard(&self, range: ByteRange) -> Result<(), Kind> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.allocate(&self.punches, mode, range).await.map(|_| ())
    }

    async fn write_zeroes(&self, range: ByteRange, no_hole: bool) -> Result<(), Kind> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if !no_hole && self.allocate(&self.punches, punch, range).await? {
            return Ok(());
        }
        let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if self.allocate(&self.zeroes, zero, range).await? {
            return Ok(());
        }
        self.write_zero_bytes(range).await
    }

    /// `fallocate`; false where the file system does not know this mode, which is then not tried again.
    async fn allocate(
        &self,
        known: &AtomicBool,
        mode: FallocateFlags,
        range: ByteRange,
    ) -> Result<bool, Kind> {
        if !known.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match self.perform(Act::Allocate { mode, len: range.len }, range.offset).await {
            Ok(()) => Ok(true),
            Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV) => {
                known.store(false, Ordering::Relaxed);
                Ok(false)
            }
            Err(errno) => Err(Kind::of_errno(errno)),
        }
    }

    async fn write_zero_bytes(&self, range: ByteRange) -> Result<(), Kind> {
        let mut zeroes = IoBuf::zeroed(range.len.min(ZEROES_LEN) as usize);
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(ZEROES_LEN);
            zeroes.narrow(0, len as usize);
            let (result, back) =
                self.transfer(Act::Write { durable: false }, range.offset + done, zeroes).await;
            result?;
            zeroes = back;
            done += len;
        }
        Ok(())
    }
}

fn is_transient(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN)
}
