//! Closing segments that are full, and punching those of which nothing is left, in the background.

use std::sync::Arc;

use spillway_core::{ByteRange, Op, Place, Request, mutant, task};

use super::segments::ToFree;
use super::store::Store;
use super::streams::OpenSegment;

impl Store {
    /// Has the upkeep look at what is to be closed and freed.
    pub(super) fn queue_upkeep(self: &Arc<Self>) {
        if self.upkeep.queue() {
            let store = self.clone();
            self.env.spawn(Place::Background, task(move || store.keep_up()));
        }
    }

    async fn keep_up(self: Arc<Self>) {
        loop {
            if let Some(sealed) = self.streams.next_to_close() {
                self.close(sealed).await;
            } else if let Some(segment) = self.freeing.next(0) {
                self.punch(ToFree(segment as u32)).await;
            } else if !self.upkeep.again() {
                return;
            }
        }
    }

    /// Writes the end of a segment. One that could not be written has no summary: it cannot be cleaned, but read.
    async fn close(self: &Arc<Self>, sealed: OpenSegment) {
        let segment = sealed.segment;
        let tail = sealed.into_tail(self.superblock.low_uuid());
        let at = self.layout().segment_bytes() - tail.len();
        let (result, _) = self.write_at(segment, at, tail).await;
        if result.is_err() {
            self.set_aside(segment);
        }
        self.free(self.segments.close(segment));
        self.streams.closed();
        self.settled.wake_all();
    }

    /// Gives the room of a segment back to the host, then the segment to who takes it next.
    async fn punch(&self, to_free: ToFree) {
        let ToFree(segment) = to_free;
        self.freeing.unmark(segment.into());
        self.set_aside.unmark(segment.into());
        let late = mutant::on("spill: punch a segment after it is free");
        if !late {
            self.blank(segment).await;
        }
        self.space.give(segment, || self.segments.freed(to_free));
        self.settled.wake_all();
        if late {
            self.blank(segment).await;
        }
    }

    /// Where this fails, the host keeps the room, and the next user of the segment has it.
    async fn blank(&self, segment: u32) {
        let range =
            ByteRange::new(self.layout().segment_offset(segment), self.layout().segment_bytes() as u64);
        // What was zeroed has no footer any more. Of what was discarded nobody knows: the footer is zeroed here, where nobody waits for it.
        let zeroes = self.device.geometry().fast_zeroes;
        let op = if zeroes { Op::WriteZeroes } else { Op::Discard };
        let blanked = self.device.submit(Request::bare(op, range)).await.result.is_ok();
        if zeroes && blanked || self.zero_footer(segment).await.is_ok() {
            self.stale.unmark(segment.into());
        }
    }
}
