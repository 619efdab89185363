//! Reading what lies in the spill file: the misses of a request together, neighbours in one I/O.

use std::sync::Arc;

use spillway_core::{Kind, mutant};
use spillway_policy::size_classes::COMPRESSED_BYTES_MAX;

use crate::spill::format::Record;
use crate::spill::{Pinned, Spilled};
use crate::writeback::MeteredRead;
use crate::zram::codec::CodecIndex;
use crate::zram::device::backing::{AtWork, Backing};
use crate::zram::device::{Core, Count};
use crate::zram::page::PAGE;
use crate::zram::pool::cell::SlotIndex;
use crate::zram::slots::mark::{Away, Slot};
use crate::zram::work::{self, Slice};

/// Misses that are read together: what one I/O of the spill file brings at least.
const MISSES_MAX: usize = 64;

/// A page of a request that lies in the spill file, and stays there until it was read.
pub(crate) struct Miss {
    slot: SlotIndex,
    away: Away,
    /// What turning it into a page takes.
    units: u32,
    /// This is a read that brings pages back.
    returns: bool,
    // In this order: once the pin is gone, nothing is at work.
    _pin: Pinned,
    _reading: Option<MeteredRead>,
    _at_work: AtWork,
}

/// Misses, and which page of the request each is.
#[derive(Default)]
pub(crate) struct Misses(Vec<(usize, Miss)>);

impl Misses {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() == MISSES_MAX
    }

    /// Notes that page `number` of a request is missing; returns the units of work that it takes.
    pub(crate) fn add(&mut self, number: usize, miss: Miss) -> u32 {
        assert!(!self.is_full(), "no more than {MISSES_MAX} are read together");
        let units = miss.units;
        self.0.push((number, miss));
        units
    }
}

/// What reads that are made together may still bring back.
struct Returns {
    /// Bytes of memory.
    room: u64,
    /// Work.
    slice: Slice,
}

impl Core {
    /// The record that a slot names.
    pub(crate) fn record(&self, slot: SlotIndex, away: Away) -> Spilled {
        let Away { at, crc, len, codec } = away;
        let codec = self.codecs.record_codec(len, codec);
        Spilled { at, record: Record { slot: slot.0, crc, len: len as u16, codec } }
    }

    /// What slot `slot`, which the caller has locked, names in the spill file, to be read.
    pub(crate) fn miss(&self, slot: SlotIndex, away: Away, read_before: Option<u32>) -> Miss {
        let backing = self.spill_file();
        let (at_work, pin) = (backing.begin(), backing.store.pin(&self.record(slot, away)));
        let returns = self.settings.brings_back(read_before);
        let units = if away.len == PAGE { work::COPY } else { self.codecs.get(away.codec).decompress_units };
        let unseen = mutant::on("zram: reads do not hold write-back back");
        let reading = (!unseen).then(|| backing.meter.read());
        Miss { slot, away, units, returns, _pin: pin, _reading: reading, _at_work: at_work }
    }

    /// Reads the misses of a request into their pages of `target`, and forgets them. The error is one of them, if there is one; what is
    /// not as it was written is lost from then on.
    pub(crate) async fn recall(&self, misses: &mut Misses, target: &mut [u8]) -> Result<(), Kind> {
        if misses.is_empty() {
            return Ok(());
        }
        let backing = self.spill_file();
        let wanted: Vec<Spilled> =
            misses.0.iter().map(|(_, miss)| self.record(miss.slot, miss.away)).collect();
        let (mut result, mut taken, mut returns) = (Ok(()), 0, None);
        let take = |index: usize, bytes: Result<&[u8], Kind>| {
            taken += 1;
            let (number, miss) = &misses.0[index];
            let page = &mut target[number * PAGE..][..PAGE];
            if let Err(kind) = bytes.and_then(|bytes| self.recalled(miss, bytes, page, &mut returns)) {
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

    /// Reads the bytes of a record, which stays where it is.
    pub(crate) async fn read_record<'a>(
        &self,
        slot: SlotIndex,
        away: Away,
        into: &'a mut [u8; PAGE],
    ) -> Option<Result<&'a [u8], Kind>> {
        let (backing, record) = (self.spill_file(), self.record(slot, away));
        let _pin = {
            // While it is locked, what it names stays where it is.
            let locked = self.table.lock(slot)?;
            (locked.get() == Slot::Spilled(away)).then(|| backing.store.pin(&record))?
        };
        let mut read = Err(Kind::Io);
        let take = |_, found: Result<&[u8], Kind>| {
            read = found.map(|bytes| into[..bytes.len()].copy_from_slice(bytes));
        };
        backing.store.read(&[record], take).await;
        Some(read.map(|()| &into[..away.len]))
    }

    /// What may be brought back by reads that are made together: nothing from the high watermark on, for it would leave again, and nothing
    /// where it could not leave again.
    fn returns(&self) -> Returns {
        let backing = self.spill_file();
        let high = self.settings.spill_high_watermark.get();
        let room = if self.may_spill(&backing) { self.level().1.below(high) } else { 0 };
        // Their copies may take a page of memory, and objects a bit more than their bytes.
        let room = room.saturating_sub(2 * PAGE as u64);
        Returns { room, slice: Slice::new() }
    }

    fn recalled(
        &self,
        miss: &Miss,
        bytes: &[u8],
        page: &mut [u8],
        returns: &mut Option<Returns>,
    ) -> Result<(), Kind> {
        spillway_core::work::spend(self.decode(miss.away.codec, bytes, page)?);
        if !miss.returns {
            return Ok(());
        }
        let returns = returns.get_or_insert_with(|| self.returns());
        if returns.slice.is_over() {
            return Ok(());
        }
        if bytes.len() < PAGE || self.compressed_writeback.get() {
            self.bring_back(miss, bytes, miss.away.codec, returns);
        } else if let Some(mut stream) = self.streams.try_take() {
            // It was decompressed when it left. Where every stream is busy it stays away until it is read again.
            returns.slice.spend(stream.units_a_page());
            let codec = stream.codec();
            let compressed = stream.compress(bytes, COMPRESSED_BYTES_MAX).unwrap_or(bytes);
            self.bring_back(miss, compressed, codec, returns);
        }
        Ok(())
    }

    /// Keeps the object in memory from now on, where there is room for it and its page was not written meanwhile.
    fn bring_back(&self, miss: &Miss, bytes: &[u8], codec: CodecIndex, returns: &mut Returns) {
        let room = returns.room.checked_sub(bytes.len() as u64);
        let Some(room) = room.or(mutant::on("zram: bring back above the watermark").then_some(0)) else {
            return;
        };
        let Ok(cell) = self.place(miss.slot, bytes) else { return };
        let codec = match codec {
            _ if mutant::on("zram: bring back a page as the primary's") => CodecIndex::PRIMARY,
            codec => codec,
        };
        let (slot, away) = (miss.slot, miss.away);
        let copy = self.keep_copy(slot, away);
        if self.table.bring_back(slot, away, Slot::Stored(cell, codec), copy) {
            if !copy {
                self.release(slot, away);
            }
            self.count(Count::BroughtBack, 1);
            returns.room = room;
        } else {
            self.pool.free(&self.pages, cell);
            if copy {
                self.end_copy(slot, away);
            }
        }
    }

    /// A page whose record is not what was written cannot be read before it is written again.
    fn lose(&self, miss: &Miss, kind: Kind) {
        let (slot, away) = (miss.slot, miss.away);
        if kind == Kind::Corrupt && self.table.exchange(slot, Slot::Spilled(away), Slot::Lost, |mark| mark) {
            self.release(slot, away);
        }
    }

    /// A slot names its record no longer.
    pub(crate) fn release(&self, slot: SlotIndex, away: Away) {
        let backing = self.spill_file();
        backing.store.release(&self.record(slot, away));
        backing.pressure.has_found_room();
    }

    /// The spill file, of a device that has records in one.
    pub(crate) fn spill_file(&self) -> Arc<Backing> {
        self.backing.get().expect("what is spilled is in a spill file")
    }
}
