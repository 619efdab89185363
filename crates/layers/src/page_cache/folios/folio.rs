//! A folio, and what is noted of accesses to it.

use std::ops::Range;

use spillway_core::sync::{AtomicU32, Ordering};
use spillway_policy::eviction::S3Fifo;
use spillway_policy::folio::FolioState;

use super::places::{FolioSpan, Places, UnitNumber};
use super::slabs::Frame;

/// A folio's access word: the mark of its eviction; whether it was read ahead and not accessed since; whether a window of readahead
/// begins in it, and at which block; the block behind the last access.
const MARK: u32 = 3;
const UNREAD: u32 = 1 << 2;
const WINDOW: u32 = 1 << 3;
const WINDOW_SHIFT: u32 = 4;
const END_SHIFT: u32 = 17;
const WINDOW_BLOCK: u32 = (1 << END_SHIFT) - (1 << WINDOW_SHIFT);

/// What an access met of readahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The folio was read ahead, and this is the first access.
    pub(crate) unread: bool,
    /// A window begins here.
    pub(crate) window: bool,
}

/// Bits of the number of a slot.
pub(crate) const SLOT_BITS: u32 = 26;

/// Most zones.
pub(crate) const ZONES_MAX: usize = (1 << (u32::BITS - SLOT_BITS)) - 1;

/// Where a folio is kept: a zone, and a slot below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolioPlace(pub(crate) u32);

impl FolioPlace {
    /// Of no folio: its zone is above the last one.
    pub(crate) const NOWHERE: Self = Self(u32::MAX);

    pub(crate) fn new(zone: u8, slot: u32) -> Self {
        assert!(usize::from(zone) < ZONES_MAX && slot >> SLOT_BITS == 0, "slot {slot} of zone {zone}");
        Self(u32::from(zone) << SLOT_BITS | slot)
    }

    #[inline]
    pub(crate) fn zone(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }

    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.0 & ((1 << SLOT_BITS) - 1)
    }
}

/// Consecutive blocks of the device in memory.
pub(crate) struct Folio {
    pub(crate) unit: UnitNumber,
    /// The next folio in the list of its region, and the one before it (`index`).
    pub(crate) beside: [FolioPlace; 2],
    /// Where its content stands.
    pub(crate) frame: Frame,
    pub(crate) state: FolioState,
    /// Reads of the device below that are under way for it. It stays, and keeps what it holds, until they end: so that what they mark
    /// as being read is theirs.
    pub(crate) fills: u16,
    access: AtomicU32,
}

impl Folio {
    /// One that is brought in by an access to `blocks`, which counts for nothing, or read ahead.
    pub(crate) fn new(unit: UnitNumber, frame: Frame, places: &Places, access: Option<&Range<u32>>) -> Self {
        let word = access.map_or(UNREAD, |blocks| blocks.end << END_SHIFT);
        let state = FolioState::new(places.blocks(frame.order));
        Self { unit, beside: [FolioPlace::NOWHERE; 2], frame, state, fills: 0, access: AtomicU32::new(word) }
    }

    /// Whether it has `unit`.
    #[inline]
    pub(crate) fn has(&self, unit: UnitNumber) -> bool {
        (self.unit.0 ^ unit.0) >> self.frame.order == 0
    }

    /// What it has of the device.
    #[inline]
    pub(crate) fn span(&self) -> FolioSpan {
        FolioSpan { unit: self.unit, order: self.frame.order }
    }

    /// The zone that its memory is of.
    pub(crate) fn zone(&self) -> u8 {
        self.frame.zone
    }

    /// Notes an access. One that goes on where the last one ended is part of the same: else reading a folio block by block once would
    /// look like using it often. The first to what was read ahead is what has brought it in.
    #[inline]
    pub(crate) fn touch(&self, blocks: &Range<u32>) -> Seen {
        let before = self.access.load(Ordering::Relaxed);
        if before & (UNREAD | WINDOW) != 0 {
            return self.touch_ahead(blocks);
        }
        // To what is hot already one access more adds nothing: threads that read it keep its line to share.
        if before & MARK != MARK {
            self.access.store(accessed(before, blocks), Ordering::Relaxed);
        }
        Seen::default()
    }

    #[cold]
    fn touch_ahead(&self, blocks: &Range<u32>) -> Seen {
        let begins =
            |word: u32| word & WINDOW != 0 && blocks.contains(&((word & WINDOW_BLOCK) >> WINDOW_SHIFT));
        let touched = |word: u32| {
            let window = if begins(word) { 0 } else { word & (WINDOW | WINDOW_BLOCK) };
            Some(accessed(word, blocks) | window)
        };
        let before = self.access.fetch_update(Ordering::Relaxed, Ordering::Relaxed, touched);
        let before = before.expect("it is changed whatever it is");
        Seen { unread: before & UNREAD != 0, window: begins(before) }
    }

    /// A window of readahead begins at `block`. An access at the same time may undo this.
    pub(crate) fn mark_window(&self, block: u32) {
        let marked = |word: u32| Some(word & !WINDOW_BLOCK | WINDOW | block << WINDOW_SHIFT);
        let marked = self.access.fetch_update(Ordering::Relaxed, Ordering::Relaxed, marked);
        assert!(marked.is_ok(), "it is changed whatever it is");
    }

    /// The mark of its eviction.
    pub(crate) fn mark(&self) -> u32 {
        self.access.load(Ordering::Relaxed) & MARK
    }

    pub(crate) fn set_mark(&self, mark: u32) {
        self.access.store(self.access.load(Ordering::Relaxed) & !MARK | mark, Ordering::Relaxed);
    }

    /// Whether it may leave: the device below has what it holds, and nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.fills == 0 && self.state.is_idle()
    }

    /// Whether it was read ahead, and not accessed since.
    pub(crate) fn is_unread(&self) -> bool {
        self.access.load(Ordering::Relaxed) & UNREAD != 0
    }
}

/// The mark and the end of an access word after an access.
fn accessed(before: u32, blocks: &Range<u32>) -> u32 {
    let (mark, end) = (before & MARK, before >> END_SHIFT);
    let same = before & UNREAD != 0 || blocks.start == end && end > 0;
    let mark = if same { mark } else { S3Fifo::touched(mark) };
    mark | blocks.end << END_SHIFT
}
