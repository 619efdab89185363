//! Slots in two words, and what their marks say as pages move.

use super::*;
use crate::zram::pool::cell::{ArenaIndex, Position};
use crate::zram::pool::pages::Span;
use spillway_core::sync::WordLocks;

fn stored(span: u32, position: usize, arena: usize, len: usize, codec: u8) -> Slot {
    let cell = Cell::new(Span(span), Position::new(position), ArenaIndex::new(arena), len);
    Slot::Stored(cell, CodecIndex(codec))
}

fn away(segment: u32, offset: u32, crc: u32, len: usize, codec: u8) -> Slot {
    let at = Location { segment, offset };
    Slot::Spilled(Away { at, crc, len, codec: CodecIndex(codec) })
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
        Slot::Deferred(Cell::new(Span(5), Position::new(0), ArenaIndex::new(7), PAGE)),
        away(0, 0, 0, 1, 0),
        away((1 << 24) - 1, (1 << 22) - 1, u32::MAX, PAGE, 7),
        away(1, 2, 0x8000_0001, 100, 1),
        Slot::Lost,
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
    assert_eq!((moved.slot(to.word()), moved), (to, Mark::new(to, 80).touched(80)));
    let warm = Mark::new(from, 77).touched(77);
    assert!(warm.picked().is_referenced() && !warm.picked().was_touched());
    assert_eq!(warm.picked().unpicked(), warm);
    assert_eq!(warm.picked().moved_to(to).unpicked(), Mark::new(to, 77).touched(77));
    let spilled = away(3, 4, u32::MAX, 100, 1);
    let there = picked.moved_to(spilled).unpicked();
    assert_eq!((there.slot(spilled.word()), there.is_referenced()), (spilled, false));
    assert_eq!(there.touched(81).moved_to(to), Mark::new(to, 81).touched(81), "nothing of the place is left");
}

#[test]
fn a_page_keeps_its_copy_as_long_as_it_lies_in_memory() {
    let (from, to) = (stored(1, 2, 3, 100, 1), stored(9, 8, 7, 60, 2));
    let kept = Mark::new(from, 77).with_copy(true);
    assert!(kept.has_copy() && kept.slot(from.word()) == from && !kept.with_copy(false).has_copy());
    let moved = kept.touched(80).picked().moved_to(to).unpicked();
    assert!(moved.has_copy() && moved.slot(to.word()) == to && moved.age(80) == 0);
    let spilled = away(3, 4, u32::MAX, 100, 1);
    assert!(kept.moved_to(spilled) == Mark::new(spilled, 77) && !Mark::new(spilled, 77).has_copy());
    assert!(!Mark::new(spilled, 1).moved_to(from).has_copy(), "that was its checksum");
}

#[test]
fn a_page_is_idle_from_being_marked_to_its_next_access_and_ages_go_round() {
    let mark = Mark::new(stored(1, 2, 3, 100, 1), SECONDS_MAX as u32 - 4);
    let idle = mark.with_idle(true);
    assert!(!mark.is_idle() && idle.is_idle() && !idle.touched(5).is_idle());
    assert_eq!([mark.age(SECONDS_MAX as u32 - 4), mark.age(5)], [0, 10]);
    assert_eq!(mark.age(SECONDS_MAX as u32 - 5), 0, "the clock was read before the access");
}
