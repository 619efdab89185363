//! The sweep at work: the next versions to be copied, found in the index.

use spillway_core::mutant;

use super::index::{Index, LOOKS};
use super::sweep::{Next, Sweep};

/// What a look for the next version came to: that one's block, or where to go on, or neither at the end of the lap.
#[derive(Default)]
struct Found {
    next: Option<u32>,
    end: Option<u32>,
    skipped: bool,
}

impl Index {
    /// The next versions of epochs below `before`, at most `len_max` of consecutive blocks.
    pub(super) fn take_next(&mut self, len_max: u32, before: u64) -> Next {
        self.sweep.asked_before = self.sweep.asked_before.min(before);
        let Found { next: found, end, skipped } = self.seek(before);
        self.sweep.skipped |= skipped;
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
            None if self.sweep.idle
                && (self.sweep.before.min(self.sweep.asked_before) >= self.committed.min(before)
                    || mutant::on("write_cache: a lap that began before a commit is the last")) =>
            {
                let skipped = self.sweep.skipped;
                self.begin_lap();
                return Next::Nothing { skipped };
            }
            None => self.begin_lap(),
        }
        Next::Later
    }

    /// Whether a version may be copied now.
    pub(super) fn is_next(&self, index: u32, before: u64) -> bool {
        self.may_leave(index, before) && !self.is_outside(self.blocks[index as usize].origin())
    }

    /// Looks for a version that may leave, at or behind the sweep.
    fn seek(&self, before: u64) -> Found {
        let limit = self.sweep.before.min(before);
        let mut found = Found::default();
        for (looks, (&origin, &index)) in self.newest.range(self.sweep.at..).enumerate() {
            if self.is_next(index, limit) {
                return Found { next: Some(origin), ..found };
            }
            found.skipped |= self.blocks[index as usize].epoch() < limit;
            if looks == LOOKS {
                return Found { end: Some(origin), ..found };
            }
        }
        found
    }

    fn begin_lap(&mut self) {
        let laps = self.sweep.laps + 1;
        self.sweep = Sweep { laps, ..Sweep::from(self.committed) };
    }
}
