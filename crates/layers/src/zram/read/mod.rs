//! The path of a read. A fast codec decompresses straight from the object into the reply under the lock of the slot, about
//! half a microsecond: copying it out first would take a good part of that again. For a slow one the object is copied out
//! under the lock and decompressed outside it. What lies in the spill file is a miss, which waits until the rest was read.

use std::sync::Arc;

use spillway_core::{Answer, Kind, Reply, Request, Submission, mutant};

use super::codec::{CODECS, CodecIndex};
use super::device::{Core, Count};
use super::page::{PAGE, slots};
use super::pool::cell::{Scratch, SlotIndex};
use super::slots::mark::Slot;
use super::spill::recall::Misses;
use super::work::{self, Slice};

mod lent;

pub(super) fn submit(core: &Arc<Core>, mut request: Request) -> Submission {
    let (first, count) = slots(request.range);
    core.count(Count::PagesRead, count);
    if lent::pays(core, count) {
        return Answer::pending(read_lent(core.clone(), request));
    }
    let mut misses = Misses::default();
    let loaded = core.load_some(first, 0, &mut request.buf, &mut Slice::new(), &mut misses);
    go_on(core, request, loaded, misses)
}

async fn read_lent(core: Arc<Core>, request: Request) -> Reply {
    let (request, loaded, misses) = lent::read(&core, request).await;
    go_on(&core, request, loaded, misses).await
}

/// Answers a request of which so much was `loaded`.
fn go_on(core: &Arc<Core>, request: Request, loaded: Result<usize, Kind>, misses: Misses) -> Submission {
    match loaded {
        Ok(done) if (done as u64) < slots(request.range).1 || !misses.is_empty() => {
            Answer::pending(read_from(core.clone(), request, done, misses))
        }
        result => Answer::Done(core.answer_read(request, result.map(drop))),
    }
}

/// Reads `misses`, then from page `done` on, after others.
async fn read_from(core: Arc<Core>, mut request: Request, mut done: usize, mut misses: Misses) -> Reply {
    let ((first, count), mut slice) = (slots(request.range), Slice::new());
    loop {
        if let Err(kind) = core.recall(&mut misses, &mut request.buf).await {
            return core.answer_read(request, Err(kind));
        }
        if done as u64 == count {
            return core.answer_read(request, Ok(()));
        }
        slice.renew(&*core.env).await;
        match core.load_some(first, done, &mut request.buf, &mut slice, &mut misses) {
            Ok(loaded) => done = loaded,
            Err(kind) => return core.answer_read(request, Err(kind)),
        }
    }
}

/// What the pages of a request have in common.
struct Loading<'a> {
    now: u32,
    scratch: Scratch,
    misses: &'a mut Misses,
}

impl Core {
    fn answer_read(&self, request: Request, result: Result<(), Kind>) -> Reply {
        if result.is_err() {
            self.count(Count::FailedReads, 1);
        }
        request.answer(result)
    }

    /// Reads pages of a request that begins at slot `first`, from the one with number `done` on, until all are there or noted as misses,
    /// or the slice is over; returns the number of the next.
    fn load_some(
        &self,
        first: u64,
        done: usize,
        target: &mut [u8],
        slice: &mut Slice,
        misses: &mut Misses,
    ) -> Result<usize, Kind> {
        assert!(target.len().is_multiple_of(PAGE), "{} bytes are read: whole pages only", target.len());
        let count = target.len() / PAGE;
        let mut loading = Loading { now: self.seconds(), scratch: Scratch::new(), misses };
        for (number, page) in target.chunks_exact_mut(PAGE).enumerate().skip(done) {
            if slice.is_over() || loading.misses.is_full() {
                return Ok(number);
            }
            slice.count(work::SLOT + self.load(first, number, page, &mut loading)?);
        }
        Ok(count)
    }

    /// Reads page `number` of a request that begins at slot `first`, or notes that it is missing; returns the units of work that this
    /// takes beside the slot.
    fn load(
        &self,
        first: u64,
        number: usize,
        page: &mut [u8],
        loading: &mut Loading<'_>,
    ) -> Result<u32, Kind> {
        let (index, now) = (SlotIndex::new(first + number as u64), loading.now);
        let Some(mut slot) = self.table.lock(index) else {
            work::note(work::COPY);
            page.fill(0);
            return Ok(work::COPY);
        };
        let (cell, codec) = match slot.get() {
            Slot::Stored(cell, codec) => (cell, codec),
            // Raw: no codec is asked.
            Slot::Deferred(cell) => (cell, CodecIndex::PRIMARY),
            Slot::Same(word) => {
                slot.touch(now);
                drop(slot);
                work::note(work::COPY);
                page.chunks_exact_mut(size_of::<u64>())
                    .for_each(|at| at.copy_from_slice(&word.to_ne_bytes()));
                return Ok(work::COPY);
            }
            Slot::Spilled(away) => {
                let read_before = slot.mark.is_referenced().then(|| slot.mark.age(now));
                slot.touch(now);
                if mutant::on("zram: unlock a slot before its segment is pinned") {
                    drop(slot);
                }
                // Pinned while the slot is locked, so that its segment stays.
                return Ok(loading.misses.add(number, self.miss(index, away, read_before)));
            }
            Slot::Lost if mutant::on("zram: a lost page reads as zeroes") => {
                page.fill(0);
                return Ok(work::COPY);
            }
            Slot::Lost => return Err(Kind::Corrupt),
            Slot::Empty => unreachable!("an empty slot is not locked"),
        };
        slot.touch(now);
        if cell.len() == PAGE {
            work::note(work::COPY);
            slot.copy_into(&self.pool, &self.pages, cell, page);
            return Ok(work::COPY);
        }
        let known = &CODECS[self.codecs.number(codec)];
        if let Some(decompress) = known.at_once {
            work::note(known.decompress_units);
            decompress(slot.object(&self.pool, &self.pages, cell), page)?;
            return Ok(known.decompress_units);
        }
        let bytes = slot.copy_to(&self.pool, &self.pages, cell, &mut loading.scratch);
        drop(slot);
        self.decode(codec, bytes, page)
    }

    /// Turns an object that was copied into its page; returns the units of work.
    pub(super) fn decode(&self, codec: CodecIndex, bytes: &[u8], page: &mut [u8]) -> Result<u32, Kind> {
        if bytes.len() == PAGE {
            page.copy_from_slice(bytes);
            return Ok(work::COPY);
        }
        let number = self.codecs.number(codec);
        let known = &CODECS[number];
        match known.at_once {
            Some(decompress) => decompress(bytes, page)?,
            None => self.decoders.decompress(number, bytes, page)?,
        }
        Ok(known.decompress_units)
    }
}
