//! What is asked of a device, and what comes back.

use crate::block::ByteRange;
use crate::error::Kind;
use crate::memory::buffer::IoBuf;

/// The operations of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the buffer from the range.
    Read,
    /// Store the buffer in the range.
    Write,
    /// Make the range read as zero.
    WriteZeroes,
    /// The range is no longer needed: afterwards it reads as its old content or as zero, or as a drive below gives it.
    Discard,
    /// Everything acknowledged before is made as durable as the device can.
    Flush,
}

impl Op {
    /// What it is called where requests are counted.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::WriteZeroes => "write_zeroes",
            Op::Discard => "discard",
            Op::Flush => "flush",
        }
    }

    /// Whether the operation changes the device.
    pub const fn writes(self) -> bool {
        matches!(self, Op::Write | Op::WriteZeroes | Op::Discard)
    }

    /// Whether the operation carries a buffer as long as its range.
    pub const fn carries_buffer(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

/// Modifiers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Force unit access: this write is durable before it is answered.
    pub fua: bool,
    /// `WriteZeroes` only: keep the range allocated instead of punching a hole.
    pub no_hole: bool,
    /// `WriteZeroes` only, and without `no_hole`: of what was discarded. It fails with [`Kind::NotSupported`] where zeroes would be written or
    /// take room; some of the range may be zeroes then.
    pub free: bool,
}

/// One operation, with the buffer it works on.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Where.
    pub range: ByteRange,
    /// How.
    pub flags: Flags,
    /// As long as the range for reads and writes, otherwise empty. It comes back in the reply.
    pub buf: IoBuf,
}

impl Request {
    /// Reads `buf.len()` bytes at `offset`.
    pub fn read(offset: u64, buf: IoBuf) -> Self {
        Self { op: Op::Read, range: ByteRange::new(offset, buf.len() as u64), flags: Flags::default(), buf }
    }

    /// Writes `buf` at `offset`.
    pub fn write(offset: u64, buf: IoBuf) -> Self {
        Self { op: Op::Write, range: ByteRange::new(offset, buf.len() as u64), flags: Flags::default(), buf }
    }

    /// An operation without payload on `range`.
    pub fn bare(op: Op, range: ByteRange) -> Self {
        Self { op, range, flags: Flags::default(), buf: IoBuf::empty() }
    }

    /// A flush.
    pub fn flush() -> Self {
        Self::bare(Op::Flush, ByteRange::new(0, 0))
    }

    /// The same request with forced unit access.
    pub fn with_fua(mut self) -> Self {
        self.flags.fua = true;
        self
    }

    /// The answer `result`, giving the buffer back.
    pub fn answer(self, result: Result<(), Kind>) -> Reply {
        Reply { result, buf: self.buf }
    }
}

/// The outcome of a request, and its buffer.
#[derive(Debug)]
pub struct Reply {
    /// Success, or why not. After a failed write each block holds its old or its new content.
    pub result: Result<(), Kind>,
    /// The request's buffer; for a successful read it holds the data.
    pub buf: IoBuf,
}
