//! Reading what lies in the spill file: the misses of a request together, neighbours in one I/O.

use spillway_core::{Kind, mutant};

use super::backing::AtWork;
use super::cell::SlotIndex;
use super::codec::CodecIndex;
use super::device::{Core, Count};
use super::mark::{Away, Slot};
use super::page::PAGE;
use super::work;
use crate::spill::{Pinned, Spilled};
use crate::writeback::Reading;

/// Misses that are read together: what one I/O of the spill file brings at least.
const MISSES_MAX: usize = 64;

/// A page of a request that lies in the spill file, and stays there until it was read.
pub(super) struct Miss {
    slot: SlotIndex,
    away: Away,
    /// What turning it into a page takes.
    units: u32,
    /// This is a read that brings pages back.
    returns: bool,
    // In this order: once the pin is gone, nothing is at work.
    _pin: Pinned,
    _reading: Reading,
    _at_work: AtWork,
}

/// Misses, and which page of the request each is.
#[derive(Default)]
pub(super) struct Misses(Vec<(usize, Miss)>);

impl Misses {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() == MISSES_MAX
    }

    /// Notes that page `number` of a request is missing; returns the units of work that it takes.
    pub(super) fn add(&mut self, number: usize, miss: Miss) -> u32 {
        assert!(!self.is_full(), "no more than {MISSES_MAX} are read together");
        let units = miss.units;
        self.0.push((number, miss));
        units
    }
}

impl Core {
    /// The record that a slot names.
    pub(super) fn record(&self, slot: SlotIndex, away: Away) -> Spilled {
        let Away { placed, len, codec } = away;
        Spilled { slot: slot.0, placed, len, codec: self.codecs.record_codec(len, codec), members: 1 }
    }

    /// What slot `slot`, which the caller has locked, names in the spill file, to be read.
    pub(super) fn miss(&self, slot: SlotIndex, away: Away, read_before: Option<u32>) -> Miss {
        let backing = self.backing.get().expect("what is spilled is in a spill file");
        let (at_work, pin) = (backing.begin(), backing.store.pin(&self.record(slot, away)));
        let returns = self.knobs.brings_back(read_before);
        let units = if away.len == PAGE { work::COPY } else { self.codecs.get(away.codec).decompress_units };
        Miss { slot, away, units, returns, _pin: pin, _reading: backing.meter.read(), _at_work: at_work }
    }

    /// Reads the misses of a request into their pages of `target`, and forgets them. The error is one of them, if there is one; what is
    /// not as it was written is lost from then on.
    pub(super) async fn recall(&self, misses: &mut Misses, target: &mut [u8]) -> Result<(), Kind> {
        if misses.is_empty() {
            return Ok(());
        }
        let backing = self.backing.get().expect("what is spilled is in a spill file");
        let wanted: Vec<Spilled> =
            misses.0.iter().map(|(_, miss)| self.record(miss.slot, miss.away)).collect();
        let (mut result, mut taken) = (Ok(()), 0);
        let take = |index: usize, bytes: Result<&[u8], Kind>| {
            taken += 1;
            let (number, miss) = &misses.0[index];
            let page = &mut target[number * PAGE..][..PAGE];
            if let Err(kind) = bytes.and_then(|bytes| self.recalled(miss, bytes, page)) {
                self.lose(miss, kind);
                result = Err(kind);
            }
        };
        backing.store.read(&wanted, take).await;
        assert_eq!(taken, wanted.len(), "each miss is answered once");
        self.count(Count::BackingReads, wanted.len() as u64);
        misses.0.clear();
        result
    }

    fn recalled(&self, miss: &Miss, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        spillway_core::work::spend(self.decode(miss.away.codec, bytes, page)?);
        if miss.returns {
            self.bring_back(miss, bytes);
        }
        Ok(())
    }

    /// Keeps the object in memory from now on, where there is room for it and its page was not written meanwhile.
    fn bring_back(&self, miss: &Miss, bytes: &[u8]) {
        let Ok(fresh) = self.pool.allocate(&self.pages, bytes.len(), miss.slot) else { return };
        self.pool.fill(&self.pages, &fresh, bytes);
        let cell = fresh.publish();
        let codec = match miss.away.codec {
            _ if mutant::on("zram: bring back a page as the primary's") => CodecIndex::PRIMARY,
            codec => codec,
        };
        let (old, new) = (Slot::Spilled(miss.away), Slot::Stored(cell, codec));
        if self.table.exchange(miss.slot, old, new) {
            self.release(miss);
            self.count(Count::BroughtBack, 1);
        } else {
            self.pool.free(&self.pages, cell);
        }
    }

    /// A page whose record is not what was written cannot be read before it is written again.
    fn lose(&self, miss: &Miss, kind: Kind) {
        if kind == Kind::Corrupt && self.table.exchange(miss.slot, Slot::Spilled(miss.away), Slot::Lost) {
            self.release(miss);
        }
    }

    fn release(&self, miss: &Miss) {
        let backing = self.backing.get().expect("what is spilled is in a spill file");
        backing.store.release(&self.record(miss.slot, miss.away));
        backing.pressure.has_found_room();
    }
}
