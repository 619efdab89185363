//! Blocks of the cache from when a write takes them until they hold its versions.

use std::sync::Arc;

use spillway_core::mutant;
use spillway_policy::free_runs::Run;

use super::device::Core;
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

    pub(super) fn publish(mut self, origin: OriginBlock) -> Published {
        let (core, epoch) = (&self.core, self.epoch);
        assert!(self.bad.is_empty(), "what could not be written is not published: {:?}", self.bad);
        let runs = std::mem::take(&mut self.runs);
        core.space.end_reservation(self.len);
        let free = |block| core.space.free(block);
        let note = |block| core.journal.note(epoch, block);
        let published = core.index.publish(&runs, epoch, origin, core.journal.committed(), free, note);
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
