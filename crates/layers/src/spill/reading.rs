//! Reading records by their places: neighbours in one I/O, each checked before its owner sees it.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use spillway_core::{IoBuf, Kind, mutant};

use super::format::{Record, UNIT, record_crc};
use super::store::{Count, Spilled, Store};

/// Bytes of one I/O.
pub(super) const READ_BYTES: usize = 256 << 10;

/// Bytes between two records that are read and thrown away, where that saves an I/O.
const GAP_BYTES: usize = 16 << 10;

/// Keeps the segment of a record from being freed, and the record readable.
pub struct Pinned {
    store: Arc<Store>,
    segment: u32,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.store.free(self.store.segments.unpin(self.segment));
    }
}

impl Store {
    /// Pins the segment of a record that a slot names. The caller holds the slot's lock, or else whatever keeps it from changing.
    pub fn pin(self: &Arc<Self>, spilled: &Spilled) -> Pinned {
        let segment = spilled.at.segment;
        self.segments.pin(segment);
        Pinned { store: self.clone(), segment }
    }

    /// Pins a closed segment, if anything of it is live.
    pub(super) fn pin_closed(self: &Arc<Self>, segment: u32) -> Option<Pinned> {
        self.segments.pin_closed(segment).then(|| Pinned { store: self.clone(), segment })
    }

    /// A slot names a record no longer.
    pub fn release(self: &Arc<Self>, spilled: &Spilled) {
        self.free(self.segments.release(spilled.at.segment, spilled.room()));
    }

    /// A record that a slot names is a clean copy of what the slot's owner has elsewhere: it may be asked to give it up.
    pub fn keep(&self, spilled: &Spilled) {
        self.segments.keep(spilled.at.segment, spilled.room());
    }

    /// A record is no clean copy any more.
    pub fn unkeep(&self, spilled: &Spilled) {
        self.segments.unkeep(spilled.at.segment, spilled.room());
    }

    /// Reads records, whose segments the caller has pinned, and has `take` look at each, by its index, in any order.
    ///
    /// [`Kind::Corrupt`]: it is not what was written, and was not when it was read again. Any other error is that of the file.
    pub async fn read(&self, wanted: &[Spilled], take: impl FnMut(usize, Result<&[u8], Kind>)) {
        let take = RefCell::new(take);
        self.add(Count::RecordsRead, wanted.len() as u64);
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by_key(|&index| wanted[index].at);
        let reads = order.chunk_by(|&a, &b| shares_io(&wanted[a], &wanted[b]));
        // Neighbours of neighbours may reach farther than one I/O.
        let reads = reads.flat_map(|run| cut(run, wanted));
        join_all(reads.map(|run| self.read_run(run, wanted, &take))).await;
    }

    async fn read_run(
        &self,
        run: &[usize],
        wanted: &[Spilled],
        take: &RefCell<impl FnMut(usize, Result<&[u8], Kind>)>,
    ) {
        let range = span(&wanted[run[0]], &wanted[run[run.len() - 1]]);
        assert!(range.end <= self.layout().segment_bytes(), "records lie within their segment");
        let segment = wanted[run[0]].at.segment;
        let buf = self.workspaces.reads.take(range.len()).await;
        self.add(Count::Reads, 1);
        let read = self.read_at(segment, range.start, buf).await;
        let mut wrong = Vec::new();
        for &index in run {
            match &read {
                Ok(buf) => match self.checked(&wanted[index], buf, range.start) {
                    Some(bytes) => (take.borrow_mut())(index, Ok(bytes)),
                    None => wrong.push(index),
                },
                Err(kind) => (take.borrow_mut())(index, Err(*kind)),
            }
        }
        // Reading again takes its room.
        drop(read);
        for index in wrong {
            let again = self.read_again(&wanted[index]).await;
            (take.borrow_mut())(index, again.as_deref().map_err(|kind| *kind));
        }
    }

    /// Reads a record once more that was not what was written: what a cable has spoiled is whole in the file. [`Kind::Corrupt`] where it is
    /// not.
    pub(super) async fn read_again(&self, spilled: &Spilled) -> Result<IoBuf, Kind> {
        let (range, start) = (span(spilled, spilled), spilled.start());
        let buf = self.workspaces.reads.take(range.len()).await;
        self.add(Count::Reads, 1);
        let mut buf = self.read_at(spilled.at.segment, range.start, buf).await?;
        if self.checked(spilled, &buf, range.start).is_none() {
            self.add(Count::Mismatches, 1);
            return Err(Kind::Corrupt);
        }
        buf.narrow(start - range.start, spilled.record.len.into());
        Ok(buf)
    }

    /// The bytes of a record in `buf`, which begins at byte `start` of its segment; `None` where they are not what was written.
    pub(super) fn checked<'b>(&self, spilled: &Spilled, buf: &'b IoBuf, start: usize) -> Option<&'b [u8]> {
        assert!(spilled.start() >= start, "the record lies in what was read");
        let bytes = &buf[spilled.start() - start..spilled.end() - start];
        let (seq, Record { slot, crc, codec, .. }) = (self.segments.seq(spilled.at.segment), spilled.record);
        let sound = record_crc(seq, slot, codec, bytes) == crc;
        (sound || mutant::on("spill: skip the checksum")).then_some(bytes)
    }
}

/// Whether one I/O may read a record and the one behind it.
fn shares_io(a: &Spilled, b: &Spilled) -> bool {
    a.at.segment == b.at.segment && b.start() <= a.end() + GAP_BYTES
}

/// The bytes of their segment that hold two records and what lies between them, in whole units.
pub(super) fn span(first: &Spilled, last: &Spilled) -> Range<usize> {
    first.start() / UNIT * UNIT..last.end().next_multiple_of(UNIT)
}

/// Cuts a run of neighbours into runs of at most [`READ_BYTES`].
fn cut<'r>(run: &'r [usize], wanted: &'r [Spilled]) -> impl Iterator<Item = &'r [usize]> {
    let mut rest = run;
    std::iter::from_fn(move || {
        let fits = |&last: &usize| span(&wanted[rest[0]], &wanted[last]).len() <= READ_BYTES;
        let (first, behind) = rest.split_at(rest.iter().take_while(|last| fits(last)).count());
        rest = behind;
        (!first.is_empty()).then_some(first)
    })
}
