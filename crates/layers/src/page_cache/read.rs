//! Reads of clients: copies of what is in memory, and one read of the device below for each stretch that is not.
//!
//! A stretch is read into the client's own buffer, and copied from there into the folios: blocks that were written meanwhile are left
//! alone, and the client, whose read began before, may see either content. What finds no memory is read all the same.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join;
use spillway_core::{ByteRange, IoBuf, Kind, Reply, Request, mutant};
use spillway_policy::folio::Look;

use super::device::Core;
use super::device::counts::{Count, InZone};
use super::folios::folio::{Folio, Seen};
use super::folios::places::FolioSpan;
use super::work::copied;
use crate::slice::{Slice, note};

/// Bytes of a read of the device below, at most.
const STRETCH_MAX: u64 = 2 << 20;

/// A part of a stretch: blocks of one folio.
struct Part {
    folio: FolioSpan,
    blocks: Range<u32>,
    /// The folio waits for it.
    kept: bool,
    /// It goes up to the end of the folio, or of what is wanted.
    whole: bool,
}

/// Bytes of a [`Part`].
#[cfg(test)]
pub(super) const PART_BYTES: u64 = size_of::<Part>() as u64;

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Client,
    /// Nobody waits for it. All up to this byte will be read.
    Readahead(u64),
}

/// Blocks that follow each other, are missing, and are being read. Whatever happens to the read, the folios learn how it ended.
pub(super) struct MissingStretch {
    core: Arc<Core>,
    parts: Vec<Part>,
    bytes: u64,
}

/// What a read found in one folio.
#[derive(Default)]
struct Hit {
    bytes: u64,
    zone: u8,
    seen: Seen,
}

/// What comes next of a read.
enum Next {
    /// So many bytes were copied.
    Copied(u64),
    /// So many are to be read.
    Missing(MissingStretch),
}

impl MissingStretch {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its content is in `bytes`, or it could not be read.
    fn end(mut self, bytes: Option<&[u8]>) {
        self.fill(bytes);
    }

    fn fill(&mut self, bytes: Option<&[u8]>) {
        if self.parts.is_empty() {
            return;
        }
        let mut start = 0;
        for part in self.parts.drain(..) {
            let len = part.blocks.len() << self.core.places.block_shift;
            if part.kept {
                self.core.fill(&part, bytes.map(|bytes| &bytes[start..start + len]));
            }
            start += len;
        }
        self.core.ended();
    }
}

impl Drop for MissingStretch {
    fn drop(&mut self) {
        self.fill(None);
    }
}

impl Core {
    /// Copies what is in memory of the range, which is not empty, from its start up to the first block that is not, for a slice; returns how
    /// many bytes that is.
    #[inline]
    pub(super) fn copy_hits(self: &Arc<Self>, range: ByteRange, buf: &mut [u8]) -> u64 {
        let first = self.copy_hit(range, 0, buf);
        if first.bytes == range.len && first.seen == Seen::default() {
            self.counts.add_in(first.zone, InZone::HitBytes, first.bytes);
            return first.bytes;
        }
        self.copy_on(range, first, buf)
    }

    /// The same after the first folio.
    #[cold]
    fn copy_on(self: &Arc<Self>, range: ByteRange, mut hit: Hit, buf: &mut [u8]) -> u64 {
        let (mut done, mut slice) = (0, Slice::new());
        while hit.bytes > 0 {
            done += hit.bytes;
            slice.count(copied(hit.bytes));
            self.counts.add_in(hit.zone, InZone::HitBytes, hit.bytes);
            if hit.seen != Seen::default() {
                self.reached(range, hit.zone, hit.seen);
            }
            if done == range.len || slice.is_over() {
                break;
            }
            hit = self.copy_hit(range, done, buf);
        }
        assert!(done <= range.len, "{done} bytes were copied of {range:?}");
        done
    }

    /// Copies what is in memory in one folio.
    #[inline(always)]
    fn copy_hit(&self, range: ByteRange, start: u64, buf: &mut [u8]) -> Hit {
        let shard = self.home(range.offset + start).read();
        let Some((folio, piece)) = shard.at(range, start) else { return Default::default() };
        let end = match folio.state.look(piece.blocks.clone()) {
            (Look::Valid, end) => end,
            _ if mutant::on("page_cache: serve what is being read in") => piece.blocks.end,
            _ => return Default::default(),
        };
        let len = ((end - piece.blocks.start) as usize) << self.places.block_shift;
        let bytes = shard.bytes(folio, piece.bytes.start..piece.bytes.start + len);
        buf[piece.start..piece.start + len].copy_from_slice(bytes);
        note(copied(len as u64));
        Hit { bytes: len as u64, zone: folio.zone(), seen: folio.touch(&(piece.blocks.start..end)) }
    }

    /// Reads the rest of a request of which `done` bytes are there.
    pub(super) async fn read(self: &Arc<Self>, mut request: Request, mut done: u64) -> Reply {
        let (range, mut noted, mut slice) = (request.range, false, Slice::new());
        slice.count(copied(done));
        while done < request.range.len {
            slice.renew_if_over(&*self.env).await;
            let before = done;
            let next = || self.next(range, done, &mut request.buf);
            match self.changes.until(next).await {
                Next::Copied(bytes) => done += bytes,
                Next::Missing(stretch) => {
                    let (bytes, first) = (stretch.bytes, !mem::replace(&mut noted, true));
                    self.counts.add(Count::MissedBytes, bytes);
                    let read = self.read_stretch(stretch, range.offset, done, &mut request.buf);
                    // Polled second: what is read ahead is not before it.
                    let note = async {
                        if first {
                            self.note_read(range);
                        }
                    };
                    let (result, ()) = join(read, note).await;
                    if result.is_err() {
                        return request.answer(result);
                    }
                    done += bytes;
                }
            }
            slice.count(copied(done - before));
        }
        request.answer(Ok(()))
    }

    /// None while another client reads what comes next.
    fn next(self: &Arc<Self>, range: ByteRange, start: u64, buf: &mut [u8]) -> Option<Next> {
        let copied = self
            .copy_hits(ByteRange::new(range.offset + start, range.len - start), &mut buf[start as usize..]);
        if copied > 0 {
            return Some(Next::Copied(copied));
        }
        match self.stretch(range, start, Whose::Client) {
            Ok(stretch) => Some(Next::Missing(stretch)),
            // It was written since it was looked for.
            Err((Look::Valid, _)) => Some(Next::Copied(0)),
            Err(_) => None,
        }
    }

    /// What is missing of `range` from `start` on, as far as that is one stretch and finds memory in a slice, which begins to be read; else what is there instead, and
    /// how many bytes of it.
    pub(super) fn stretch(
        self: &Arc<Self>,
        range: ByteRange,
        start: u64,
        whose: Whose,
    ) -> Result<MissingStretch, (Look, u64)> {
        let (mut stretch, mut slice) =
            (MissingStretch { core: self.clone(), parts: Vec::new(), bytes: 0 }, Slice::new());
        let end = range.len.min(start + STRETCH_MAX);
        while start + stretch.bytes < end && !slice.is_over() {
            let part = match self.begin(range, start + stretch.bytes, whose, &mut slice) {
                Ok(part) => part,
                Err(instead) if stretch.bytes == 0 => return Err(instead),
                Err(_) => break,
            };
            stretch.bytes += self.places.range(part.folio, &part.blocks).len;
            let whole = part.whole;
            stretch.parts.push(part);
            if !whole {
                break;
            }
        }
        assert!(stretch.bytes <= range.len - start, "{} bytes from {start} of {range:?}", stretch.bytes);
        Ok(stretch)
    }

    /// Begins to read the blocks from `start` on that are missing in a folio; else, what the first of them is, and how many bytes
    /// are. For what is read ahead and cannot be kept that is none.
    fn begin(
        self: &Arc<Self>,
        range: ByteRange,
        start: u64,
        whose: Whose,
        slice: &mut Slice,
    ) -> Result<Part, (Look, u64)> {
        let at = range.offset + start;
        let (ahead, filled) = match whose {
            Whose::Client => (false, range.offset + range.len),
            Whose::Readahead(end) => (true, end),
        };
        let unit = self.places.unit_at(at);
        let number = self.places.shard_of(self.places.region_at(at));
        let mut shard = self.shards[number].write();
        let folio = shard.get(unit).map(Folio::span);
        let wanted = folio.unwrap_or_else(|| shard.room(unit, self.places.order(at, filled)));
        let mut piece = self.places.piece(range, start, wanted);
        let beside = self.is_outside(self.places.range(wanted, &piece.blocks))
            && !(ahead && mutant::on("page_cache: read ahead what is being discarded"));
        if folio.is_none()
            && !beside
            && !self.pressure[number].room.is_waited_for()
            && let Some(frame) = self.frame(&mut shard, wanted.order, slice)
        {
            piece = self.places.piece(range, start, FolioSpan { order: frame.order, ..wanted });
            shard.insert(unit, frame, (!ahead).then_some(&piece.blocks));
        }
        match shard.get_mut(unit) {
            None if ahead => Err((Look::Missing, 0)),
            None => Ok(Part { folio: piece.folio, blocks: piece.blocks, kept: false, whole: true }),
            Some(_) if ahead && beside => Err((Look::Missing, 0)),
            Some(folio) => match folio.state.look(piece.blocks.clone()) {
                (Look::Missing, end) => {
                    let (blocks, whole) = (piece.blocks.start..end, end == piece.blocks.end);
                    if !beside {
                        folio.state.begin_read(blocks.clone());
                        assert!(folio.fills < u16::MAX, "reads of a folio are counted in 16 bits");
                        folio.fills += 1;
                        if !ahead {
                            let bytes = self.places.range(piece.folio, &blocks).len;
                            self.counts.add_in(folio.zone(), InZone::MissedBytes, bytes);
                        }
                    }
                    Ok(Part { folio: piece.folio, blocks, kept: !beside, whole })
                }
                (look, end) => Err((look, self.places.range(piece.folio, &(piece.blocks.start..end)).len)),
            },
        }
    }

    /// Reads a stretch of the device below into a buffer for what lies there from `offset` on, which has `done` bytes.
    pub(super) async fn read_stretch(
        &self,
        stretch: MissingStretch,
        offset: u64,
        done: u64,
        whole: &mut IoBuf,
    ) -> Result<(), Kind> {
        let (len, start, bytes) = (whole.len(), done as usize, stretch.bytes as usize);
        if stretch.parts.iter().any(|part| !part.kept) {
            self.counts.add(Count::Uncached, 1);
        }
        let mut buf = std::mem::take(whole);
        buf.narrow(start, bytes);
        let _reading = self.meter.read();
        let reply = self.below.submit(Request::read(offset + done, buf)).await;
        let read = reply.result.is_ok() || mutant::on("page_cache: keep what could not be read");
        stretch.end(read.then_some(&reply.buf));
        *whole = reply.buf;
        whole.unnarrow(start, len);
        assert_eq!(whole.len(), len, "the client's buffer is whole again");
        reply.result
    }

    /// A read for a folio has ended.
    fn fill(&self, part: &Part, bytes: Option<&[u8]>) {
        let mut shard = self.shard(self.places.region_of(part.folio.unit)).write();
        let folio = shard.get(part.folio.unit).expect("it stays while it is filled");
        assert!(folio.fills > 0, "a read that ends has begun");
        if let Some(bytes) = bytes {
            assert_eq!(bytes.len(), part.blocks.len() << self.places.block_shift, "the bytes of the part");
            let first = part.blocks.start;
            let fills: Vec<Range<u32>> = if mutant::on("page_cache: fill over what was written meanwhile") {
                vec![part.blocks.clone()]
            } else {
                folio.state.reading(part.blocks.clone()).collect()
            };
            let at = |block: u32| (block as usize) << self.places.block_shift;
            for run in fills {
                shard.put(part.folio.unit, at(run.start), &bytes[at(run.start - first)..at(run.end - first)]);
            }
        }
        let folio = shard.get_mut(part.folio.unit).expect("it stays while it is filled");
        folio.state.end_read(part.blocks.clone(), bytes.is_some());
        folio.fills -= 1;
    }
}
