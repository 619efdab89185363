//! The calls of [`Storage`] on a descriptor. See [the module](super).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use spillway_core::storage::Moved;
use spillway_core::{Answer, ByteRange, Extent, FallocateMode, Geometry, IoBuf, Kind, LocalFuture, Storage};

use super::op::{Act, FileOp};
use super::{extents, identity, length};
use crate::runtime::blocking::call_on_blocking_thread;

/// An open file or block device.
pub(super) struct OpenFile {
    pub(super) fd: Arc<OwnedFd>,
    /// Of syncs and durable writes. Without O_DIRECT another open file: a writeback that failed is reported once for each (errseq), and
    /// some file systems report it to a plain write (nfs_file_write), which must not take it away from a sync.
    pub(super) durable: Arc<OwnedFd>,
    /// As it was opened.
    pub(super) geometry: Geometry,
    pub(super) block_device: bool,
    /// O_DIRECT is on.
    pub(super) direct: bool,
    /// Alignment of memory that the kernel asks for; 1 without O_DIRECT.
    pub(super) memory_alignment: usize,
}

impl Storage for OpenFile {
    /// Where the system does not say how long it is now, it is as long as it was.
    fn geometry(&self) -> Geometry {
        let block = self.geometry.block_size.bytes();
        let len = length::length_of(&self.fd, self.block_device).unwrap_or(self.geometry.size);
        let identity = identity::identity(&self.fd, self.block_device);
        Geometry { size: len / block * block, identity, ..self.geometry }
    }

    fn lengthen(&self, bytes: u64) -> Result<(), Kind> {
        if self.block_device {
            return Err(Kind::NotSupported);
        }
        length::lengthen(&self.fd, bytes).map_err(|errno| Kind::of_errno(errno.raw_os_error()))
    }

    fn memory_alignment(&self) -> usize {
        self.memory_alignment
    }

    fn direct(&self) -> bool {
        self.direct
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        Box::pin(perform(FileOp::new(&self.fd, Act::Read, at, buf, done)))
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        let fd = if durable { &self.durable } else { &self.fd };
        Box::pin(perform(FileOp::new(fd, Act::Write { durable }, at, buf, done)))
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        let sync = |fd| FileOp::new(fd, Act::Sync, 0, IoBuf::empty(), 0);
        // Some file systems keep for each open file what was written to it.
        let plain = (!Arc::ptr_eq(&self.fd, &self.durable)).then(|| sync(&self.fd));
        let durable = sync(&self.durable);
        Box::pin(async {
            if let Some(plain) = plain {
                perform(plain).await.0?;
            }
            perform(durable).await.0.map(|_| ())
        })
    }

    fn zero(&self, range: ByteRange, mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        let len = range.len;
        let allocate = |mode| Act::Allocate { mode: mode | FallocateFlags::KEEP_SIZE, len };
        let act = match mode {
            // Of a block device, punching asks for zeroes, which not every one that discards can make.
            FallocateMode::Discard if self.block_device => Act::Discard { len },
            FallocateMode::Discard | FallocateMode::Punch | FallocateMode::Free => {
                allocate(FallocateFlags::PUNCH_HOLE)
            }
            FallocateMode::Zero => allocate(FallocateFlags::ZERO_RANGE),
        };
        let op = FileOp::new(&self.fd, act, range.offset, IoBuf::empty(), 0);
        Box::pin(async { perform(op).await.0.map(|_| ()) })
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        if self.block_device {
            return Answer::Done(Ok(vec![Extent::stored(range.len)]));
        }
        let (fd, block) = (self.fd.clone(), self.geometry.block_size.bytes());
        Answer::pending(call_on_blocking_thread(move || Ok(extents::find(&fd, range, block, count_max))))
    }
}

/// Makes a call, again where the kernel was only interrupted.
async fn perform(mut op: FileOp) -> Moved {
    loop {
        let (result, back) = op.run().await;
        op = back;
        match result {
            Ok(count) => return (Ok(count), op.buf),
            Err(libc::EINTR | libc::EAGAIN) => {}
            // What a file system, a device and a SCSI disk answer that have no such call.
            Err(libc::ENOSYS | libc::ENODEV | libc::ENOTTY | libc::EREMOTEIO) if op.changes_room() => {
                return (Err(Kind::NotSupported), op.buf);
            }
            Err(errno) => return (Err(Kind::of_errno(errno)), op.buf),
        }
    }
}
