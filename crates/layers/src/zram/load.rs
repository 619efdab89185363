//! The path of a read. A fast codec decompresses straight from the object into the reply under the lock of the slot, about
//! half a microsecond: copying it out first would take a good part of that again. For a slow one the object is copied out
//! under the lock and decompressed outside it.

use std::sync::Arc;

use spillway_core::{Answer, Kind, Reply, Request, Submission};

use super::cell::{Scratch, SlotIndex};
use super::device::{Core, Count};
use super::mark::Slot;
use super::page::{PAGE, slots};
use super::work::{self, Slice};

pub(super) fn submit(core: &Arc<Core>, mut request: Request) -> Submission {
    let (first, count) = slots(request.range);
    core.count(Count::PagesRead, count);
    match core.load_some(first, &mut request.buf, &mut Slice::new()) {
        Ok(done) if (done as u64) < count => Answer::pending(read_from(core.clone(), request, done)),
        result => Answer::Done(core.answer_read(request, result.map(drop))),
    }
}

/// Reads from page `done` on, after others.
async fn read_from(core: Arc<Core>, mut request: Request, mut done: usize) -> Reply {
    let ((first, count), mut slice) = (slots(request.range), Slice::new());
    while (done as u64) < count {
        slice.renew(&*core.env).await;
        match core.load_some(first + done as u64, &mut request.buf[done * PAGE..], &mut slice) {
            Ok(loaded) => done += loaded,
            Err(kind) => return core.answer_read(request, Err(kind)),
        }
    }
    core.answer_read(request, Ok(()))
}

impl Core {
    fn answer_read(&self, request: Request, result: Result<(), Kind>) -> Reply {
        if result.is_err() {
            self.count(Count::FailedReads, 1);
        }
        request.answer(result)
    }

    /// Reads pages until all are there or the slice is over; returns how many.
    fn load_some(&self, first: u64, target: &mut [u8], slice: &mut Slice) -> Result<usize, Kind> {
        assert!(target.len().is_multiple_of(PAGE), "{} bytes are read: whole pages only", target.len());
        let (now, count) = (self.seconds(), target.len() / PAGE);
        let mut scratch = Scratch::new();
        for (done, page) in target.chunks_exact_mut(PAGE).enumerate() {
            if slice.is_over() {
                return Ok(done);
            }
            slice.count(work::SLOT + self.load(first + done as u64, page, now, &mut scratch)?);
        }
        Ok(count)
    }

    /// Reads a page; returns the units of work that this took beside the slot.
    fn load(&self, index: u64, page: &mut [u8], now: u32, scratch: &mut Scratch) -> Result<u32, Kind> {
        let Some(mut slot) = self.table.lock(SlotIndex::new(index)) else {
            work::note(work::COPY);
            page.fill(0);
            return Ok(work::COPY);
        };
        slot.touch(now);
        let (cell, codec) = match slot.get() {
            Slot::Stored(cell, codec) => (cell, codec),
            Slot::Same(word) => {
                drop(slot);
                work::note(work::COPY);
                page.chunks_exact_mut(size_of::<u64>())
                    .for_each(|at| at.copy_from_slice(&word.to_ne_bytes()));
                return Ok(work::COPY);
            }
            Slot::Empty => unreachable!("an empty slot is not locked"),
        };
        if cell.len() == PAGE {
            work::note(work::COPY);
            slot.copy_into(&self.pool, &self.pages, cell, page);
            return Ok(work::COPY);
        }
        let units = codec.codec().decompress_units;
        if let Some(decompress) = codec.codec().at_once {
            work::note(units);
            decompress(slot.object(&self.pool, &self.pages, cell), page)?;
            return Ok(units);
        }
        let bytes = slot.copy_to(&self.pool, &self.pages, cell, scratch);
        drop(slot);
        self.decoders.decompress(codec, bytes, page)?;
        Ok(units)
    }
}
