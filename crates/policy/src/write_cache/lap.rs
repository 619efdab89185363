//! The order of write-back: laps over the origin's blocks in their order, again and again, so that the origin gets sorted and long
//! writes.
//!
//! A lap takes what was committed before it began. A block that is written over and over is left to the next lap, and no version
//! waits longer than a lap and a half.

/// Where a lap is.
#[derive(Clone, Debug)]
pub struct Lap {
    at: u64,
    /// Versions of earlier epochs are taken.
    before: u64,
    /// The least limit that was asked for in the lap: what it passed before the limit rose may be left.
    asked_before: u64,
    /// Nothing was taken since the lap began.
    idle: bool,
    /// A version that the limit lets go was passed over, since it could not leave.
    skipped: bool,
    laps: u64,
}

/// What the end of a lap says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LapEnd {
    /// Another lap has begun, which may find more.
    Again,
    /// There is nothing to take, but for versions that cannot leave yet where some were skipped.
    Nothing {
        /// Whether some were.
        skipped: bool,
    },
}

impl Lap {
    /// Before the first lap over what was committed before `committed`.
    pub fn new(committed: u64) -> Self {
        Self { at: 0, before: committed, asked_before: u64::MAX, idle: true, skipped: false, laps: 0 }
    }

    /// Where the lap looks next.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Laps that have ended.
    pub fn laps(&self) -> u64 {
        self.laps
    }

    /// Whether nothing was taken since the lap began.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Epochs below this may be taken now, where those below `before` are asked for.
    pub fn limit(&mut self, before: u64) -> u64 {
        self.asked_before = self.asked_before.min(before);
        self.before.min(before)
    }

    /// Blocks up to `next` were looked at; `skipped`: one of them could not leave.
    pub fn pass(&mut self, next: u64, skipped: bool) {
        assert!(next >= self.at, "a lap goes from {} to {next}", self.at);
        self.at = next;
        self.skipped |= skipped;
    }

    /// Blocks up to `next` were looked at, and some were taken.
    pub fn take(&mut self, next: u64, skipped: bool) {
        self.pass(next, skipped);
        self.idle = false;
    }

    /// The end of the origin was reached, where epochs below `before` are asked for and those below `committed` are committed.
    pub fn end(&mut self, committed: u64, before: u64) -> LapEnd {
        assert!(committed >= self.before, "a lap over {} ends where {committed} is committed", self.before);
        // A lap that began after the last commit, with this limit, and found nothing.
        let covers = self.before.min(self.asked_before) >= committed.min(before);
        let nothing = self.idle && covers;
        let end = if nothing { LapEnd::Nothing { skipped: self.skipped } } else { LapEnd::Again };
        *self = Self { laps: self.laps + 1, ..Self::new(committed) };
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A version of each of some blocks by epoch, and laps that take one at a time.
    struct World {
        epochs: Vec<Option<u64>>,
        committed: u64,
        lap: Lap,
    }

    impl World {
        /// One look of two blocks, as an index makes them; the epoch taken, or the end of a lap.
        fn look(&mut self, before: u64) -> Result<u64, Option<LapEnd>> {
            let limit = self.lap.limit(before).min(self.committed);
            let from = self.lap.at() as usize;
            if from >= self.epochs.len() {
                return Err(Some(self.lap.end(self.committed, before)));
            }
            for at in from..self.epochs.len().min(from + 2) {
                if let Some(epoch) = self.epochs[at].take_if(|epoch| *epoch < limit) {
                    self.lap.take(at as u64 + 1, false);
                    return Ok(epoch);
                }
            }
            self.lap.pass(from as u64 + 2, false);
            Err(None)
        }
    }

    #[test]
    fn it_ends_only_after_a_whole_lap_that_began_after_the_last_commit() {
        let mut lap = Lap::new(3);
        lap.pass(10, false);
        assert_eq!(lap.end(4, u64::MAX), LapEnd::Again, "a commit came during the lap");
        lap.take(5, true);
        assert_eq!(lap.end(4, u64::MAX), LapEnd::Again, "something was taken");
        lap.pass(9, true);
        assert_eq!((lap.end(4, u64::MAX), lap.laps()), (LapEnd::Nothing { skipped: true }, 3));
        assert_eq!(lap.end(4, u64::MAX), LapEnd::Nothing { skipped: false });
    }

    #[test]
    #[should_panic(expected = "a lap goes from 4 to 3")]
    fn it_goes_forward() {
        let mut lap = Lap::new(1);
        lap.take(4, false);
        lap.pass(3, false);
    }

    proptest! {
        /// With commits and limits that change in the middle of laps: when laps say that there is nothing, there is nothing; in
        /// bounded time.
        #[test]
        fn nothing_means_nothing(
            epochs in prop::collection::vec(prop::option::of(0u64..6), 1..12),
            steps in prop::collection::vec((0u64..8, 0u64..3), 1..20),
        ) {
            let mut world = World { epochs, committed: 1, lap: Lap::new(1) };
            for (before, commits) in steps {
                world.committed = (world.committed + commits).min(6);
                let _ = world.look(before);
                let mut looks = 0;
                while world.look(before) != Err(Some(LapEnd::Nothing { skipped: false })) {
                    looks += 1;
                    prop_assert!(looks < 8 * world.epochs.len() + 20, "laps without end");
                }
                let limit = before.min(world.committed);
                prop_assert!(world.epochs.iter().flatten().all(|epoch| *epoch >= limit), "{:?}", world.epochs);
            }
        }
    }
}
