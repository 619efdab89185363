//! Messages to replies: one reader of a mount.

use std::sync::{Arc, Weak};
use std::task::Context;

use spillway_core::exchange::{Exchange, Message};
use spillway_core::{ByteRange, Flags, IoBuf, Op, Request, work};

use super::answer::{Command, ControlTicket, Ticket};
use super::config::{BACKGROUND_MAX, CONGESTED, Config, PAYLOAD_LEN_MAX, PAYLOAD_OFFSET};
use super::controls::{self, ControlFile, Controls};
use super::folder::Listing;
use super::stat::Stat;
use super::transfers::{Transfers, writing};
use super::tree::{Attendance, CLASS_FOLDER, NO_VOLUME, Node, Tree, Volume};
use super::wire::{self, Fields, Head, Header, Portion, errno, fallocate_mode, init_flag, opcode, whence};

/// What a mount can do, where the kernel can.
const ABILITIES: u32 = init_flag::ASYNC_READ
    | init_flag::ATOMIC_O_TRUNC
    | init_flag::BIG_WRITES
    | init_flag::ASYNC_DIO
    | init_flag::PARALLEL_DIROPS
    | init_flag::MAX_PAGES;

/// The name of a device's file.
const DISK: &str = "disk";

/// Longest list of names in one reply, in bytes.
const LISTING_LEN_MAX: usize = 16 << 10;

/// Where a control file is.
type Place = (u32, u16, u16);

/// What a request leads to besides a reply: nothing, or an errno to be replied.
type Outcome = Result<(), i32>;

/// One reader of a mount. See [the module](super) for what it promises.
pub struct FuseSession {
    attendance: Attendance,
    transfers: Transfers,
    /// The volumes of the tree, by their numbers, when it had this version. A session that nobody asks keeps no device that was taken away.
    volumes: Vec<(u32, Weak<Volume>)>,
    version: Option<u64>,
}

impl FuseSession {
    /// A reader of the mount that shows `tree`.
    pub fn new(tree: Arc<Tree>, config: Config) -> Self {
        let attendance = Attendance::begin(tree);
        Self { attendance, transfers: Transfers::new(config), volumes: Vec::new(), version: None }
    }

    fn tree(&self) -> &Arc<Tree> {
        self.attendance.tree()
    }

    /// The volume of that number, as long as it is mounted.
    fn volume(&mut self, number: u32) -> Result<Arc<Volume>, i32> {
        let version = self.tree().version();
        if self.version != Some(version) {
            let volumes = self.tree().volumes();
            self.volumes = volumes.iter().map(|volume| (volume.number, Arc::downgrade(volume))).collect();
            self.version = Some(version);
        }
        let found = self.volumes.iter().find(|(each, _)| *each == number);
        found.and_then(|(_, volume)| volume.upgrade()).ok_or(errno::ENOENT)
    }

    /// The volume whose disk file `node` is.
    fn disk(&mut self, node: u64) -> Result<Arc<Volume>, i32> {
        match Node::of(node) {
            Some(Node::Disk(number)) => self.volume(number),
            Some(_) => Err(errno::EISDIR),
            None => Err(errno::ENOENT),
        }
    }

    /// A folder of control files.
    fn controls(&mut self, volume: u32, part: u16) -> Result<Arc<dyn Controls>, i32> {
        let found = match volume {
            NO_VOLUME => self.tree().class.as_ref().filter(|_| part == 0).cloned(),
            volume => self.volume(volume)?.parts.get(usize::from(part)).cloned(),
        };
        found.ok_or(errno::ENOENT)
    }

    /// A control file, by its volume, its folder and its place there.
    fn control(&mut self, (volume, part, file): Place) -> Result<(Arc<dyn Controls>, ControlFile), i32> {
        let controls = self.controls(volume, part)?;
        let file = controls.files().get(usize::from(file)).copied().ok_or(errno::ENOENT)?;
        Ok((controls, file))
    }

    fn is_control(&self, node: u64) -> bool {
        matches!(Node::of(node), Some(Node::Control(..)))
    }

    fn carry_out(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let unique = header.unique;
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Ok(()),
            opcode::READ => self.read(header, body),
            opcode::FSYNC if self.is_control(header.node) => self.done(&mut Head::of(unique, 0)),
            opcode::FSYNC => self.flush(header),
            opcode::FALLOCATE => self.fallocate(header, body),
            opcode::LSEEK => self.seek(header, body),
            opcode::LOOKUP => self.look_up(header, body),
            opcode::GETATTR => self.stat(header),
            opcode::SETATTR => self.set_stat(header, body),
            opcode::OPEN => self.open(header, body),
            opcode::RELEASE => self.release(header, body),
            opcode::READDIR => self.list(header, body),
            opcode::OPENDIR => self.done(Head::of(unique, 0).u64(0).u64(0)),
            opcode::RELEASEDIR | opcode::FSYNCDIR | opcode::DESTROY => self.done(&mut Head::of(unique, 0)),
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

    fn done(&mut self, head: &mut Head) -> Outcome {
        self.transfers.reply(head);
        Ok(())
    }

    /// Agrees on the version and on what both sides can do.
    fn init(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let mut fields = Fields::of(body);
        let (major, minor) = fields.u32().zip(fields.u32()).ok_or(errno::EINVAL)?;
        let mut head = Head::of(header.unique, 0);
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

    fn stat_of(&mut self, node: Node) -> Result<Stat, i32> {
        match node {
            Node::Root => Ok(Stat::folder(node)),
            Node::Volume(number) => self.volume(number).map(|_| Stat::folder(node)),
            Node::Disk(number) => {
                let geometry = self.volume(number)?.export().geometry();
                let permissions = if geometry.read_only { 0o400 } else { 0o600 };
                Ok(Stat::file(node, permissions, geometry.size, geometry.optimal_io.max(4096)))
            }
            Node::Part(number, part) => self.controls(number, part).map(|_| Stat::folder(node)),
            Node::Control(number, part, file) => {
                let (_, file) = self.control((number, part, file))?;
                Ok(Stat::file(node, file.permissions, controls::SIZE, 4096))
            }
        }
    }

    fn look_up(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let name = body.strip_suffix(&[0]).unwrap_or(body);
        let node = self.named(Node::of(header.node).ok_or(errno::ENOENT)?, name)?;
        let stat = self.stat_of(node)?;
        let mut head = Head::of(header.unique, 0);
        stat.encode_entry(self.tree().owner, &mut head);
        self.done(&mut head)
    }

    fn named(&mut self, folder: Node, name: &[u8]) -> Result<Node, i32> {
        match folder {
            Node::Root if self.tree().class.as_ref().is_some_and(|class| class.name().as_bytes() == name) => {
                Ok(CLASS_FOLDER)
            }
            Node::Root => {
                let volumes = self.tree().volumes();
                let found = volumes.iter().find(|volume| volume.export().name().as_bytes() == name);
                found.map(|volume| Node::Volume(volume.number)).ok_or(errno::ENOENT)
            }
            Node::Volume(number) if name == DISK.as_bytes() => Ok(Node::Disk(number)),
            Node::Volume(number) => {
                let volume = self.volume(number)?;
                let mut parts = volume.parts.iter();
                let place = parts.position(|part| part.name().as_bytes() == name).ok_or(errno::ENOENT)?;
                Ok(Node::Part(number, place as u16))
            }
            Node::Part(number, part) => {
                let controls = self.controls(number, part)?;
                let place = controls.files().iter().position(|file| file.name.as_bytes() == name);
                place.map(|place| Node::Control(number, part, place as u16)).ok_or(errno::ENOENT)
            }
            Node::Disk(_) | Node::Control(..) => Err(errno::ENOTDIR),
        }
    }

    fn stat(&mut self, header: &Header) -> Outcome {
        let stat = self.stat_of(Node::of(header.node).ok_or(errno::ENOENT)?)?;
        let mut head = Head::of(header.unique, 0);
        stat.encode_alone(self.tree().owner, &mut head);
        self.done(&mut head)
    }

    /// A disk has the size that it has, and an attribute none, so that shells may cut it; times are not kept, and nothing else changes.
    fn set_stat(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let mut fields = Fields::of(body);
        let (wanted, _) = fields.u32().zip(fields.u32()).ok_or(errno::EINVAL)?;
        let (_, size) = fields.u64().zip(fields.u64()).ok_or(errno::EINVAL)?;
        if wanted & !(wire::SET_SIZE | wire::SET_TIMES | wire::SET_BY_WHOM) != 0 {
            return Err(errno::EPERM);
        }
        let resizes = wanted & wire::SET_SIZE != 0 && !self.is_control(header.node);
        if resizes && self.disk(header.node)?.export().geometry().size != size {
            return Err(errno::EPERM);
        }
        self.stat(header)
    }

    fn open(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let mode = Fields::of(body).u32().ok_or(errno::EINVAL)?;
        let handle = match Node::of(header.node) {
            Some(Node::Control(number, part, file)) => self.open_control((number, part, file), mode)?,
            _ => self.disk(header.node)?.open_disk(mode, header.thread)?,
        };
        let flags = wire::open_flag::DIRECT_IO | wire::open_flag::PARALLEL_DIRECT_WRITES;
        self.done(Head::of(header.unique, 0).u64(handle).u32(flags).u32(0))
    }

    fn release(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let handle = Fields::of(body).u64().ok_or(errno::EINVAL)?;
        match Node::of(header.node) {
            Some(Node::Control(..)) => self.tree().texts.close(handle),
            _ => self.disk(header.node)?.close(handle),
        }
        self.done(&mut Head::of(header.unique, 0))
    }

    /// Root may open any file: what cannot be read or written is refused to it too.
    fn open_control(&mut self, place: Place, mode: u32) -> Result<u64, i32> {
        let (_, file) = self.control(place)?;
        let (reads, writes) = (mode & wire::open_mode::ACCESS != 1, mode & wire::open_mode::ACCESS != 0);
        if (reads && !file.is_readable()) || (writes && !file.is_writable()) {
            return Err(errno::EACCES);
        }
        self.tree().texts.open()
    }

    fn read_control(&mut self, header: &Header, asked: Portion, place: Place) -> Outcome {
        let (controls, file) = self.control(place)?;
        if !file.is_readable() {
            return Err(errno::EACCES);
        }
        let value = (asked.offset == 0).then(|| controls.show(&file));
        let tree = self.tree().clone();
        let shown = async move {
            if let Some(value) = value {
                tree.texts.show(asked.handle, controls::text_of(value.await?))?;
            }
            tree.texts.read(asked.handle, asked.offset, asked.len as usize)
        };
        let ticket = ControlTicket { unique: header.unique, written: None };
        self.transfers.control(ticket, Box::pin(shown));
        Ok(())
    }

    fn write_control(&mut self, header: &Header, body: &[u8], place: Place) -> Outcome {
        let asked = Portion::decode(body).ok_or(errno::EINVAL)?;
        let bytes = &body[Portion::LEN..];
        if bytes.len() != asked.len as usize {
            return Err(errno::EINVAL);
        }
        let (controls, file) = self.control(place)?;
        if !file.is_writable() {
            return Err(errno::EACCES);
        }
        let stored = controls.store(&file, controls::value_of(bytes)?);
        let ticket = ControlTicket { unique: header.unique, written: Some(asked.len) };
        self.transfers.control(ticket, Box::pin(async move { stored.await.map(|()| IoBuf::empty()) }));
        Ok(())
    }

    fn list(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let asked = Portion::decode(body).ok_or(errno::EINVAL)?;
        let node = Node::of(header.node).ok_or(errno::ENOENT)?;
        let mut listing = Listing::new(asked.offset, LISTING_LEN_MAX.min(asked.len as usize));
        let here = Stat::folder(node);
        listing.add(node.number(), &here, ".");
        listing.add(wire::ROOT, &here, "..");
        match node {
            Node::Root => {
                for volume in self.tree().volumes() {
                    let node = Node::Volume(volume.number);
                    listing.add(node.number(), &Stat::folder(node), volume.export().name());
                }
                if let Some(class) = &self.tree().class {
                    listing.add(CLASS_FOLDER.number(), &Stat::folder(CLASS_FOLDER), class.name());
                }
            }
            Node::Volume(number) => {
                let disk = Node::Disk(number);
                listing.add(disk.number(), &self.stat_of(disk)?, DISK);
                for (place, part) in self.volume(number)?.parts.iter().enumerate() {
                    let node = Node::Part(number, place as u16);
                    listing.add(node.number(), &Stat::folder(node), part.name());
                }
            }
            Node::Part(number, part) => {
                for (place, file) in self.controls(number, part)?.files().iter().enumerate() {
                    let node = Node::Control(number, part, place as u16);
                    listing.add(node.number(), &Stat::file(node, 0, 0, 0), file.name);
                }
            }
            Node::Disk(_) | Node::Control(..) => return Err(errno::ENOTDIR),
        }
        self.transfers.reply_with(&mut Head::of(header.unique, 0), listing.finish());
        Ok(())
    }

    /// A request about a disk file, and how large that is now.
    fn ticket(&mut self, header: &Header, command: Command) -> Result<(Ticket, u64), i32> {
        let volume = self.disk(header.node)?;
        let size = volume.export().geometry().size;
        Ok((Ticket { unique: header.unique, volume, command }, size))
    }

    fn read(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let asked = Portion::decode(body).ok_or(errno::EINVAL)?;
        if let Some(Node::Control(number, part, file)) = Node::of(header.node) {
            return self.read_control(header, asked, (number, part, file));
        }
        let (ticket, size) = self.ticket(header, Command::Read)?;
        if asked.offset >= size {
            return self.done(&mut Head::of(header.unique, 0));
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
        let (mut ticket, size) = match self.ticket(header, Command::Write(asked.len)) {
            Ok((_, size)) if asked.offset >= size && asked.len > 0 => return Err((errno::ENOSPC, message)),
            Ok(found) => found,
            Err(errno) => return Err((errno, message)),
        };
        let len = u64::from(asked.len).min(size - asked.offset.min(size));
        ticket.command = Command::Write(len as u32);
        message.narrow(PAYLOAD_OFFSET, len as usize);
        let request = writing(asked.offset, asked.open_mode & wire::open_mode::DSYNC != 0);
        Ok(self.transfers.write(ticket, request, message, last))
    }

    fn flush(&mut self, header: &Header) -> Outcome {
        let (ticket, _) = self.ticket(header, Command::Flush)?;
        self.transfers.bare(ticket, Request::flush());
        Ok(())
    }

    /// A hole reads as zero. Where the device would have to write those, it is left to who asked to do so.
    fn fallocate(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let mut fields = Fields::of(body);
        let (_, offset) = fields.u64().zip(fields.u64()).ok_or(errno::EINVAL)?;
        let (len, mode) = fields.u64().zip(fields.u32()).ok_or(errno::EINVAL)?;
        let (ticket, size) = self.ticket(header, Command::Zero)?;
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
        let flags = Flags { fua: false, no_hole: zeroes };
        self.transfers.bare(ticket, Request { flags, ..Request::bare(Op::WriteZeroes, range) });
        Ok(())
    }

    fn seek(&mut self, header: &Header, body: &[u8]) -> Outcome {
        let mut fields = Fields::of(body);
        let (_, offset) = fields.u64().zip(fields.u64()).ok_or(errno::EINVAL)?;
        let data = match fields.u32() {
            Some(whence::DATA) => true,
            Some(whence::HOLE) => false,
            _ => return Err(errno::EINVAL),
        };
        let (ticket, size) = self.ticket(header, Command::Seek)?;
        if offset >= size {
            return Err(errno::ENXIO);
        }
        self.transfers.seek(ticket, offset, data);
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
fn statfs(unique: u64) -> Head {
    let mut head = Head::of(unique, 0);
    head.u64(0).u64(0).u64(0).u64(0).u64(0).u32(4096).u32(255).u32(4096).u32(0);
    // Spare words.
    head.u64(0).u64(0).u64(0);
    head
}
