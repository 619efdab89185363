//! Reading ahead: what the streams among clients' reads will want next is read by tasks of the cache's own.
//!
//! Nobody waits for them: a read that misses is on its way to the device below before what is read ahead of it. They take memory as
//! reads do, from what is free or clean and leaves next, and stop where there is none, where the range is changed beside the cache, and at
//! the first error: a client that needs the same blocks reads them itself, and its own error is what it gets.

use std::cell::Cell;
use std::sync::Arc;

use futures_util::future::join_all;
use spillway_core::sync::Ordering;
use spillway_core::{ByteRange, Place, task};
use spillway_policy::folio::Look;
use spillway_policy::readahead::{Ahead, Limits};

use super::cache::Core;
use super::counts::Count;
use super::folio::Seen;
use super::reading::Whose;

/// Bytes of one read of the device below, at most.
const PIECE_MAX: u64 = 256 << 10;

/// Part of the memory for folios that a window may take: several streams have two each.
const WINDOW_PART: u64 = 32;

impl Core {
    fn limits(&self) -> Limits {
        let window_max = self.settings.readahead_bytes_max.get().min(self.window_part())
            & !(self.places.block_bytes() - 1);
        Limits { size: self.geometry().size, window_max, unit: self.places.unit_bytes() }
    }

    /// Bytes of memory that a stream may take before it is read or written.
    fn window_part(&self) -> u64 {
        let unit = self.places.unit_bytes();
        (self.zones.units() * unit / WINDOW_PART).max(unit)
    }

    /// Up to where a stream of writes will go that has come to `range`; the end of that where it is of none.
    pub(super) fn written_until(&self, range: ByteRange) -> u64 {
        let (end, unit) = (range.offset + range.len, self.places.unit_bytes());
        let window_max = (unit << (1 + self.places.order_max)).min(self.window_part());
        let limits = Limits { size: self.geometry().size, window_max, unit };
        self.streams.written.lock().until(range.offset..end, &limits)
    }

    /// A client's read of `range` has missed, or come to the begin of a window: it may be time for the next one. Not while writers
    /// wait for room, or too few folios are clean.
    pub(super) fn note_read(self: &Arc<Self>, range: ByteRange) {
        let pressed = self.waiting.load(Ordering::SeqCst) > 0 || self.is_short();
        if pressed || self.settings.readahead_bytes_max.get() == 0 {
            return;
        }
        let limits = self.limits();
        let window = self.streams.found.lock().read(range.offset..range.offset + range.len, &limits);
        if let Some(window) = window {
            let core = self.clone();
            self.env.spawn(Place::Background, task(move || core.read_ahead(window)));
        }
    }

    /// A client's read of `range` came to something that was read ahead.
    #[cold]
    pub(super) fn reached(self: &Arc<Self>, range: ByteRange, seen: Seen) {
        self.counts.add(Count::AheadUsed, seen.unread.into());
        if seen.window {
            self.note_read(range);
        }
    }

    /// What was read ahead at `offset` has left memory unread.
    #[cold]
    pub(super) fn wasted(&self, offset: u64) {
        self.counts.add(Count::AheadWasted, 1);
        self.streams.found.lock().wasted(offset);
    }

    async fn read_ahead(self: Arc<Self>, window: Ahead) {
        let going = Cell::new(true);
        let longest = PIECE_MAX.min(self.streams.buffers.bytes() as u64) & !(self.places.block_bytes() - 1);
        let cut = |piece: std::ops::Range<u64>| {
            let starts = piece.clone().step_by(longest as usize);
            starts.map(move |start| ByteRange::new(start, longest.min(piece.end - start)))
        };
        let pieces = window.pieces().flat_map(cut);
        let begins = |piece: ByteRange| piece.offset == window.first;
        // One piece: what follows each other, all of which will be read.
        let until = |piece: ByteRange| match window.count {
            1 => window.first + window.len,
            _ => piece.offset + piece.len,
        };
        join_all(pieces.map(|piece| self.read_piece(piece, until(piece), begins(piece), &going))).await;
    }

    /// Reads what is missing of `range`, which fits in one buffer and `begins` a window; all up to `until` will be read.
    async fn read_piece(self: &Arc<Self>, range: ByteRange, until: u64, begins: bool, going: &Cell<bool>) {
        let mut buf = self.streams.buffers.take(range.len as usize).await;
        let mut at = 0;
        while at < range.len && going.get() {
            let found = self.stretch(range, at, Whose::Readahead(until));
            if begins && at == 0 {
                self.mark_window(range.offset);
            }
            match found {
                Ok(stretch) => {
                    let bytes = stretch.bytes();
                    let result = self.read_stretch(stretch, range.offset, at, &mut buf).await;
                    match result {
                        Ok(()) => self.counts.add(Count::AheadBytes, bytes),
                        Err(_) => {
                            going.set(false);
                            self.streams.found.lock().failed(range.offset);
                        }
                    }
                    at += bytes;
                }
                Err((Look::Missing, _)) => going.set(false),
                Err((_, bytes)) => at += bytes,
            }
        }
    }

    /// A window begins at `offset`: whose read comes there is noted.
    fn mark_window(&self, offset: u64) {
        let block = ByteRange::new(offset, self.places.block_bytes());
        if let Some((folio, piece)) = self.home(offset).read().at(block, 0) {
            folio.mark_window(piece.blocks.start);
        }
    }
}
