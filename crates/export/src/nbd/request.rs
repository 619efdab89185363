//! Which requests are allowed, and the errno of each refusal: a pure function of the header and the negotiated rules.

use spillway_core::{Geometry, Op, SECTOR};

use super::reply::{Refusal, ReplyStyle};
use super::ticket::{Command, Ticket};
use super::wire::{HeaderStyle, RequestHeader, cmd, cmd_flag, errno};

/// Longest refused payload, in bytes, that is read and thrown away; the connection ends before a longer one. Twice what a
/// well-behaved client may send, so that a client with other ideas about the limit learns of it by an error.
pub(super) const SKIPPED_LEN_MAX: u64 = 64 << 20;

/// What the handshake settled, as far as requests are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct NegotiatedRules {
    /// The device as this client sees it. Its size is above 0 and grows with the first request beyond it, if the device has grown.
    pub(super) geometry: Geometry,
    pub(super) replies: ReplyStyle,
    /// Whether the context `base:allocation` was selected.
    pub(super) base_allocation: bool,
    /// Longest payload in bytes.
    pub(super) payload_len_max: u32,
}

impl NegotiatedRules {
    /// How request headers look.
    pub(super) const fn headers(&self) -> HeaderStyle {
        match self.replies {
            ReplyStyle::Extended => HeaderStyle::Extended,
            _ => HeaderStyle::Compact,
        }
    }

    /// Bytes of payload that follow a header, whether the request is allowed or not; `None` where there are so many that
    /// the connection ends instead.
    #[inline]
    pub(super) fn payload_len(&self, header: &RequestHeader) -> Option<u64> {
        let (follows, limit) = match self.headers() {
            HeaderStyle::Compact => (header.command == cmd::WRITE, SKIPPED_LEN_MAX),
            // Extended headers come with the rule to hang up on a payload above the limit.
            HeaderStyle::Extended => {
                (header.flags & cmd_flag::PAYLOAD_LEN != 0, u64::from(self.payload_len_max))
            }
        };
        match follows {
            true => (header.length <= limit).then_some(header.length),
            false => Some(0),
        }
    }

    /// The ticket of an allowed request.
    #[inline]
    pub(super) fn admit(&self, header: &RequestHeader) -> Result<Ticket, Refusal> {
        let RequestHeader { flags, cookie, offset, length, .. } = *header;
        let command = Command::of(header.command).ok_or(Refusal::invalid("unknown command"))?;
        if flags & !self.flags_allowed(command) != 0 {
            return Err(Refusal::invalid("a flag that this command does not know"));
        }
        let ticket = Ticket { command, flags, cookie, offset, length };
        if command == Command::Io(Op::Flush) {
            return match (offset, length) {
                (0, 0) => Ok(ticket),
                _ => Err(Refusal::invalid("a flush has neither offset nor length")),
            };
        }
        self.check_ability(&ticket)?;
        self.check_range(&ticket)?;
        Ok(ticket)
    }

    const fn flags_allowed(&self, command: Command) -> u16 {
        let own = match command {
            Command::Io(Op::Read) if matches!(self.replies, ReplyStyle::Simple) => 0,
            Command::Io(Op::Read) => cmd_flag::DF,
            Command::Io(Op::Write) if matches!(self.replies, ReplyStyle::Extended) => cmd_flag::PAYLOAD_LEN,
            Command::Io(Op::WriteZeroes) => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
            Command::BlockStatus => cmd_flag::REQ_ONE,
            Command::Io(Op::Write | Op::Flush | Op::Discard) | Command::Cache => 0,
        };
        own | cmd_flag::FUA
    }

    #[inline]
    fn check_ability(&self, ticket: &Ticket) -> Result<(), Refusal> {
        let too_long = ticket.length > u64::from(self.payload_len_max);
        match ticket.command {
            command if command.writes() && self.geometry.read_only => {
                Err(Refusal::new(errno::EPERM, "the export is read-only"))
            }
            Command::Io(Op::Write)
                if self.replies == ReplyStyle::Extended && !ticket.has(cmd_flag::PAYLOAD_LEN) =>
            {
                Err(Refusal::invalid("a write without the flag that announces its payload"))
            }
            Command::Io(Op::Read) if too_long && ticket.has(cmd_flag::DF) => {
                Err(Refusal::new(errno::EOVERFLOW, "longer than the largest payload"))
            }
            Command::Io(Op::Read | Op::Write) if too_long => {
                Err(Refusal::invalid("longer than the largest payload"))
            }
            // Only holes are known to be fast.
            Command::Io(Op::WriteZeroes)
                if ticket.has(cmd_flag::FAST_ZERO)
                    && (ticket.has(cmd_flag::NO_HOLE) || !self.geometry.fast_zeroes) =>
            {
                Err(Refusal::new(errno::ENOTSUP, "zeroes are not faster than data here"))
            }
            Command::BlockStatus if !self.base_allocation => {
                Err(Refusal::invalid("no metadata context was selected"))
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn check_range(&self, ticket: &Ticket) -> Result<(), Refusal> {
        let range = ticket.range();
        if !range.within(self.geometry.size) {
            return Err(match ticket.command {
                Command::Io(Op::Write | Op::WriteZeroes) => {
                    Refusal::new(errno::ENOSPC, "past the end of the export")
                }
                _ => Refusal::invalid("past the end of the export"),
            });
        }
        if range.len == 0 {
            return Err(Refusal::invalid("a length of 0"));
        }
        if !range.aligned(SECTOR) {
            return Err(Refusal::invalid(
                "offset and length are not multiples of the minimum block size, 512",
            ));
        }
        Ok(())
    }
}
