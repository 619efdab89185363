//! A file that keeps what its device stored is taken with that: its checkpoint says which records are live.

use spillway_core::{Kind, WorkKind, Works};

use crate::spill::batch::batch_bytes;
use crate::spill::format::{
    CheckpointEntry, CheckpointSpan, Contents, FOOTER_LEN, Footer, RecordCodec, SEQS, UNIT, read_tail,
};
use crate::spill::segments::SegmentState;
use crate::spill::store::{Count, Location, Spilled, Store};

/// Is handed each record that the file keeps. [`Kind::Corrupt`] where it cannot be one of the device's; any other error is that of memory.
pub(super) type RecordVisitor<'a> = &'a mut dyn FnMut(Spilled) -> Result<(), Kind>;

impl Store {
    /// Hands the live records of the checkpoint to `keep`, and takes their segments as they are. Writes nothing.
    ///
    /// [`Kind::Corrupt`]: the file is not as it was written. Any other error is that of reading, or of `keep`.
    pub(super) async fn restore(
        &self,
        span: CheckpointSpan,
        keep: RecordVisitor<'_>,
        works: &Works,
    ) -> Result<(), Kind> {
        match self.restore_segments(span, keep, works).await {
            // What could not be read is missed.
            Err(Kind::Corrupt) if self.count(Count::ReadErrors) > 0 => Err(Kind::Io),
            restored => restored,
        }
    }

    async fn restore_segments(
        &self,
        span: CheckpointSpan,
        keep: RecordVisitor<'_>,
        works: &Works,
    ) -> Result<(), Kind> {
        // Each segment is looked at, and then those of the checkpoint are read.
        let (bytes, count) = (self.layout().segment_bytes() as u64, u64::from(self.segments.count()));
        let work = works.begin(WorkKind::Restore, Some(2 * count * bytes));
        let pages = self.find_segments(span, |segment| work.reach(u64::from(segment) * bytes)).await?;
        let mut reached = count;
        for segment in pages {
            let mut entries = Entries::of(self, segment.ok_or(Kind::Corrupt)?).await?;
            while let Some(entry) = entries.next().await? {
                self.restore_segment(&entry, keep).await?;
                reached += 1;
                work.reach(reached * bytes);
            }
        }
        Ok(())
    }

    /// Notes the sequence number of each segment that has one, and calls `looks` before each. Returns the segments of a checkpoint in their
    /// order.
    async fn find_segments(
        &self,
        span: CheckpointSpan,
        looks: impl Fn(u32),
    ) -> Result<Vec<Option<u32>>, Kind> {
        let mut pages = vec![None; span.segments as usize];
        let mut newest = 0;
        for segment in 0..self.segments.count() {
            looks(segment);
            let footer = match self.read_footer(segment).await {
                Ok(Some(footer)) => footer,
                Ok(None) => continue,
                // Of one that is needed it will be missed.
                Err(_) => {
                    self.stale.mark(segment.into());
                    continue;
                }
            };
            self.segments.found(segment, footer.seq);
            // Its next user may write less than all of it.
            self.stale.mark(segment.into());
            newest = newest.max(footer.seq);
            if let Some(page) = footer.seq.checked_sub(span.seq)
                && let Some(page) = pages.get_mut(page as usize)
                && footer.contents == Contents::Checkpoint
            {
                *page = Some(segment);
            }
        }
        self.space.number_from(newest + 1);
        Ok(pages)
    }

    /// The footer that a segment was closed with since the file was emptied, if it was.
    async fn read_footer(&self, segment: u32) -> Result<Option<Footer>, Kind> {
        let (bytes, start) = (self.layout().segment_bytes(), self.layout().segment_offset(segment));
        if start + bytes as u64 > self.device.geometry().size {
            return Ok(None);
        }
        let buf = self.read_metadata(segment, bytes - UNIT, UNIT, &self.workspaces.cleaner).await?;
        let footer = Footer::decode(buf.last_chunk::<FOOTER_LEN>().expect("a unit was read"));
        let ours = |footer: &Footer| {
            footer.low_uuid == self.superblock.low_uuid()
                && footer.segment == segment
                && (1..SEQS - 1).contains(&footer.seq)
        };
        Ok(footer.filter(ours))
    }

    async fn restore_segment(&self, entry: &CheckpointEntry, keep: RecordVisitor<'_>) -> Result<(), Kind> {
        let &CheckpointEntry { segment, seq, records, .. } = entry;
        let known = segment < self.segments.count() && self.segments.seq(segment) == seq;
        let tail = if known { self.read_summary(segment).await } else { None };
        let (footer, summary) = tail.as_deref().and_then(read_tail).ok_or(Kind::Corrupt)?;
        if footer.records != records {
            return Err(Kind::Corrupt);
        }
        let (mut offset, mut room) = (0, 0);
        for (index, record) in summary.enumerate() {
            let at = Location { segment, offset };
            offset += u32::from(record.len);
            if !entry.has(index) {
                continue;
            }
            let spilled = Spilled { at, record };
            if !self.is_readable(record.codec) {
                return Err(Kind::Corrupt);
            }
            keep(spilled)?;
            room += spilled.room();
        }
        if room > 0 {
            self.space.restore(segment);
            self.segments.restore(segment, room);
        }
        Ok(())
    }

    /// Whether records have this codec.
    fn is_readable(&self, codec: RecordCodec) -> bool {
        let named = |number: u8| self.superblock.codecs[usize::from(number)][0] != 0;
        codec == RecordCodec::RAW || codec.number().is_some_and(named)
    }

    /// Gives the room of the segments that are free, and of which the file still has something, back to the host.
    pub(super) async fn punch_free(&self) {
        let mut next = 0;
        while let Some(segment) = self.stale.next(next) {
            next = segment + 1;
            if self.segments.look(segment as u32).state == SegmentState::Free {
                self.blank(segment as u32).await;
            }
        }
    }
}

/// The entries of a segment of a checkpoint, as they are read.
struct Entries<'a> {
    store: &'a Store,
    segment: u32,
    footer: Footer,
    /// Bytes of the data that were read, and their crc.
    read: usize,
    crc: u32,
    /// What was read last; entries begin at `at`.
    data: Vec<u8>,
    at: usize,
    count: u32,
}

impl<'a> Entries<'a> {
    async fn of(store: &'a Store, segment: u32) -> Result<Self, Kind> {
        let footer = store.read_footer(segment).await?.ok_or(Kind::Corrupt)?;
        if footer.data_bytes as usize > store.layout().segment_bytes() - UNIT {
            return Err(Kind::Corrupt);
        }
        Ok(Self { store, segment, footer, read: 0, crc: 0, data: Vec::new(), at: 0, count: 0 })
    }

    /// The next entry; after the last one the whole is known to be as it was written.
    async fn next(&mut self) -> Result<Option<CheckpointEntry>, Kind> {
        loop {
            if self.count < self.footer.records
                && let Some((entry, rest)) = CheckpointEntry::decode(&self.data[self.at..])
            {
                self.at = self.data.len() - rest.len();
                self.count += 1;
                return Ok(Some(entry));
            }
            if self.read == self.footer.data_bytes as usize {
                let sound = self.crc == self.footer.summary_crc;
                let whole = self.count == self.footer.records && self.at == self.data.len();
                return if sound && whole { Ok(None) } else { Err(Kind::Corrupt) };
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Result<(), Kind> {
        let len = batch_bytes(self.store.layout()).min(self.footer.data_bytes as usize - self.read);
        let (store, whole) = (self.store, len.next_multiple_of(UNIT));
        let buf = store.read_metadata(self.segment, self.read, whole, &store.workspaces.batches).await?;
        self.crc = crc32c::crc32c_append(self.crc, &buf[..len]);
        self.data.drain(..std::mem::take(&mut self.at));
        self.data.extend_from_slice(&buf[..len]);
        self.read += len;
        Ok(())
    }
}
