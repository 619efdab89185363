//! What a segment's room is used for: a word for each, changed without a lock.
//!
//! ```text
//!   word, from bit    0 live, 24 bits      room of the records that slots name
//!                    24 pins, 24 bits      readers and cleaners at work on it
//!                    48 state
//!
//!   Free -> Open -> Closed -> Freeing -> Free
//! ```
//!
//! An open segment takes records, and is not freed. A closed one that nobody names or reads is to be freed: the one that takes away its
//! last record or pin changes the state in the same step, so there is one who frees it. It is punched while it is freeing and may be
//! taken only then; the other way round its next user's data would be punched.

pub(super) mod space;
pub(super) mod streams;

use spillway_core::mutant;
use spillway_core::sync::{AtomicU32, AtomicU64, Ordering};

const LIVE: u64 = (1 << 24) - 1;
const PIN: u64 = 1 << 24;
const PINS: u64 = ((1 << 24) - 1) << 24;
const STATE_SHIFT: u32 = 48;

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentState {
    Free,
    Open,
    Closed,
    Freeing,
}

impl SegmentState {
    const fn bits(self) -> u64 {
        (self as u64) << STATE_SHIFT
    }

    fn of(word: u64) -> Self {
        match word >> STATE_SHIFT {
            0 => SegmentState::Free,
            1 => SegmentState::Open,
            2 => SegmentState::Closed,
            _ => SegmentState::Freeing,
        }
    }
}

/// What a segment was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentSnapshot {
    pub(super) state: SegmentState,
    pub(super) live: u32,
    pub(super) pinned: bool,
    /// Of what is live: clean copies.
    pub(super) copies: u32,
}

impl SegmentSnapshot {
    /// Room of what cannot be given up.
    pub(super) fn needed(self) -> u32 {
        self.live.saturating_sub(self.copies)
    }

    /// Whether it comes free by itself: it is freed, or will be once nobody reads it.
    pub(super) fn is_leaving(self) -> bool {
        self.state == SegmentState::Freeing || self.state == SegmentState::Closed && self.live == 0
    }
}

/// The caller frees this segment: nobody else will.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToFree(pub(super) u32);

/// All segments of a file, free at first.
pub(super) struct Segments {
    words: Box<[AtomicU64]>,
    /// Room of the records that are clean copies.
    copies: Box<[AtomicU32]>,
    /// Sequence numbers; a segment's does not change while it is not free.
    seqs: Box<[AtomicU64]>,
}

impl Segments {
    pub(super) fn new(count: u32) -> Self {
        let zeroes = || (0..count).map(|_| AtomicU64::new(0)).collect();
        let copies = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { words: zeroes(), copies, seqs: zeroes() }
    }

    /// Bytes of memory for so many.
    pub(super) const fn bytes(count: u32) -> u64 {
        count as u64 * 20
    }

    pub(super) fn count(&self) -> u32 {
        self.words.len() as u32
    }

    pub(super) fn look(&self, segment: u32) -> SegmentSnapshot {
        let word = self.word(segment).load(Ordering::Acquire);
        let copies = self.copies[segment as usize].load(Ordering::Relaxed);
        SegmentSnapshot {
            state: SegmentState::of(word),
            live: (word & LIVE) as u32,
            pinned: word & PINS != 0,
            copies,
        }
    }

    /// The sequence number of a segment that is not free.
    pub(super) fn seq(&self, segment: u32) -> u64 {
        self.seqs[segment as usize].load(Ordering::Acquire)
    }

    fn word(&self, segment: u32) -> &AtomicU64 {
        &self.words[segment as usize]
    }

    /// Opens a free segment.
    pub(super) fn open(&self, segment: u32, seq: u64) {
        self.seqs[segment as usize].store(seq, Ordering::Release);
        let before = self.word(segment).swap(SegmentState::Open.bits(), Ordering::AcqRel);
        assert_eq!(before, 0, "segment {segment} is opened and was not free");
    }

    /// Notes the sequence number of a segment that was there when the file was opened.
    pub(super) fn found(&self, segment: u32, seq: u64) {
        self.seqs[segment as usize].store(seq, Ordering::Release);
    }

    /// A segment that was there when the file was opened is closed, and has so much room of records that slots name.
    pub(super) fn restore(&self, segment: u32, room: u32) {
        let word = SegmentState::Closed.bits() | u64::from(room);
        let before = self.word(segment).swap(word, Ordering::AcqRel);
        assert!(before == 0 && (1..=LIVE).contains(&u64::from(room)), "{room} bytes of segment {segment}");
    }

    /// Adds the room of records that were written to an open segment.
    pub(super) fn add(&self, segment: u32, room: u32) {
        let before = self.word(segment).fetch_add(u64::from(room), Ordering::AcqRel);
        assert!(
            SegmentState::of(before) == SegmentState::Open && (before & LIVE) + u64::from(room) <= LIVE,
            "{before:#x} of segment {segment} takes {room} bytes"
        );
    }

    /// Closes an open segment: nothing is written to it any more.
    pub(super) fn close(&self, segment: u32) -> Option<ToFree> {
        self.change(segment, |word| {
            assert_eq!(SegmentState::of(word), SegmentState::Open, "segment {segment} is closed once");
            word - SegmentState::Open.bits() + SegmentState::Closed.bits()
        })
    }

    /// A slot names a record no longer.
    pub(super) fn release(&self, segment: u32, room: u32) -> Option<ToFree> {
        self.change(segment, |word| {
            assert!(word & LIVE >= u64::from(room), "{word:#x} of segment {segment} gives back {room} bytes");
            word - u64::from(room)
        })
    }

    /// A record that a slot names is a clean copy from now on.
    pub(super) fn keep(&self, segment: u32, room: u32) {
        self.copies[segment as usize].fetch_add(room, Ordering::Relaxed);
    }

    /// A record that was a clean copy is none any more.
    pub(super) fn unkeep(&self, segment: u32, room: u32) {
        let before = self.copies[segment as usize].fetch_sub(room, Ordering::Relaxed);
        assert!(before >= room, "{room} of {before} bytes of copies in segment {segment}");
    }

    /// Keeps a segment from being freed. The caller knows that a slot names a record of it, and keeps the slot from changing.
    pub(super) fn pin(&self, segment: u32) {
        let before = self.word(segment).fetch_add(PIN, Ordering::AcqRel);
        let named = matches!(SegmentState::of(before), SegmentState::Open | SegmentState::Closed)
            && before & LIVE > 0;
        assert!(named, "{before:#x} of segment {segment} is pinned, and no slot names it");
    }

    /// Keeps a closed segment from being freed, if something of it is live.
    pub(super) fn pin_closed(&self, segment: u32) -> bool {
        let next =
            |word| (SegmentState::of(word) == SegmentState::Closed && word & LIVE > 0).then(|| word + PIN);
        self.word(segment).fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
    }

    pub(super) fn unpin(&self, segment: u32) -> Option<ToFree> {
        self.change(segment, |word| {
            assert!(word & PINS > 0, "{word:#x} of segment {segment} is not pinned");
            word - PIN
        })
    }

    /// A segment that is being freed was punched.
    pub(super) fn freed(&self, ToFree(segment): ToFree) {
        let before = self.word(segment).swap(0, Ordering::AcqRel);
        assert_eq!(
            before,
            SegmentState::Freeing.bits(),
            "segment {segment} is freed once, and nobody uses it"
        );
    }

    /// Changes a word, and begins to free the segment in the same step where nothing is left of it.
    fn change(&self, segment: u32, change: impl Fn(u64) -> u64) -> Option<ToFree> {
        let word = self.word(segment);
        let next = |before| {
            let after = change(before);
            Some(if has_ended(after) { SegmentState::Freeing.bits() } else { after })
        };
        if mutant::on("spill: free a segment by both who leave it") {
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| Some(change(before)))
                .expect("it is always changed");
            let after = word.load(Ordering::Acquire);
            if !has_ended(after) {
                return None;
            }
            word.store(SegmentState::Freeing.bits(), Ordering::Release);
            return Some(ToFree(segment));
        }
        let before =
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).expect("it is always changed");
        has_ended(change(before)).then_some(ToFree(segment))
    }
}

/// Whether a segment is closed, and nobody names or reads anything of it.
fn has_ended(word: u64) -> bool {
    let ignored = if mutant::on("spill: free a segment that is read") { PINS } else { 0 };
    word & !ignored == SegmentState::Closed.bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_freed_once_by_who_leaves_it_last() {
        let segments = Segments::new(2);
        segments.open(1, 7);
        segments.add(1, 300);
        segments.pin(1);
        assert_eq!(segments.release(1, 300), None, "it is open");
        assert_eq!(segments.close(1), None, "it is pinned");
        assert!(!segments.pin_closed(1), "nothing of it is live");
        assert_eq!(
            segments.look(1),
            SegmentSnapshot { state: SegmentState::Closed, live: 0, pinned: true, copies: 0 }
        );
        let to_free = segments.unpin(1).expect("the last one frees it");
        assert_eq!((segments.look(1).state, segments.seq(1)), (SegmentState::Freeing, 7));
        segments.freed(to_free);
        assert_eq!(
            segments.look(1),
            SegmentSnapshot { state: SegmentState::Free, live: 0, pinned: false, copies: 0 }
        );
        segments.open(1, 8);
        assert_eq!(segments.close(1), Some(ToFree(1)), "nothing was written to it");
    }

    #[test]
    fn what_is_live_keeps_a_closed_segment() {
        let segments = Segments::new(1);
        segments.open(0, 1);
        segments.add(0, 1 << 22);
        assert_eq!(segments.close(0), None);
        assert!(segments.pin_closed(0));
        assert_eq!(segments.release(0, (1 << 22) - 256), None);
        assert_eq!(segments.unpin(0), None);
        assert_eq!(segments.release(0, 256), Some(ToFree(0)));
    }

    #[test]
    #[should_panic(expected = "no slot names it")]
    fn a_free_segment_is_not_pinned() {
        Segments::new(1).pin(0);
    }
}
