//! Acknowledged changes that no flush has covered.
//!
//! Entries are disjoint ranges: a newer one replaces what it overlaps. So they may be sent again in any order.

use std::collections::BTreeMap;
use std::sync::Arc;

use spillway_core::{ByteRange, Extent, IoBuf, mutant};

use super::payload::Payload;

/// What an acknowledged change has left.
#[derive(Clone)]
pub(super) enum Content {
    Bytes(Payload),
    /// Zeroes, and the memory that the entry is charged by.
    Zeroes {
        _charge: Arc<IoBuf>,
    },
}

impl Content {
    /// The same without its first `bytes`.
    fn skip(&self, bytes: u64) -> Self {
        match self {
            Content::Bytes(Payload { bytes: buf, start }) => {
                Content::Bytes(Payload { bytes: buf.clone(), start: start + bytes as usize })
            }
            zeroes @ Content::Zeroes { .. } => zeroes.clone(),
        }
    }
}

/// The memory for each entry, in bytes: as little as one has that was not cut.
const ENTRY_BYTES: usize = 4096;

struct Entry {
    end: u64,
    /// Flushes that had begun when it was acknowledged.
    epoch: u64,
    content: Content,
}

/// See [the module](self).
#[derive(Default)]
pub(super) struct ReplayJournal {
    /// By first byte.
    entries: BTreeMap<u64, Entry>,
    /// Entries at most, and those that changes under way add.
    entries_max: usize,
    epoch: u64,
}

impl ReplayJournal {
    /// A journal with so many bytes of memory.
    pub(super) fn new(bytes: usize) -> Self {
        Self { entries_max: bytes / ENTRY_BYTES, ..Self::default() }
    }

    /// Whether a change may add no entry before a flush. Where one is cut, both halves have the memory of the whole: so memory is no bound for
    /// them.
    pub(super) fn is_full(&self) -> bool {
        !self.is_empty() && self.entries.len() >= self.entries_max
    }

    /// Whether a flush would free nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a flush is to make room, so that changes hardly ever wait for it.
    pub(super) fn is_half_full(&self) -> bool {
        self.entries.len() * 2 >= self.entries_max
    }

    /// `range` was changed and the change acknowledged: durably where nothing has to be sent again.
    #[must_use = "what is dropped is dropped without the lock"]
    pub(super) fn record(&mut self, range: ByteRange, content: Option<Content>) -> Vec<Content> {
        let dropped = self.cut(range);
        if let Some(content) = content {
            let entry = Entry { end: range.offset + range.len, epoch: self.epoch, content };
            let twice = self.entries.insert(range.offset, entry);
            assert!(twice.is_none(), "entries at {} overlap", range.offset);
        }
        dropped
    }

    /// Removes `range` from all entries.
    fn cut(&mut self, range: ByteRange) -> Vec<Content> {
        let (start, end) = (range.offset, range.offset + range.len);
        let mut dropped = Vec::new();
        let overlapping = |entries: &BTreeMap<u64, Entry>| {
            let (&first, entry) = entries.range(..end).next_back()?;
            (entry.end > start).then_some(first)
        };
        while let Some(first) = overlapping(&self.entries) {
            let entry = self.entries.remove(&first).expect("it was just found");
            if entry.end > end {
                let content = entry.content.skip(end - first);
                self.entries.insert(end, Entry { end: entry.end, epoch: entry.epoch, content });
            }
            if first < start && !mutant::on("nbd client: forget what is overwritten in part") {
                self.entries.insert(first, Entry { end: start, ..entry });
            } else {
                dropped.push(entry.content);
            }
        }
        dropped
    }

    /// Puts what it has of `range` over what the server has read there. A server whose disk has lost a write that it acknowledged says so to the
    /// next flush alone: who reads the old content before that, and writes it back with a change, would have lost that write for good.
    pub(super) fn overlay(&self, range: ByteRange, read: &mut [u8]) {
        for (part, content) in self.within(range) {
            let target = &mut read[(part.offset - range.offset) as usize..][..part.len as usize];
            match content {
                Content::Bytes(payload) => target.copy_from_slice(&payload.view(target.len())),
                Content::Zeroes { .. } => target.fill(0),
            }
        }
    }

    /// Has extents from `start` on say that what it has the bytes of is stored, for the same reason: such a server may call it a hole.
    pub(super) fn overlay_extents(&self, start: u64, extents: &mut Vec<Extent>) {
        let mut at = start;
        for extent in std::mem::take(extents) {
            let end = at + extent.len;
            for (part, content) in self.within(ByteRange::new(at, extent.len)) {
                if matches!(content, Content::Bytes(_)) {
                    Extent { len: part.offset - at, ..extent }.append_to(extents);
                    Extent::stored(part.len).append_to(extents);
                    at = part.offset + part.len;
                }
            }
            Extent { len: end - at, ..extent }.append_to(extents);
            at = end;
        }
    }

    /// The parts of `range` that it has, in order.
    fn within(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Content)> {
        let (start, end) = (range.offset, range.offset + range.len);
        let before = self.entries.range(..start).next_back().filter(|(_, entry)| entry.end > start);
        before.into_iter().chain(self.entries.range(start..end)).map(move |(&first, entry)| {
            let (from, to) = (first.max(start), entry.end.min(end));
            (ByteRange::new(from, to - from), entry.content.skip(from - first))
        })
    }

    /// A flush begins: it covers what was acknowledged up to now. Returns its number.
    pub(super) fn seal(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    /// The flush of that number has succeeded. Returns what is no longer needed.
    #[must_use = "what is dropped is dropped without the lock"]
    pub(super) fn forget(&mut self, flush: u64) -> Vec<Content> {
        let covered = self.entries.extract_if(.., |_, entry| entry.epoch <= flush);
        covered.map(|(_, entry)| entry.content).collect()
    }

    /// Every entry, to be sent again.
    pub(super) fn entries(&self) -> Vec<(ByteRange, Content)> {
        let all = self.entries.iter();
        all.map(|(&start, entry)| (ByteRange::new(start, entry.end - start), entry.content.clone())).collect()
    }

    /// Bytes that no flush has covered.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.iter().map(|(start, entry)| entry.end - start).sum()
    }
}
