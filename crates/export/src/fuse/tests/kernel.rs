//! The kernel's side of a conversation, and a driver in one.

use std::sync::Arc;
use std::task::Context;

use spillway_core::IoBuf;
use spillway_core::contract::Wakes;
use spillway_core::exchange::Exchange;

use super::super::wire::{self, Fields, Header, ROOT, opcode};
use super::super::{Config, FuseSession, MESSAGE_FORMAT, Tree};

/// The thread that asks for everything.
pub(super) const THREAD: u32 = 77;

/// A reply: an errno or 0, and what follows.
pub(super) type Got = (i32, Vec<u8>);

/// A kernel with one reader behind it.
pub(super) struct Kernel {
    pub(super) session: FuseSession,
    wakes: Arc<Wakes>,
    unique: u64,
    /// Whether each buffer is the driver's last.
    pub(super) last: bool,
}

impl Kernel {
    pub(super) fn new(tree: &Arc<Tree>, config: Config) -> Self {
        Self {
            session: FuseSession::new(tree.clone(), config),
            wakes: Arc::default(),
            unique: 0,
            last: false,
        }
    }

    /// Sends a message and returns its number; true where the session kept the buffer.
    pub(super) fn send(&mut self, opcode: u32, node: u64, body: &[u8]) -> (u64, bool) {
        self.unique += 1;
        let kept = self.session.receive(message(opcode, node, self.unique, body), self.last).is_none();
        (self.unique, kept)
    }

    /// Lets pending requests progress.
    pub(super) fn poll(&mut self) {
        self.session.poll(&mut Context::from_waker(&self.wakes.waker()));
    }

    /// The next reply: number, errno and what follows.
    pub(super) fn reply(&mut self) -> Option<(u64, Got)> {
        let message = self.session.next_reply()?;
        let bytes = [message.head(), &message.body].concat();
        assert_eq!(bytes.len(), message.bytes());
        let mut fields = Fields::of(&bytes);
        let (len, error) = (fields.u32().unwrap(), fields.u32().unwrap() as i32);
        assert_eq!(len as usize, bytes.len());
        assert!((-4095..=0).contains(&error), "{error}");
        Some((fields.u64().unwrap(), (-error, bytes[16..].to_vec())))
    }

    /// Times that the task was woken.
    pub(super) fn wakes(&self) -> usize {
        self.wakes.count()
    }

    /// Sends a message whose answer comes at once.
    pub(super) fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Got {
        let (unique, _) = self.send(opcode, node, body);
        self.poll();
        let (answered, got) = self.reply().expect("an answer");
        assert_eq!(answered, unique);
        assert!(self.reply().is_none(), "one answer each");
        got
    }

    /// The node of a path such as `ram0/disk`, or an errno.
    pub(super) fn find(&mut self, path: &str) -> Result<u64, i32> {
        path.split('/').try_fold(ROOT, |node, name| {
            let (errno, entry) = self.ask(opcode::LOOKUP, node, &[name.as_bytes(), b"\0"].concat());
            if errno == 0 { Ok(Fields::of(&entry).u64().unwrap()) } else { Err(errno) }
        })
    }

    /// Opens a file; its handle, or an errno.
    pub(super) fn open(&mut self, node: u64, mode: u32) -> Result<u64, i32> {
        let (errno, reply) = self.ask(opcode::OPEN, node, &words32(&[mode, 0]));
        if errno == 0 { Ok(Fields::of(&reply).u64().unwrap()) } else { Err(errno) }
    }

    pub(super) fn read(&mut self, node: u64, offset: u64, len: u32) -> Got {
        self.ask(opcode::READ, node, &portion(offset, len, 0))
    }

    pub(super) fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Got {
        self.ask(opcode::WRITE, node, &writing(offset, data, 0))
    }
}

/// A message in a buffer as the driver reads it.
pub(super) fn message(opcode: u32, node: u64, unique: u64, body: &[u8]) -> IoBuf {
    let mut buf = IoBuf::new(MESSAGE_FORMAT.len_max);
    let len = Header::LEN + body.len();
    let head =
        [words32(&[len as u32, opcode]), words64(&[unique, node]), words32(&[0, 0, THREAD, 0])].concat();
    buf[..Header::LEN].copy_from_slice(&head);
    buf[Header::LEN..len].copy_from_slice(body);
    buf.narrow(0, len);
    buf
}

pub(super) fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(super) fn words64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(super) fn portion(offset: u64, len: u32, mode: u32) -> Vec<u8> {
    portion_with(offset, len, mode, wire::FOR_A_CALL)
}

pub(super) fn portion_with(offset: u64, len: u32, mode: u32, flags: u32) -> Vec<u8> {
    [words64(&[1, offset]), words32(&[len, flags]), words64(&[0]), words32(&[mode, 0])].concat()
}

pub(super) fn writing(offset: u64, data: &[u8], mode: u32) -> Vec<u8> {
    [portion(offset, data.len() as u32, mode), data.to_vec()].concat()
}
