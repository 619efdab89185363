//! Locks of byte ranges that belong to an open file (F_OFD_SETLK of fcntl_locking(2)), as QEMU's file driver takes them.
//!
//! QEMU turns what it does with an image into shared locks of single bytes: `100 + N` for each permission N that it uses, `200 + N` for
//! each that it does not share with others. A second program that uses N finds 200 + N locked, or one that does not share N finds 100 + N
//! locked, and gives up (`raw_check_lock_bytes` of block/file-posix.c). We use the same bytes with the same meaning, so that QEMU, qemu-img,
//! qemu-nbd and servers of ours see each other. Elsewhere in the file a lock has its common meaning: a writer shares with nobody, a reader
//! with readers.
//!
//! File systems without such locks refuse the call: what others have there is not seen. On SMB a shared lock forbids everybody to write,
//! who holds it included, so that none is taken or looked for.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::fstatfs;
use rustix::io::Errno;

/// Permissions of QEMU, by their bits.
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Where the bytes of used and of unshared permissions begin, and how many are kept for each.
const USED: i64 = 100;
const UNSHARED: i64 = 200;
const RESERVED: i64 = 50;

/// File system types of `linux/magic.h`: CIFS, SMB2.
const SMB: [u32; 2] = [0xff53_4d42, 0xfe53_4d42];

/// Neither readers nor writers share these.
const NOT_SHARED: [i64; 2] = [WRITE, RESIZE];

/// Offset and length of what is not QEMU's; a length of 0 has no end.
const ELSEWHERE: [(i64, i64); 3] =
    [(0, USED), (USED + RESERVED, UNSHARED - USED - RESERVED), (UNSHARED + RESERVED, 0)];

/// Takes our locks, and looks for those of others that conflict: the process that holds one, where the kernel names it.
pub(super) fn take(fd: BorrowedFd<'_>, read_only: bool) -> Result<Option<Option<u32>>, Errno> {
    if is_smb(fd) {
        return Ok(None);
    }
    match taken(fd, read_only) {
        // Kernels, file systems and servers that have no such locks.
        Err(Errno::INVAL | Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(None),
        outcome => outcome,
    }
}

fn is_smb(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|found| SMB.contains(&(found.f_type as u32)))
}

/// Whether others have a lock anywhere in the file, of this namespace of processes or another one. Takes none.
pub(super) fn is_locked(fd: BorrowedFd<'_>) -> bool {
    let all = range(0, 0, libc::F_WRLCK);
    let found = call(fd, libc::F_OFD_GETLK, all);
    !is_smb(fd) && found.is_ok_and(|found| kind_of(&found) != libc::F_UNLCK)
}

fn taken(fd: BorrowedFd<'_>, read_only: bool) -> Result<Option<Option<u32>>, Errno> {
    let used: &[i64] = if read_only { &[CONSISTENT_READ] } else { &[CONSISTENT_READ, WRITE, RESIZE] };
    for byte in used.iter().map(|bit| USED + bit).chain(NOT_SHARED.map(|bit| UNSHARED + bit)) {
        match call(fd, libc::F_OFD_SETLK, range(byte, 1, libc::F_RDLCK)) {
            // Another program has it for writing.
            Err(Errno::AGAIN | Errno::ACCESS) => {
                return Ok(Some(holder(&call(fd, libc::F_OFD_GETLK, range(byte, 1, libc::F_RDLCK))?)));
            }
            outcome => drop(outcome?),
        }
    }
    for byte in used.iter().map(|bit| UNSHARED + bit).chain(NOT_SHARED.map(|bit| USED + bit)) {
        let found = call(fd, libc::F_OFD_GETLK, range(byte, 1, libc::F_WRLCK))?;
        if is_conflict(&found, read_only) {
            return Ok(Some(holder(&found)));
        }
    }
    let kind = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    for (at, len) in ELSEWHERE {
        let found = call(fd, libc::F_OFD_GETLK, range(at, len, kind))?;
        if kind_of(&found) != libc::F_UNLCK {
            return Ok(Some(holder(&found)));
        }
    }
    Ok(None)
}

/// Readers share with a reader that locks the file as a whole, as flock does on NFS: that says nothing of permissions.
fn is_conflict(found: &libc::flock64, read_only: bool) -> bool {
    let wide = found.l_start < USED || found.l_len == 0;
    match kind_of(found) {
        libc::F_UNLCK => false,
        libc::F_RDLCK => !(read_only && wide),
        _ => true,
    }
}

fn kind_of(found: &libc::flock64) -> i32 {
    i32::from(found.l_type)
}

/// Locks that belong to an open file have no process.
fn holder(found: &libc::flock64) -> Option<u32> {
    u32::try_from(found.l_pid).ok().filter(|&process| process > 0)
}

fn range(at: i64, len: i64, kind: i32) -> libc::flock64 {
    let (kind, whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock64 { l_type: kind, l_whence: whence, l_start: at, l_len: len, l_pid: 0 }
}

/// The call, and what it made of the range.
fn call(fd: BorrowedFd<'_>, command: libc::c_int, mut range: libc::flock64) -> Result<libc::flock64, Errno> {
    loop {
        // SAFETY: the call reads and writes a structure of this layout at the address that it is given.
        match unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(&mut range)) } {
            0 => return Ok(range),
            _ => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))),
            },
        }
    }
}
