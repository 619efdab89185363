//! Blocks of the cache from when a write takes them until they hold its versions.

use std::sync::Arc;

use spillway_core::mutant;
use spillway_policy::free_runs::Run;

use super::device::Core;
use super::index::LOOKS;
use super::index::block::{Epoch, OriginBlock};
use super::index::chains::Published;

/// Blocks reserved for a write in an epoch; given back unless they are published.
pub(super) struct Reservation {
    core: Arc<Core>,
    epoch: Epoch,
    pub(super) runs: Vec<Run>,
    pub(super) len: u32,
    /// Blocks that could not be written.
    pub(super) bad: Vec<Run>,
}

impl Reservation {
    /// Up to `wanted` blocks, if any are free.
    pub(super) fn take(core: &Arc<Core>, wanted: u32) -> Option<Self> {
        // First the epoch: a commit that seals it waits for all who may have blocks in it.
        let epoch = core.journal.enter();
        let runs = core.space.reserve(wanted);
        if runs.is_empty() {
            leave(core, epoch);
            return None;
        }
        let len = runs.iter().map(|run| run.len).sum();
        assert!(len <= wanted, "{len} blocks where {wanted} are wanted");
        Some(Self { core: core.clone(), epoch, runs, len, bad: Vec::new() })
    }

    /// Publishes what was written, in slices. Where this is dropped in between, the blocks of the rest are given back.
    pub(super) async fn publish(mut self, origin: OriginBlock) -> Published {
        let (core, epoch) = (&self.core, self.epoch);
        assert!(self.bad.is_empty(), "what could not be written is not published: {:?}", self.bad);
        let free = |block| core.space.free(block);
        let note = |block| core.journal.note(epoch, block);
        let mut published = Published { epoch, added: 0, over_uncommitted: 0, over_committed: 0 };
        let mut done = 0;
        loop {
            let runs = take_first(&mut self.runs, LOOKS as u32);
            let count: u32 = runs.iter().map(|run| run.len).sum();
            core.space.end_reservation(count);
            let committed = core.journal.committed();
            published.merge(core.index.publish(&runs, epoch, origin.plus(done), committed, free, note));
            done += count;
            if self.runs.is_empty() {
                break;
            }
            // Nobody else asks for it where the write is withdrawn.
            core.commit_if_due();
            core.give_way().await;
        }
        assert_eq!(done, self.len, "all that was reserved is published");
        leave(core, epoch);
        // A version that is replaced before its commit is free at once.
        if !mutant::on("write_cache: a version that is replaced wakes nobody") {
            core.changes.wake_all();
        }
        published
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let core = &self.core;
        core.space.give_back(std::mem::take(&mut self.runs), &self.bad, core.env.coarse_now());
        leave(core, self.epoch);
        core.changes.wake_all();
    }
}

/// Ends a write's part in an epoch. A drain waits for it, so it may be the last that was left.
fn leave(core: &Core, epoch: Epoch) {
    core.journal.leave(epoch);
    core.write_back_for_waiters();
}

/// Takes the first `most` blocks of `runs` out of them, or all.
fn take_first(runs: &mut Vec<Run>, most: u32) -> Vec<Run> {
    let (mut whole, mut left) = (0, most);
    while let Some(run) = runs.get(whole).filter(|run| run.len <= left) {
        left -= run.len;
        whole += 1;
    }
    if whole == runs.len() {
        return std::mem::take(runs);
    }
    let mut first: Vec<Run> = runs.drain(..whole).collect();
    if left > 0 {
        let run = &mut runs[0];
        first.push(Run { start: run.start, len: left });
        (run.start, run.len) = (run.start + left, run.len - left);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_blocks_of_runs_are_taken_in_order() {
        let run = |start, len| Run { start, len };
        let mut runs = vec![run(40, 2), run(10, 5), run(90, 1), run(70, 3)];
        assert_eq!(take_first(&mut runs, 4), [run(40, 2), run(10, 2)]);
        assert_eq!(take_first(&mut runs, 4), [run(12, 3), run(90, 1)]);
        assert_eq!(take_first(&mut runs, 2), [run(70, 2)]);
        assert_eq!(take_first(&mut runs, 2), [run(72, 1)]);
        assert!(runs.is_empty());
    }
}
