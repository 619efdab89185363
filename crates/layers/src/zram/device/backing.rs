//! The spill file of a device.

use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Permit, RwLock, Semaphore, WaitList};
use spillway_core::{Env, Error};

use super::pressure::Pressure;
use crate::spill::{Count, Owner, Store, WholeDevice};
use crate::writeback::{Meter, Pauses};

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
    /// Bytes that had been written to it when the device was reset last.
    written_before: AtomicU64,
    /// It is the one of the device's configuration: a reset empties it, and lets go of any other.
    pub(crate) stays: bool,
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
        env: Arc<dyn Env>,
        (meter, pressure): (&Arc<Meter>, &Arc<Pressure>),
    ) -> Self {
        Self {
            store,
            path,
            written_before: AtomicU64::new(0),
            stays,
            turn: Semaphore::new(1),
            pressure: pressure.clone(),
            pauses: Pauses::new(env, meter.clone()),
            meter: meter.clone(),
            ending: AtomicBool::new(false),
            at_work: AtomicU32::new(0),
            at_rest: WaitList::default(),
        }
    }

    /// Bytes written to it since the device was reset last, or since it was opened.
    pub(crate) fn written_since(&self) -> u64 {
        self.store.count(Count::BytesWritten).saturating_sub(self.written_before.load(Ordering::Relaxed))
    }

    /// The device was reset.
    pub(crate) fn reset(&self) {
        self.written_before.store(self.store.count(Count::BytesWritten), Ordering::Relaxed);
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

    /// Ends the use of the file, for its `owner`; afterwards it says which pages it holds. Those are all, of a device that is `whole`.
    pub(crate) async fn end(&self, owner: &impl Owner, whole: Option<&WholeDevice>) -> Result<(), Error> {
        let _turn = self.cease().await;
        self.store.stop(owner, whole).await
    }

    /// From now on nothing is written back; what was under way has ended then.
    pub(crate) async fn cease(&self) -> Permit<'_> {
        self.ending.store(true, Ordering::SeqCst);
        let turn = self.turn.hold().await;
        self.rest().await;
        turn
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
