//! Records on their way to the file: gathered in a buffer, then written by one I/O, or two where a segment is full in between.

use std::sync::Arc;

use spillway_core::{IoBuf, Kind, mutant};

use super::format::{Layout, RECORD_BYTES_MAX, ROOM_MIN, Record, RecordCodec, UNIT, record_crc};
use super::segments::space::Taker;
use super::segments::streams::{OpenSegment, SegmentClaim, WriteStream, tail_bytes};
use super::store::{Count, Location, Owner, Spilled, Store};

/// Bytes of a batch in segments of the usual size.
const BATCH_BYTES: usize = 1 << 20;

/// Bytes of a batch: a quarter of a segment where these are small.
pub(super) fn batch_bytes(layout: &Layout) -> usize {
    BATCH_BYTES.min(layout.segment_bytes() / 4)
}

/// Bytes that a batch takes beside its buffer, where its owner keeps so many for each record.
pub(super) fn batch_overhead(layout: &Layout, kept: usize) -> usize {
    // In the batch, and in the claim that is written.
    batch_bytes(layout) / ROOM_MIN * (2 * size_of::<Record>() + kept)
}

/// Records that are gathered. Dropped, nothing was written.
pub struct Batch {
    store: Arc<Store>,
    stream: WriteStream,
    buf: IoBuf,
    used: usize,
    /// Their checksums are made once their places are known.
    records: Vec<Record>,
}

impl Store {
    /// An empty batch, once there is a buffer for it.
    pub async fn batch(self: &Arc<Self>) -> Batch {
        let buf = self.workspaces.batches.take(batch_bytes(self.layout())).await;
        Batch::new(self.clone(), WriteStream::Content, buf)
    }
}

impl Batch {
    pub(super) fn new(store: Arc<Store>, stream: WriteStream, buf: IoBuf) -> Self {
        let records = Vec::with_capacity(buf.len() / ROOM_MIN);
        Self { store, stream, buf, used: 0, records }
    }

    /// Records in it.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of these.
    pub fn bytes(&self) -> u64 {
        self.used as u64
    }

    /// Adds a record of `slot`, at most [`RECORD_BYTES_MAX`] bytes, which are copied. False where it does not fit: then the batch is to be
    /// written first.
    #[must_use]
    pub fn push(&mut self, slot: u32, codec: RecordCodec, bytes: &[u8]) -> bool {
        let Some(room) = self.room(bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.keep(slot, codec, bytes.len());
        true
    }

    /// Room for a record of up to `len` bytes, which is filled and then kept. `None` where it does not fit: then the batch is to be written
    /// first.
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let fits = self.used + len <= self.buf.len() && self.records.len() < self.records.capacity();
        fits.then(|| &mut self.buf[self.used..self.used + len])
    }

    /// Adds the record that lies in the first `len` bytes of the room.
    pub fn keep(&mut self, slot: u32, codec: RecordCodec, len: usize) {
        let least = self.store.layout().segment_bytes() / 4;
        assert!((1..=RECORD_BYTES_MAX.min(least)).contains(&len), "a record of {len} bytes");
        assert!(self.used + len <= self.buf.len(), "a record of {len} bytes in its room");
        self.used += len;
        self.records.push(Record { slot, crc: 0, len: len as u16, codec });
    }

    /// Writes the records in their order. Once one has reached the file, `publish` has its slot name it, by the record's index; false
    /// where the slot is not to name it after all. Returns how many have reached the file, and why the others have not.
    ///
    /// [`Kind::NoSpace`]: the file is full, also after cleaning, or the host's file system is. [`Kind::Io`]: the write failed, or too
    /// many have. [`Kind::ShuttingDown`]: the file was stopped.
    pub async fn write(
        mut self,
        owner: &impl Owner,
        mut publish: impl FnMut(usize, Spilled) -> bool,
    ) -> (usize, Result<(), Kind>) {
        let mut done = 0;
        while done < self.records.len() {
            let claim = self.claim(done, owner).await;
            // Not the file itself is full then.
            let on_host = claim.is_ok() || self.store.space.has_room(self.stream.taker());
            let written = match claim {
                Ok(claim) => self.write_claim(done, claim, &mut publish).await,
                Err(kind) => Err(kind),
            };
            match written {
                Ok(count) => done += count,
                // Boxed, because the cleaner writes batches itself.
                Err(Kind::NoSpace)
                    if self.stream == WriteStream::Content
                        && Box::pin(self.store.give_up_copies(owner)).await
                        || on_host && self.store.waits_for_room().await => {}
                Err(kind) => {
                    let full = kind == Kind::NoSpace && self.stream == WriteStream::Content;
                    self.store.add(Count::Full, u64::from(full));
                    return (done, Err(kind));
                }
            }
        }
        assert_eq!(self.used, 0, "every byte belongs to a record");
        (done, Ok(()))
    }

    /// Claims a stretch for the records from `done` on, or the first of them.
    async fn claim(&self, done: usize, owner: &impl Owner) -> Result<Claimed, Kind> {
        let (store, records) = (&self.store, &self.records[done..]);
        let try_claim = || {
            let lens = records.iter().map(|record| usize::from(record.len));
            let add = |claim: &SegmentClaim| store.segments.add(claim.segment, claim.room);
            let claim = store.streams.claim(store.layout(), self.stream, lens, add)?;
            let pads = records[..claim.count].iter().map(|record| Record::pad(record.len)).collect();
            Some(Claimed { store: store.clone(), live: claim.room, records: pads, claim })
        };
        loop {
            store.check()?;
            if let Some(claimed) = try_claim() {
                return Ok(claimed);
            }
            let _turn = store.opening[self.stream as usize].hold().await;
            if let Some(claimed) = try_claim() {
                return Ok(claimed);
            }
            store.open_next(self.stream, owner).await?;
        }
    }

    /// Writes the records of a claim and publishes them.
    async fn write_claim(
        &mut self,
        done: usize,
        mut claimed: Claimed,
        publish: &mut impl FnMut(usize, Spilled) -> bool,
    ) -> Result<usize, Kind> {
        let SegmentClaim { segment, seq, at, count, bytes, pad, .. } = claimed.claim;
        let records = &mut self.records[done..done + count];
        set_checksums(records, &self.buf[..bytes], seq);
        let mut buf = std::mem::take(&mut self.buf);
        let (len, whole) = (bytes + pad, buf.len());
        assert!(
            bytes <= self.used && len <= whole,
            "{bytes} bytes and a pad of {pad}, of {} in {whole}",
            self.used
        );
        // A pad holds what is behind it, or zeroes.
        let end = self.used.min(len);
        buf[end..len].fill(0);
        buf.narrow(0, len);
        let (result, mut buf) = match self.stream {
            WriteStream::Content => self.store.write_at(segment, at, buf).await,
            // It has few segments, and each try in another place would use some of one up.
            WriteStream::Cleaner => self.store.write_patiently(segment, at, buf).await,
        };
        buf.unnarrow(0, whole);
        self.buf = buf;
        if !mutant::on("spill: take a failed write for done") {
            result?;
        }
        self.buf.copy_within(bytes..self.used, 0);
        self.used -= bytes;
        let mut offset = at as u32;
        for (index, &record) in (0..).zip(&*records) {
            claimed.records[index] = record;
            let spilled = Spilled { at: Location { segment, offset }, record };
            offset += u32::from(record.len);
            let named = publish(done + index, spilled);
            if named && !mutant::on("spill: free the room of what is named") {
                let room = spilled.room();
                assert!(
                    room <= claimed.live,
                    "a record of {room} in what is left of a claim: {}",
                    claimed.live
                );
                claimed.live -= room;
            }
        }
        if self.stream == WriteStream::Content {
            self.store.add(Count::RecordsWritten, count as u64);
        }
        Ok(count)
    }
}

/// Sets the checksums of the records of a claim in segment number `seq`, which are these `bytes`.
fn set_checksums(records: &mut [Record], mut bytes: &[u8], seq: u64) {
    for record in records {
        let own;
        (own, bytes) = bytes.split_at(record.len.into());
        record.crc = record_crc(seq, record.slot, record.codec, own);
    }
    assert!(bytes.is_empty(), "each byte of the claim belongs to a record");
}

/// A claim under way. Whatever happens to it, its segment learns what it holds, and that it has ended.
struct Claimed {
    store: Arc<Store>,
    claim: SegmentClaim,
    /// Room of records that no slot names.
    live: u32,
    /// What the summary says: pads until they are written.
    records: Vec<Record>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let pad = (self.claim.pad > 0).then(|| Record::pad(self.claim.pad as u16));
        if self.live > 0 {
            self.store.free(self.store.segments.release(self.claim.segment, self.live));
        }
        if self.store.streams.end(&self.claim, self.records.drain(..).chain(pad)) {
            self.store.queue_upkeep();
        }
    }
}

impl Store {
    /// Opens the next segment of a stream, after cleaning where that is needed. [`Kind::NoSpace`] too where the host has no room for the
    /// end of an earlier one: it would have none for this one, which would be used up in vain.
    async fn open_next(self: &Arc<Self>, stream: WriteStream, owner: &impl Owner) -> Result<(), Kind> {
        if self.streams.retry_owed() {
            self.queue_upkeep();
            self.settled.until(|| (!self.streams.are_closing()).then_some(())).await;
        }
        let taken = loop {
            match self.take(stream.taker()) {
                Some((segment, seq)) => break Taken { store: self, segment: Some(segment), seq },
                // Boxed, because the cleaner writes batches itself.
                None if stream == WriteStream::Content => Box::pin(self.make_room(owner)).await?,
                None => return Err(Kind::NoSpace),
            }
        };
        let tail = self.settled.until(|| self.tail()).await?;
        let segment = taken.segment.expect("it is not open yet");
        self.reach(segment).await?;
        if self.stale.has(segment.into()) {
            self.zero_footer(segment).await?;
        }
        if self.streams.replace(stream, Some(taken.open(tail))) {
            self.queue_upkeep();
        }
        Ok(())
    }

    /// Takes a free segment, of which the last unit can be written as far as is known, if there is such a one.
    pub(super) fn take(&self, taker: Taker) -> Option<(u32, u64)> {
        self.space.take(taker, |segment| self.set_aside.has(segment))
    }

    /// A buffer for the end of the next segment; `None` while ends of others have them all.
    fn tail(&self) -> Option<Result<IoBuf, Kind>> {
        if self.streams.owe() {
            return Some(Err(Kind::NoSpace));
        }
        self.workspaces.tails.try_take(tail_bytes(self.layout())).map(Ok)
    }

    /// What its last user has left there is not to be taken for the footer of the next. Where it cannot be written, other segments go first.
    pub(super) async fn zero_footer(&self, segment: u32) -> Result<(), Kind> {
        let at = self.layout().segment_bytes() - UNIT;
        let written = self.write_at(segment, at, IoBuf::zeroes(UNIT)).await.0;
        if written.is_err_and(|kind| kind != Kind::NoSpace) {
            self.set_aside.mark(segment.into());
        }
        written
    }
}

/// A segment that was taken: opened, or given back.
struct Taken<'a> {
    store: &'a Store,
    segment: Option<u32>,
    seq: u64,
}

impl Taken<'_> {
    fn open(mut self, tail: IoBuf) -> OpenSegment {
        let segment = self.segment.take().expect("it is opened once");
        self.store.segments.open(segment, self.seq);
        self.store.stale.mark(segment.into());
        OpenSegment::new(segment, self.seq, tail)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(segment) = self.segment {
            self.store.space.give(segment, || ());
            self.store.settled.wake_all();
        }
    }
}
