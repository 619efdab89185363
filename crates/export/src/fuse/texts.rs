//! What open control files have shown, for reads that go on in it. Of a file that is shown in pieces it is the last piece.
//!
//! All texts of a mount together take at most [`TEXT_BYTES`]. The oldest make room for a new one, so that a program that keeps
//! files open without reading on holds nobody up: it is the one that is refused, should it read on.

use std::collections::{BTreeMap, HashMap};

use spillway_core::IoBuf;
use spillway_core::sync::Mutex;

use super::config::open_max;
use super::controls::TextPiece;
use super::wire::errno;

/// Bytes of the texts of a mount, and so of the longest one; to charge when it is made.
pub const TEXT_BYTES: u64 = 1 << 20;

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
    /// Where in the file it begins,
    start: u64,
    /// and ends.
    end: u64,
    /// Where the piece behind it begins.
    next: Option<u64>,
}

impl Texts {
    /// A handle for one more open file, or an errno. The last ones are for those who are `trusted`.
    pub(super) fn open(&self, trusted: bool) -> Result<u64, i32> {
        let mut open = self.0.lock();
        if open.shown.len() >= open_max(trusted) {
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

    /// Which piece is to be shown before a read at `offset`, if another one is: the first for one from the start, and for one at the end
    /// of what was shown the one behind it.
    pub(super) fn due(&self, handle: u64, offset: u64) -> Option<u64> {
        if offset == 0 {
            return Some(0);
        }
        let shown = self.0.lock().shown.get(&handle).copied()??;
        shown.next.filter(|_| offset == shown.end)
    }

    /// Shows a piece that begins at byte `start` of the file from now on, or refuses by an errno.
    pub(super) fn show(
        &self,
        handle: u64,
        start: u64,
        TextPiece { text, next }: TextPiece,
    ) -> Result<(), i32> {
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
        let end = start.saturating_add(text.len() as u64);
        open.shown.insert(handle, Some(Shown { text: number, start, end, next }));
        open.keep(number, text);
        Ok(())
    }

    /// At most `len` bytes of the file from `offset` on; ESTALE where that made room for others, and before and behind a piece.
    pub(super) fn read(&self, handle: u64, offset: u64, len: usize) -> Result<IoBuf, i32> {
        let open = self.0.lock();
        let Some(Some(shown)) = open.shown.get(&handle) else { return Ok(IoBuf::empty()) };
        if offset >= shown.end {
            return if shown.next.is_none() { Ok(IoBuf::empty()) } else { Err(errno::ESTALE) };
        }
        let start = offset.checked_sub(shown.start).ok_or(errno::ESTALE)? as usize;
        let text = open.texts.get(&shown.text).ok_or(errno::ESTALE)?;
        Ok(IoBuf::copy_of(&text[start..text.len().min(start.saturating_add(len.min(READ_LEN_MAX)))]))
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
            assert!(self.bytes >= text.len(), "a text of {} bytes leaves {}", text.len(), self.bytes);
            self.bytes -= text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::OPEN_MAX;
    use super::*;

    fn text(len: usize, byte: u8) -> TextPiece {
        TextPiece { text: vec![byte; len].into(), next: None }
    }

    #[test]
    fn texts_of_idle_programs_make_room_and_are_refused_then() {
        const LEN: usize = 3000;
        let texts = Texts::default();
        let count = TEXT_BYTES as usize / LEN;
        let handles: Vec<u64> = (0..=count).map(|_| texts.open(true).unwrap()).collect();
        for handle in &handles {
            texts.show(*handle, 0, text(LEN, *handle as u8)).unwrap();
            assert!(texts.0.lock().bytes as u64 <= TEXT_BYTES);
        }
        let first = |handle| texts.read(handle, 1, 1).map(|bytes| bytes[0]);
        assert_eq!(first(handles[0]), Err(errno::ESTALE));
        assert!(texts.read(handles[0], LEN as u64, 1).unwrap().is_empty(), "it was read to its end");
        handles[1..].iter().for_each(|handle| assert_eq!(first(*handle), Ok(*handle as u8)));
        texts.show(handles[0], 0, text(1, 9)).unwrap();
        assert_eq!(texts.read(handles[0], 0, 9).map(|bytes| bytes.to_vec()), Ok(vec![9]));
        handles.iter().for_each(|handle| texts.close(*handle));
        let open = texts.0.lock();
        assert_eq!((open.bytes, open.texts.len(), open.shown.len()), (0, 0, 0));
    }

    #[test]
    fn a_text_is_shown_whole_or_refused() {
        let texts = Texts::default();
        let handle = texts.open(true).unwrap();
        let len = TEXT_BYTES as usize;
        texts.show(handle, 0, text(len, 1)).unwrap();
        let mut read = 0;
        while read < len {
            let part = texts.read(handle, read as u64, usize::MAX).unwrap();
            assert!((1..=READ_LEN_MAX).contains(&part.len()));
            read += part.len();
        }
        assert_eq!(read, len);
        assert_eq!(texts.show(handle, 0, text(len + 1, 1)), Err(errno::EFBIG));
    }

    #[test]
    fn pieces_follow_each_other_and_only_the_last_is_there() {
        let texts = Texts::default();
        let handle = texts.open(true).unwrap();
        let (first, last) = (TextPiece { next: Some(77), ..text(100, 1) }, text(50, 2));
        assert_eq!((texts.due(handle, 0), texts.due(handle, 100)), (Some(0), None));
        texts.show(handle, 0, first).unwrap();
        let byte = |offset| texts.read(handle, offset, 1).map(|bytes| bytes.first().copied());
        assert_eq!((byte(99), byte(100), byte(101)), (Ok(Some(1)), Err(errno::ESTALE), Err(errno::ESTALE)));
        assert_eq!([99, 100, 101].map(|offset| texts.due(handle, offset)), [None, Some(77), None]);
        texts.show(handle, 100, last).unwrap();
        assert_eq!([99, 100, 149, 150].map(byte), [Err(errno::ESTALE), Ok(Some(2)), Ok(Some(2)), Ok(None)]);
        assert_eq!((texts.due(handle, 150), texts.due(handle, 0)), (None, Some(0)));
        // What others have pushed out does not keep a reader from going on behind it.
        texts.show(handle, 0, TextPiece { next: Some(77), ..text(100, 1) }).unwrap();
        let other = texts.open(true).unwrap();
        texts.show(other, 0, text(TEXT_BYTES as usize, 3)).unwrap();
        assert_eq!((byte(99), texts.due(handle, 100)), (Err(errno::ESTALE), Some(77)));
    }

    #[test]
    fn so_many_are_open_at_a_time() {
        let texts = Texts::default();
        let mut handles: Vec<u64> = (0..OPEN_MAX / 4 * 3).map(|_| texts.open(false).unwrap()).collect();
        assert_eq!(texts.open(false), Err(errno::ENFILE), "the rest is not for everybody");
        handles.extend((0..OPEN_MAX / 4).map(|_| texts.open(true).unwrap()));
        assert_eq!(texts.open(true), Err(errno::ENFILE));
        texts.close(handles[0]);
        let next = texts.open(true).unwrap();
        assert!(!handles.contains(&next));
        texts.forget_files();
        assert_eq!(texts.show(next, 0, text(1, 1)), Err(errno::EINVAL));
        assert!(!handles.contains(&texts.open(true).unwrap()), "no number is used again");
    }
}
