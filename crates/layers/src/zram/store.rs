//! The path of a write: same-filled or compressed or raw, charged, published, and only then answered.
//!
//! Nothing is locked while compressing and copying. The old object is freed after the new one is published, so that a
//! write that fails leaves the old data.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::{Answer, Kind, Reply, Request, Submission, mutant};
use spillway_policy::size_classes::COMPRESSED_BYTES_MAX;

use super::compactor::Relief;
use super::streams::{Stream, Taken};
use super::table::{Replaced, Slot};
use super::{Core, Count, PAGE, slots, spread};

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
    let (stored, result) = core.store_run(first, &request.buf, None);
    if stored as u64 == count {
        return Answer::Done(request.answer(Ok(())));
    }
    if let Err(Refused::Failed(kind)) = result
        && kind != Kind::NoSpace
    {
        core.count(Count::FailedWrites, 1);
        return Answer::Done(request.answer(Err(kind)));
    }
    Answer::pending(write_from(core.clone(), request, stored, result.is_ok()))
}

/// Writes from page `done` on, after others if a slice of work has been done already, waiting where it must.
async fn write_from(core: Arc<Core>, request: Request, done: usize, slice_over: bool) -> Reply {
    if slice_over {
        core.env.sleep(Duration::ZERO).await;
    }
    let (first, _) = slots(request.range);
    let result = core.store(first + done as u64, &request.buf[done * PAGE..]).await;
    if result.is_err() {
        core.count(Count::FailedWrites, 1);
    }
    request.answer(result)
}

impl Core {
    /// Stores pages; yields between slices, and waits for a stream and where memory is short.
    pub(super) async fn store(&self, first: u64, pages: &[u8]) -> Result<(), Kind> {
        let (mut done, mut relief, mut stream) = (0, Relief::default(), None);
        loop {
            let (stored, result) = self.store_run(first + done as u64, &pages[done * PAGE..], stream.take());
            done += stored;
            if stored > 0 {
                relief = Relief::default();
            }
            match result {
                Ok(()) if done * PAGE == pages.len() => return Ok(()),
                Ok(()) => self.env.sleep(Duration::ZERO).await,
                // Nothing is awaited between taking it and using it.
                Err(Refused::NoStream) => stream = Some(self.streams.take(&*self.env).await),
                Err(Refused::Failed(kind)) if !self.relieve(kind, &mut relief).await => return Err(kind),
                Err(Refused::Failed(_)) => {}
            }
        }
    }

    /// Stores pages without waiting, as many as a slice of work allows, beginning with `stream`; returns how many.
    fn store_run<'a>(
        &'a self,
        first: u64,
        pages: &[u8],
        mut stream: Option<Taken<'a>>,
    ) -> (usize, Result<(), Refused>) {
        let (now, most) = (self.seconds(), self.streams.pages_a_slice());
        for (done, page) in pages.chunks_exact(PAGE).take(most).enumerate() {
            if let Err(refused) = self.store_page(first + done as u64, page, now, &mut stream) {
                return (done, Err(refused));
            }
            if done % PAGES_A_STREAM == PAGES_A_STREAM - 1 {
                stream = None;
            }
        }
        ((pages.len() / PAGE).min(most), Ok(()))
    }

    fn store_page<'a>(
        &'a self,
        index: u64,
        page: &[u8],
        now: u32,
        stream: &mut Option<Taken<'a>>,
    ) -> Result<(), Refused> {
        if let Some(word) = repeated_word(page) {
            return self.publish(index, Slot::Same(word), now).map_err(Refused::Failed);
        }
        if stream.is_none() {
            *stream = self.streams.try_take();
        }
        let stream = stream.as_mut().ok_or(Refused::NoStream)?;
        self.store_by(stream, index, page, now).map_err(Refused::Failed)
    }

    /// Compresses and stores a page that repeats no word.
    fn store_by(&self, stream: &mut Stream, index: u64, page: &[u8], now: u32) -> Result<(), Kind> {
        if mutant::on("zram: lose the old page when a write fails") {
            self.publish(index, Slot::Empty, now)?;
        }
        let owner = u32::try_from(index).expect("a device has at most 2^32 slots");
        let compressed = stream.compress(page, COMPRESSED_BYTES_MAX);
        let raw = compressed.is_none();
        let bytes = compressed.unwrap_or(page);
        let fresh = self.pool.allocate(&self.pages, bytes.len(), owner)?;
        self.pool.fill(&self.pages, &fresh, bytes);
        let cell = fresh.publish();
        self.publish(index, Slot::Stored(cell), now).inspect_err(|_| self.pool.free(&self.pages, cell))?;
        if raw {
            self.count(Count::HugePagesSince, 1);
        }
        Ok(())
    }

    /// Stores a page by a stream that was taken for it.
    pub(super) fn store_with(
        &self,
        stream: &mut Stream,
        index: u64,
        page: &[u8],
        now: u32,
    ) -> Result<(), Kind> {
        match repeated_word(page) {
            Some(word) => self.publish(index, Slot::Same(word), now),
            None => self.store_by(stream, index, page, now),
        }
    }

    /// Puts `slot` in place and frees what was there.
    pub(super) fn publish(&self, index: u64, slot: Slot, now: u32) -> Result<(), Kind> {
        let Replaced { slot: old, leaf } = loop {
            let replaced = self.table.lock(index).set(&self.pages, slot, now);
            match replaced {
                // Memory goes back to the system without the lock of the shard.
                Err(Kind::NoSpace) if self.pages.cool_one() => {}
                replaced => break replaced?,
            }
        };
        if let Some(leaf) = leaf {
            self.pages.give_leaf(leaf);
        }
        if let Slot::Stored(cell) = old
            && !mutant::on("zram: forget to free what was overwritten")
        {
            self.pool.free(&self.pages, cell);
        }
        Ok(())
    }
}

/// The word that `page` repeats, if it does: any word, not only zero.
fn repeated_word(page: &[u8]) -> Option<u64> {
    const WORD: usize = size_of::<u64>();
    let (first, last) = (page.first_chunk::<WORD>()?, page.last_chunk::<WORD>()?);
    let between =
        || mutant::on("zram: tell a repeated word by its ends") || page[WORD..] == page[..page.len() - WORD];
    let repeats = first == last && between();
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
