//! Quarantine of bad blocks: a write to them failed. They are not handed out for a while, since the next write would most likely
//! fail as well; a drive may have repaired them by then.

use std::collections::VecDeque;
use std::time::Duration;

use crate::write_cache::free_runs::Run;

/// Time in quarantine, unless the cache is opened again before.
pub const QUARANTINE: Duration = Duration::from_secs(600);

/// Runs of blocks and when each may be tried again, the earliest first. Callers pass the time.
#[derive(Clone, Debug, Default)]
pub struct Quarantine {
    runs: VecDeque<(Duration, Run)>,
    blocks: u32,
}

impl Quarantine {
    /// Blocks in quarantine.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// A write to `run` has failed.
    pub fn put(&mut self, run: Run, now: Duration) {
        assert!(run.len > 0, "a write has blocks");
        self.blocks += run.len;
        self.runs.push_back((now + QUARANTINE, run));
    }

    /// A run that may be tried again.
    pub fn take_due(&mut self, now: Duration) -> Option<Run> {
        let (_, run) = self.runs.pop_front_if(|(due, _)| *due <= now)?;
        assert!(self.blocks >= run.len, "{} blocks, of which {run:?}", self.blocks);
        self.blocks -= run.len;
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_comes_back_in_its_time() {
        let (mut quarantine, second) = (Quarantine::default(), Duration::from_secs(1));
        let runs = [Run { start: 3, len: 2 }, Run { start: 9, len: 1 }];
        runs.into_iter().zip(0..).for_each(|(run, at)| quarantine.put(run, at * second));
        assert_eq!((quarantine.blocks(), quarantine.take_due(QUARANTINE - second)), (3, None));
        assert_eq!(quarantine.take_due(QUARANTINE), Some(runs[0]));
        assert_eq!((quarantine.blocks(), quarantine.take_due(QUARANTINE)), (1, None));
        assert_eq!(quarantine.take_due(QUARANTINE + second), Some(runs[1]));
        assert_eq!(quarantine.blocks(), 0);
    }
}
