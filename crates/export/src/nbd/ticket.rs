//! What is kept of a request until its reply.

use spillway_core::{ByteRange, Flags, IoBuf, Op, Request, mutant};

use super::wire::{RequestHeader, cmd, cmd_flag};

/// The commands that are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// What a device is asked for.
    Io(Op),
    Cache,
    BlockStatus,
}

impl Command {
    /// The command of that number, if it is answered.
    pub(super) fn of(number: u16) -> Option<Self> {
        Some(match number {
            cmd::READ => Command::Io(Op::Read),
            cmd::WRITE => Command::Io(Op::Write),
            cmd::FLUSH => Command::Io(Op::Flush),
            cmd::TRIM => Command::Io(Op::Discard),
            cmd::CACHE => Command::Cache,
            cmd::WRITE_ZEROES => Command::Io(Op::WriteZeroes),
            cmd::BLOCK_STATUS => Command::BlockStatus,
            _ => return None,
        })
    }

    /// The operation of a device.
    pub(super) const fn op(self) -> Option<Op> {
        if let Command::Io(op) = self { Some(op) } else { None }
    }

    /// Whether it changes the device.
    pub(super) fn writes(self) -> bool {
        self.op().is_some_and(Op::writes)
    }
}

/// What is kept of a request until its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) command: Command,
    pub(super) flags: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Ticket {
    /// For the reply to a header that was refused: it needs the mark and the offset; the command no longer matters.
    pub(super) const fn refused(header: &RequestHeader) -> Self {
        let RequestHeader { flags, cookie, offset, length, .. } = *header;
        Self { command: Command::Io(Op::Flush), flags, cookie, offset, length }
    }

    /// The range of the export that the request is about.
    pub(super) const fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, self.length)
    }

    /// The modifiers as the device knows them.
    pub(super) fn device_flags(&self) -> Flags {
        // Clients may set FUA on any command; it means something for those that write.
        let fua = self.command.writes() && self.has(cmd_flag::FUA) && !mutant::on("nbd: forget FUA");
        Flags { fua, no_hole: self.has(cmd_flag::NO_HOLE), free: self.has(cmd_flag::FAST_ZERO) }
    }

    /// The request to the device, still without its buffer.
    pub(super) fn request(&self, op: Op) -> Request {
        Request { op, range: self.range(), flags: self.device_flags(), buf: IoBuf::empty() }
    }

    /// Whether the client set one of these command flags.
    pub(super) const fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }
}
