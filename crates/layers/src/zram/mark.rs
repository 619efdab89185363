//! What a slot holds, and how that is written in two words.
//!
//! A slot is a word and a mark:
//!
//! ```text
//! mark, from bit   0 lock, waiters           (core::sync::WordLocks)
//!                  2 kind, 3 bits            0 empty, 1 repeated word, 2 object
//!                  5 codec, 3 bits           of an object
//!                  8 idle                    (reserved)
//!                  9 referenced              read since it was picked
//!                 10 picked                  a thread copies the object elsewhere: see table.rs
//!                 11 incompressible          (reserved)
//!                 12 length, 14 bits         of an object: 1 to 4096 bytes
//!                 26 seconds, 24 bits        time of the last access, modulo 194 days
//!                 50 checksum, 14 bits       (reserved)
//! word             the repeated word; or an object's address, which is its cell without the length
//! ```
//!
//! A mark of 0 is an empty slot that no thread has locked. Kinds 3 to 7 are kept for objects that are not yet compressed, clusters of
//! pages, and pages and clusters that were spilled or lost.

use super::cell::Cell;
use super::codec::CodecIndex;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing: reads as zero.
    Empty,
    /// A page of one repeated word.
    Same(u64),
    /// An object of the pool, and the codec that it needs; raw if it is as long as a page.
    Stored(Cell, CodecIndex),
}

impl Slot {
    /// The word of a slot that holds this.
    pub(super) fn word(self) -> u64 {
        match self {
            Slot::Empty => 0,
            Slot::Same(word) => word,
            Slot::Stored(cell, _) => cell.address(),
        }
    }
}

/// Kind, flags, length and time of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

const KIND: u64 = 7 << 2;
const SAME: u64 = 1 << 2;
const STORED: u64 = 2 << 2;
const CODEC_SHIFT: u32 = 5;
const IDLE: u64 = 1 << 8;
const REFERENCED: u64 = 1 << 9;
const PICKED: u64 = 1 << 10;
const LEN_SHIFT: u32 = 12;
const LEN_MAX: u64 = (1 << 14) - 1;
const SECONDS_SHIFT: u32 = 26;
const SECONDS: u64 = SECONDS_MAX << SECONDS_SHIFT;

/// Latest time of an access in seconds: 24 bits.
pub(super) const SECONDS_MAX: u64 = (1 << 24) - 1;

impl Mark {
    /// The mark of a slot that was just set at `seconds`.
    pub(super) fn new(slot: Slot, seconds: u32) -> Self {
        assert!(u64::from(seconds) <= SECONDS_MAX, "{seconds} s fit 24 bits");
        let accessed = REFERENCED | u64::from(seconds) << SECONDS_SHIFT;
        match slot {
            Slot::Empty => Self(0),
            Slot::Same(_) => Self(SAME | accessed),
            Slot::Stored(..) => Self(Self::of_object(slot) | accessed),
        }
    }

    fn of_object(slot: Slot) -> u64 {
        let Slot::Stored(cell, codec) = slot else { panic!("{slot:?} is no object") };
        STORED | u64::from(codec.0) << CODEC_SHIFT | (cell.len() as u64) << LEN_SHIFT
    }

    /// The mark that a word of a slot holds, without its lock.
    pub(super) fn from_content(content: u64) -> Self {
        Self(content)
    }

    /// What the slot's second word is to hold.
    pub(super) fn content(self) -> u64 {
        self.0
    }

    /// Whether the slot holds nothing.
    pub(super) fn is_empty(self) -> bool {
        self.0 & KIND == 0
    }

    /// Whether the slot holds a repeated word.
    pub(super) fn is_same(self) -> bool {
        self.0 & KIND == SAME
    }

    /// What a slot with this mark and `word` holds.
    pub(super) fn slot(self, word: u64) -> Slot {
        match self.0 & KIND {
            SAME => Slot::Same(word),
            STORED => {
                let codec = CodecIndex((self.0 >> CODEC_SHIFT & 7) as u8);
                Slot::Stored(Cell::at_address(word, (self.0 >> LEN_SHIFT & LEN_MAX) as usize), codec)
            }
            _ => Slot::Empty,
        }
    }

    /// After an access at `seconds`.
    #[must_use]
    pub(super) fn touched(self, seconds: u32) -> Self {
        Self(self.0 & !(SECONDS | IDLE) | REFERENCED | u64::from(seconds) << SECONDS_SHIFT)
    }

    /// Whether the slot was read since it was picked.
    pub(super) fn was_touched(self) -> bool {
        self.0 & REFERENCED != 0
    }

    pub(super) fn is_picked(self) -> bool {
        self.0 & PICKED != 0
    }

    /// Picked, and not read since.
    #[must_use]
    pub(super) fn picked(self) -> Self {
        Self(self.0 & !REFERENCED | PICKED)
    }

    /// No longer picked. What a read since or before has set stays.
    #[must_use]
    pub(super) fn unpicked(self) -> Self {
        Self(self.0 & !PICKED)
    }

    /// The mark of the same page once its object is `slot`.
    #[must_use]
    pub(super) fn moved_to(self, slot: Slot) -> Self {
        let of_object = KIND | 7 << CODEC_SHIFT | LEN_MAX << LEN_SHIFT;
        Self(self.0 & !of_object | Self::of_object(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::{ArenaIndex, Position};
    use super::super::page::PAGE;
    use super::super::pages::Span;
    use super::*;
    use spillway_core::sync::WordLocks;

    fn stored(span: u32, position: usize, arena: usize, len: usize, codec: u8) -> Slot {
        let cell = Cell::new(Span(span), Position::new(position), ArenaIndex::new(arena), len);
        Slot::Stored(cell, CodecIndex(codec))
    }

    #[test]
    fn two_words_hold_a_slot_up_to_every_bound() {
        let packed = Cell::new_packed(Span(9), Position::new(4095), 17);
        for slot in [
            Slot::Empty,
            Slot::Same(0),
            Slot::Same(u64::MAX),
            Slot::Stored(packed, CodecIndex(1)),
            stored(0, 0, 0, 1, 0),
            stored((1 << 30) - 1, 4095, 7, PAGE, 7),
        ] {
            for seconds in [0, SECONDS_MAX as u32] {
                let mark = Mark::new(slot, seconds);
                assert_eq!(mark.content(), WordLocks::content(mark.content()), "the lock's bits are free");
                assert_eq!(mark.is_empty(), slot == Slot::Empty);
                let same = [mark, mark.touched(5), mark.picked(), mark.picked().unpicked()];
                let expected = if slot == Slot::Empty { &same[..1] } else { &same[..] };
                assert!(expected.iter().all(|mark| mark.slot(slot.word()) == slot), "{slot:?}");
            }
        }
    }

    #[test]
    fn a_page_that_moves_keeps_its_time_and_flags_and_a_pick_sees_reads() {
        let (from, to) = (stored(1, 2, 3, 100, 1), stored(9, 8, 7, 4000, 0));
        let picked = Mark::new(from, 77).picked();
        assert!(picked.is_picked() && !picked.was_touched());
        assert!(picked.touched(80).is_picked() && picked.touched(80).was_touched());
        let moved = picked.touched(80).moved_to(to).unpicked();
        assert_eq!((moved.slot(to.word()), moved), (to, Mark::new(to, 80)));
    }
}
