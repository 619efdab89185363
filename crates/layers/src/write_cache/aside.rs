//! Blocks of the cache set aside: a write to them failed. They are not handed out for a while, since the next write would
//! most likely fail as well; a drive may have repaired them by then.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_policy::free_runs::Run;

/// How long a block is set aside, unless the cache is opened again before.
const ASIDE: Duration = Duration::from_secs(600);

/// Runs of blocks and when each may be tried again, the earliest first.
#[derive(Default)]
pub(super) struct Aside {
    runs: VecDeque<(Duration, Run)>,
    blocks: u32,
}

impl Aside {
    /// Blocks set aside.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// A write to `run` has failed.
    pub(super) fn put(&mut self, run: Run, now: Duration) {
        self.blocks += run.len;
        self.runs.push_back((now + ASIDE, run));
    }

    /// A run that may be tried again.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Run> {
        let (_, run) = self.runs.pop_front_if(|(due, _)| *due <= now)?;
        self.blocks -= run.len;
        Some(run)
    }
}
