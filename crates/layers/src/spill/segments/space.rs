//! Which segments are free, and who may take the last ones.
//!
//! Some are in reserve, so that a full file can be cleaned and stopped: new content leaves two for the cleaner, and both leave what a
//! checkpoint may take.

use spillway_core::sync::{Marks, Mutex};

use crate::spill::format::{CheckpointEntry, Layout, SEQS, UNIT};

/// Segments that only the cleaner and a checkpoint may take: a segment's live records fit one, and another is at hand while its
/// readers have it still.
const CLEANER_RESERVE: u32 = 2;

/// Who takes a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    Content,
    Cleaner,
    Checkpoint,
}

struct State {
    count: u32,
    next_seq: u64,
}

/// The free segments of a file.
pub(crate) struct Space {
    free: Marks,
    checkpoint: u32,
    state: Mutex<State>,
}

impl Space {
    /// All segments of `layout`.
    pub(crate) fn new(layout: &Layout) -> Self {
        let free = Marks::new(layout.segments.into());
        (0..layout.segments.into()).for_each(|segment| free.mark(segment));
        let state = Mutex::new(State { count: layout.segments, next_seq: 1 });
        Self { free, checkpoint: checkpoint_segments(layout), state }
    }

    /// Bytes of memory for so many segments.
    pub(crate) fn bytes(segments: u32) -> u64 {
        Marks::bytes(segments.into())
    }

    fn reserve(&self, taker: Taker) -> u32 {
        match taker {
            Taker::Content => self.checkpoint + CLEANER_RESERVE,
            Taker::Cleaner => self.checkpoint,
            Taker::Checkpoint => 0,
        }
    }

    /// Whether `taker` would find a segment.
    pub(crate) fn has_room(&self, taker: Taker) -> bool {
        self.state.lock().count > self.reserve(taker)
    }

    /// Segments that new content may take.
    pub(crate) fn for_content(&self) -> u32 {
        self.state.lock().count.saturating_sub(self.reserve(Taker::Content))
    }

    /// Takes the lowest free segment, so that a file is no longer than it has to be, and the next sequence number. One that is `avoided` is
    /// taken where there is no other.
    pub(crate) fn take(&self, taker: Taker, avoided: impl Fn(u64) -> bool) -> Option<(u32, u64)> {
        let mut state = self.state.lock();
        if state.count <= self.reserve(taker) {
            return None;
        }
        let lowest = self.free.next(0).expect("as many are free as were counted");
        let mut free = std::iter::successors(Some(lowest), |segment| self.free.next(segment + 1));
        let segment = free.find(|&segment| !avoided(segment)).unwrap_or(lowest);
        self.free.unmark(segment);
        state.count -= 1;
        let seq = state.next_seq;
        // 2^42 segments of 4 MiB are 2^64 bytes.
        assert!(seq < SEQS, "segments are numbered by 42 bits");
        state.next_seq += 1;
        Some((segment as u32, seq))
    }

    /// Takes a segment that was there when the file was opened.
    pub(crate) fn restore(&self, segment: u32) {
        assert!(self.free.has(segment.into()), "segment {segment} is there once");
        self.free.unmark(segment.into());
        self.state.lock().count -= 1;
    }

    /// Numbers the segments that are opened from `seq` on.
    pub(crate) fn number_from(&self, seq: u64) {
        self.state.lock().next_seq = seq;
    }

    /// Gives back a segment that `end` makes free, in one step for who looks at both.
    pub(crate) fn give(&self, segment: u32, end: impl FnOnce()) {
        let mut state = self.state.lock();
        end();
        assert!(!self.free.has(segment.into()), "segment {segment} is given back once");
        self.free.mark(segment.into());
        state.count += 1;
    }

    /// Asserts that the free segments are those that `is_free`, while nobody takes or gives any.
    pub(crate) fn verify(&self, segments: u32, is_free: impl Fn(u32) -> bool) {
        let set = |segment: u32| self.free.has(segment.into());
        let free =
            (0..segments).filter(|&segment| set(segment)).inspect(|&segment| assert!(is_free(segment)));
        assert_eq!(free.count() as u32, self.state.lock().count, "free segments");
        let all = (0..segments).filter(|&segment| is_free(segment)).count();
        assert_eq!(all as u32, self.state.lock().count, "segments that are free");
    }
}

/// Segments that a checkpoint takes at most.
fn checkpoint_segments(layout: &Layout) -> u32 {
    let entry = CheckpointEntry::bytes(layout.records_max() as u32);
    let entries = (layout.segment_bytes() - UNIT) / entry;
    layout.segments.div_ceil(entries as u32)
}

/// The fewest segments of a file: those in reserve, two open ones, one that is closed and one that is free.
pub(crate) fn segments_min(shift: u32) -> u32 {
    CLEANER_RESERVE + checkpoint_segments(&Layout { shift, segments: 8 }) + 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::format::{SEGMENT_SHIFT, SEGMENT_SHIFT_MIN};

    #[test]
    fn the_last_segments_are_for_the_cleaner_and_the_checkpoint() {
        let layout = Layout { shift: SEGMENT_SHIFT, segments: 5 };
        let space = Space::new(&layout);
        let take = |taker| space.take(taker, |_| false);
        assert_eq!((take(Taker::Content), space.for_content()), (Some((0, 1)), 1));
        assert_eq!(take(Taker::Content), Some((1, 2)));
        assert_eq!((take(Taker::Content), space.has_room(Taker::Cleaner)), (None, true));
        assert_eq!([2, 3].map(|_| take(Taker::Cleaner).map(|taken| taken.0)), [Some(2), Some(3)]);
        assert_eq!((take(Taker::Cleaner), take(Taker::Checkpoint)), (None, Some((4, 5))));
        space.give(3, || ());
        space.give(1, || ());
        space.verify(5, |segment| [1, 3].contains(&segment));
        assert_eq!(take(Taker::Checkpoint), Some((1, 6)), "the lowest, with a new number");
        space.give(1, || ());
        let avoiding = |avoided: &[u64]| {
            let taken = space.take(Taker::Checkpoint, |segment| avoided.contains(&segment));
            taken.expect("one is free").0
        };
        assert_eq!([avoiding(&[1]), avoiding(&[1])], [3, 1], "what is avoided comes last");
    }

    #[test]
    fn a_checkpoint_of_any_file_has_room() {
        for shift in SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT {
            for segments in [8, 1000, 1 << 24] {
                let layout = Layout { shift, segments };
                let entry = CheckpointEntry::bytes(layout.records_max() as u32);
                let reserved = checkpoint_segments(&layout) as usize;
                let each = (layout.segment_bytes() - UNIT) / entry;
                assert!(each * reserved >= segments as usize && each * (reserved - 1) < segments as usize);
            }
        }
        assert_eq!(checkpoint_segments(&Layout { shift: 22, segments: 262_144 }), 130, "of a TiB");
    }
}
