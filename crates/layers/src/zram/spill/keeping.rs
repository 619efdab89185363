//! A device whose spill file keeps what it stores, over a stop and a start.
//!
//! ```text
//!   stop:  compress what is deferred -> write back every object -> write repeated words and lost pages, as records of their own, and again
//!                                                                   what lies in segments that no checkpoint can name
//!                                       ^                                                                |
//!                                       '------- some were picked, or an I/O failed ----------------------'
//!          -> checkpoint
//!   start: each record of the checkpoint is named by its slot, and stays in the file until it is read
//! ```
//!
//! A page of zeroes takes no record: what has none reads as zeroes.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::progress::Amount;
use spillway_core::size::human;
use spillway_core::{Error, Kind, WorkKind, mutant};
use spillway_policy::size_classes::COMPRESSED_BYTES_MAX;

use super::writeback::{self, Why};
use crate::spill::format::{Record, RecordCodec};
use crate::spill::{Batch, Keep, Settings, Spilled, WholeDevice};
use crate::zram::codec::CodecIndex;
use crate::zram::config::{Promotion, default_spill_size};
use crate::zram::control::scan::{PageFilter, SlotScan};
use crate::zram::device::Core;
use crate::zram::device::backing::Backing;
use crate::zram::mover::deferring::Which;
use crate::zram::mover::slices::Caller;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::SlotIndex;
use crate::zram::slots::mark::{Away, Slot};
use crate::zram::work::{self, Slice};

/// How long a stop waits in all for room on a full host: what finds none is lost.
const ROOM_PATIENCE: Duration = Duration::from_secs(300);

/// The record of a lost page: no codec makes a page of it, so that it is lost again as soon as it is read.
const LOST: &[u8] = &[0];

impl Core {
    /// `settings` of a file that keeps what the device, as it is configured, stores.
    pub(crate) fn keeping(&self, settings: Settings) -> Settings {
        Settings {
            keep: self.settings.keeps(),
            slots: self.size() / PAGE as u64,
            codecs: self.codecs.names(),
            ..settings
        }
    }

    /// Has an empty slot name a record that the file has kept. [`Kind::Corrupt`] where this device cannot have written it; otherwise what
    /// memory is refused with.
    pub(crate) fn take_kept(&self, record: Spilled) -> Result<(), Kind> {
        let Spilled { at, record: Record { slot, crc, len, codec } } = record;
        let len = usize::from(len);
        let priority = match codec.number() {
            _ if mutant::on("zram: take what is kept as the primary's") => CodecIndex::PRIMARY,
            Some(number) => self.codecs.priority(number.into()).ok_or(Kind::Corrupt)?,
            None => CodecIndex::PRIMARY,
        };
        let is_raw = codec == RecordCodec::RAW;
        if u64::from(slot) >= self.size() / PAGE as u64 || len > PAGE || is_raw != (len == PAGE) {
            return Err(Kind::Corrupt);
        }
        let away = Slot::Spilled(Away { at, crc, len, codec: priority });
        let replaced = self.table.set(&self.pages, SlotIndex(slot), away, self.seconds())?;
        if replaced.slot == Slot::Empty { Ok(()) } else { Err(Kind::Corrupt) }
    }

    /// Whether this file keeps what the device stores when that ends. One without a size stores nothing.
    pub(crate) fn keeps(&self, backing: &Backing) -> bool {
        self.settings.keeps() != Keep::Never && backing.stays && self.size() > 0
    }

    /// What is to be said of a file of at most `bytes` that may be too small to keep a device of `disksize`.
    pub(crate) fn short_of_keeping(&self, disksize: u64, bytes: u64) -> Option<String> {
        let wanted = default_spill_size(disksize);
        let short = self.settings.keeps() != Keep::Never && bytes < wanted;
        let (has, size, wanted) = (human(bytes), human(disksize), human(wanted));
        short.then(|| {
            format!(
                "a spill file of {has} may be too small to keep a device of {size}, and a stop that finds no room loses it: {wanted} suffice"
            )
        })
    }

    /// Ends the use of a file that keeps what the device stores. No request is at work, and none comes.
    pub(crate) async fn keep(self: &Arc<Self>, backing: &Arc<Backing>) -> Result<(), Error> {
        let pressure = self.pressure.clone();
        backing.store.wait_for_room(ROOM_PATIENCE, move || pressure.stall());
        backing.store.try_again();
        let core = self.clone();
        let work = self.works().watch(WorkKind::Keep, move || core.kept());
        let written = self.write_all(backing).await;
        if let Err(kind) = written {
            // The file is left as in use, so that the next start says what is gone.
            drop(backing.cease().await);
            return Err(self.not_kept(kind));
        }
        let whole = WholeDevice { slots: self.size() / PAGE as u64, codecs: self.codecs.names() };
        backing.end(&**self, Some(&whole)).await.map_err(|error| {
            tracing::error!("{error}");
            self.not_kept(error.kind)
        })?;
        drop(work);
        let (held, name) = (self.table.holdings(), self.name());
        let (pages, bytes) = (held.spilled_pages, human(held.spilled_bytes));
        tracing::info!("{name}: the spill file keeps what it stores: {pages} pages of {bytes}");
        Ok(())
    }

    fn name(&self) -> &str {
        self.attaching.get().map_or("", |attaching| &attaching.context().name)
    }

    fn not_kept(&self, kind: Kind) -> Error {
        let why = match kind {
            Kind::NoSpace => {
                "it is full, or the file system that it lies on: give --spill-size more, or make room"
            }
            _ => "it cannot be written",
        };
        let name = self.name();
        Error::new(kind, format!("the spill file cannot keep what '{name}' stores, which is lost: {why}"))
    }

    /// Writes every page that is in memory.
    async fn write_all(self: &Arc<Self>, backing: &Arc<Backing>) -> Result<(), Kind> {
        // A read whose client has gone may be under way, and is the last one to bring a page back.
        self.settings.bring_back.set(Promotion::Never);
        backing.rest().await;
        self.compress_deferred(Which::All, Caller::Requests).await;
        loop {
            let scans = vec![SlotScan { pages: PageFilter::All, slots: 0..self.size() / PAGE as u64 }];
            let objects = writeback::run(self.clone(), self.resets(), scans, Why::Keep).await;
            let others = match objects {
                Ok(()) => self.write_others(backing).await,
                Err(error) => Err(error.kind),
            };
            match others {
                // One failure may be followed by a success; too many in a row are not.
                Err(Kind::Io) if !backing.store.has_failed() => {}
                Err(kind) => return Err(kind),
                Ok(()) if self.is_all_away() => return Ok(()),
                // Pages that leave by themselves have picked some of them, or a mover has.
                Ok(()) => backing.rest().await,
            }
            self.env.give_way(true).await;
        }
    }

    /// How much of what it stores is in its spill file.
    fn kept(&self) -> Amount {
        let held = self.table.holdings();
        let stored = held.pages_stored.saturating_sub(held.zero_pages).max(held.spilled_pages);
        Amount { done: held.spilled_pages * PAGE as u64, total: Some(stored * PAGE as u64) }
    }

    /// Whether no page but zeroes lies in memory.
    fn is_all_away(&self) -> bool {
        let held = self.table.holdings();
        let unkept = if mutant::on("zram: keep no record of a lost page") { held.lost_pages } else { 0 };
        held.spilled_pages + held.zero_pages + unkept == held.pages_stored
    }

    /// Writes what is no object: repeated words, and which pages are lost; and what lies where no checkpoint can name it.
    async fn write_others(&self, backing: &Arc<Backing>) -> Result<(), Kind> {
        let _at_work = backing.begin();
        let unnameable = backing.store.unnameable().await;
        let mut others = Others::new(self, backing).await;
        let (mut from, mut slice) = (0, Slice::new());
        while let Some(range) = self.next_slots(from) {
            from = range.end;
            for index in range.map(SlotIndex::new) {
                let slot = self.table.lock(index).map_or(Slot::Empty, |locked| locked.get());
                slice.count(work::SLOT);
                let has_record = match slot {
                    Slot::Same(word) => word != 0,
                    Slot::Lost => !mutant::on("zram: keep no record of a lost page"),
                    Slot::Spilled(away) => unnameable.contains(&away.at.segment),
                    _ => false,
                };
                if has_record && !others.add(index, slot, &mut slice).await {
                    others.write().await?;
                    others = Others::new(self, backing).await;
                    assert!(others.add(index, slot, &mut slice).await, "an empty batch takes a page");
                }
            }
            slice.renew_if_over(&*self.env).await;
        }
        others.write().await
    }
}

/// Pages that are no objects, and a batch with a record of each.
struct Others<'a> {
    core: &'a Core,
    batch: Batch,
    all: Vec<(SlotIndex, Slot, CodecIndex)>,
}

impl<'a> Others<'a> {
    async fn new(core: &'a Core, backing: &Backing) -> Self {
        Self { core, batch: backing.store.batch().await, all: Vec::new() }
    }

    /// Adds the record of what slot `index` holds, a repeated word, a lost page or a record that is to lie elsewhere; false where it does
    /// not fit.
    async fn add(&mut self, index: SlotIndex, slot: Slot, slice: &mut Slice) -> bool {
        let mut page = [0; PAGE];
        match slot {
            Slot::Same(word) => {
                page.as_chunks_mut().0.fill(word.to_ne_bytes());
                let mut stream = self.core.streams.take(&*self.core.env).await;
                slice.count(work::COPY + stream.units_a_page());
                let codec = stream.codec();
                let bytes = stream.compress(&page, COMPRESSED_BYTES_MAX).unwrap_or(&page);
                self.push(index, slot, bytes, codec)
            }
            Slot::Spilled(away) => match self.core.read_record(index, away, &mut page).await {
                Some(Ok(bytes)) => self.push(index, slot, bytes, away.codec),
                Some(Err(Kind::Corrupt)) => self.push(index, slot, LOST, CodecIndex::PRIMARY),
                // The checkpoint fails over it.
                Some(Err(_)) => true,
                // It was cleaned meanwhile, and lies elsewhere.
                None => true,
            },
            _ => self.push(index, slot, LOST, CodecIndex::PRIMARY),
        }
    }

    fn push(&mut self, index: SlotIndex, slot: Slot, bytes: &[u8], codec: CodecIndex) -> bool {
        let named = self.core.codecs.record_codec(bytes.len(), codec);
        let added = self.batch.push(index.0, named, bytes);
        if added {
            self.all.push((index, slot, codec));
            assert_eq!(self.all.len(), self.batch.len(), "each record has its slot");
        }
        added
    }

    /// Writes the batch, and has the slots name their records.
    async fn write(self) -> Result<(), Kind> {
        let Self { core, batch, all } = self;
        let publish = |number: usize, Spilled { at, record }: Spilled| {
            let (index, slot, codec) = all[number];
            let away = Away { at, crc: record.crc, len: record.len.into(), codec };
            let named = core.table.exchange(index, slot, Slot::Spilled(away), |mark| mark);
            if let (true, Slot::Spilled(before)) = (named, slot) {
                core.release(index, before);
            }
            named
        };
        batch.write(core, publish).await.1
    }
}
