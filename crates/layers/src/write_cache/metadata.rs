//! The metadata of an open cache on its way to the cache device, in whole blocks of the cache. Entries are read without a lock: those that
//! a commit or a clearing writes do not change meanwhile, and others are not visible.

use std::ops::Range;

use futures_util::future::join_all;
use spillway_core::buffer::ALIGNMENT;
use spillway_core::{IoBuf, Kind, Request, Seam, Submission, Workspace, mutant};
use spillway_policy::merge;

use super::device::Core;
use super::format::{ENTRY_LEN, Layout, PADDING_LEN, SUPERBLOCK_LEN, Superblock};
use super::index::Index;
use super::index::block::{CacheBlock, Epoch};
use super::pieces::BATCH_BYTES;

/// Bytes of metadata that are read or written at once.
pub(super) const PIECE_BYTES: u64 = 256 << 10;

/// Runs of entries that are written at the same time, as far as they fit in a batch.
const RUNS_AT_A_TIME: usize = 32;

/// Entries that are encoded before others have their turn.
const ENTRIES_AT_A_TIME: usize = 8192;

/// Blocks of metadata between two that are to be written are written too where they are not more than this.
const GAP_BYTES: u64 = 8 << 10;

/// Metadata as it is to be: where it lies, what it says, and the superblock's padding; and what it takes to write it.
#[derive(Clone, Copy)]
pub(super) struct Metadata<'a> {
    pub(super) device: &'a Seam,
    pub(super) pieces: &'a Workspace,
    pub(super) layout: &'a Layout,
    pub(super) padding: [u8; PADDING_LEN],
    pub(super) index: &'a Index,
}

impl Metadata<'_> {
    /// These blocks, encoded in a buffer of the workspace.
    pub(super) async fn encoded(&self, blocks: Range<u64>, visible: Epoch, seq_count: Epoch) -> IoBuf {
        let mut buf = self.pieces.take(self.layout.run_bytes(&blocks)).await;
        self.encode(blocks, visible, seq_count, &mut buf);
        buf
    }

    /// Begins to write blocks from `block` on.
    pub(super) fn write(&self, block: u64, buf: IoBuf, fua: bool) -> Submission {
        let mut request = Request::write(self.layout.start + block * self.layout.block_size.bytes(), buf);
        request.flags.fua = fua;
        self.device.submit(request)
    }

    /// Encodes these blocks. Entries say what is committed once the superblock has `visible`; the superblock itself has `seq_count`.
    fn encode(&self, blocks: Range<u64>, visible: Epoch, seq_count: Epoch, buf: &mut IoBuf) {
        let (layout, block) = (self.layout, self.layout.block_size.bytes());
        assert_eq!(buf.len(), layout.run_bytes(&blocks), "a buffer for these blocks");
        buf.fill(0);
        let skip = if blocks.start == 0 { SUPERBLOCK_LEN } else { 0 };
        // The superblock is as long as some entries.
        let first = (blocks.start * block + skip as u64 - SUPERBLOCK_LEN as u64) / ENTRY_LEN as u64;
        let entries = (first..layout.n_blocks).zip(buf[skip..].chunks_exact_mut(ENTRY_LEN));
        for (entry, chunk) in entries {
            let entry = self.index.entry(CacheBlock(entry as u32), visible, layout.block_sectors());
            chunk.copy_from_slice(&entry.encode());
        }
        if blocks.start == 0 {
            let superblock =
                Superblock { seq_count: seq_count.0, padding: self.padding, ..Superblock::fresh(layout) };
            buf[..SUPERBLOCK_LEN].copy_from_slice(&superblock.encode(true));
        }
    }
}

impl Layout {
    /// Adds the block of the metadata that holds an entry to `blocks`, which are in order.
    pub(super) fn add_metadata_block(&self, entry: u32, blocks: &mut Vec<u64>) {
        let block = (self.entry_offset(entry.into()) - self.start) / self.block_size.bytes();
        assert!(blocks.last().is_none_or(|&last| last <= block), "entries come in order");
        if blocks.last() != Some(&block) {
            blocks.push(block);
        }
    }

    /// Runs of at most [`PIECE_BYTES`] that hold these blocks of metadata.
    pub(super) fn metadata_runs(&self, blocks: Vec<u64>) -> Vec<Range<u64>> {
        let block = self.block_size.bytes();
        merge::runs(blocks, GAP_BYTES / block, PIECE_BYTES / block)
    }

    /// Bytes of a run of blocks of metadata.
    pub(super) fn run_bytes(&self, run: &Range<u64>) -> usize {
        ((run.end - run.start) * self.block_size.bytes()) as usize
    }
}

impl Core {
    fn metadata(&self) -> Metadata<'_> {
        let (device, pieces, padding) = (&self.cache, &self.workspaces.local, *self.padding.lock());
        Metadata { device, pieces, layout: &self.layout, padding, index: &self.index }
    }

    /// Writes these runs of blocks of the metadata. Their entries say what is committed once the superblock has `visible`; the
    /// superblock itself keeps `seq_count`.
    pub(super) async fn write_entries(
        &self,
        runs: &[Range<u64>],
        visible: Epoch,
        seq_count: Epoch,
    ) -> Result<(), Kind> {
        assert!(seq_count <= visible, "entries of {visible} under a superblock of {seq_count}");
        let first = mutant::on("write_cache: write only the first run of metadata");
        let runs = if first { &runs[..runs.len().min(1)] } else { runs };
        for runs in runs.chunks(RUNS_AT_A_TIME) {
            let costs = runs.iter().map(|run| self.layout.run_bytes(run).next_multiple_of(ALIGNMENT));
            for batch in merge::batches(costs, BATCH_BYTES) {
                self.write_runs_of_entries(&runs[batch], visible, seq_count).await?;
            }
        }
        Ok(())
    }

    /// Writes these blocks of metadata at the same time.
    async fn write_runs_of_entries(
        &self,
        runs: &[Range<u64>],
        visible: Epoch,
        seq_count: Epoch,
    ) -> Result<(), Kind> {
        let lens: Vec<usize> = runs.iter().map(|run| self.layout.run_bytes(run)).collect();
        let mut answers = Vec::with_capacity(runs.len());
        let mut entries = 0;
        for (blocks, mut buf) in runs.iter().zip(self.workspaces.local.take_each(&lens).await) {
            let metadata = self.metadata();
            metadata.encode(blocks.clone(), visible, seq_count, &mut buf);
            entries += buf.len() / ENTRY_LEN;
            answers.push(metadata.write(blocks.start, buf, false));
            if entries >= ENTRIES_AT_A_TIME {
                self.give_way().await;
                entries = 0;
            }
        }
        join_all(answers).await.into_iter().try_for_each(|reply| reply.result)
    }

    /// Writes the superblock: from now on everything below `seq_count` is committed.
    pub(super) async fn write_superblock(&self, seq_count: Epoch) -> Result<(), Kind> {
        assert!(seq_count >= self.journal.visible(), "a superblock of {seq_count}");
        let metadata = self.metadata();
        let buf = metadata.encoded(0..1, seq_count, seq_count).await;
        metadata.write(0, buf, !mutant::on("write_cache: write the superblock without FUA")).await.result
    }
}
