//! What a slot holds, and how that is written in two words.
//!
//! A slot is a word and a mark:
//!
//! ```text
//! mark, from bit   0 lock, waiters           (core::sync::WordLocks)
//!                  2 kind, 3 bits            0 empty, 1 repeated word, 2 object, 3 deferred, 5 spilled, 7 lost
//!                  5 codec, 3 bits           of an object, in memory or spilled: its priority
//!                  8 idle                    not accessed since pages were marked
//!                  9 referenced              read or overwritten since the hand of `spiller` has passed
//!                 10 picked                  a thread copies the object elsewhere: see table.rs
//!                 11 incompressible          the strongest secondary codec has not made it smaller
//!                 12 length, 13 bits         of an object: 1 to 4096 bytes
//!                 25 touched                 read since it was picked
//!                 26 seconds, 24 bits        time of the last access, modulo 194 days
//!                 50 copy                    of an object in memory: its record in the spill file is kept, see copies.rs
//!                 50 checksum, 14 bits       of a spilled object: the upper bits
//! word             the repeated word; an object's address, which is its cell without the length; or where a spilled object lies:
//!                  checksum 18 bits (the lower ones), offset in its segment 22, segment 24
//! ```
//!
//! A mark of 0 is an empty slot that no thread has locked. Kinds 4 and 6 are kept for clusters of pages.

use spillway_core::mutant;
use spillway_policy::spill;

use crate::spill::Location;
use crate::zram::codec::CodecIndex;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::Cell;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing: reads as zero.
    Empty,
    /// A page of one repeated word.
    Same(u64),
    /// An object of the pool, and the codec that it needs; raw if it is as long as a page.
    Stored(Cell, CodecIndex),
    /// A page as it was written, in a cell of the pool, that is to be compressed later.
    Deferred(Cell),
    /// An object in the spill file.
    Spilled(Away),
    /// A page that was spilled, and whose record is not what was written: it cannot be read before it is written.
    Lost,
}

/// An object in the spill file: where it lies, and how it is read. Raw if it is as long as a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    pub(crate) at: Location,
    /// The checksum of its record.
    pub(crate) crc: u32,
    pub(crate) len: usize,
    pub(crate) codec: CodecIndex,
}

impl Away {
    fn word(self) -> u64 {
        let Location { segment, offset } = self.at;
        let fits = segment >> (u64::BITS - SEGMENT_SHIFT) == 0 && u64::from(offset) <= OFFSET;
        assert!(fits, "{:?} fits its bits", self.at);
        u64::from(segment) << SEGMENT_SHIFT
            | u64::from(offset) << OFFSET_SHIFT
            | u64::from(self.crc) & LOW_CRC
    }

    fn at_word(word: u64, high_crc: u64, len: usize, codec: CodecIndex) -> Self {
        let offset = (word >> OFFSET_SHIFT & OFFSET) as u32;
        let at = Location { segment: (word >> SEGMENT_SHIFT) as u32, offset };
        let crc = (high_crc << OFFSET_SHIFT | word & LOW_CRC) as u32;
        Self { at, crc, len, codec }
    }
}

const OFFSET_SHIFT: u32 = 18;
const SEGMENT_SHIFT: u32 = 40;
const OFFSET: u64 = (1 << 22) - 1;
const LOW_CRC: u64 = (1 << OFFSET_SHIFT) - 1;

impl Slot {
    /// The word of a slot that holds this.
    pub(crate) fn word(self) -> u64 {
        match self {
            Slot::Empty | Slot::Lost => 0,
            Slot::Same(word) => word,
            Slot::Stored(cell, _) | Slot::Deferred(cell) => cell.address(),
            Slot::Spilled(away) => away.word(),
        }
    }

    /// The cell of its object, if that lies in memory.
    pub(crate) fn cell(self) -> Option<Cell> {
        match self {
            Slot::Stored(cell, _) | Slot::Deferred(cell) => Some(cell),
            _ => None,
        }
    }
}

/// Kind, flags, length and time of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

const KIND: u64 = 7 << 2;
const SAME: u64 = 1 << 2;
const STORED: u64 = 2 << 2;
const DEFERRED: u64 = 3 << 2;
const SPILLED: u64 = 5 << 2;
const LOST: u64 = 7 << 2;
const CODEC_SHIFT: u32 = 5;
const IDLE: u64 = 1 << 8;
const REFERENCED: u64 = 1 << 9;
const PICKED: u64 = 1 << 10;
const INCOMPRESSIBLE: u64 = 1 << 11;
const LEN_SHIFT: u32 = 12;
const LEN_MAX: u64 = (1 << 13) - 1;
const TOUCHED: u64 = 1 << 25;
const SECONDS_SHIFT: u32 = 26;
const SECONDS: u64 = SECONDS_MAX << SECONDS_SHIFT;
const HIGH_CRC_SHIFT: u32 = 50;
const COPY: u64 = 1 << 50;

/// Latest time of an access in seconds: 24 bits.
pub(crate) const SECONDS_MAX: u64 = (1 << 24) - 1;

/// A clock is read at most so many seconds before it is compared with that of an access.
const SECONDS_LATE: u64 = 3600;

impl Mark {
    /// The mark of a slot that held nothing and was set at `seconds`: the first write is no access.
    pub(crate) fn new(slot: Slot, seconds: u32) -> Self {
        assert!(u64::from(seconds) <= SECONDS_MAX, "{seconds} s fit 24 bits");
        let accessed = u64::from(seconds) << SECONDS_SHIFT;
        match slot {
            Slot::Empty => Self(0),
            Slot::Same(_) => Self(SAME | accessed),
            object => Self(Self::of_object(object) | accessed),
        }
    }

    fn of_object(slot: Slot) -> u64 {
        let kind = |kind, codec: CodecIndex, len: usize| {
            kind | u64::from(codec.0) << CODEC_SHIFT | (len as u64) << LEN_SHIFT
        };
        match slot {
            Slot::Stored(cell, codec) => kind(STORED, codec, cell.len()),
            Slot::Deferred(cell) => kind(DEFERRED, CodecIndex(0), cell.len()),
            Slot::Spilled(Away { crc, len, codec, .. }) => {
                kind(SPILLED, codec, len) | u64::from(crc >> OFFSET_SHIFT) << HIGH_CRC_SHIFT
            }
            Slot::Lost => LOST,
            Slot::Empty | Slot::Same(_) => panic!("{slot:?} is no object"),
        }
    }

    /// The mark that a word of a slot holds, without its lock.
    pub(crate) fn from_content(content: u64) -> Self {
        Self(content)
    }

    /// What the slot's second word is to hold.
    pub(crate) fn content(self) -> u64 {
        self.0
    }

    /// Whether the slot holds nothing.
    pub(crate) fn is_empty(self) -> bool {
        self.0 & KIND == 0
    }

    /// Whether the slot holds a repeated word.
    pub(crate) fn is_same(self) -> bool {
        self.0 & KIND == SAME
    }

    /// Whether the slot holds an object of the pool that was compressed, or does not compress.
    pub(crate) fn is_stored(self) -> bool {
        self.0 & KIND == STORED
    }

    /// Whether the slot holds a page that is to be compressed later.
    pub(crate) fn is_deferred(self) -> bool {
        self.0 & KIND == DEFERRED
    }

    /// Whether the slot's page is in the spill file.
    pub(crate) fn is_spilled(self) -> bool {
        self.0 & KIND == SPILLED
    }

    /// Whether the slot's page was in the spill file, and cannot be read.
    pub(crate) fn is_lost(self) -> bool {
        self.0 & KIND == LOST
    }

    /// What a slot with this mark and `word` holds.
    #[inline]
    pub(crate) fn slot(self, word: u64) -> Slot {
        match self.0 & KIND {
            SAME => Slot::Same(word),
            STORED => Slot::Stored(Cell::at_address(word, self.len()), self.codec()),
            DEFERRED => Slot::Deferred(Cell::at_address(word, self.len())),
            SPILLED => Slot::Spilled(Away::at_word(word, self.0 >> HIGH_CRC_SHIFT, self.len(), self.codec())),
            LOST => Slot::Lost,
            _ => Slot::Empty,
        }
    }

    /// Which codec has made the object.
    pub(crate) fn codec(self) -> CodecIndex {
        CodecIndex((self.0 >> CODEC_SHIFT & 7) as u8)
    }

    /// Bytes of the object.
    pub(crate) fn len(self) -> usize {
        (self.0 >> LEN_SHIFT & LEN_MAX) as usize
    }

    /// Whether the page lies in memory, and its record in the spill file is kept.
    pub(crate) fn has_copy(self) -> bool {
        self.0 & (KIND | COPY) == STORED | COPY
    }

    /// Of a page that has left memory: the next read of it is the first.
    #[must_use]
    pub(crate) fn has_left(self) -> Self {
        self.with_idle(false).passed()
    }

    /// With a record that is kept, or without.
    #[must_use]
    pub(crate) fn with_copy(self, copy: bool) -> Self {
        assert!(self.is_stored(), "what has left or is new has no copy");
        Self(if copy { self.0 | COPY } else { self.0 & !COPY })
    }

    /// Not accessed since pages were marked.
    pub(crate) fn is_idle(self) -> bool {
        self.0 & IDLE != 0
    }

    /// The strongest secondary codec has not made it smaller.
    pub(crate) fn is_incompressible(self) -> bool {
        self.0 & INCOMPRESSIBLE != 0
    }

    /// Marked as such.
    #[must_use]
    pub(crate) fn with_incompressible(self) -> Self {
        Self(self.0 | INCOMPRESSIBLE)
    }

    /// Whether an object of `len` bytes leaves memory at `now`, where memory is short.
    pub(crate) fn leaves(self, len: usize, now: u32) -> bool {
        let page = spill::PageState {
            referenced: self.is_referenced(),
            idle: self.is_idle(),
            huge: self.is_stored() && len == PAGE,
            age: self.age(now),
        };
        spill::verdict(page) == spill::Verdict::Leave
    }

    /// Seen by the hand: an access sets it apart again.
    #[must_use]
    pub(crate) fn passed(self) -> Self {
        Self(self.0 & !REFERENCED)
    }

    /// Marked as not accessed, or not.
    #[must_use]
    pub(crate) fn with_idle(self, idle: bool) -> Self {
        Self(if idle { self.0 | IDLE } else { self.0 & !IDLE })
    }

    /// Seconds from the last access to `now`, of 194 days at most; none where `now` was read shortly before the access.
    pub(crate) fn age(self, now: u32) -> u32 {
        let age = u64::from(now).wrapping_sub(self.0 >> SECONDS_SHIFT) & SECONDS_MAX;
        if age > SECONDS_MAX - SECONDS_LATE { 0 } else { age as u32 }
    }

    /// After an access at `seconds`.
    #[must_use]
    pub(crate) fn touched(self, seconds: u32) -> Self {
        let touched = if self.is_picked() { TOUCHED } else { 0 };
        Self(self.0 & !(SECONDS | IDLE) | REFERENCED | touched | u64::from(seconds) << SECONDS_SHIFT)
    }

    /// Whether the page was accessed since the hand has passed it.
    pub(crate) fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// Whether the slot was read since it was picked.
    pub(crate) fn was_touched(self) -> bool {
        self.0 & TOUCHED != 0
    }

    pub(crate) fn is_picked(self) -> bool {
        self.0 & PICKED != 0
    }

    /// Picked, and not read since.
    #[must_use]
    pub(crate) fn picked(self) -> Self {
        let forgets = mutant::on("zram: a page that is put back has lost its second chance");
        let mark = if forgets { self.passed() } else { self };
        Self(mark.0 | PICKED)
    }

    /// No longer picked.
    #[must_use]
    pub(crate) fn unpicked(self) -> Self {
        Self(self.0 & !(PICKED | TOUCHED))
    }

    /// The mark of the same page once its object is `slot`; in memory it keeps its copy.
    #[must_use]
    pub(crate) fn moved_to(self, slot: Slot) -> Self {
        let of_object = KIND | 7 << CODEC_SHIFT | LEN_MAX << LEN_SHIFT | u64::MAX << HIGH_CRC_SHIFT;
        let copy = if self.has_copy() && matches!(slot, Slot::Stored(..)) { COPY } else { 0 };
        Self(self.0 & !of_object | Self::of_object(slot) | copy)
    }
}

#[cfg(test)]
mod tests;
