//! A file or DAX device as memory: calls of [`Storage`] that copy, in pieces between which others have their turn. Only msync waits, and
//! has a thread.
//!
//! Durable without a system call is a mapping of persistent memory (MAP_SYNC) or of tmpfs, which is as durable as it gets: bytes go past
//! the processor's caches to memory, each write ends with a fence, and `sync` has nothing left to do. On other files, and on other
//! processors than x86-64, bytes go to the page cache and `sync` is msync. A note says which.
//!
//! Needs: no two calls of which one writes overlap in time; the write cache, whose blocks have one owner, keeps to that. All room is
//! allocated when the file is mapped, because a page that cannot be had later, or that others cut off, ends the process (SIGBUS).

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, fallocate, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use spillway_core::storage::Moved;
use spillway_core::{ByteRange, FallocateMode, Geometry, IoBuf, Kind, LocalFuture, Storage};

use crate::mutant;
use crate::runtime::env::yield_now;
use crate::runtime::turns::Turns;

const PAGE: usize = 4096;

/// Bytes that are copied before others have their turn.
const PIECE: usize = 512 << 10;

/// Type of tmpfs in `statfs`.
const TMPFS: i64 = 0x0102_1994;

/// How bytes become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    /// By going past the caches, with a fence after each write.
    Stores,
    /// By msync.
    Msync,
}

/// A mapping of the whole file.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the lock.
    _fd: Arc<OwnedFd>,
}

// SAFETY: the mapping belongs to this value alone, and its address does not depend on the thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; bytes are reached through the methods below, whose callers keep writes apart from all else.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length and nobody has a reference into it: bytes are only ever copied.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// See the head of this file.
pub(super) struct MappedFile {
    mapping: Arc<Mapping>,
    turns: Arc<Turns>,
    durable: Durable,
    geometry: Geometry,
}

impl MappedFile {
    /// Maps `geometry.size` bytes; returns how they become durable, for people.
    pub(super) fn new(fd: Arc<OwnedFd>, geometry: Geometry) -> Result<(Self, &'static str), Errno> {
        let len = usize::try_from(geometry.size).map_err(|_| Errno::FBIG)?;
        let is_file = FileType::from_raw_mode(fstat(&fd)?.st_mode) == FileType::RegularFile;
        match fallocate(&fd, FallocateFlags::empty(), 0, geometry.size) {
            Ok(()) => {}
            // A block device has its room, and nothing that could be allocated.
            Err(Errno::NODEV | Errno::OPNOTSUPP) if !is_file => {}
            Err(errno) => return Err(errno),
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let map = |flags| {
            // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
            unsafe { mmap(std::ptr::null_mut(), len, protection, flags, &fd, 0) }
        };
        let sync = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        let (base, durable, note) = match map(sync) {
            Ok(base) if STORES => (base, Durable::Stores, "mapped persistent memory, stores past the caches"),
            Ok(base) => (base, Durable::Msync, "mapped persistent memory, msync"),
            Err(_) => {
                // The nodes of block devices lie on a tmpfs, their bytes do not.
                let on_tmpfs = is_file && fstatfs(&fd).is_ok_and(|found| found.f_type == TMPFS);
                let base = map(MapFlags::SHARED)?;
                match on_tmpfs && STORES {
                    true => (base, Durable::Stores, "mapped tmpfs: survives the server, not the machine"),
                    false => (base, Durable::Msync, "mapped file, msync"),
                }
            }
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
        let mapping = Arc::new(Mapping { base, len, _fd: fd });
        Ok((Self { mapping, turns: Turns::new(), durable, geometry }, note))
    }
}

impl Mapping {
    fn read(&self, at: usize, to: &mut [u8]) {
        self.check(at, to.len());
        // SAFETY: the range lies in the mapping, and nobody writes it meanwhile; `to` is memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), to.as_mut_ptr(), to.len()) }
    }

    fn write(&self, at: usize, from: &[u8], durable: Durable) {
        self.check(at, from.len());
        // SAFETY: the range lies in the mapping, and nobody reads or writes it meanwhile; `from` is memory of its own.
        unsafe {
            let to = self.base.as_ptr().add(at);
            match durable {
                Durable::Stores => {
                    store(to, from);
                    // On the thread that stored: a fence of another one does not wait for these stores.
                    fence();
                }
                Durable::Msync => std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()),
            }
        }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at}+{len} of {}", self.len);
    }

    /// Makes what was written to a range durable.
    fn settle(&self, at: usize, len: usize, durable: Durable) -> Result<(), Kind> {
        if durable == Durable::Stores || mutant::on("io: a mapping skips msync") {
            // Each write has ended with a fence.
            return Ok(());
        }
        let from = at / PAGE * PAGE;
        self.check(from, at - from + len);
        // SAFETY: the range lies in the mapping; the call changes no memory.
        let synced = unsafe {
            msync(self.base.as_ptr().add(from).cast::<c_void>(), at - from + len, MsyncFlags::SYNC)
        };
        synced.map_err(|errno| Kind::of_errno(errno.raw_os_error()))
    }
}

/// Whether stores can go past the caches.
const STORES: bool = cfg!(target_arch = "x86_64");

/// Copies past the caches.
///
/// # Safety
///
/// `to` has room for `from`, is aligned to 16 bytes, and nobody reads or writes it meanwhile; the length is a multiple of 16.
#[cfg(target_arch = "x86_64")]
unsafe fn store(to: *mut u8, from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    assert!(to.addr().is_multiple_of(16) && from.len().is_multiple_of(16), "whole sectors are aligned");
    for (index, chunk) in from.chunks_exact(16).enumerate() {
        // SAFETY: 16 bytes are read from the chunk and written to the room that the caller promises, aligned as was checked.
        unsafe {
            let value = _mm_loadu_si128(chunk.as_ptr().cast::<__m128i>());
            _mm_stream_si128(to.add(index * 16).cast::<__m128i>(), value);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn store(to: *mut u8, from: &[u8]) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Orders stores past the caches before all that follows.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// An answer that is there.
fn ready<T: 'static>(value: T) -> LocalFuture<T> {
    Box::pin(std::future::ready(value))
}

/// Pieces of a copy.
fn pieces(of: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    of.clone().step_by(PIECE).map(move |start| start..of.end.min(start + PIECE))
}

/// Lets others have their turn where `copied` bytes were copied before.
async fn give_way_before(copied: usize) {
    if copied > 0 {
        yield_now().await;
    }
}

impl MappedFile {
    /// Makes what was written to a range durable; where that is a system call that may take long, on a thread of its own.
    fn settle(&self, at: usize, len: usize) -> LocalFuture<Result<(), Kind>> {
        let (mapping, turns, how) = (self.mapping.clone(), self.turns.clone(), self.durable);
        match how {
            Durable::Stores => ready(Ok(())),
            Durable::Msync => Box::pin(turns.call(move || mapping.settle(at, len, how))),
        }
    }
}

impl Storage for MappedFile {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn direct(&self) -> bool {
        false
    }

    fn read(&self, at: u64, mut buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        let (at, mapping) = (at as usize, self.mapping.clone());
        Box::pin(async move {
            for piece in pieces(done..buf.len()) {
                give_way_before(piece.start - done).await;
                mapping.read(at + piece.start - done, &mut buf[piece]);
            }
            (Ok(buf.len() - done), buf)
        })
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        let (at, len) = (at as usize, buf.len() - done);
        let (mapping, how) = (self.mapping.clone(), self.durable);
        let settled = durable.then(|| self.settle(at, len));
        Box::pin(async move {
            for piece in pieces(done..buf.len()) {
                give_way_before(piece.start - done).await;
                mapping.write(at + piece.start - done, &buf[piece], how);
            }
            let result = if let Some(settled) = settled { settled.await } else { Ok(()) };
            (result.map(|()| len), buf)
        })
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        self.settle(0, self.mapping.len)
    }

    fn zero(&self, _range: ByteRange, _mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        ready(Err(Kind::NotSupported))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Loop;
    use super::super::{FileOptions, open};
    use super::PIECE;
    use crate::block_on;
    use spillway_core::storage::Moved;
    use spillway_core::{IoBuf, LocalFuture, OpenStorage};

    fn keeps_bytes(folder: &std::path::Path) {
        let path = folder.join(format!("spillway-mapped-{}", std::process::id()));
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let opened =
            open(&FileOptions { path: path.clone(), mapped: true, ..FileOptions::default() }).unwrap();
        assert!(opened.notes.iter().any(|note| note.contains("mapped")), "{:?}", opened.notes);
        let bytes: Vec<u8> = (0..8192u32).map(|index| (index % 251) as u8).collect();
        for (at, durable) in [(512, false), (65536, true)] {
            let moved = block_on(opened.storage.write(at, IoBuf::copy_of(&bytes), 0, durable));
            assert_eq!(moved.0, Ok(8192));
        }
        assert_eq!(block_on(opened.storage.sync()), Ok(()));
        let (read, buf) = block_on(opened.storage.read(512, IoBuf::new(8192), 0));
        assert_eq!((read, &buf[..]), (Ok(8192), &bytes[..]));
        let file = std::fs::read(&path).unwrap();
        assert!(file[512..8704] == bytes && file[65536..73728] == bytes, "the file has other bytes");
        drop(opened);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_written_through_a_mapping_is_in_the_file() {
        // Most systems have tmpfs in one place and something else in the other; each is known by itself.
        keeps_bytes(std::path::Path::new("/dev/shm"));
        keeps_bytes(&std::env::temp_dir());
    }

    /// What a call comes to, and how often it was polled for that.
    fn polled(mut call: LocalFuture<Moved>) -> (usize, Moved) {
        let mut polls = 0;
        let moved = block_on(std::future::poll_fn(|context| {
            polls += 1;
            call.as_mut().poll(context)
        }));
        (polls, moved)
    }

    #[test]
    fn a_long_copy_gives_way() {
        let path = std::env::temp_dir().join(format!("spillway-mapped-long-{}", std::process::id()));
        std::fs::write(&path, vec![0; 4 * PIECE]).unwrap();
        let opened =
            open(&FileOptions { path: path.clone(), mapped: true, ..FileOptions::default() }).unwrap();
        let bytes: Vec<u8> = (0..3 * PIECE).map(|index| (index % 251) as u8).collect();
        let (polls, moved) = polled(opened.storage.write(1024, IoBuf::copy_of(&bytes), 0, false));
        assert_eq!((polls, moved.0), (3, Ok(bytes.len())));
        let buf = IoBuf::new(512 + bytes.len());
        let (polls, (read, buf)) = polled(opened.storage.read(1024, buf, 512));
        assert_eq!((polls, read), (3, Ok(bytes.len())));
        assert!(buf[512..] == bytes[..], "other bytes are read than were written");
        drop(opened);
        std::fs::remove_file(&path).unwrap();
    }

    const LEN: usize = 8192;

    fn bytes(value: u8) -> IoBuf {
        let mut buf = IoBuf::new(LEN);
        buf.fill(value);
        buf
    }

    fn open_mapped(device: &Loop) -> OpenStorage {
        let options = FileOptions { path: device.path.clone(), mapped: true, ..FileOptions::default() };
        let opened = open(&options).unwrap();
        assert!(opened.notes.iter().any(|note| note.contains("msync")), "{:?}", opened.notes);
        opened
    }

    /// Whether the medium holds what was written at `at`. The mapping's dirty pages are no part of it: they belong to the loop
    /// device, the medium is the file below.
    fn is_settled(device: &Loop, at: u64, value: u8) -> bool {
        device.medium()[at as usize..at as usize + LEN].iter().all(|&byte| byte == value)
    }

    #[test]
    fn what_a_sync_covers_is_on_the_medium_when_dirty_pages_are_dropped() {
        let device = Loop::new();
        let opened = open_mapped(&device);
        let mut was_dirty = false;
        for value in 1..=16u8 {
            let at = u64::from(value) * 65536 + 512;
            let moved = block_on(opened.storage.write(at, bytes(value), 0, false));
            assert_eq!(moved.0, Ok(LEN));
            was_dirty |= !is_settled(&device, at, value);
            assert_eq!(block_on(opened.storage.sync()), Ok(()));
            assert!(is_settled(&device, at, value), "sync {value} left dirty pages");
        }
        assert!(was_dirty, "writes reached the medium without a sync: this test would see no missing one");
    }

    #[test]
    fn a_durable_write_is_on_the_medium_when_dirty_pages_are_dropped() {
        let device = Loop::new();
        let opened = open_mapped(&device);
        for value in 1..=16u8 {
            let at = u64::from(value) * 65536 + 512;
            let moved = block_on(opened.storage.write(at, bytes(value), 0, true));
            assert_eq!(moved.0, Ok(LEN));
            assert!(is_settled(&device, at, value), "write {value} left dirty pages");
        }
    }
}
