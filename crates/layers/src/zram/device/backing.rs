//! The spill file of a device, and what is set about writing to it.

use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, RwLock, Semaphore, WaitList};
use spillway_core::{Env, Error};

use super::pressure::Pressure;
use crate::options::Live;
use crate::spill::{Owner, Store};
use crate::writeback::{Meter, Pauses};
use crate::zram::config::{BringBack, Config};

/// What is set about writing back, with a spill file or without.
pub(crate) struct Knobs {
    /// Pages that may still be written back, where that is limited.
    limit: AtomicU64,
    pub(crate) writeback_limit_enable: Live<bool>,
    pub(crate) writeback_batch_size: Live<u64>,
    pub(crate) compressed_writeback: Live<bool>,
    pub(crate) bring_back: Live<BringBack>,
    pub(crate) bring_back_age: Live<u64>,
    pub(crate) recompress_age: Live<u64>,
    pub(crate) spill_high_watermark: Live<u64>,
    pub(crate) spill_low_watermark: Live<u64>,
    pub(crate) spill_age: Live<u64>,
    pub(crate) spill_daily_bytes: Live<u64>,
}

impl Knobs {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            limit: AtomicU64::new(config.writeback_limit),
            writeback_limit_enable: Live::new(config.writeback_limit_enable),
            writeback_batch_size: Live::new(config.writeback_batch_size),
            compressed_writeback: Live::new(config.compressed_writeback),
            bring_back: Live::new(config.bring_back),
            bring_back_age: Live::new(config.bring_back_age),
            recompress_age: Live::new(config.recompress_age),
            spill_high_watermark: Live::new(config.spill_high_watermark),
            spill_low_watermark: Live::new(config.spill_low_watermark),
            spill_age: Live::new(config.spill_age),
            spill_daily_bytes: Live::new(config.spill_daily_bytes),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Ordering::Relaxed);
    }

    /// Whether a page may be written back.
    pub(crate) fn may_write(&self) -> bool {
        !self.writeback_limit_enable.get() || self.limit() > 0
    }

    /// Charges a page that is about to be written back: whether it may be, and what is to be given back if it is not written.
    pub(crate) fn take_page(&self) -> Option<u64> {
        if !self.writeback_limit_enable.get() {
            return Some(0);
        }
        let taken = self.limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.ok().map(|_| 1)
    }

    /// Gives back what was charged for pages that were not written.
    pub(crate) fn give_back(&self, pages: u64) {
        let more = |left: u64| Some(left.saturating_add(pages));
        self.limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).expect("it always changes");
    }

    /// Whether a read brings a page back that was read before, so many seconds ago, or was not.
    pub(crate) fn brings_back(&self, read_before: Option<u32>) -> bool {
        match self.bring_back.get() {
            BringBack::Never => false,
            BringBack::Always => true,
            BringBack::Second => read_before.is_some_and(|age| u64::from(age) <= self.bring_back_age.get()),
        }
    }
}

/// The spill file that a device has at present, if any. It comes and goes while no slot names a record.
#[derive(Default)]
pub(crate) struct Attached(RwLock<Option<Arc<Backing>>>);

impl Attached {
    pub(crate) fn get(&self) -> Option<Arc<Backing>> {
        self.0.read().clone()
    }

    pub(crate) fn put(&self, backing: Option<Arc<Backing>>) {
        *self.0.write() = backing;
    }
}

/// A device's spill file.
pub(crate) struct Backing {
    pub(crate) store: Arc<Store>,
    pub(crate) path: PathBuf,
    /// It is the one of the device's configuration: a reset empties it, and lets go of any other.
    pub(crate) stays: bool,
    /// I/Os in flight.
    pub(crate) depth: usize,
    /// Held by who writes back, and by a reset.
    pub(crate) turn: Semaphore,
    pub(crate) pressure: Arc<Pressure>,
    /// Measures the spill file.
    pub(crate) meter: Arc<Meter>,
    /// Of writers, while pages leave too slowly.
    pub(crate) pauses: Pauses,
    /// The device ends, or lets go of the file: nothing more is written back.
    ending: AtomicBool,
    /// Batches that are written and pages that are read.
    at_work: AtomicU32,
    /// Nothing is.
    at_rest: WaitList,
}

impl Backing {
    pub(crate) fn new(
        store: Arc<Store>,
        path: PathBuf,
        stays: bool,
        depth: usize,
        env: Arc<dyn Env>,
        (meter, pressure): (&Arc<Meter>, &Arc<Pressure>),
    ) -> Self {
        Self {
            store,
            path,
            stays,
            depth,
            turn: Semaphore::new(1),
            pressure: pressure.clone(),
            pauses: Pauses::new(env, meter.clone()),
            meter: meter.clone(),
            ending: AtomicBool::new(false),
            at_work: AtomicU32::new(0),
            at_rest: WaitList::default(),
        }
    }

    /// The time for which what slots name and what the file counts may differ.
    pub(crate) fn begin(self: &Arc<Self>) -> AtWork {
        self.at_work.fetch_add(1, Ordering::SeqCst);
        AtWork(self.clone())
    }

    /// The same for a batch, whose end serves who waits for one; `None` where nothing more is written back.
    pub(crate) fn begin_batch(self: &Arc<Self>) -> Option<BatchAtWork> {
        self.pressure.batches.fetch_add(1, Ordering::SeqCst);
        let batch = BatchAtWork(self.begin());
        // In this order: who ends the use of the file sees the batch, or the batch sees the end.
        (!self.is_ending()).then_some(batch)
    }

    /// Whether nothing more is written back.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Ends the use of the file, for its `owner`; afterwards it says which pages it holds.
    pub(crate) async fn end(&self, owner: &impl Owner) -> Result<(), Error> {
        self.ending.store(true, Ordering::SeqCst);
        let _turn = self.turn.hold().await;
        self.rest().await;
        self.store.stop(owner).await
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::SeqCst) > 0
    }

    /// Waits until nothing is written or read.
    pub(crate) async fn rest(&self) {
        self.at_rest.until(|| (!self.is_at_work()).then_some(())).await;
    }
}

/// See [`Backing::begin`].
pub(crate) struct AtWork(Arc<Backing>);

impl Drop for AtWork {
    fn drop(&mut self) {
        let before = self.0.at_work.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "what ends has begun");
        if before == 1 {
            self.0.at_rest.wake_all();
        }
    }
}

/// See [`Backing::begin_batch`].
pub(crate) struct BatchAtWork(AtWork);

impl BatchAtWork {
    /// What measures the file that the batch is written to.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.0.0.meter
    }

    pub(crate) fn pressure(&self) -> &Pressure {
        &self.0.0.pressure
    }
}

impl Drop for BatchAtWork {
    fn drop(&mut self) {
        let pressure = self.pressure();
        let before = pressure.batches.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "what ends has begun");
        pressure.attempts.serve_all();
    }
}
