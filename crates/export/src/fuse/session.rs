//! Messages to replies: one reader of a mount.

use std::sync::Arc;
use std::task::Context;

use spillway_core::exchange::{Exchange, Message};
use spillway_core::{ByteRange, Flags, IoBuf, Op, Request, mutant, work};

use super::config::{BACKGROUND_MAX, CONGESTED, Config, PAYLOAD_LEN_MAX, PAYLOAD_OFFSET};
use super::controls;
use super::transfers::{Ticket, Transfers, refusal, reply, writing};
use super::tree::{Node, Tree};
use super::view::{ControlPath, TreeView};
use super::wire::{
    self, Fields, Header, Portion, ReplyHead, errno, fallocate_mode, init_flag, opcode, whence,
};

/// What a mount can do, where the kernel can.
const ABILITIES: u32 = init_flag::ASYNC_READ
    | init_flag::ATOMIC_O_TRUNC
    | init_flag::BIG_WRITES
    | init_flag::ASYNC_DIO
    | init_flag::PARALLEL_DIROPS
    | init_flag::MAX_PAGES;

/// What a request leads to besides a reply: nothing, or an errno to be replied.
type Handled = Result<(), i32>;

/// One reader of a mount. See [the module](super) for what it promises.
pub struct FuseSession {
    view: TreeView,
    transfers: Transfers,
}

impl FuseSession {
    /// A reader of the mount that shows `tree`.
    pub fn new(tree: Arc<Tree>, config: Config) -> Self {
        Self { view: TreeView::new(tree), transfers: Transfers::new(config) }
    }

    fn is_control(&self, node: u64) -> bool {
        matches!(Node::of(node), Some(Node::Control(..)))
    }

    fn carry_out(&mut self, header: &Header, body: &[u8]) -> Handled {
        let unique = header.unique;
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => Ok(()),
            opcode::INTERRUPT => self.interrupt(body),
            opcode::READ => self.read(header, body),
            opcode::FSYNC if self.is_control(header.node) => self.done(&mut ReplyHead::of(unique, 0)),
            opcode::FSYNC => self.flush(header),
            opcode::FALLOCATE => self.fallocate(header, body),
            opcode::LSEEK => self.seek(header, body),
            opcode::LOOKUP => self.look_up(header, body),
            opcode::GETATTR => self.stat(header),
            opcode::SETATTR => self.set_stat(header, body),
            opcode::OPEN => self.open(header, body),
            opcode::RELEASE => self.release(header, body),
            opcode::READDIR => self.list(header, body),
            opcode::OPENDIR => self.done(ReplyHead::of(unique, 0).u64(0).u64(0)),
            opcode::RELEASEDIR | opcode::FSYNCDIR | opcode::DESTROY => {
                self.done(&mut ReplyHead::of(unique, 0))
            }
            opcode::STATFS => self.done(&mut statfs(unique)),
            opcode::INIT => self.init(header, body),
            opcode::SYMLINK | opcode::MKNOD | opcode::MKDIR | opcode::UNLINK | opcode::RMDIR => {
                Err(errno::EPERM)
            }
            opcode::RENAME | opcode::RENAME2 | opcode::LINK | opcode::CREATE => Err(errno::EPERM),
            // The kernel remembers that, and does without.
            _ => Err(errno::ENOSYS),
        }
    }

    fn done(&mut self, head: &mut ReplyHead) -> Handled {
        self.transfers.reply(head);
        Ok(())
    }

    /// The request goes on, and is answered as any other.
    fn interrupt(&mut self, body: &[u8]) -> Handled {
        if mutant::on("fuse: answer what is interrupted at once") {
            self.transfers.refuse(Fields::of(body).u64().ok_or(errno::EINVAL)?, errno::EINVAL);
        }
        Ok(())
    }

    /// Agrees on the version and on what both sides can do.
    fn init(&mut self, header: &Header, body: &[u8]) -> Handled {
        let mut fields = Fields::of(body);
        let (major, minor) = fields.u32().zip(fields.u32()).ok_or(errno::EINVAL)?;
        let mut head = ReplyHead::of(header.unique, 0);
        if major > wire::MAJOR {
            // It asks again with our version.
            return self.done(head.u32(wire::MAJOR).u32(wire::MINOR).u64(0).u64(0));
        }
        let (read_ahead, flags) = fields.u32().zip(fields.u32()).ok_or(errno::EINVAL)?;
        if major < wire::MAJOR || minor < wire::MINOR_MIN || flags & init_flag::MAX_PAGES == 0 {
            return Err(errno::EPROTO);
        }
        head.u32(wire::MAJOR).u32(wire::MINOR).u32(read_ahead).u32(flags & ABILITIES);
        head.u32(BACKGROUND_MAX | CONGESTED << 16).u32(PAYLOAD_LEN_MAX);
        // Times in nanoseconds, pages of a message, and nothing else.
        head.u32(1).u32(PAYLOAD_LEN_MAX / 4096).u64(0).u64(0).u64(0).u64(0);
        self.done(&mut head)
    }

    fn look_up(&mut self, header: &Header, body: &[u8]) -> Handled {
        let name = body.strip_suffix(&[0]).unwrap_or(body);
        let node = self.view.named(Node::of(header.node).ok_or(errno::ENOENT)?, name)?;
        let stat = self.view.stat_of(node)?;
        let mut head = ReplyHead::of(header.unique, 0);
        stat.encode_entry(self.view.tree().owner, &mut head);
        self.done(&mut head)
    }

    fn stat(&mut self, header: &Header) -> Handled {
        let stat = self.view.stat_of(Node::of(header.node).ok_or(errno::ENOENT)?)?;
        let mut head = ReplyHead::of(header.unique, 0);
        stat.encode_alone(self.view.tree().owner, &mut head);
        self.done(&mut head)
    }

    /// A disk has the size that it has, and an attribute none, so that shells may cut it; times are not kept, and nothing else changes.
    fn set_stat(&mut self, header: &Header, body: &[u8]) -> Handled {
        let mut fields = Fields::of(body);
        let (wanted, _) = fields.u32().zip(fields.u32()).ok_or(errno::EINVAL)?;
        let (_, size) = fields.u64().zip(fields.u64()).ok_or(errno::EINVAL)?;
        if wanted & !(wire::SET_SIZE | wire::SET_TIMES | wire::SET_BY_WHOM) != 0 {
            return Err(errno::EPERM);
        }
        let resizes = wanted & wire::SET_SIZE != 0 && !self.is_control(header.node);
        if resizes && self.view.disk(header.node)?.export().geometry().size != size {
            return Err(errno::EPERM);
        }
        self.stat(header)
    }

    fn open(&mut self, header: &Header, body: &[u8]) -> Handled {
        let mode = Fields::of(body).u32().ok_or(errno::EINVAL)?;
        let trusted = [0, self.view.tree().owner.uid].contains(&header.user);
        let handle = match Node::of(header.node) {
            Some(Node::Control(number, part, file)) => {
                self.open_control((number, part, file), mode, trusted)?
            }
            _ => self.view.disk(header.node)?.open_disk(mode, header.thread, trusted)?,
        };
        let flags = wire::open_flag::DIRECT_IO | wire::open_flag::PARALLEL_DIRECT_WRITES;
        self.done(ReplyHead::of(header.unique, 0).u64(handle).u32(flags).u32(0))
    }

    fn release(&mut self, header: &Header, body: &[u8]) -> Handled {
        let handle = Fields::of(body).u64().ok_or(errno::EINVAL)?;
        match Node::of(header.node) {
            Some(Node::Control(..)) => self.view.tree().texts.close(handle),
            _ => self.view.disk(header.node)?.close(handle),
        }
        self.done(&mut ReplyHead::of(header.unique, 0))
    }

    /// Root may open any file: what cannot be read or written is refused to it too.
    fn open_control(&mut self, place: ControlPath, mode: u32, trusted: bool) -> Result<u64, i32> {
        let (_, file) = self.view.control(place)?;
        let (reads, writes) = (mode & wire::open_mode::ACCESS != 1, mode & wire::open_mode::ACCESS != 0);
        if (reads && !file.is_readable()) || (writes && !file.is_writable()) {
            return Err(errno::EACCES);
        }
        self.view.tree().texts.open(trusted)
    }

    fn read_control(&mut self, header: &Header, asked: Portion, place: ControlPath) -> Handled {
        let (controls, file) = self.view.control(place)?;
        if !file.is_readable() {
            return Err(errno::EACCES);
        }
        let (tree, unique) = (self.view.tree().clone(), header.unique);
        // Made when it is polled, so that requests which wait hold no text.
        let shown = async move {
            if let Some(from) = tree.texts.due(asked.handle, asked.offset) {
                work::spend(controls::SHOWN_UNITS);
                let piece = controls.show(&file, from).await?;
                tree.texts.show(asked.handle, asked.offset, piece)?;
            }
            tree.texts.read(asked.handle, asked.offset, asked.len as usize)
        };
        self.transfers.reply_later(async move {
            match shown.await {
                Ok(text) => reply(&mut ReplyHead::of(unique, 0), text),
                Err(errno) => refusal(unique, errno),
            }
        });
        Ok(())
    }

    fn write_control(&mut self, header: &Header, body: &[u8], place: ControlPath) -> Handled {
        let asked = Portion::decode(body).ok_or(errno::EINVAL)?;
        let bytes = &body[Portion::LEN..];
        if bytes.len() != asked.len as usize {
            return Err(errno::EINVAL);
        }
        let (controls, file) = self.view.control(place)?;
        if !file.is_writable() {
            return Err(errno::EACCES);
        }
        let stored = controls.store(&file, controls::value_of(bytes)?);
        let unique = header.unique;
        self.transfers.reply_later(async move {
            match stored.await {
                Ok(()) => reply(ReplyHead::of(unique, 0).u32(asked.len).u32(0), IoBuf::empty()),
                Err(errno) => refusal(unique, errno),
            }
        });
        Ok(())
    }

    fn list(&mut self, header: &Header, body: &[u8]) -> Handled {
        let asked = Portion::decode(body).ok_or(errno::EINVAL)?;
        let node = Node::of(header.node).ok_or(errno::ENOENT)?;
        let names = self.view.list(node, asked.offset, asked.len as usize)?;
        self.transfers.reply_with(&mut ReplyHead::of(header.unique, 0), names);
        Ok(())
    }

    /// A request about a disk file, and how large that is now.
    fn ticket(&mut self, header: &Header, op: Op) -> Result<(Ticket, u64), i32> {
        let volume = self.view.disk(header.node)?;
        let size = volume.export().geometry().size;
        Ok((Ticket { unique: header.unique, volume, op }, size))
    }

    fn read(&mut self, header: &Header, body: &[u8]) -> Handled {
        let asked = Portion::decode(body).ok_or(errno::EINVAL)?;
        // By splice, sendfile or a private mapping the kernel would fill its page cache, and show those bytes whatever is written since.
        if asked.flags & wire::FOR_A_CALL == 0 {
            return Err(errno::EINVAL);
        }
        if let Some(Node::Control(number, part, file)) = Node::of(header.node) {
            return self.read_control(header, asked, (number, part, file));
        }
        let (ticket, size) = self.ticket(header, Op::Read)?;
        if asked.offset >= size {
            return self.done(&mut ReplyHead::of(header.unique, 0));
        }
        let len = u64::from(asked.len.min(PAYLOAD_LEN_MAX)).min(size - asked.offset);
        self.transfers.read(ticket, asked.offset, len as usize);
        Ok(())
    }

    /// As on a block device: what does not fit is left out, and past the end there is no room.
    fn write(
        &mut self,
        header: &Header,
        mut message: IoBuf,
        last: bool,
    ) -> Result<Option<IoBuf>, (i32, IoBuf)> {
        let asked = Portion::decode(&message[Header::LEN..]);
        let Some(asked) = asked.filter(|asked| message.len() == PAYLOAD_OFFSET + asked.len as usize) else {
            return Err((errno::EINVAL, message));
        };
        let (ticket, size) = match self.ticket(header, Op::Write) {
            Ok((_, size)) if asked.offset >= size && asked.len > 0 => return Err((errno::ENOSPC, message)),
            Ok(found) => found,
            Err(errno) => return Err((errno, message)),
        };
        let len = u64::from(asked.len).min(size - asked.offset.min(size));
        message.narrow(PAYLOAD_OFFSET, len as usize);
        let durable = asked.open_mode & wire::open_mode::DSYNC != 0 && !mutant::on("fuse: forget DSYNC");
        let request = writing(asked.offset, durable);
        Ok(self.transfers.write(ticket, request, message, last))
    }

    fn flush(&mut self, header: &Header) -> Handled {
        if mutant::on("fuse: answer FSYNC without a flush") {
            return self.done(&mut ReplyHead::of(header.unique, 0));
        }
        let (ticket, _) = self.ticket(header, Op::Flush)?;
        self.transfers.bare(ticket, Request::flush());
        Ok(())
    }

    /// A hole reads as zero. Where the device would have to write those, it is left to who asked to do so.
    fn fallocate(&mut self, header: &Header, body: &[u8]) -> Handled {
        let mut fields = Fields::of(body);
        let (handle, offset) = fields.u64().zip(fields.u64()).ok_or(errno::EINVAL)?;
        let (len, mode) = fields.u64().zip(fields.u32()).ok_or(errno::EINVAL)?;
        let (ticket, size) = self.ticket(header, Op::WriteZeroes)?;
        let punches = mode == fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
        let punches = punches && ticket.volume.export().geometry().fast_zeroes;
        let zeroes = mode & !fallocate_mode::KEEP_SIZE == fallocate_mode::ZERO_RANGE;
        if !zeroes && !punches {
            return Err(errno::EOPNOTSUPP);
        }
        let end = offset.checked_add(len).ok_or(errno::EINVAL)?;
        if end > size && mode & fallocate_mode::KEEP_SIZE == 0 {
            return Err(errno::ENOSPC);
        }
        let range = ByteRange::new(offset.min(size), end.min(size) - offset.min(size));
        // The kernel says it of writes alone.
        let flags = Flags { no_hole: zeroes, fua: ticket.volume.is_durable(handle), ..Flags::default() };
        self.transfers.bare(ticket, Request { flags, ..Request::bare(Op::WriteZeroes, range) });
        Ok(())
    }

    fn seek(&mut self, header: &Header, body: &[u8]) -> Handled {
        let mut fields = Fields::of(body);
        let (_, offset) = fields.u64().zip(fields.u64()).ok_or(errno::EINVAL)?;
        let data = match fields.u32() {
            Some(whence::DATA) => true,
            Some(whence::HOLE) => false,
            _ => return Err(errno::EINVAL),
        };
        let volume = self.view.disk(header.node)?;
        if offset >= volume.export().geometry().size {
            return Err(errno::ENXIO);
        }
        self.transfers.seek(header.unique, volume, offset, data);
        Ok(())
    }
}

impl Exchange for FuseSession {
    fn takes(&mut self) -> bool {
        self.transfers.takes()
    }

    fn receive(&mut self, message: IoBuf, last: bool) -> Option<IoBuf> {
        work::spend(work::REQUEST);
        let header = Header::decode(&message).filter(|header| header.len as usize == message.len());
        // No kernel sends such a thing, and there is nothing to reply to.
        let Some(header) = header else { return Some(message) };
        let (refused, rest) = match (header.opcode, Node::of(header.node)) {
            (opcode::WRITE, Some(Node::Control(number, part, file))) => {
                let body = &message[Header::LEN..];
                (self.write_control(&header, body, (number, part, file)), message)
            }
            (opcode::WRITE, _) => match self.write(&header, message, last) {
                Ok(rest) => return rest,
                Err((errno, message)) => (Err(errno), message),
            },
            _ => (self.carry_out(&header, &message[Header::LEN..]), message),
        };
        if let Err(errno) = refused {
            self.transfers.refuse(header.unique, errno);
        }
        Some(rest)
    }

    fn returned(&mut self) -> Option<IoBuf> {
        self.transfers.returned()
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        self.transfers.poll(context);
    }

    fn next_reply(&mut self) -> Option<Message> {
        self.transfers.next_reply()
    }

    fn hang_up(&mut self) {
        self.transfers.hang_up();
    }

    fn pending(&self) -> usize {
        self.transfers.pending()
    }
}

/// Blocks and files in all and free: none are. Bytes of a block and of a name.
fn statfs(unique: u64) -> ReplyHead {
    let mut head = ReplyHead::of(unique, 0);
    head.u64(0).u64(0).u64(0).u64(0).u64(0).u32(4096).u32(255).u32(4096).u32(0);
    // Spare words.
    head.u64(0).u64(0).u64(0);
    head
}
