//! Opening a file or block device: its size, block and whether O_DIRECT works.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    Advice, AtFlags, FallocateFlags, FileType, OFlags, Statx, StatxFlags, fadvise, fallocate, fcntl_getfl,
    fcntl_setfl, fdatasync, fstat, ioctl_blksszget, statx,
};
use rustix::io::{Errno, pread};
use spillway_core::{BlockSize, Error, Geometry, IoBuf, OpenStorage, SECTOR};

use super::claim::Claim;
use super::identity::identity;
use super::length::length_of;
use super::lock::failed;
use super::mapped::MappedFile;
use super::open_file::OpenFile;
use super::options::{Direct, FileOptions};
use crate::runtime::turns::Turns;
use crate::sysfs::{link_of, number_in};

/// Largest preferred request that is believed, in bytes.
const OPTIMAL_IO_MAX: u32 = 1 << 20;

/// Opens and locks a file or block device. What was made for it is taken back if it fails.
///
/// [`spillway_core::Kind::Busy`] if another server uses it; `NotFound` if it does not exist and is not to be made, or has no folder; `ReadOnly` or
/// `Denied` if it may not be written or made; `NoSpace` if there is no room to make it; `Invalid` if it is something else, or cannot be as long.
pub fn open(options: &FileOptions) -> Result<OpenStorage, Error> {
    let claim = Claim::take(options)?;
    let mut opened = examine(&claim, options)?;
    opened.notes.extend(claim.keep());
    Ok(opened)
}

fn examine(claim: &Claim<'_>, options: &FileOptions) -> Result<OpenStorage, Error> {
    let (fd, path) = (&claim.fd, options.path.as_path());
    let stat = fstat(fd).map_err(|errno| failed(path, "could not be examined", errno))?;
    let block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let len = length_of(fd, block_device).map_err(|errno| failed(path, "has no size", errno))?;
    let mut notes = Vec::new();
    let access = match options.mapped {
        true => FileAccess::BUFFERED,
        false => FileAccess::choose(fd, block_device, len, options, &mut notes)?,
    };
    let buffered = !access.direct && !options.mapped;
    let durable = if buffered { claim.again(options)? } else { fd.clone() };
    if !access.direct && !options.read_only {
        // Through another open file: the device's own are still to be told.
        let other = claim.again(options)?;
        forget_pages(&other, path, &mut notes);
    }
    let size = shown_size(path, len, access.block, &mut notes)?;
    let queue = block_device.then(|| queue_of(stat.st_rdev));
    let (discards, fast_zeroes) = room_calls(fd, queue.as_deref(), len, options);
    if !options.read_only && !options.mapped && !discards {
        notes.push(format!("{} frees no room: discards are not offered", path.display()));
    }
    let geometry = Geometry {
        size,
        block_size: access.block,
        optimal_io: optimal_io(queue.as_deref(), stat.st_blksize as u64, access.block),
        read_only: options.read_only,
        volatile: false,
        discards,
        write_through: false,
        fast_zeroes,
        rotational: queue.is_some_and(|queue| number_in(&queue.join("rotational")) == Some(1)),
        identity: identity(fd, block_device),
        writers: None,
    };
    if options.mapped {
        let (file, note) = MappedFile::new(fd.clone(), geometry)
            .map_err(|errno| failed(path, "could not be mapped", errno))?;
        notes.push(note.to_owned());
        return Ok(OpenStorage { storage: Arc::new(file), notes });
    }
    let FileAccess { direct, memory_alignment, .. } = access;
    let file = OpenFile {
        fd: fd.clone(),
        durable,
        geometry,
        block_device,
        direct,
        memory_alignment,
        turns: Turns::new(),
    };
    Ok(OpenStorage { storage: Arc::new(file), notes })
}

/// Has the kernel read the file anew. What it could not write out, and told another process of, is in its page cache as if it had: who
/// decided by that, or flushed after it was read, would trust what a power cut undoes.
fn forget_pages(fd: &OwnedFd, path: &Path, notes: &mut Vec<String>) {
    if let Err(errno) = fdatasync(fd) {
        let reason = std::io::Error::from(errno);
        notes.push(format!(
            "what was written to {} before could not be written out: {reason}",
            path.display()
        ));
    }
    // It may refuse: then this is no worse than without.
    let _ = fadvise(fd, 0, None, Advice::DontNeed);
}

fn shown_size(path: &Path, len: u64, block: BlockSize, notes: &mut Vec<String>) -> Result<u64, Error> {
    let size = len / block.bytes() * block.bytes();
    if size == 0 {
        let text = format!(
            "{} has {len} bytes, a device needs {} at least: enlarge it, for example with 'truncate -s 4G'",
            path.display(),
            block.bytes()
        );
        return Err(Error::invalid(text));
    }
    if size < len {
        let (rest, block) = (len - size, block.bytes());
        notes.push(format!(
            "the last {rest} bytes of {} are no whole block of {block}: not shown",
            path.display()
        ));
    }
    Ok(size)
}

/// How the file is reached.
pub(super) struct FileAccess {
    pub(super) block: BlockSize,
    direct: bool,
    memory_alignment: usize,
}

impl FileAccess {
    const BUFFERED: Self = Self { block: BlockSize::SECTOR, direct: false, memory_alignment: 1 };

    fn choose(
        fd: &OwnedFd,
        block_device: bool,
        len: u64,
        options: &FileOptions,
        notes: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let path = options.path.display();
        let mut buffered = Self::BUFFERED;
        if block_device {
            buffered.block = logical_block(fd, &options.path)?;
        }
        let outcome = match options.direct {
            Direct::Off => return Ok(buffered),
            _ => Self::direct(fd, buffered.block, len),
        };
        match outcome {
            Ok(access) if len.is_multiple_of(access.block.bytes()) || options.direct == Direct::On => {
                notes.push(format!("O_DIRECT in blocks of {}", access.block.bytes()));
                Ok(access)
            }
            Ok(access) => {
                set_direct(fd, false)
                    .map_err(|errno| failed(&options.path, "could not be reopened", errno))?;
                let block = access.block.bytes();
                notes.push(format!(
                    "O_DIRECT on {path} needs whole blocks of {block}, its size is none: page cache used"
                ));
                Ok(buffered)
            }
            Err(errno) if options.direct == Direct::On => {
                Err(failed(&options.path, "does not take O_DIRECT", errno))
            }
            Err(errno) => {
                let reason = std::io::Error::from(errno);
                notes.push(format!(
                    "O_DIRECT is refused on {path} ({reason}): the kernel's page cache is used"
                ));
                Ok(buffered)
            }
        }
    }

    /// Turns O_DIRECT on and finds the alignment, by asking and then by trying.
    pub(super) fn direct(fd: &OwnedFd, least: BlockSize, len: u64) -> Result<Self, Errno> {
        let told = told_alignment(fd);
        if told.is_some_and(|(memory, offset)| memory == 0 || offset == 0) {
            return Err(Errno::OPNOTSUPP);
        }
        set_direct(fd, true)?;
        let candidates = match told {
            Some((memory, offset)) => vec![(memory as usize, offset)],
            None => vec![(512, 512), (4096, 4096)],
        };
        let mut last = Errno::INVAL;
        for (memory_alignment, offset) in candidates {
            let Ok(block) = BlockSize::new(offset.max(least.bytes() as u32)) else { continue };
            match try_read(fd, block, len) {
                Ok(()) => {
                    return Ok(Self { block, direct: true, memory_alignment: memory_alignment.max(1) });
                }
                Err(errno) => last = errno,
            }
        }
        set_direct(fd, false)?;
        Err(last)
    }
}

fn set_direct(fd: &OwnedFd, on: bool) -> Result<(), Errno> {
    let mut flags = fcntl_getfl(fd)?;
    flags.set(OFlags::DIRECT, on);
    fcntl_setfl(fd, flags)
}

/// Alignments of memory and offset that the kernel names (Linux 6.1): zeroes mean no O_DIRECT, `None` that it does not say.
fn told_alignment(fd: &OwnedFd) -> Option<(u32, u32)> {
    let told: Statx = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN);
    known.then_some((told.stx_dio_mem_align, told.stx_dio_offset_align))
}

fn try_read(fd: &OwnedFd, block: BlockSize, len: u64) -> Result<(), Errno> {
    if len < block.bytes() {
        return Ok(());
    }
    let mut buf = IoBuf::new(block.bytes() as usize);
    pread(fd, &mut buf[..], 0).map(|_| ())
}

pub(super) fn logical_block(fd: &OwnedFd, path: &Path) -> Result<BlockSize, Error> {
    let bytes = ioctl_blksszget(fd).map_err(|errno| failed(path, "does not tell its block size", errno))?;
    BlockSize::new(bytes.max(SECTOR as u32))
}

/// Whether room can be freed, and whether zeroes can be made without writing them. On a file a hole does both; punching one
/// is tried behind the end, where there is nothing to lose. A block device that discards may have no call for zeroes (thin
/// volumes, many SSDs), and the kernel would write them; one that has only the call may write them itself.
fn room_calls(fd: &OwnedFd, queue: Option<&Path>, len: u64, options: &FileOptions) -> (bool, bool) {
    if options.read_only || options.mapped {
        return (false, false);
    }
    match queue {
        Some(queue) => {
            let has = |name: &str| number_in(&queue.join(name)).is_some_and(|bytes| bytes > 0);
            let discards = has("discard_max_bytes");
            (discards, discards && has("write_zeroes_max_bytes"))
        }
        None => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punches = fallocate(fd, mode, len.next_multiple_of(1 << 20), 4096).is_ok();
            (punches, punches)
        }
    }
}

fn optimal_io(queue: Option<&Path>, file_block: u64, block: BlockSize) -> u32 {
    let told = match queue {
        Some(queue) => number_in(&queue.join("optimal_io_size")).unwrap_or(0),
        None => file_block,
    };
    let least = block.bytes().max(4096) as u32;
    match u32::try_from(told) {
        Ok(bytes) if bytes > least && bytes <= OPTIMAL_IO_MAX && bytes.is_multiple_of(least) => bytes,
        _ => least,
    }
}

/// The folder of the queue attributes of a block device, or of the disk that it is a part of.
fn queue_of(device: u64) -> PathBuf {
    let own = link_of(device).join("queue");
    if own.is_dir() { own } else { link_of(device).join("../queue") }
}
