//! The path of a write: same-filled or compressed or raw, charged, published, and only then answered.
//!
//! Nothing is locked while compressing and copying. The old object is freed after the new one is published, so that a
//! write that fails leaves the old data.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::{Answer, Kind, Reply, Request, Submission};
use spillway_policy::compaction::{self, Step};
use spillway_policy::size_classes::COMPRESSED_BYTES_MAX;

use super::streams::Taken;
use super::table::Slot;
use super::{Core, Count, PAGE, PAGES_AT_ONCE, slots, spread};

/// Why a page was not stored on the caller's stack.
enum Refused {
    /// Every stream is busy.
    NoStream,
    /// It failed.
    Failed(Kind),
}

pub(super) fn submit(core: &Arc<Core>, request: Request) -> Submission {
    let (first, count) = slots(request.range);
    core.count(Count::PagesWritten, count);
    if spread::pays(core, count) {
        return Answer::pending(spread::write(core.clone(), request));
    }
    let now = core.seconds();
    for (done, page) in request.buf.chunks_exact(PAGE).take(PAGES_AT_ONCE as usize).enumerate() {
        if core.try_store(first + done as u64, page, now).is_err() {
            return Answer::pending(write_from(core.clone(), request, done));
        }
    }
    if count > PAGES_AT_ONCE {
        return Answer::pending(write_from(core.clone(), request, PAGES_AT_ONCE as usize));
    }
    Answer::Done(request.answer(Ok(())))
}

/// Writes from page `done` on, waiting where it must.
async fn write_from(core: Arc<Core>, request: Request, done: usize) -> Reply {
    let (first, _) = slots(request.range);
    for (index, page) in request.buf.chunks_exact(PAGE).enumerate().skip(done) {
        if index > done && (index as u64).is_multiple_of(PAGES_AT_ONCE) {
            core.env.sleep(Duration::ZERO).await;
        }
        if let Err(kind) = core.store(first + index as u64, page).await {
            core.count(Count::FailedWrites, 1);
            return request.answer(Err(kind));
        }
    }
    request.answer(Ok(()))
}

impl Core {
    /// Stores a page; waits for a stream, and once for the compactor where memory is short.
    pub(super) async fn store(&self, index: u64, page: &[u8]) -> Result<(), Kind> {
        let mut relieved = false;
        loop {
            match self.try_store(index, page, self.seconds()) {
                Ok(()) => return Ok(()),
                Err(Refused::NoStream) => {
                    let stream = self.streams.take().await;
                    match self.store_with(stream, index, page, self.seconds()) {
                        Err(Kind::NoSpace) if !relieved => {}
                        result => return result,
                    }
                }
                Err(Refused::Failed(Kind::NoSpace)) if !relieved => {}
                Err(Refused::Failed(kind)) => return Err(kind),
            }
            relieved = true;
            if compaction::next_step(self.pool_load(false)) == Step::Rest {
                return Err(Kind::NoSpace);
            }
            self.compactor.relieve().await;
        }
    }

    fn try_store(&self, index: u64, page: &[u8], now: u32) -> Result<(), Refused> {
        if let Some(word) = repeated_word(page) {
            return self.publish(index, Slot::Same(word), now).map_err(Refused::Failed);
        }
        let stream = self.streams.try_take().ok_or(Refused::NoStream)?;
        self.store_with(stream, index, page, now).map_err(Refused::Failed)
    }

    /// Stores a page by a stream that was taken for it.
    pub(super) fn store_with(
        &self,
        mut stream: Taken<'_>,
        index: u64,
        page: &[u8],
        now: u32,
    ) -> Result<(), Kind> {
        if let Some(word) = repeated_word(page) {
            return self.publish(index, Slot::Same(word), now);
        }
        let owner = u32::try_from(index).expect("a device has at most 2^32 slots");
        let compressed = stream.compress(page, COMPRESSED_BYTES_MAX);
        let raw = compressed.is_none();
        let bytes = compressed.unwrap_or(page);
        let fresh = self.pool.allocate(&self.pages, bytes.len(), owner)?;
        self.pool.fill(&self.pages, &fresh, bytes);
        drop(stream);
        let cell = fresh.publish();
        self.publish(index, Slot::Stored(cell), now).inspect_err(|_| self.pool.free(&self.pages, cell))?;
        if raw {
            self.count(Count::HugePagesSince, 1);
        }
        Ok(())
    }

    /// Puts `slot` in place and frees what was there.
    pub(super) fn publish(&self, index: u64, slot: Slot, now: u32) -> Result<(), Kind> {
        let old = self.table.lock(index).set(&self.pages, slot, now)?;
        if let Slot::Stored(cell) = old {
            self.pool.free(&self.pages, cell);
        }
        Ok(())
    }
}

/// The word that `page` repeats, if it does: any word, not only zero.
fn repeated_word(page: &[u8]) -> Option<u64> {
    const WORD: usize = size_of::<u64>();
    let (first, last) = (page.first_chunk::<WORD>()?, page.last_chunk::<WORD>()?);
    let repeats = first == last && page[WORD..] == page[..page.len() - WORD];
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
