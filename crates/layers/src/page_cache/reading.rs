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

use super::cache::Core;
use super::counts::Count;
use super::folio::Seen;
use super::places::FolioNumber;

/// Bytes of a read of the device below, at most.
const STRETCH_MAX: u64 = 2 << 20;

/// A part of a stretch: blocks of one folio.
struct Part {
    folio: FolioNumber,
    blocks: Range<u32>,
    /// The folio waits for it.
    kept: bool,
}

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Client,
    /// Nobody waits for it.
    Readahead,
}

/// Blocks that follow each other, are missing, and are being read. Whatever happens to the read, the folios learn how it ended.
pub(super) struct Stretch {
    core: Arc<Core>,
    parts: Vec<Part>,
    bytes: u64,
}

/// What comes next of a read.
enum Next {
    /// So many bytes were copied.
    Copied(u64),
    /// So many are to be read.
    Missing(Stretch),
    /// Another client reads them.
    Wait,
}

impl Stretch {
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

impl Drop for Stretch {
    fn drop(&mut self) {
        self.fill(None);
    }
}

impl Core {
    /// Copies what is in memory of the range, from its start up to the first block that is not; returns how many bytes that is.
    #[inline]
    pub(super) fn copy_hits(self: &Arc<Self>, range: ByteRange, buf: &mut [u8]) -> u64 {
        let mut done = 0;
        while done < range.len {
            let (bytes, seen) = self.copy_hit(range, done, buf);
            if bytes == 0 {
                break;
            }
            done += bytes;
            if seen != Seen::default() {
                self.reached(range, seen);
            }
        }
        assert!(done <= range.len, "{done} bytes were copied of {range:?}");
        self.counts.add(Count::HitBytes, done);
        done
    }

    /// The same in one folio, and what it met there of readahead.
    fn copy_hit(&self, range: ByteRange, start: u64, buf: &mut [u8]) -> (u64, Seen) {
        let piece = self.places.piece(range, start);
        let shard = self.home(piece.folio).read();
        let Some(folio) = shard.get(piece.folio) else { return Default::default() };
        let end = match folio.state.look(piece.blocks.clone()) {
            (Look::Valid, end) => end,
            _ if mutant::on("page_cache: serve what is being read in") => piece.blocks.end,
            _ => return Default::default(),
        };
        let len = ((end - piece.blocks.start) as usize) << self.places.block_shift;
        let bytes = piece.bytes.start..piece.bytes.start + len;
        buf[piece.start..piece.start + len].copy_from_slice(&folio.bytes[bytes]);
        (len as u64, folio.touch(&(piece.blocks.start..end)))
    }

    /// Reads the rest of a request of which `done` bytes are there.
    pub(super) async fn read(self: &Arc<Self>, mut request: Request, mut done: u64) -> Reply {
        let (range, mut noted) = (request.range, false);
        while done < request.range.len {
            let seen = self.changes.current();
            match self.next(request.range, done, &mut request.buf) {
                Next::Copied(bytes) => done += bytes,
                Next::Wait => self.changes.reached(seen + 1).await,
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
        }
        request.answer(Ok(()))
    }

    fn next(self: &Arc<Self>, range: ByteRange, start: u64, buf: &mut [u8]) -> Next {
        let copied = self
            .copy_hits(ByteRange::new(range.offset + start, range.len - start), &mut buf[start as usize..]);
        if copied > 0 {
            return Next::Copied(copied);
        }
        match self.stretch(range, start, Whose::Client) {
            Ok(stretch) => Next::Missing(stretch),
            // It was written since it was looked for.
            Err((Look::Valid, _)) => Next::Copied(0),
            Err(_) => Next::Wait,
        }
    }

    /// What is missing of `range` from `start` on, as far as that is one stretch, which begins to be read; else what is there instead, and
    /// how many bytes of it.
    pub(super) fn stretch(
        self: &Arc<Self>,
        range: ByteRange,
        start: u64,
        whose: Whose,
    ) -> Result<Stretch, (Look, u64)> {
        let mut stretch = Stretch { core: self.clone(), parts: Vec::new(), bytes: 0 };
        let end = range.len.min(start + STRETCH_MAX);
        while start + stretch.bytes < end {
            let part = match self.begin(range, start + stretch.bytes, whose) {
                Ok(part) => part,
                Err(instead) if stretch.bytes == 0 => return Err(instead),
                Err(_) => break,
            };
            let bytes = self.places.range(part.folio, &part.blocks).len;
            stretch.bytes += bytes;
            let folio_ends = (range.offset + start + stretch.bytes).is_multiple_of(self.places.folio_bytes());
            stretch.parts.push(part);
            if !folio_ends {
                break;
            }
        }
        assert!(stretch.bytes <= range.len - start, "{} bytes from {start} of {range:?}", stretch.bytes);
        Ok(stretch)
    }

    /// Begins to read the blocks from `start` on that are missing in a folio; else, what the first of them is, and how many bytes
    /// are. For what is read ahead and cannot be kept that is none.
    fn begin(self: &Arc<Self>, range: ByteRange, start: u64, whose: Whose) -> Result<Part, (Look, u64)> {
        let piece = self.places.piece(range, start);
        let known = self.home(piece.folio).read().get(piece.folio).is_some();
        let mut frame = if known { None } else { self.frame() };
        let mut shard = self.home(piece.folio).write();
        let ahead = whose == Whose::Readahead;
        let beside = self.is_outside(self.places.range(piece.folio, &piece.blocks))
            && !(ahead && mutant::on("page_cache: read ahead what is being discarded"));
        if shard.get(piece.folio).is_none()
            && !beside
            && let Some(frame) = frame.take()
        {
            shard.insert(piece.folio, frame, (!ahead).then_some(&piece.blocks));
        }
        let part = match shard.get_mut(piece.folio) {
            None if ahead => Err((Look::Missing, 0)),
            None => Ok(Part { folio: piece.folio, blocks: piece.blocks, kept: false }),
            Some(_) if ahead && beside => Err((Look::Missing, 0)),
            Some(folio) => match folio.state.look(piece.blocks.clone()) {
                (Look::Missing, end) => {
                    let blocks = piece.blocks.start..end;
                    if !beside {
                        folio.state.begin_read(blocks.clone());
                        folio.fills += 1;
                    }
                    Ok(Part { folio: piece.folio, blocks, kept: !beside })
                }
                (look, end) => Err((look, self.places.range(piece.folio, &(piece.blocks.start..end)).len)),
            },
        };
        drop(shard);
        frame.into_iter().for_each(|frame| self.give_frame(frame));
        part
    }

    /// Reads a stretch of the device below into a buffer for what lies there from `offset` on, which has `done` bytes.
    pub(super) async fn read_stretch(
        &self,
        stretch: Stretch,
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
        let mut shard = self.home(part.folio).write();
        let folio = shard.get_mut(part.folio).expect("it stays while it is filled");
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
                folio.bytes[at(run.start)..at(run.end)]
                    .copy_from_slice(&bytes[at(run.start - first)..at(run.end - first)]);
            }
        }
        folio.state.end_read(part.blocks.clone(), bytes.is_some());
        folio.fills -= 1;
    }
}
