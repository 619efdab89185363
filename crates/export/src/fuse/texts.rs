//! What open control files have shown, for reads that go on in it.
//!
//! All texts of a mount together take at most [`TEXT_BYTES`]. The oldest make room for a new one, so that a program that keeps
//! files open without reading on holds nobody up: it is the one that is refused, should it read on.

use std::collections::{BTreeMap, HashMap};

use spillway_core::IoBuf;
use spillway_core::sync::Mutex;

use super::wire::errno;

/// Bytes of the texts of a mount, and so of the longest one; to charge when it is made.
pub const TEXT_BYTES: u64 = 1 << 20;

/// Control files of a mount that may be open at a time.
const OPEN_MAX: usize = 1024;

/// Bytes that one read gives at most; programs read on.
const READ_LEN_MAX: usize = 64 << 10;

/// The open control files of a mount.
#[derive(Default)]
pub(super) struct Texts(Mutex<Open>);

#[derive(Default)]
struct Open {
    last_handle: u64,
    /// What was shown last by each handle.
    shown: HashMap<u64, Option<Shown>>,
    last_text: u64,
    /// Texts by their numbers, the oldest first.
    texts: BTreeMap<u64, Box<[u8]>>,
    /// Bytes of them.
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Shown {
    text: u64,
    len: usize,
}

impl Texts {
    /// A handle for one more open file, or an errno.
    pub(super) fn open(&self) -> Result<u64, i32> {
        let mut open = self.0.lock();
        if open.shown.len() >= OPEN_MAX {
            return Err(errno::ENFILE);
        }
        open.last_handle += 1;
        let handle = open.last_handle;
        open.shown.insert(handle, None);
        Ok(handle)
    }

    pub(super) fn close(&self, handle: u64) {
        let mut open = self.0.lock();
        if let Some(Some(shown)) = open.shown.remove(&handle) {
            open.forget(shown.text);
        }
    }

    /// Nobody will close what is open.
    pub(super) fn forget_files(&self) {
        let mut open = self.0.lock();
        *open = Open { last_handle: open.last_handle, ..Open::default() };
    }

    /// Shows `text` from now on, or refuses by an errno.
    pub(super) fn show(&self, handle: u64, text: Box<[u8]>) -> Result<(), i32> {
        if text.len() as u64 > TEXT_BYTES {
            return Err(errno::EFBIG);
        }
        let mut open = self.0.lock();
        let old = *open.shown.get(&handle).ok_or(errno::EINVAL)?;
        if let Some(old) = old {
            open.forget(old.text);
        }
        open.last_text += 1;
        let number = open.last_text;
        open.shown.insert(handle, Some(Shown { text: number, len: text.len() }));
        open.keep(number, text);
        Ok(())
    }

    /// At most `len` bytes of the text from `offset` on; ESTALE where that made room for others.
    pub(super) fn read(&self, handle: u64, offset: u64, len: usize) -> Result<IoBuf, i32> {
        let open = self.0.lock();
        let Some(Some(shown)) = open.shown.get(&handle) else { return Ok(IoBuf::empty()) };
        let Some(start) = usize::try_from(offset).ok().filter(|start| *start < shown.len) else {
            return Ok(IoBuf::empty());
        };
        let text = open.texts.get(&shown.text).ok_or(errno::ESTALE)?;
        Ok(IoBuf::copy_of(&text[start..shown.len.min(start.saturating_add(len.min(READ_LEN_MAX)))]))
    }
}

impl Open {
    fn keep(&mut self, number: u64, text: Box<[u8]>) {
        self.bytes += text.len();
        self.texts.insert(number, text);
        while self.bytes as u64 > TEXT_BYTES {
            let oldest = *self.texts.keys().next().expect("texts have bytes");
            self.forget(oldest);
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(text) = self.texts.remove(&number) {
            self.bytes -= text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: usize, byte: u8) -> Box<[u8]> {
        vec![byte; len].into()
    }

    #[test]
    fn texts_of_idle_programs_make_room_and_are_refused_then() {
        const LEN: usize = 3000;
        let texts = Texts::default();
        let count = TEXT_BYTES as usize / LEN;
        let handles: Vec<u64> = (0..=count).map(|_| texts.open().unwrap()).collect();
        for handle in &handles {
            texts.show(*handle, text(LEN, *handle as u8)).unwrap();
            assert!(texts.0.lock().bytes as u64 <= TEXT_BYTES);
        }
        let first = |handle| texts.read(handle, 1, 1).map(|bytes| bytes[0]);
        assert_eq!(first(handles[0]), Err(errno::ESTALE));
        assert!(texts.read(handles[0], LEN as u64, 1).unwrap().is_empty(), "it was read to its end");
        handles[1..].iter().for_each(|handle| assert_eq!(first(*handle), Ok(*handle as u8)));
        texts.show(handles[0], text(1, 9)).unwrap();
        assert_eq!(texts.read(handles[0], 0, 9).map(|bytes| bytes.to_vec()), Ok(vec![9]));
        handles.iter().for_each(|handle| texts.close(*handle));
        let open = texts.0.lock();
        assert_eq!((open.bytes, open.texts.len(), open.shown.len()), (0, 0, 0));
    }

    #[test]
    fn a_text_is_shown_whole_or_refused() {
        let texts = Texts::default();
        let handle = texts.open().unwrap();
        let len = TEXT_BYTES as usize;
        texts.show(handle, text(len, 1)).unwrap();
        let mut read = 0;
        while read < len {
            let part = texts.read(handle, read as u64, usize::MAX).unwrap();
            assert!((1..=READ_LEN_MAX).contains(&part.len()));
            read += part.len();
        }
        assert_eq!(read, len);
        assert_eq!(texts.show(handle, text(len + 1, 1)), Err(errno::EFBIG));
    }

    #[test]
    fn so_many_are_open_at_a_time() {
        let texts = Texts::default();
        let handles: Vec<u64> = (0..OPEN_MAX).map(|_| texts.open().unwrap()).collect();
        assert_eq!(texts.open(), Err(errno::ENFILE));
        texts.close(handles[0]);
        let next = texts.open().unwrap();
        assert!(!handles.contains(&next));
        texts.forget_files();
        assert_eq!(texts.show(next, text(1, 1)), Err(errno::EINVAL));
        assert!(!handles.contains(&texts.open().unwrap()), "no number is used again");
    }
}
