//! Reading ahead: what the streams among clients' reads will want next is read by tasks of the cache's own.
//!
//! Nobody waits for them: a read that misses is on its way to the device below before what is read ahead of it. They take memory as
//! reads do, from what is free or clean and leaves next, and stop where there is none, where the range is changed beside the cache, and at
//! the first error: a client that needs the same blocks reads them itself, and its own error is what it gets.
//! Once the cache is closed none of their reads begins, and the close waits for those in flight, as long as it does for write-back.
//!
//! What a client can make them take is bounded, and charged when the cache is opened ([`super::device::streams::Bounds`]): there are few windows under way at once,
//! and few pieces of each, which have a buffer. A piece whose stream is gone or whose reader has passed it when its turn comes is not read.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use spillway_core::env::within;
use spillway_core::{ByteRange, IoBuf, Place, task};
use spillway_policy::folio::Look;
use spillway_policy::readahead::{Ahead, ReadaheadLimits, WINDOWS_MAX};

use super::device::Core;
use super::device::counts::{Count, InZone};
use super::device::streams::PIECES_MAX;
use super::folios::folio::Seen;
use super::read::Whose;
use crate::writeback::{END_PATIENCE, Source};

/// Bytes of one read of the device below, at most.
const PIECE_MAX: u64 = 256 << 10;

/// Part of the memory for folios that a window may take: several streams have two each.
const WINDOW_PART: u64 = 32;

/// A window that is read, for as long as nothing failed.
struct Run<'a> {
    window: &'a Ahead,
    going: Cell<bool>,
}

impl Core {
    fn limits(&self) -> ReadaheadLimits {
        let window_max =
            self.settings.readahead_bytes_max().min(self.window_part()) & !(self.places.block_bytes() - 1);
        let windows = self.streams.bounds.windows as usize;
        ReadaheadLimits { size: self.geometry().size, window_max, unit: self.places.unit_bytes(), windows }
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
        let limits = ReadaheadLimits { size: self.geometry().size, window_max, unit, windows: WINDOWS_MAX };
        self.streams.written.lock().until(range.offset..end, &limits)
    }

    /// A client's read of `range` has missed, or come to the begin of a window: it may be time for the next one. Not while writers
    /// wait for room, or too few folios are clean.
    pub(super) fn note_read(self: &Arc<Self>, range: ByteRange) {
        if self.reads_ahead() {
            let limits = self.limits();
            self.streams.found.lock().read(range.offset..range.offset + range.len, &limits);
            self.open_windows(&limits);
        }
    }

    fn reads_ahead(&self) -> bool {
        !self.writeback.has_ended() && !self.is_waited_for() && self.settings.readahead_bytes_max() > 0
    }

    /// Begins to read the windows that are due, as far as there is place for them.
    fn open_windows(self: &Arc<Self>, limits: &ReadaheadLimits) {
        let open = || self.streams.found.lock().open(limits);
        for window in std::iter::from_fn(open) {
            let core = self.clone();
            self.env.spawn(Place::Background, task(move || core.read_ahead(window)));
        }
    }

    /// A client's read of `range` came to something in a folio of `zone` that was read ahead.
    #[cold]
    pub(super) fn reached(self: &Arc<Self>, range: ByteRange, zone: u8, seen: Seen) {
        self.counts.add_in(zone, InZone::AheadUsed, seen.unread.into());
        if seen.window {
            self.note_read(range);
        }
    }

    /// What was read ahead at `offset`, in a folio of `zone`, has left memory unread.
    #[cold]
    pub(super) fn wasted(&self, zone: u8, offset: u64) {
        self.counts.add_in(zone, InZone::AheadWasted, 1);
        self.streams.found.lock().wasted(offset);
    }

    async fn read_ahead(self: Arc<Self>, window: Ahead) {
        self.read_window(&window).await;
        self.streams.found.lock().ended();
        if self.reads_ahead() {
            self.open_windows(&self.limits());
        }
        if self.writeback.has_ended() {
            self.changes.wake_all();
        }
    }

    /// Waits until no window is under way, for a while. Called once write-back has ended: no read of one begins after that.
    pub(super) async fn end_readahead(&self) {
        assert!(self.writeback.has_ended(), "windows are opened until then");
        let ended = || (self.streams.found.lock().under_way() == 0).then_some(());
        within(&*self.env, END_PATIENCE, self.changes.until(ended)).await;
    }

    /// Whether more of a window is read: not once the cache is closed.
    fn goes_on(&self, run: &Run<'_>) -> bool {
        run.going.get() && !self.writeback.has_ended()
    }

    /// Reads the pieces of a window, each once there is a buffer for it.
    async fn read_window(self: &Arc<Self>, window: &Ahead) {
        let run = Run { window, going: Cell::new(true) };
        let longest = PIECE_MAX.min(self.streams.buffers.bytes() as u64) & !(self.places.block_bytes() - 1);
        let cut = |piece: Range<u64>| {
            let starts = piece.clone().step_by(longest as usize);
            starts.map(move |start| start..piece.end.min(start + longest))
        };
        let pieces = stream::iter(window.pieces().flat_map(cut));
        let ready = pieces.filter_map(|piece| self.turn(&run, piece));
        let read = |(piece, buf)| self.read_piece(&run, piece, buf);
        ready.for_each_concurrent(PIECES_MAX as usize, read).await;
    }

    /// A buffer for a piece, when its turn comes; none where nobody wants it by then.
    async fn turn(&self, run: &Run<'_>, piece: Range<u64>) -> Option<(Range<u64>, IoBuf)> {
        let wanted = || self.goes_on(run) && self.streams.found.lock().wants(run.window, &piece);
        if !wanted() {
            return None;
        }
        let buf = self.streams.buffers.take((piece.end - piece.start) as usize).await;
        wanted().then_some((piece, buf))
    }

    /// Reads what is missing of a piece of a window into `buf`, which is as long, and from there into folios.
    async fn read_piece(self: &Arc<Self>, run: &Run<'_>, piece: Range<u64>, mut buf: IoBuf) {
        let (window, going) = (run.window, &run.going);
        let range = ByteRange::new(piece.start, piece.end - piece.start);
        let begins = range.offset == window.first;
        // One piece: what follows each other, all of which will be read.
        let until = if window.count == 1 { window.first + window.len } else { piece.end };
        let mut at = 0;
        while at < range.len && self.goes_on(run) {
            let found = self.stretch(range, at, Whose::Readahead(until));
            if begins && at == 0 {
                self.mark_window(range.offset);
            }
            match found {
                Ok(stretch) => {
                    let bytes = stretch.bytes();
                    match self.read_stretch(stretch, range.offset, at, &mut buf).await {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_cache::device::streams::{Bounds, TASK_BYTES};
    use crate::page_cache::read::PART_BYTES;

    /// What a future takes that is never made.
    fn bytes_of<A, F: Future>(_made: impl Fn(&'static Arc<Core>, A) -> F) -> u64 {
        size_of::<F>() as u64
    }

    #[test]
    fn tasks_take_what_is_charged_for_them() {
        type Piece = (&'static Run<'static>, Range<u64>, IoBuf);
        let window = bytes_of(|core, window: Ahead| core.clone().read_ahead(window));
        let piece = bytes_of(|core, (run, piece, buf): Piece| core.read_piece(run, piece, buf));
        // Words of the allocator, the executor, and the list of futures.
        let words = 128;
        assert!(window + words <= TASK_BYTES, "{window} bytes for a window");
        for buffers in [1, 2, 4, 100, 511, 513, 1024].map(|pages| pages * 4096) {
            let bounds = Bounds::new(buffers);
            // A vector has up to twice of what is in it, and four at least.
            let parts = PART_BYTES * (2 * buffers / 4096).max(4 * bounds.pieces);
            let bytes = bounds.windows * (window + words) + bounds.pieces * (piece + words) + parts;
            assert!(bytes <= bounds.bytes(), "{bytes} bytes for {bounds:?}, not {}", bounds.bytes());
        }
    }
}
