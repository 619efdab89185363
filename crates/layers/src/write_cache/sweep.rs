//! Which versions are copied to the origin next: a lap over the origin's blocks in their order, again and again, so that the origin
//! gets sorted and long writes.
//!
//! A lap takes what was committed before it began. A block that is written over and over is left to the next lap, and no version
//! waits longer than a lap and a half.

use super::index::{Index, Victim};

/// Versions looked at before others get the lock.
const LOOKS: usize = 2048;

/// Where a lap is.
pub(super) struct Sweep {
    at: u32,
    /// Versions of earlier epochs are taken.
    before: u64,
    /// Nothing was taken since the lap began.
    idle: bool,
    /// Laps that were begun.
    pub(super) laps: u64,
}

impl Sweep {
    /// Before the first lap over what was committed before `seq_count`.
    pub(super) fn from(seq_count: u64) -> Self {
        Self { at: 0, before: seq_count, idle: true, laps: 0 }
    }
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Versions of consecutive blocks, marked and pinned.
    Victims(Vec<Victim>),
    /// Nothing yet: ask again.
    Later,
    /// Nothing in a whole lap.
    Nothing,
}

impl Index {
    /// The next versions of epochs below `before`, at most `len_max` of consecutive blocks.
    pub(super) fn take_next(&mut self, len_max: u32, before: u64) -> Next {
        let (found, end) = self.seek(before);
        if let Some(first) = found {
            self.sweep.idle = false;
            let limit = self.sweep.before.min(before);
            let run = self.newest.range(first..).zip(first..).take(len_max as usize);
            let ripe = run.take_while(|&((&origin, &index), at)| origin == at && self.is_next(index, limit));
            let origins: Vec<u32> = ripe.map(|((&origin, _), _)| origin).collect();
            self.sweep.at = first + origins.len() as u32;
            return Next::Victims(self.take(origins.into_iter()));
        }
        match end {
            Some(at) => self.sweep.at = at,
            // A lap that began after the last commit and found nothing.
            None if self.sweep.idle && self.sweep.before >= self.committed.min(before) => {
                self.begin_lap();
                return Next::Nothing;
            }
            None => self.begin_lap(),
        }
        Next::Later
    }

    /// Whether a version may be copied now.
    pub(super) fn is_next(&self, index: u32, before: u64) -> bool {
        self.may_leave(index, before) && !self.is_outside(self.blocks[index as usize].origin())
    }

    /// The first block at or behind the sweep that may leave, or else where to go on; neither at the end of the lap.
    fn seek(&self, before: u64) -> (Option<u32>, Option<u32>) {
        let limit = self.sweep.before.min(before);
        for (looks, (&origin, &index)) in self.newest.range(self.sweep.at..).enumerate() {
            if self.is_next(index, limit) {
                return (Some(origin), None);
            }
            if looks == LOOKS {
                return (None, Some(origin));
            }
        }
        (None, None)
    }

    fn begin_lap(&mut self) {
        let laps = self.sweep.laps + 1;
        self.sweep = Sweep { at: 0, before: self.committed, idle: true, laps };
    }
}
