//! Segments that take records: one open for new content, one for the cleaner, and those that are full but still written to.
//!
//! A claim is a stretch of an open segment for the records of one I/O. It ends once the I/O has, and its records were published; a
//! segment that is sealed, because no more fits or the device stops, is closed after its last claim. Where its end finds no room on the
//! host, that is owed: it is written again before the next segment is opened, and at the stop.

use spillway_core::IoBuf;
use spillway_core::sync::Mutex;

use super::space::Taker;
use crate::spill::format::{
    Contents, FOOTER_LEN, Footer, Layout, RECORD_LEN, ROOM_MIN, Record, UNIT, finish_tail,
};

/// Room that a record of `len` bytes takes, its part of the summary included.
pub(crate) fn room_of(len: usize) -> u32 {
    (len + RECORD_LEN).max(ROOM_MIN) as u32
}

/// Who writes to an open segment. Each has its own, so that a slot's contents are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStream {
    Content,
    Cleaner,
}

impl WriteStream {
    pub(crate) const fn taker(self) -> Taker {
        match self {
            WriteStream::Content => Taker::Content,
            WriteStream::Cleaner => Taker::Cleaner,
        }
    }
}

/// A segment that is written to.
pub(crate) struct OpenSegment {
    pub(crate) segment: u32,
    pub(crate) seq: u64,
    /// Where the next claim begins, in whole units.
    data_end: usize,
    records: usize,
    /// Room of the records.
    room: usize,
    claims: u32,
    /// The summary so far, and room for the footer.
    tail: IoBuf,
}

impl OpenSegment {
    /// `tail` holds the summary and the footer at their largest: [`tail_bytes`].
    pub(crate) fn new(segment: u32, seq: u64, tail: IoBuf) -> Self {
        Self { segment, seq, data_end: 0, records: 0, room: 0, claims: 0, tail }
    }

    /// Claims a stretch for as many of the records of these lengths as fit.
    fn claim(&mut self, layout: &Layout, lens: impl Iterator<Item = usize>) -> Option<SegmentClaim> {
        let mut claim = SegmentClaim {
            segment: self.segment,
            seq: self.seq,
            at: self.data_end,
            first: self.records,
            ..NOTHING
        };
        let mut room = 0;
        for len in lens {
            let (count, bytes) = (claim.count + 1, claim.bytes + len);
            let pad = bytes.next_multiple_of(UNIT) - bytes;
            let pad_room = if pad > 0 { room_of(pad) as usize } else { 0 };
            let tail = tail_len(self.records + count + 1);
            let fits = self.data_end + bytes + pad + tail <= layout.segment_bytes()
                && self.room + room + room_of(len) as usize + pad_room <= layout.segment_bytes();
            if !fits {
                break;
            }
            (claim.count, claim.bytes, claim.pad) = (count, bytes, pad);
            room += room_of(len) as usize;
        }
        if claim.count == 0 {
            return None;
        }
        claim.room = room as u32;
        self.data_end += claim.bytes + claim.pad;
        self.records += claim.records();
        self.room += room + if claim.pad > 0 { room_of(claim.pad) as usize } else { 0 };
        self.claims += 1;
        let end = self.data_end + tail_len(self.records);
        assert!(end <= layout.segment_bytes(), "segment {} takes {end} bytes with its summary", self.segment);
        Some(claim)
    }

    /// The end of the segment as it is to be written.
    pub(crate) fn into_tail(mut self, low_uuid: u64) -> Tail {
        assert_eq!(self.claims, 0, "segment {} is closed after its last claim", self.segment);
        let footer = Footer {
            low_uuid,
            seq: self.seq,
            records: self.records as u32,
            data_bytes: self.data_end as u32,
            contents: Contents::Pages,
            segment: self.segment,
            summary_crc: 0,
        };
        self.tail.narrow(0, tail_len(self.records));
        finish_tail(&mut self.tail, &footer);
        Tail { segment: self.segment, seq: self.seq, buf: self.tail }
    }
}

/// The end of a segment that is full.
pub(crate) struct Tail {
    pub(crate) segment: u32,
    pub(crate) seq: u64,
    pub(crate) buf: IoBuf,
}

/// Bytes of the end of a segment with so many records, in whole units.
pub(crate) const fn tail_len(records: usize) -> usize {
    (records * RECORD_LEN + FOOTER_LEN).next_multiple_of(UNIT)
}

/// Bytes of the longest end of a segment.
pub(crate) const fn tail_bytes(layout: &Layout) -> usize {
    tail_len(layout.records_max())
}

/// A stretch of an open segment.
#[derive(Debug)]
pub(crate) struct SegmentClaim {
    pub(crate) segment: u32,
    pub(crate) seq: u64,
    /// Its first byte in the segment.
    pub(crate) at: usize,
    /// Records that fit.
    pub(crate) count: usize,
    /// Bytes of these.
    pub(crate) bytes: usize,
    /// Bytes that fill up the last unit.
    pub(crate) pad: usize,
    /// Room of the records, the pad apart.
    pub(crate) room: u32,
    /// Place of the first record in the summary.
    first: usize,
}

const NOTHING: SegmentClaim =
    SegmentClaim { segment: 0, seq: 0, at: 0, count: 0, bytes: 0, pad: 0, room: 0, first: 0 };

impl SegmentClaim {
    fn records(&self) -> usize {
        self.count + usize::from(self.pad > 0)
    }
}

#[derive(Default)]
struct State {
    open: [Option<OpenSegment>; 2],
    /// Full, and to be closed once nobody writes to them.
    sealed: Vec<OpenSegment>,
    /// Being closed, or written again.
    closing: u32,
    /// Ends of closed segments that found no room on the host,
    owed: Vec<Tail>,
    /// and those of them that are to be written again.
    again: Vec<Tail>,
}

/// The segments of a file that are written to.
#[derive(Default)]
pub(crate) struct OpenSegments(Mutex<State>);

impl OpenSegments {
    /// Claims a stretch for as many of the next records as fit; `None` where not one does, or no segment is open.
    pub(crate) fn claim(
        &self,
        layout: &Layout,
        stream: WriteStream,
        lens: impl Iterator<Item = usize>,
        add: impl FnOnce(&SegmentClaim),
    ) -> Option<SegmentClaim> {
        let mut state = self.0.lock();
        let claim = state.open[stream as usize].as_mut()?.claim(layout, lens)?;
        add(&claim);
        Some(claim)
    }

    /// Ends a claim. True where its segment is to be closed now.
    #[must_use]
    pub(crate) fn end(&self, claim: &SegmentClaim, records: impl Iterator<Item = Record>) -> bool {
        let mut state = self.0.lock();
        let State { open, sealed, .. } = &mut *state;
        let mut all = open.iter_mut().flatten().chain(sealed);
        let segment = all.find(|open| open.segment == claim.segment).expect("a segment with claims is open");
        let places = segment.tail.chunks_exact_mut(RECORD_LEN).skip(claim.first);
        let count = places.zip(records).map(|(at, record)| at.copy_from_slice(&record.encode())).count();
        assert_eq!(count, claim.records(), "records of {claim:?}");
        assert!(segment.claims > 0, "a claim ends that has not begun: {claim:?}");
        segment.claims -= 1;
        let last = segment.claims == 0;
        last && state.sealed.iter().any(|sealed| sealed.segment == claim.segment)
    }

    /// Puts `next` in place of the open segment of `stream`, which is sealed. True where it is to be closed now.
    #[must_use]
    pub(crate) fn replace(&self, stream: WriteStream, next: Option<OpenSegment>) -> bool {
        let mut state = self.0.lock();
        let before = std::mem::replace(&mut state.open[stream as usize], next);
        let idle = before.as_ref().is_some_and(|before| before.claims == 0);
        state.sealed.extend(before);
        idle
    }

    /// Takes a sealed segment that nobody writes to: the caller closes it, then calls [`OpenSegments::closed`].
    pub(crate) fn next_to_close(&self) -> Option<OpenSegment> {
        let mut state = self.0.lock();
        let idle = state.sealed.iter().position(|sealed| sealed.claims == 0)?;
        state.closing += 1;
        Some(state.sealed.swap_remove(idle))
    }

    /// A segment was closed, or its end written again; its end is `owed` where that found no room.
    pub(crate) fn closed(&self, owed: Option<Tail>) {
        let mut state = self.0.lock();
        assert!(state.closing > 0, "a segment is closed that was not taken for that");
        state.closing -= 1;
        state.owed.extend(owed);
    }

    /// Whether a segment is sealed and not closed yet, or an owed end is to be written again.
    pub(crate) fn are_closing(&self) -> bool {
        let state = self.0.lock();
        state.closing > 0 || !state.sealed.is_empty() || !state.again.is_empty()
    }

    /// Whether an end of a segment found no room.
    pub(crate) fn owe(&self) -> bool {
        !self.0.lock().owed.is_empty()
    }

    /// Has the upkeep write the ends again that are owed. True where there are some.
    #[must_use]
    pub(crate) fn retry_owed(&self) -> bool {
        let state = &mut *self.0.lock();
        state.again.append(&mut state.owed);
        !state.again.is_empty()
    }

    /// Takes an end that is to be written again: the caller writes it, then calls [`OpenSegments::closed`].
    pub(crate) fn next_again(&self) -> Option<Tail> {
        let mut state = self.0.lock();
        let tail = state.again.pop()?;
        state.closing += 1;
        Some(tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::format::{RECORD_BYTES_MAX, RecordCodec, read_tail};

    const LAYOUT: Layout = Layout { shift: 16, segments: 4 };

    fn open() -> OpenSegment {
        OpenSegment::new(2, 9, IoBuf::new(tail_bytes(&LAYOUT)))
    }

    /// Whatever the lengths are: data and summary never meet, the summary fits its buffer, and room is what a segment has.
    #[test]
    fn claims_of_any_lengths_fill_a_segment_and_no_more() {
        let mut random = spillway_core::random::Random(1);
        for longest in [1, 20, 240, 4096, RECORD_BYTES_MAX] {
            for most in [1, 7, 1000] {
                let (mut open, mut records, mut room) = (open(), 0, 0);
                loop {
                    let lens: Vec<usize> = (0..1 + random.below(most))
                        .map(|_| 1 + random.below(longest as u64) as usize)
                        .collect();
                    let Some(claim) = open.claim(&LAYOUT, lens.iter().copied()) else { break };
                    let bytes: usize = lens[..claim.count].iter().sum();
                    assert_eq!((claim.bytes, (claim.bytes + claim.pad) % UNIT), (bytes, 0));
                    assert_eq!((claim.at, claim.first), (open.data_end - bytes - claim.pad, records));
                    records += claim.records();
                    room += claim.room as usize;
                    assert!(open.data_end + tail_len(open.records) <= LAYOUT.segment_bytes());
                    assert!(tail_len(open.records) <= open.tail.len() && room <= LAYOUT.segment_bytes());
                }
                let left = LAYOUT.segment_bytes() - open.data_end - tail_len(open.records);
                let few = longest.next_multiple_of(UNIT) + UNIT;
                let full = left <= few || open.room + longest + 2 * ROOM_MIN + UNIT > LAYOUT.segment_bytes();
                assert!(full, "{left} bytes are left, {} of room", open.room);
            }
        }
    }

    #[test]
    fn a_segment_is_closed_after_its_last_claim_and_says_what_it_holds() {
        let streams = OpenSegments::default();
        assert!(streams.claim(&LAYOUT, WriteStream::Content, [1].into_iter(), |_| ()).is_none());
        assert!(!streams.replace(WriteStream::Content, Some(open())));
        let claim = |lens: &[usize]| {
            streams.claim(&LAYOUT, WriteStream::Content, lens.iter().copied(), |_| ()).expect("it fits")
        };
        let (first, second) = (claim(&[4096]), claim(&[100, 200]));
        assert_eq!((first.at, first.pad, second.at, second.pad), (0, 0, 4096, 3796));
        let record = |len: usize| Record { slot: 5, codec: RecordCodec::RAW, ..Record::pad(len as u16) };
        let rest = [record(100), record(200), Record::pad(3796)];
        assert!(!streams.end(&second, rest.into_iter()), "it is open");
        assert!(!streams.replace(WriteStream::Content, None), "it has a claim");
        assert!(streams.next_to_close().is_none() && streams.are_closing());
        assert!(streams.end(&first, [record(4096)].into_iter()));
        let tail = streams.next_to_close().expect("it is sealed").into_tail(77);
        assert!(streams.are_closing());
        streams.closed(Some(tail));
        assert!(!streams.are_closing() && streams.next_to_close().is_none() && streams.owe());
        assert!(streams.retry_owed() && streams.are_closing() && !streams.owe());
        let tail = streams.next_again().expect("it found no room");
        assert!(streams.are_closing());
        streams.closed(None);
        assert!(!streams.are_closing() && !streams.owe() && !streams.retry_owed());
        let (footer, records) = read_tail(&tail.buf).expect("as it was written");
        assert_eq!((footer.segment, footer.seq, footer.low_uuid, footer.data_bytes), (2, 9, 77, 8192));
        let lens: Vec<_> = records.map(|record| (record.len, record.slot)).collect();
        assert_eq!(lens, [(4096, 5), (100, 5), (200, 5), (3796, 0)]);
    }
}
