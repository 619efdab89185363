//! A store over a simulated disk, and slots that know what each of them spilled.

pub(super) mod faults;
mod full;
mod keeping;
mod length;
mod opening;
mod reading;
pub(crate) mod stopping;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use spillway_core::random::Random;
use spillway_core::sync::Mutex;
use spillway_core::{Answer, BlockSize, Budget, Error, Kind, Progress};
use spillway_sim::disk::{Disk, Medium, Plan};
use spillway_sim::world::World;

use super::format::RecordCodec;
use super::*;
use crate::file::File;

/// Segments of 64 KiB, and how many.
const SHIFT: u32 = 16;
const SEGMENTS: u64 = 12;

/// What a slot holds: its record, and the bytes that it was written with.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) spilled: Spilled,
    pub(super) bytes: Vec<u8>,
}

/// Slots that spill, or are lost.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) held: Mutex<BTreeMap<u32, Held>>,
    lost: Mutex<Vec<u32>>,
    /// Long work that was seen when a record was taken that the file kept.
    seen: Mutex<Vec<Progress>>,
}

impl Owner for Slots {
    fn names(&self, slot: u32, at: Location) -> bool {
        self.held.lock().get(&slot).is_some_and(|held| held.spilled.at == at)
    }

    fn moved(&self, from: Location, to: Spilled) -> bool {
        match self.held.lock().get_mut(&to.record.slot) {
            Some(held) if held.spilled.at == from => {
                held.spilled = to;
                true
            }
            _ => false,
        }
    }

    fn lost(&self, slot: u32, at: Location) -> bool {
        let mut held = self.held.lock();
        let named = held.get(&slot).is_some_and(|held| held.spilled.at == at);
        if named {
            held.remove(&slot);
            self.lost.lock().push(slot);
        }
        named
    }
}

/// An open store in a world of its own.
struct House {
    world: Arc<World>,
    disk: Arc<Disk>,
    store: Arc<Store>,
    slots: Arc<Slots>,
    budget: Arc<Budget>,
}

fn medium() -> Medium {
    Medium::new((SEGMENTS + 1) << SHIFT)
}

fn settings() -> Settings {
    Settings { segment_shift: SHIFT, ..Settings::new("ram0", 1 << 20) }
}

fn whole_device() -> WholeDevice {
    WholeDevice { slots: settings().slots, codecs: vec!["lz4".into()] }
}

/// Opens what `medium` holds.
fn open(
    medium: Medium,
    settings: &Settings,
    plan: Plan,
    seed: u64,
) -> Result<(House, Option<String>), Error> {
    open_again(medium, settings, plan, seed, &BTreeMap::new())
}

/// The same, where the file may keep what was `stored`.
fn open_again(
    medium: Medium,
    settings: &Settings,
    plan: Plan,
    seed: u64,
    stored: &BTreeMap<u32, Vec<u8>>,
) -> Result<(House, Option<String>), Error> {
    let world = World::new(seed);
    let disk = Arc::new(Disk::new(world.clone(), medium, BlockSize::PAGE, plan, seed));
    let budget = Budget::new(64 << 20);
    let (env, file) = (world.clone(), File::new(disk.clone(), world.clone()));
    let (settings, charged, works) = (settings.clone(), budget.clone(), settings.works.clone());
    let slots: Arc<Slots> = Arc::default();
    let (held, stored) = (slots.clone(), stored.clone());
    let opened = run(&world, async move {
        let mut keep = |spilled: Spilled| {
            held.seen.lock().extend(works.progress());
            let bytes = stored.get(&spilled.record.slot).cloned().ok_or(Kind::Corrupt)?;
            let before = held.held.lock().insert(spilled.record.slot, Held { spilled, bytes });
            if before.is_none() { Ok(()) } else { Err(Kind::Corrupt) }
        };
        Store::open(Arc::new(file), &settings, env, &charged, &mut keep).await
    })?;
    let (store, note) = opened;
    Ok((House { world, disk, store, slots, budget }, note))
}

fn run<T: 'static>(world: &World, future: impl Future<Output = T> + 'static) -> T {
    world.run(Answer::pending(future))
}

/// Writes these records as one batch, and has their slots hold them.
pub(super) async fn spill(
    store: Arc<Store>,
    slots: Arc<Slots>,
    pages: Vec<(u32, Vec<u8>)>,
) -> (usize, Result<(), Kind>) {
    let mut batch = store.batch().await;
    for (slot, bytes) in &pages {
        assert!(batch.push(*slot, RecordCodec::RAW, bytes), "the batch is full");
    }
    let held = slots.clone();
    let publish = |index: usize, spilled: Spilled| {
        let (slot, bytes) = pages[index].clone();
        let before = held.held.lock().insert(slot, Held { spilled, bytes });
        before.into_iter().for_each(|before| store.release(&before.spilled));
        true
    };
    batch.write(&*slots, publish).await
}

/// `len` bytes that follow from `seed`.
pub(super) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random(seed).fill(&mut bytes);
    bytes
}

impl House {
    fn new(seed: u64) -> Self {
        open(medium(), &settings(), Plan::default(), seed).expect("it is blank").0
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        run(&self.world, future)
    }

    fn spill(&self, pages: Vec<(u32, Vec<u8>)>) -> (usize, Result<(), Kind>) {
        self.run(spill(self.store.clone(), self.slots.clone(), pages))
    }

    /// Spills slots of raw pages that follow from their numbers and `version`.
    fn spill_pages(&self, slots: impl IntoIterator<Item = u32>, version: u64) {
        let slots: Vec<u32> = slots.into_iter().collect();
        for some in slots.chunks(4) {
            let pages =
                some.iter().map(|&slot| (slot, bytes(u64::from(slot) << 32 | version, 4096))).collect();
            assert_eq!(self.spill(pages), (some.len(), Ok(())));
        }
    }

    fn release(&self, slot: u32) {
        let held = self.slots.held.lock().remove(&slot).expect("it is spilled");
        self.store.release(&held.spilled);
    }

    /// Reads these slots together; what each gives.
    fn read(&self, slots: &[u32]) -> Vec<Result<Vec<u8>, Kind>> {
        let held = self.slots.held.lock();
        let wanted: Vec<Spilled> = slots.iter().map(|slot| held[slot].spilled).collect();
        drop(held);
        let pins: Vec<_> = wanted.iter().map(|spilled| self.store.pin(spilled)).collect();
        let store = self.store.clone();
        self.run(async move {
            let mut found = vec![Err(Kind::NotFound); wanted.len()];
            store.read(&wanted, |index, bytes| found[index] = bytes.map(<[u8]>::to_vec)).await;
            drop(pins);
            found
        })
    }

    fn check(&self, slot: u32) -> Result<(), Kind> {
        let found = self.read(&[slot]).remove(0)?;
        assert!(found == self.slots.held.lock()[&slot].bytes, "slot {slot} holds something else");
        Ok(())
    }

    fn slots(&self) -> Vec<u32> {
        self.slots.held.lock().keys().copied().collect()
    }

    /// Lets the upkeep end, and has store and slots agree.
    fn verify(&self) {
        while self.world.go_on() {}
        let held: Vec<Spilled> = self.slots.held.lock().values().map(|held| held.spilled).collect();
        self.store.verify(held.into_iter(), std::iter::empty());
    }

    fn stop(&self) -> Result<(), Error> {
        let (store, slots) = (self.store.clone(), self.slots.clone());
        self.run(async move { store.stop(&*slots, None).await })
    }

    /// Stops a store whose slots have everything.
    fn stop_whole(&self) -> Result<(), Error> {
        let (store, slots) = (self.store.clone(), self.slots.clone());
        self.run(async move { store.stop(&*slots, Some(&whole_device())).await })
    }

    /// What the slots hold.
    fn stored(&self) -> BTreeMap<u32, Vec<u8>> {
        self.slots.held.lock().iter().map(|(&slot, held)| (slot, held.bytes.clone())).collect()
    }

    /// Ends the world as a power cut does; what is left on the disk.
    fn cut(self) -> Medium {
        self.disk.cut();
        self.world.power_off();
        drop(self.store);
        self.disk.survivors()
    }
}
