//! Reads of clients: copies of what is in memory, and one read of the device below for each stretch that is not.
//!
//! A stretch is read into the client's own buffer, and copied from there into the folios: blocks that were written meanwhile are left
//! alone, and the client, whose read began before, may see either content. What finds no memory is read all the same.

use std::ops::Range;
use std::sync::Arc;

use spillway_core::{ByteRange, IoBuf, Kind, Reply, Request, mutant};
use spillway_policy::folio::Look;

use super::cache::Core;
use super::counts::Count;

/// Bytes of a read of the device below, at most.
const STRETCH_MAX: u64 = 2 << 20;

/// A part of a stretch: blocks of one folio.
struct Part {
    folio: u64,
    blocks: Range<u32>,
    /// The folio waits for it.
    kept: bool,
}

/// Blocks that follow each other, are missing, and are being read. Whatever happens to the read, the folios learn how it ended.
struct Stretch {
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
    pub(super) fn copy_hits(&self, range: ByteRange, buf: &mut [u8]) -> u64 {
        let mut done = 0;
        while done < range.len {
            match self.copy_hit(range, done, buf) {
                0 => break,
                bytes => done += bytes,
            }
        }
        self.counts.add(Count::HitBytes, done);
        done
    }

    /// The same in one folio.
    fn copy_hit(&self, range: ByteRange, start: u64, buf: &mut [u8]) -> u64 {
        let piece = self.places.piece(range, start);
        let shard = self.home(piece.folio).read();
        let Some(folio) = shard.get(piece.folio) else { return 0 };
        let end = match folio.state.look(piece.blocks.clone()) {
            (Look::Valid, end) => end,
            _ if mutant::on("page_cache: serve what is being read in") => piece.blocks.end,
            _ => return 0,
        };
        let len = ((end - piece.blocks.start) as usize) << self.places.block_shift;
        let bytes = piece.bytes.start..piece.bytes.start + len;
        buf[piece.start..piece.start + len].copy_from_slice(&folio.bytes[bytes]);
        folio.touch(&(piece.blocks.start..end));
        len as u64
    }

    /// Reads the rest of a request of which `done` bytes are there.
    pub(super) async fn read(self: &Arc<Self>, mut request: Request, mut done: u64) -> Reply {
        while done < request.range.len {
            let seen = self.changes.current();
            match self.next(request.range, done, &mut request.buf) {
                Next::Copied(bytes) => done += bytes,
                Next::Wait => self.changes.reached(seen + 1).await,
                Next::Missing(stretch) => {
                    let bytes = stretch.bytes;
                    let result =
                        self.read_stretch(stretch, request.range.offset, done, &mut request.buf).await;
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
        let mut stretch = Stretch { core: self.clone(), parts: Vec::new(), bytes: 0 };
        let end = range.len.min(start + STRETCH_MAX);
        while start + stretch.bytes < end {
            let part = match self.begin(range, start + stretch.bytes) {
                Ok(part) => part,
                // It was written since it was looked for.
                Err(Look::Valid) if stretch.bytes == 0 => return Next::Copied(0),
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
        if stretch.bytes == 0 { Next::Wait } else { Next::Missing(stretch) }
    }

    /// Begins to read the blocks from `start` on that are missing in a folio; else, what the first of them is.
    fn begin(self: &Arc<Self>, range: ByteRange, start: u64) -> Result<Part, Look> {
        let piece = self.places.piece(range, start);
        let known = self.home(piece.folio).read().get(piece.folio).is_some();
        let mut frame = if known { None } else { self.frame() };
        let mut shard = self.home(piece.folio).write();
        let beside = self.is_outside(self.places.range(piece.folio, &piece.blocks));
        if shard.get(piece.folio).is_none()
            && !beside
            && let Some(frame) = frame.take()
        {
            shard.insert(piece.folio, frame, &piece.blocks);
        }
        let part = match shard.get_mut(piece.folio) {
            None => Ok(Part { folio: piece.folio, blocks: piece.blocks, kept: false }),
            Some(folio) => match folio.state.look(piece.blocks.clone()) {
                (Look::Missing, end) => {
                    let blocks = piece.blocks.start..end;
                    if !beside {
                        folio.state.begin_read(blocks.clone());
                        folio.fills += 1;
                    }
                    Ok(Part { folio: piece.folio, blocks, kept: !beside })
                }
                (look, _) => Err(look),
            },
        };
        drop(shard);
        frame.into_iter().for_each(|frame| self.give_frame(frame));
        part
    }

    /// Reads a stretch of the device below, of which the client's buffer has `done` bytes.
    async fn read_stretch(
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
        stretch.end(reply.result.is_ok().then_some(&reply.buf));
        *whole = reply.buf;
        whole.unnarrow(start, len);
        reply.result
    }

    /// A read for a folio has ended.
    fn fill(&self, part: &Part, bytes: Option<&[u8]>) {
        let mut shard = self.home(part.folio).write();
        let folio = shard.get_mut(part.folio).expect("it stays while it is filled");
        if let Some(bytes) = bytes {
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
