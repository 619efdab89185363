//! What of a region is on its way to the device below, from where it is taken to what came of it.

use std::iter::successors;
use std::sync::Arc;

use spillway_core::ByteRange;
use spillway_core::sync::Ordering;
use spillway_policy::dirty_regions::{BatchEnd, RegionNumber};

use super::super::device::Core;
use super::super::folios::Folios;
use super::WRITE_BYTES;

/// What was dirty of a region, on its way to the device below. Whatever happens to it, the cache learns how that ended.
pub(in crate::page_cache) struct Batch {
    core: Arc<Core>,
    pub(super) region: RegionNumber,
    /// What is written, and whether it has landed.
    pub(super) runs: Vec<(ByteRange, bool)>,
    /// A run that fails is written again in parts.
    pub(super) in_parts: bool,
    /// Of the engine, until it has memory for its copy.
    pub(super) queued: Option<Queued>,
    pub(super) end: BatchEnd,
    /// It was not written, and is not wanted any more.
    dropped: bool,
    /// The cache has learned of its end.
    ended: bool,
}

impl Batch {
    /// What is written.
    pub(in crate::page_cache) fn ranges(&self) -> impl Iterator<Item = ByteRange> {
        self.runs.iter().map(|(run, _)| *run)
    }

    /// It is the engine's, and waits for memory for its copy.
    pub(super) fn queue(&mut self) {
        self.core.queued.fetch_add(1, Ordering::Relaxed);
        self.queued = Some(Queued(self.core.clone()));
    }

    /// It is not wanted any more: none of it is dirty, and the cache forgets it. What else is dirty of its region, to be written, where that is due:
    /// the engine may find the region taken whenever it looks, and a flush would wait for as long as discards follow each other there.
    pub(in crate::page_cache) fn forgo(mut self) -> Option<Batch> {
        self.runs.iter_mut().for_each(|(_, landed)| *landed = true);
        (self.end, self.dropped) = (BatchEnd::Landed, true);
        let rest = self.core.end_batch(&self);
        self.ended = true;
        rest
    }
}

/// A batch of the engine waits for memory.
pub(super) struct Queued(Arc<Core>);

impl Drop for Queued {
    fn drop(&mut self) {
        let before = self.0.queued.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a batch waits no longer that has not waited");
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.core.end_batch(self));
        }
    }
}

/// The writes of a run to a device that prefers `unit` bytes. None crosses a large unit, such as the objects of a cluster.
fn writes_of(run: ByteRange, unit: u64) -> impl Iterator<Item = ByteRange> {
    let (longest, end) = (unit.max(WRITE_BYTES), run.offset + run.len);
    let len_at = move |at: u64| if unit < WRITE_BYTES { longest } else { longest - at % longest };
    let starts = successors(Some(run.offset), move |&at| Some(at + len_at(at)).filter(|&next| next < end));
    starts.map(move |at| ByteRange::new(at, len_at(at).min(end - at)))
}

impl Core {
    /// Dirty runs of a region that were taken are on their way.
    pub(in crate::page_cache) fn begin_batch(
        self: &Arc<Self>,
        shard: &mut Folios,
        region: RegionNumber,
        dirty: Vec<ByteRange>,
    ) -> Batch {
        let unit = u64::from(self.below.geometry().optimal_io);
        let mut runs = Vec::new();
        for run in dirty {
            for piece in shard.pieces(run) {
                let folio = shard.get_mut(piece.folio.unit).expect("it has dirty blocks");
                self.zones.begun(folio.zone(), piece.blocks.len() as u64);
                folio.state.begin_writeback(piece.blocks);
            }
            runs.extend(writes_of(run, unit));
        }
        let runs = runs.into_iter().map(|run| (run, false)).collect();
        let (core, end) = (self.clone(), BatchEnd::Withdrawn);
        Batch { core, region, runs, in_parts: false, queued: None, end, dropped: false, ended: false }
    }

    /// Takes notice of the end of a batch. The rest of the region, taken where the batch was dropped and that is due.
    fn end_batch(self: &Arc<Self>, batch: &Batch) -> Option<Batch> {
        let (mut blocks, mut again) = (0, 0);
        let rest = {
            let mut shard = self.shard(batch.region).write();
            for (run, landed) in &batch.runs {
                for piece in shard.pieces(*run) {
                    let folio = shard.get_mut(piece.folio.unit).expect("it stays while it is written back");
                    let (zone, ended) = (folio.zone(), piece.blocks.len() as u64);
                    let dirty = u64::from(folio.state.end_writeback(piece.blocks.clone(), *landed));
                    if batch.dropped {
                        folio.state.forget(piece.blocks);
                    }
                    self.zones.ended(zone, ended, dirty);
                    let traffic = shard.count(zone);
                    traffic.written += if *landed && !batch.dropped { ended } else { 0 };
                    traffic.redirtied += dirty;
                    (blocks, again) = (blocks + ended, again + dirty);
                }
            }
            shard.dirty.ended(batch.region, batch.end, again);
            let takes = batch.dropped && !self.writeback.has_ended();
            let takes = takes && shard.dirty.is_due(batch.region, self.due());
            takes.then(|| self.batch(&mut shard, batch.region))
        };
        assert!(again <= blocks, "{again} blocks of {blocks} are dirty again");
        self.unsaved.give(blocks - again);
        self.ended();
        // The region can be taken again, where it was not when the engine looked.
        if self.zones.dirty() > 0 {
            self.writeback.kick();
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_one_write_unless_it_crosses_a_large_unit() {
        const K: u64 = 1 << 10;
        let writes = |start, len, unit: u64| {
            let writes = writes_of(ByteRange::new(start * K, len * K), unit * K);
            writes.map(|write| (write.offset / K, write.len / K)).collect::<Vec<_>>()
        };
        for unit in [4, 64, 4096] {
            assert_eq!(writes(700, 1000, unit), [(700, 1000)], "{unit} KiB are preferred");
        }
        assert_eq!(writes(700, 1300, 64), [(700, 1024), (1724, 276)]);
        assert_eq!(writes(700, 1348, 4096), [(700, 1348)]);
        assert_eq!(writes(700, 1348, 1024), [(700, 324), (1024, 1024)]);
        assert_eq!(writes(1024, 4, 1024), [(1024, 4)]);
    }
}
