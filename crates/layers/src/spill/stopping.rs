//! A clean stop: open segments are closed, and a checkpoint says which records are live.
//!
//! Pages that were overwritten in memory leave records behind, so summaries alone do not tell.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Error, IoBuf, Kind, Request, mutant};

use super::batch::batch_bytes;
use super::format::{
    self, CheckpointEntry, CheckpointSpan, Contents, FOOTER_LEN, Footer, RecordCodec, Superblock, UNIT,
    read_tail,
};
use super::segments::SegmentState;
use super::segments::space::Taker;
use super::segments::streams::WriteStream;
use super::settings::codec_names;
use super::store::{Location, Owner, Store};

/// What a device is, every page of which is in its file.
pub struct WholeDevice {
    /// Its slots.
    pub slots: u64,
    /// Names of its codecs by number.
    pub codecs: Vec<String>,
}

impl Store {
    /// Ends the use of the file: afterwards nothing is written any more. The owner writes no batch meanwhile, and changes no slot. With `whole`,
    /// every page that it stores is in the file, which keeps them.
    ///
    /// Errors name what could not be written. The file is then as if its user had been killed.
    pub async fn stop(
        self: &Arc<Self>,
        owner: &impl Owner,
        whole: Option<&WholeDevice>,
    ) -> Result<(), Error> {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(length) = &self.length {
            length.rest().await;
        }
        for stream in [WriteStream::Content, WriteStream::Cleaner] {
            if self.streams.replace(stream, None) {
                self.queue_upkeep();
            }
        }
        if self.streams.retry_owed() {
            self.queue_upkeep();
        }
        self.settled.until(|| (!self.streams.are_closing()).then_some(())).await;
        for segment in 0..self.segments.count() {
            if self.segments.look(segment).state == SegmentState::Freeing {
                self.has_left(segment).await;
            }
        }
        let stop = async {
            let written = self.write_checkpoint(owner, whole.is_some()).await;
            let checkpoint =
                written.or_else(|kind| if whole.is_some() { Err(kind) } else { self.without(kind) })?;
            if !mutant::on("spill: say that it is stopped before the last flush") {
                self.device.flush().await?;
            }
            let left = self.left_with(checkpoint, whole);
            self.write_superblocks(&left).await
        };
        stop.await.map_err(|kind| {
            let name = &self.superblock.name;
            Error::new(kind, format!("the checkpoint of '{name}' cannot be written to its spill file"))
        })
    }

    /// Closed segments of which something is needed and whose summary cannot be read, so that no checkpoint can name it.
    pub async fn unnameable(&self) -> Vec<u32> {
        let mut found = Vec::new();
        for segment in 0..self.segments.count() {
            let look = self.segments.look(segment);
            let needed = look.state == SegmentState::Closed && look.needed() > 0;
            if needed && self.read_summary(segment).await.is_none() {
                found.push(segment);
            }
        }
        found
    }

    fn left_with(&self, checkpoint: CheckpointSpan, whole: Option<&WholeDevice>) -> Superblock {
        let left = Superblock { state: format::FileState::Stopped, checkpoint, ..self.superblock.clone() };
        match whole {
            None => left,
            Some(WholeDevice { slots, codecs }) => Superblock {
                state: format::FileState::Kept,
                slots: *slots,
                codecs: codec_names(codecs),
                ..left
            },
        }
    }

    /// What stands for a checkpoint that could not be written: none, where there was no room. A full disk is no reason to leave a file that
    /// nobody uses as one in use.
    fn without(&self, kind: Kind) -> Result<CheckpointSpan, Kind> {
        if kind != Kind::NoSpace {
            return Err(kind);
        }
        let name = &self.superblock.name;
        tracing::warn!(
            "{name}: there is no room for the checkpoint of the spill file, which holds nothing now"
        );
        Ok(CheckpointSpan::default())
    }

    /// Writes a superblock and its copy, durably.
    pub(super) async fn write_superblocks(&self, superblock: &Superblock) -> Result<(), Kind> {
        for at in self.superblocks() {
            self.write_superblock(at, superblock).await?;
        }
        Ok(())
    }

    /// Writes one of them; at a stop, as what has no other place.
    pub(super) async fn write_superblock(&self, at: u64, superblock: &Superblock) -> Result<(), Kind> {
        let write = async || {
            let mut buf = self.workspaces.batches.take(UNIT).await;
            buf.copy_from_slice(&superblock.encode());
            self.device.submit(Request::write(at, buf).with_fua()).await.result
        };
        self.insist(write).await
    }

    /// Where the superblock lies, and its copy.
    pub(super) fn superblocks(&self) -> [u64; 2] {
        [0, self.layout().copy_offset()]
    }

    /// Writes which records slots name, segment after segment, of `all` of them or of those that can be read.
    async fn write_checkpoint(
        self: &Arc<Self>,
        owner: &impl Owner,
        all: bool,
    ) -> Result<CheckpointSpan, Kind> {
        let (mut span, mut page) = (CheckpointSpan::default(), None);
        for segment in 0..self.segments.count() {
            let look = self.segments.look(segment);
            if look.state != SegmentState::Closed || look.needed() == 0 {
                continue;
            }
            let Some(entry) = self.live_records(segment, owner).await else {
                if all {
                    return Err(Kind::Io);
                }
                let name = &self.superblock.name;
                tracing::warn!(
                    "{name}: segment {segment} of the spill file cannot be read: the checkpoint leaves its pages out"
                );
                continue;
            };
            let page = match &mut page {
                Some(page) if Page::has_room(page, &entry) => page,
                page => {
                    // First, for its buffer may be the only one.
                    if let Some(full) = page.take() {
                        full.finish().await?;
                    }
                    page.insert(self.next_page(&mut span).await?)
                }
            };
            page.push(&entry).await?;
        }
        if let Some(last) = page {
            last.finish().await?;
        }
        Ok(span)
    }

    async fn next_page(self: &Arc<Self>, span: &mut CheckpointSpan) -> Result<Page<'_>, Kind> {
        let (segment, seq) = self.take(Taker::Checkpoint).expect("its segments are in reserve");
        self.insist(async || self.reach(segment).await).await?;
        self.segments.open(segment, seq);
        span.seq = if span.segments == 0 { seq } else { span.seq };
        span.segments += 1;
        let buf = self.workspaces.batches.take(batch_bytes(self.layout())).await;
        Ok(Page { store: self, segment, seq, buf, written: 0, used: 0, entries: 0, crc: 0 })
    }

    /// Which records of a segment slots name; `None` where its summary is not to be had.
    async fn live_records(&self, segment: u32, owner: &impl Owner) -> Option<CheckpointEntry> {
        let tail = self.read_summary(segment).await?;
        let (footer, records) = read_tail(&tail)?;
        let mut entry = CheckpointEntry::new(segment, footer.seq, footer.records);
        let mut offset = 0;
        for (index, record) in records.enumerate() {
            let at = Location { segment, offset };
            offset += u32::from(record.len);
            if record.codec != RecordCodec::PAD && owner.names(record.slot, at) {
                entry.set(index);
            }
        }
        Some(entry)
    }
}

/// A segment of the checkpoint that is being written.
struct Page<'a> {
    store: &'a Store,
    segment: u32,
    seq: u64,
    /// What is not written yet: its first `used` bytes.
    buf: IoBuf,
    used: usize,
    written: usize,
    entries: u32,
    crc: u32,
}

impl Page<'_> {
    fn has_room(&self, entry: &CheckpointEntry) -> bool {
        let data = self.written + self.used + CheckpointEntry::bytes(entry.records);
        data <= self.store.layout().segment_bytes() - UNIT
    }

    async fn push(&mut self, entry: &CheckpointEntry) -> Result<(), Kind> {
        let mut encoded = vec![0; CheckpointEntry::bytes(entry.records)];
        entry.encode(&mut encoded);
        self.crc = crc32c::crc32c_append(self.crc, &encoded);
        self.entries += 1;
        let mut rest = &encoded[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(self.buf.len() - self.used));
            self.buf[self.used..][..now.len()].copy_from_slice(now);
            self.used += now.len();
            rest = later;
            if self.used == self.buf.len() {
                self.write().await?;
            }
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), Kind> {
        let (len, whole) = (self.used.next_multiple_of(UNIT), self.buf.len());
        let footer = self.store.layout().segment_bytes() - UNIT;
        assert!(self.written + len <= footer, "{len} bytes at {} end before the footer", self.written);
        let mut buf = std::mem::take(&mut self.buf);
        buf[self.used..len].fill(0);
        buf.narrow(0, len);
        let (result, mut buf) = self.store.write_patiently(self.segment, self.written, buf).await;
        buf.unnarrow(0, whole);
        self.buf = buf;
        self.written += self.used;
        self.used = 0;
        result
    }

    async fn finish(mut self) -> Result<(), Kind> {
        if self.used > 0 {
            self.write().await?;
        }
        let footer = Footer {
            low_uuid: self.store.superblock.low_uuid(),
            seq: self.seq,
            records: self.entries,
            data_bytes: self.written as u32,
            contents: Contents::Checkpoint,
            segment: self.segment,
            summary_crc: self.crc,
        };
        let mut last = std::mem::take(&mut self.buf);
        last.narrow(0, UNIT);
        last.fill(0);
        last[UNIT - FOOTER_LEN..].copy_from_slice(&footer.encode());
        self.store.write_patiently(self.segment, self.store.layout().segment_bytes() - UNIT, last).await.0
    }
}
