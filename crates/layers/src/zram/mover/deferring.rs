//! Deferred compression: a page that was just written stays as it is for a while, because compressing takes longer than copying, and
//! because it may soon be written again.
//!
//! ```text
//!   write -> room? --no--> compress at once
//!              |yes
//!              v
//!          raw cell <-- written again, in place, unless it is picked
//!              |
//!              '--> pick -> compress, no lock held -> publish, unless it was written meanwhile (`moving`)
//! ```
//!
//! The background task compresses all of it once a device is at rest; while requests come, what is old, and above half of the room
//! what was written once only, as long as a stream is idle. Where memory is short nothing more is deferred, and what is comes first: before an object
//! leaves memory or a write is refused. Commands that look at what pages compress to have all of it compressed before they begin.
//!
//! A deferred page is charged with a whole page, and compressing one needs memory before it frees any. At the limit it goes to the packed
//! spans, as what the compactor moves, from the same reserve. Where that is used up too, it may leave memory as it is.

use spillway_core::{Kind, mutant};
use spillway_policy::size_classes::COMPRESSED_BYTES_MAX;

use super::slices::Caller;
use crate::zram::codec::encoder::Encoder;
use crate::zram::device::{Core, Count};
use crate::zram::pool::cell::{Cell, Scratch, SlotIndex};
use crate::zram::slots::deferred::DeferredLap;
use crate::zram::slots::mark::{Mark, Slot};
use crate::zram::slots::picked::{PickOutcome, PublishIf};
use crate::zram::work::{self, Slice};

/// Seconds after its last access from which a page is not expected to be written again soon.
const OLD: u32 = 2;

/// Which deferred pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// Those that are old; with `crowded`, also those that were accessed once only.
    Cold {
        crowded: bool,
    },
}

impl Which {
    fn means(self, mark: Mark, now: u32) -> bool {
        match self {
            Which::All => true,
            Which::Cold { crowded } => crowded && !mark.is_referenced() || mark.age(now) >= OLD,
        }
    }
}

impl Core {
    /// Keeps a page as it is for now; false where it is to be compressed at once.
    pub(crate) fn defer(&self, index: u64, page: &[u8], now: u32, slice: &mut Slice) -> bool {
        let deferred = &self.table.deferred;
        if deferred.pages_max() == 0 {
            return false;
        }
        let slot = SlotIndex::new(index);
        let kept = self.table.overwrite((&self.pool, &self.pages), slot, page, now)
            || !self.is_short() && deferred.take() && self.defer_new(slot, page, now, slice);
        if kept {
            work::note(work::COPY);
            slice.count(work::SLOT + work::COPY);
        }
        kept
    }

    /// Whether there is room for `pages` more.
    pub(crate) fn defers(&self, pages: u64) -> bool {
        let deferred = &self.table.deferred;
        deferred.pages() + pages <= deferred.pages_max() && !self.is_short()
    }

    /// Puts a page into a cell, with room for it taken; false, and the room given back, where there is no memory for a whole page.
    fn defer_new(&self, slot: SlotIndex, page: &[u8], now: u32, slice: &mut Slice) -> bool {
        let early = mutant::on("zram: note a deferred page before it is there");
        if early {
            self.table.deferred.note(slot);
        }
        let placed = self.place(slot, page);
        let grown = placed.and_then(|cell| self.publish(slot.0.into(), Slot::Deferred(cell), now));
        let kept = grown.is_ok();
        slice.grow(grown.unwrap_or(0));
        if !kept {
            self.table.deferred.give();
        } else if !early {
            self.table.deferred.note(slot);
        }
        kept || mutant::on("zram: take a page for deferred that found no memory")
    }

    /// Whether memory is so short that a page should take as little as it can.
    fn is_short(&self) -> bool {
        self.compactor.is_asked() || self.pressure.is_felt()
    }

    /// Which deferred pages the background task compresses now, and whether a request waits for it.
    pub(crate) fn wanted_of_deferred(&self, at_rest: bool) -> Which {
        let deferred = &self.table.deferred;
        let (pages, most) = (deferred.pages(), deferred.pages_max());
        if at_rest || pages > most { Which::All } else { Which::Cold { crowded: pages > most / 2 } }
    }

    /// Compresses deferred pages in slices, until none is left that is meant. With [`Which::All`], every page that was deferred before this
    /// was called is compressed at its end, unless there was no memory at all; else it ends early where every stream is busy.
    pub(crate) async fn compress_deferred(&self, which: Which, caller: Caller) {
        if self.table.deferred.pages() == 0 {
            return;
        }
        let mut lap = self.table.deferred.lap().await;
        loop {
            let stream = match which {
                Which::All => Some(self.streams.take(&*self.env).await),
                Which::Cold { .. } => self.streams.try_take(),
            };
            let Some(mut stream) = stream else { break };
            let goes_on = self.compress_some(&mut lap, which, &mut stream);
            drop(stream);
            if !goes_on || !self.next_slice(caller).await {
                break;
            }
        }
        self.pool.end_packing(&self.pages);
    }

    /// Goes on with a lap for one slice; false at its end.
    fn compress_some(&self, lap: &mut DeferredLap<'_>, which: Which, encoder: &mut Encoder) -> bool {
        let (mut slice, now) = (Slice::new(), self.seconds());
        while !slice.is_over() {
            let Some(slot) = lap.next() else { return false };
            slice.count(1);
            if self.table.holds_deferred(slot) && !self.compress_at(slot, which, now, encoder, &mut slice) {
                lap.keep();
            }
        }
        true
    }

    /// Compresses a slot's page if it is deferred and meant; false where it stays deferred.
    fn compress_at(
        &self,
        slot: SlotIndex,
        which: Which,
        now: u32,
        encoder: &mut Encoder,
        slice: &mut Slice,
    ) -> bool {
        let mut scratch = Scratch::new();
        let meant = |mark: Mark, _| mark.is_deferred() && which.means(mark, now);
        let Some((pick, page)) = self.pick(slot, meant, &mut scratch) else { return false };
        slice.count(work::SLOT + work::COPY + encoder.units_a_page());
        let codec = encoder.codec();
        let Some(bytes) = encoder.compress(page, COMPRESSED_BYTES_MAX) else {
            let raw = Slot::Stored(pick.cell(), codec);
            if pick.publish(raw, PublishIf::Always, |mark| mark) == PickOutcome::InPlace {
                self.count(Count::HugePagesSince, 1);
            }
            return true;
        };
        let Ok(cell) = self.place_compressed(slot, bytes) else { return false };
        if pick.publish(Slot::Stored(cell, codec), PublishIf::Always, |mark| mark) == PickOutcome::InPlace {
            self.budget.note_reclaimed();
        }
        true
    }

    /// Places what a page was compressed to that lies in a larger cell; among packed objects, from the reserve, where there is no memory.
    pub(crate) fn place_compressed(&self, slot: SlotIndex, bytes: &[u8]) -> Result<Cell, Kind> {
        self.place(slot, bytes).or_else(|_| {
            let _one_at_a_time = self.compactor.pass.lock();
            self.pool.prepare_packing(&self.pages);
            let fresh = self.pool.place_packed(&self.pages, bytes.len(), slot)?;
            Ok(self.pool.fill(&self.pages, fresh, bytes))
        })
    }
}
