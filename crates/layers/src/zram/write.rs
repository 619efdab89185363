//! The path of a write: same-filled or compressed or raw, charged, published, and only then answered.
//!
//! Nothing is locked while compressing and copying. The old object is freed after the new one is published, so that a
//! write that fails leaves the old data.

use std::ops::Range;
use std::sync::Arc;

use spillway_core::{Answer, Kind, Reply, Request, Submission, mutant};
use spillway_policy::size_classes::COMPRESSED_BYTES_MAX;

use super::codec::encoder::Encoder;
use super::codec::streams::StreamGuard;
use super::device::{Core, Count};
use super::page::{PAGE, slots};
use super::pool::cell::{Cell, SlotIndex};
use super::slots::mark::Slot;
use super::slots::picked::Replaced;
use super::spread;
use super::work::{self, Slice};

/// Pages after which a writer gives its stream back within a request: it goes to another if that has waited for long enough.
const PAGES_A_STREAM: usize = 4;

/// Why a run of pages ended early.
enum Refused {
    /// Every stream is busy.
    NoStream,
    /// A page failed.
    Failed(Kind),
}

pub(super) fn submit(core: &Arc<Core>, request: Request) -> Submission {
    let (first, count) = slots(request.range);
    core.count(Count::PagesWritten, count);
    if spread::pays(core, count) {
        return Answer::pending(spread::write(core.clone(), request));
    }
    let mut slice = Slice::new();
    let (stored, result) = core.store_run(first, &request.buf, None, &mut slice);
    if stored as u64 == count {
        return answer(core, request, slice.take_growth());
    }
    if let Err(Refused::Failed(kind)) = result
        && kind != Kind::NoSpace
    {
        core.count(Count::FailedWrites, 1);
        return Answer::Done(request.answer(Err(kind)));
    }
    Answer::pending(write_from(core.clone(), request, stored, slice))
}

/// The answer of a request that is stored: at once, or after a pause where memory becomes short.
fn answer(core: &Arc<Core>, request: Request, grown: u64) -> Submission {
    if !core.grew(grown) {
        return Answer::Done(request.answer(Ok(())));
    }
    let core = core.clone();
    Answer::pending(async move {
        core.throttle(grown).await;
        request.answer(Ok(()))
    })
}

/// Writes from page `done` on with what is left of a slice, waiting where it must.
async fn write_from(core: Arc<Core>, request: Request, done: usize, mut slice: Slice) -> Reply {
    let (first, _) = slots(request.range);
    let result = core.store(first + done as u64, &request.buf[done * PAGE..], &mut slice).await;
    if result.is_err() {
        core.count(Count::FailedWrites, 1);
    }
    request.answer(result)
}

impl Core {
    /// Stores pages; yields between slices, waits for a stream and where there is no memory, and pauses where it becomes short.
    pub(super) async fn store(&self, first: u64, pages: &[u8], slice: &mut Slice) -> Result<(), Kind> {
        let (mut done, mut relief, mut stream) = (0, self.relief(), None);
        slice.renew_if_over(&*self.env).await;
        loop {
            let rest = &pages[done * PAGE..];
            let (stored, result) = self.store_run(first + done as u64, rest, stream.take(), slice);
            done += stored;
            if stored > 0 {
                relief.progress();
            }
            let grown = slice.take_growth();
            if self.grew(grown) {
                self.throttle(grown).await;
            }
            match result {
                Ok(()) if done * PAGE == pages.len() => return Ok(()),
                Ok(()) => slice.renew(&*self.env).await,
                // Nothing is awaited between taking it and using it.
                Err(Refused::NoStream) => stream = Some(self.streams.take(&*self.env).await),
                Err(Refused::Failed(kind)) if !self.relieve(kind, &mut relief).await => return Err(kind),
                Err(Refused::Failed(_)) => *slice = Slice::new(),
            }
        }
    }

    /// Stores pages without waiting until all are there or the slice is over, beginning with `stream`; returns how many.
    fn store_run<'a>(
        &'a self,
        first: u64,
        pages: &[u8],
        mut stream: Option<StreamGuard<'a>>,
        slice: &mut Slice,
    ) -> (usize, Result<(), Refused>) {
        assert!(pages.len().is_multiple_of(PAGE), "{} bytes are written: whole pages only", pages.len());
        let now = self.seconds();
        for (done, page) in pages.chunks_exact(PAGE).enumerate() {
            if slice.is_over() {
                return (done, Ok(()));
            }
            match self.store_page(first + done as u64, page, now, &mut stream, slice) {
                Ok(true) => {}
                Ok(false) => return (done, Err(Refused::NoStream)),
                Err(kind) => return (done, Err(Refused::Failed(kind))),
            }
            if done % PAGES_A_STREAM == PAGES_A_STREAM - 1 {
                stream = None;
            }
        }
        (pages.len() / PAGE, Ok(()))
    }

    /// Stores a page, by `stream` or else an idle one, if it takes one; false where none is idle.
    pub(super) fn store_page<'a>(
        &'a self,
        index: u64,
        page: &[u8],
        now: u32,
        stream: &mut Option<StreamGuard<'a>>,
        slice: &mut Slice,
    ) -> Result<bool, Kind> {
        if let Some(word) = repeated_word(page) {
            slice.count(work::SLOT + work::COPY);
            self.publish(index, Slot::Same(word), now)?;
        } else if !self.defer(index, page, now, slice) {
            if stream.is_none() {
                *stream = self.streams.try_take();
            }
            let Some(stream) = stream else { return Ok(false) };
            self.compress(stream, index, page, now, slice)?;
        }
        Ok(true)
    }

    /// Compresses a page that repeats no word, and publishes it; raw where that does not pay.
    fn compress(
        &self,
        encoder: &mut Encoder,
        index: u64,
        page: &[u8],
        now: u32,
        slice: &mut Slice,
    ) -> Result<(), Kind> {
        slice.count(work::SLOT + encoder.units_a_page());
        if mutant::on("zram: lose the old page when a write fails") {
            self.clear(index..index + 1);
        }
        let codec = encoder.codec();
        let compressed = encoder.compress(page, COMPRESSED_BYTES_MAX);
        let raw = compressed.is_none();
        let cell = self.place(SlotIndex::new(index), compressed.unwrap_or(page))?;
        slice.grow(self.publish(index, Slot::Stored(cell, codec), now)?);
        if raw {
            self.count(Count::HugePagesSince, 1);
        }
        Ok(())
    }

    /// Puts what a slot is to hold into a cell, which is then published, or freed.
    pub(super) fn place(&self, index: SlotIndex, bytes: &[u8]) -> Result<Cell, Kind> {
        let fresh = self.pool.allocate(&self.pages, bytes.len(), index)?;
        Ok(self.pool.fill(&self.pages, fresh, bytes))
    }

    /// Has a slot hold `new`, which is something, and frees what was there; where that fails, the object of `new`. Returns by how many bytes
    /// objects have become more.
    pub(super) fn publish(&self, index: u64, new: Slot, now: u32) -> Result<u64, Kind> {
        let len = |cell: Option<Cell>| cell.map_or(0, |cell| cell.len() as u64);
        let set = self.table.set(&self.pages, SlotIndex::new(index), new, now);
        if let (Err(_), Some(cell)) = (&set, new.cell()) {
            self.pool.free(&self.pages, cell);
        }
        let replaced = set?;
        if !mutant::on("zram: forget to free what was overwritten") {
            self.free(replaced);
        }
        Ok(len(new.cell()).saturating_sub(len(replaced.to_free())))
    }

    /// Empties slots that lie in one page and frees what was there; returns how many held something.
    pub(super) fn clear(&self, slots: Range<u64>) -> u64 {
        self.table.clear(&self.pages, slots, |replaced| self.free(replaced))
    }

    fn free(&self, replaced: Replaced) {
        if let Some(cell) = replaced.to_free() {
            self.pool.free(&self.pages, cell);
        }
        if let Some(away) = replaced.copy
            && !mutant::on("zram: forget the copy of what was overwritten")
        {
            self.release_copy(replaced.index, away);
        }
        if let Slot::Spilled(away) = replaced.slot
            && !mutant::on("zram: what is overwritten keeps its room in the spill file")
        {
            self.release(replaced.index, away);
        }
    }
}

/// The word that `page` repeats, if it does: any word, not only zero.
fn repeated_word(page: &[u8]) -> Option<u64> {
    const WORD: usize = size_of::<u64>();
    let (first, last) = (page.first_chunk::<WORD>()?, page.last_chunk::<WORD>()?);
    let between =
        || mutant::on("zram: tell a repeated word by its ends") || page[WORD..] == page[..page.len() - WORD];
    let repeats = first == last && between();
    work::note(if repeats { work::COPY } else { 0 });
    repeats.then(|| u64::from_ne_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_repeated_word_is_found_and_nothing_else() {
        assert_eq!(repeated_word(&[0; PAGE]), Some(0));
        let mut page: Vec<u8> = 0x0102_0304_0506_0708u64.to_ne_bytes().repeat(PAGE / 8);
        assert_eq!(repeated_word(&page), Some(0x0102_0304_0506_0708));
        for at in [0, 7, 8, 2000, PAGE - 1] {
            page[at] ^= 1;
            assert_eq!(repeated_word(&page), None, "byte {at}");
            page[at] ^= 1;
        }
    }
}
