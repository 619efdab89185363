//! Constants and the codec of fixed structures, as in `linux/fuse.h`. All numbers are in the machine's own byte order.

use spillway_core::exchange::HEAD_LEN_MAX;

pub use crate::fields::Fields;

/// Version of the protocol that is spoken. A kernel with a newer minor one speaks this one; one that is older than
/// [`MINOR_MIN`] is refused.
pub const MAJOR: u32 = 7;
/// See [`MAJOR`].
pub const MINOR: u32 = 31;
/// Linux 4.20: messages may be longer than 128 KiB.
pub const MINOR_MIN: u32 = 28;

/// Node of the mount's root folder.
pub const ROOT: u64 = 1;

/// Operations.
#[expect(missing_docs, reason = "the kernel's names")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
}

/// A message of the server's own: one byte of a node is stored in the kernel, whose file ends behind it at least.
const STORE: i32 = 4;

/// The message that stores a zero as byte `at` of a node.
pub(super) fn stored_byte(node: u64, at: u64) -> Vec<u8> {
    const LEN: u32 = 16 + 24 + 1;
    let mut message = Vec::with_capacity(LEN as usize);
    message.extend(LEN.to_ne_bytes());
    message.extend(STORE.to_ne_bytes());
    // No request has this number.
    message.extend(0u64.to_ne_bytes());
    message.extend(node.to_ne_bytes());
    message.extend(at.to_ne_bytes());
    message.extend([1u32, 0].map(u32::to_ne_bytes).concat());
    message.push(0);
    assert_eq!(message.len(), LEN as usize);
    message
}

/// Flags of INIT, in both directions.
#[expect(missing_docs, reason = "the kernel's names")]
pub mod init_flag {
    pub const ASYNC_READ: u32 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const ASYNC_DIO: u32 = 1 << 15;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const MAX_PAGES: u32 = 1 << 22;
}

/// Flags of the reply to OPEN.
pub mod open_flag {
    /// Nothing of the file is kept in the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Direct writes need not follow each other.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// SETATTR wants to set the size.
pub const SET_SIZE: u32 = 1 << 3;
/// SETATTR wants to set times, in one way or another.
pub const SET_TIMES: u32 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 10;
/// SETATTR names who asks, which changes nothing.
pub const SET_BY_WHOM: u32 = 1 << 6 | 1 << 9;

/// Flags of `open(2)`, as on all architectures that we run on.
pub mod open_mode {
    /// Reading, writing or both.
    pub const ACCESS: u32 = 3;
    /// Cut to no length.
    pub const TRUNC: u32 = 0o1000;
    /// Each write is durable before it returns.
    pub const DSYNC: u32 = 0o10000;
}

/// Modes of `fallocate(2)`.
pub mod fallocate_mode {
    /// The size stays.
    pub const KEEP_SIZE: u32 = 1;
    /// The range reads as zero and takes no room.
    pub const PUNCH_HOLE: u32 = 2;
    /// The range reads as zero and keeps its room.
    pub const ZERO_RANGE: u32 = 16;
}

/// Kinds of `lseek(2)` that come here.
pub mod whence {
    /// The next data.
    pub const DATA: u32 = 3;
    /// The next hole; the end of the file is one.
    pub const HOLE: u32 = 4;
}

/// Numbers of `errno` that no [`Kind`](spillway_core::Kind) stands for.
#[expect(missing_docs, reason = "the system's names")]
pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const ENXIO: i32 = 6;
    pub const E2BIG: i32 = 7;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const ENODEV: i32 = 19;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENFILE: i32 = 23;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const ERANGE: i32 = 34;
    pub const ENOSYS: i32 = 38;
    pub const EPROTO: i32 = 71;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
    pub const ENOMEDIUM: i32 = 123;
}

/// What every message of the kernel begins with.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Bytes of the whole message.
    pub len: u32,
    /// See [`opcode`].
    pub opcode: u32,
    /// What the reply repeats.
    pub unique: u64,
    /// What it is about.
    pub node: u64,
    /// The user who asks.
    pub user: u32,
    /// The thread that asks.
    pub thread: u32,
}

impl Header {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// The header in front of `message`; `None` where that is shorter.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(message.get(..Self::LEN)?);
        let (len, opcode, unique) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let (node, user, _group) = (fields.u64()?, fields.u32()?, fields.u32()?);
        Some(Self { len, opcode, unique, node, user, thread: fields.u32()? })
    }
}

/// Of a READ (FUSE_READ_LOCKOWNER): it is for a call that reads, and not for the kernel's page cache.
pub const FOR_A_CALL: u32 = 1 << 1;

/// What READ, WRITE and READDIR say.
#[derive(Clone, Copy, Debug)]
pub struct Portion {
    /// Of the open file.
    pub handle: u64,
    /// Where in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Of the request: see [`FOR_A_CALL`].
    pub flags: u32,
    /// Flags that the file was opened with, and those of the call.
    pub open_mode: u32,
}

impl Portion {
    /// Bytes on the wire, behind the header.
    pub const LEN: usize = 40;

    /// From what stands behind the header.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(body.get(..Self::LEN)?);
        let (handle, offset, len) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let (flags, _owner) = (fields.u32()?, fields.u64()?);
        Some(Self { handle, offset, len, flags, open_mode: fields.u32()? })
    }
}

/// The head of a reply while it is written.
pub struct ReplyHead {
    bytes: [u8; HEAD_LEN_MAX],
    len: usize,
}

impl ReplyHead {
    /// Bytes that every reply begins with.
    pub const LEN: usize = 16;

    /// The head of a reply to `unique`: an errno, or 0.
    pub fn of(unique: u64, errno: i32) -> Self {
        let mut head = Self { bytes: [0; HEAD_LEN_MAX], len: 4 };
        head.u32(errno.wrapping_neg() as u32).u64(unique);
        head
    }

    fn push(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    /// Appends a number of 32 bits.
    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.push(&number.to_ne_bytes())
    }

    /// Appends a number of 64 bits.
    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.push(&number.to_ne_bytes())
    }

    /// The finished head of a message with `body_len` bytes behind it.
    pub fn finish(&mut self, body_len: usize) -> &[u8] {
        let whole = u32::try_from(self.len + body_len).expect("a body is at most 32 MiB");
        self.bytes[..4].copy_from_slice(&whole.to_ne_bytes());
        &self.bytes[..self.len]
    }
}
