//! The calls of [`Storage`] on a descriptor. See [the module](super).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use spillway_core::storage::Moved;
use spillway_core::{Answer, ByteRange, Extent, FallocateMode, Geometry, IoBuf, Kind, LocalFuture, Storage};

use super::op::{FileAction, FileOp};
use super::{extents, identity, length};
use crate::runtime::turns::Turns;

/// Of `linux/fs.h`, `_IOR(0x12, 114, size_t)`.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;

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
    pub(super) turns: Arc<Turns>,
}

impl Storage for OpenFile {
    /// Where the system does not say how long it is now, it is as long as it was.
    fn geometry(&self) -> Geometry {
        let block = self.geometry.block_size.bytes();
        let len = length::length_of(&self.fd, self.block_device).unwrap_or(self.geometry.size);
        let identity = identity::identity(&self.fd, self.block_device);
        Geometry { size: len / block * block, identity, ..self.geometry }
    }

    fn lengthen(&self, bytes: u64) -> Answer<Result<(), Kind>> {
        if self.block_device {
            return Answer::Done(Err(Kind::NotSupported));
        }
        let lengthened = length::lengthen(&self.fd, bytes);
        Answer::Done(lengthened.map_err(|errno| Kind::of_errno(errno.raw_os_error())))
    }

    fn memory_alignment(&self) -> usize {
        self.memory_alignment
    }

    fn direct(&self) -> bool {
        self.direct
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        Box::pin(perform(FileOp::new(&self.fd, &self.turns, FileAction::Read, at, buf, done)))
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        let fd = if durable { &self.durable } else { &self.fd };
        let (end, device) = (at + (buf.len() - done) as u64, self.block_device.then(|| self.fd.clone()));
        let write = perform(FileOp::new(fd, &self.turns, FileAction::Write { durable }, at, buf, done));
        Box::pin(async move {
            let (result, buf) = write.await;
            let is_gone =
                result == Err(Kind::NoSpace) && device.is_some_and(|device| is_cut_off(&device, end));
            (if is_gone { Err(Kind::Io) } else { result }, buf)
        })
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        let sync = |fd| FileOp::new(fd, &self.turns, FileAction::Sync, 0, IoBuf::empty(), 0);
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
        // The kernel would zero what is left of it, and say that it is done.
        if self.block_device && is_cut_off(&self.fd, range.offset + len) {
            return Box::pin(std::future::ready(Err(Kind::Io)));
        }
        let allocate = |mode| FileAction::Allocate { mode: mode | FallocateFlags::KEEP_SIZE, len };
        let act = match mode {
            // Of a block device, punching asks for zeroes, which not every one that discards can make.
            FallocateMode::Discard if self.block_device => FileAction::Discard { len },
            FallocateMode::Discard | FallocateMode::Punch | FallocateMode::Free => {
                allocate(FallocateFlags::PUNCH_HOLE)
            }
            FallocateMode::Zero => allocate(FallocateFlags::ZERO_RANGE),
        };
        let op = FileOp::new(&self.fd, &self.turns, act, range.offset, IoBuf::empty(), 0);
        Box::pin(async { perform(op).await.0.map(|_| ()) })
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        if self.block_device {
            return Answer::Done(Ok(vec![Extent::stored(range.len)]));
        }
        let (fd, block) = (self.fd.clone(), self.geometry.block_size.bytes());
        Answer::pending(self.turns.clone().call(move || Ok(extents::find(&fd, range, block, count_max))))
    }
}

/// Whether a block device ends before `end`: it has shrunk, or is gone, and then has no bytes. It has no room to run out of there.
fn is_cut_off(device: &OwnedFd, end: u64) -> bool {
    let mut len = 0_u64;
    // SAFETY: the call writes a word at the address that it is given. Unlike lseek it takes no lock that a request holds.
    let told = unsafe { libc::ioctl(device.as_raw_fd(), BLKGETSIZE64, &raw mut len) };
    told == 0 && len < end
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
