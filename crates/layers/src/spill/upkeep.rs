//! Closing segments that are full, punching those of which nothing is left, and making room for those to come, in the background.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{ByteRange, Kind, Op, Place, Request, mutant, task};

use super::length::Length;
use super::segments::ToFree;
use super::segments::streams::{OpenSegment, Tail};
use super::store::Store;

/// Segments by which a file is made longer,
const STEP: u64 = 64;

/// once fewer than these lie behind the one that is opened.
const AHEAD: u64 = 32;

impl Store {
    /// Sees to it that the file has `segment`, which is about to be opened, and has the upkeep see to those behind it.
    pub(super) async fn reach(self: &Arc<Self>, segment: u32) -> Result<(), Kind> {
        let (Some(length), shift) = (&self.length, self.layout().shift) else { return Ok(()) };
        let end = self.layout().segment_offset(segment) + (1 << shift);
        if length.is_short_of(end) {
            length.reach(end, STEP << shift).await?;
        }
        let ahead = end + (AHEAD << shift);
        if length.is_short_of(ahead) && !self.stopped.load(Ordering::Relaxed) {
            length.want(ahead);
            self.queue_upkeep();
        }
        Ok(())
    }

    fn wanted_length(&self) -> Option<&Length> {
        self.length.as_ref().filter(|length| length.is_wanted())
    }

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
            } else if let Some(tail) = self.streams.next_again() {
                self.close_again(tail).await;
            } else if let Some(segment) = self.freeing.next(0) {
                self.punch(ToFree(segment as u32)).await;
            } else if let Some(length) = self.wanted_length() {
                length.catch_up(STEP << self.layout().shift).await;
            } else if !self.upkeep.again() {
                return;
            }
        }
    }

    async fn close(self: &Arc<Self>, sealed: OpenSegment) {
        let segment = sealed.segment;
        let owed = self.write_tail(sealed.into_tail(self.superblock.low_uuid())).await;
        self.free(self.segments.close(segment));
        self.streams.closed(owed);
        self.settled.wake_all();
    }

    /// Writes an end that found no room, unless its segment was freed meanwhile.
    async fn close_again(self: &Arc<Self>, tail: Tail) {
        let pinned = self.pin_closed(tail.segment);
        let is_there = pinned.is_some() && self.segments.seq(tail.segment) == tail.seq;
        let owed = if is_there { self.write_tail(tail).await } else { None };
        drop(pinned);
        self.streams.closed(owed);
        self.settled.wake_all();
    }

    /// Writes the end of a segment. One that could not be written has no summary: it cannot be cleaned, but read. An end that found no
    /// room is returned.
    async fn write_tail(&self, Tail { segment, seq, mut buf }: Tail) -> Option<Tail> {
        let at = self.layout().segment_bytes() - buf.len();
        let write = async || {
            // That may make room.
            while let Some(freed) = self.freeing.next(0) {
                self.punch(ToFree(freed as u32)).await;
            }
            let (result, back) = self.write_at(segment, at, std::mem::take(&mut buf)).await;
            buf = back;
            result
        };
        let written = self.insist(write).await;
        match written {
            Ok(()) => self.set_aside.unmark(segment.into()),
            Err(_) => self.set_aside(segment),
        }
        (written == Err(Kind::NoSpace)).then_some(Tail { segment, seq, buf })
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
    pub(super) async fn blank(&self, segment: u32) {
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
