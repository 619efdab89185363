//! A reader of spill files that shares no code with the layer: it knows docs/spill.md alone. After a clean stop it finds every
//! record that a slot names, as it was written, and nothing else.

mod reader;

use std::collections::BTreeMap;
use std::sync::Arc;

use spillway_core::random::Random;
use spillway_core::sync::Mutex;
use spillway_core::{Answer, BlockDevice, Budget, IoBuf, Request, SECTOR};
use spillway_layers::small::memory::{self, Memory};
use spillway_layers::spill::format::RecordCodec;
use spillway_layers::spill::{Count, Location, Owner, Settings, Spilled, Store};
use spillway_sim::world::World;

/// What each slot names.
#[derive(Default)]
struct Slots(Mutex<BTreeMap<u32, (Spilled, Vec<u8>)>>);

impl Slots {
    fn into_named(self) -> BTreeMap<u32, Vec<u8>> {
        let slots = std::mem::take(&mut *self.0.lock());
        slots.into_iter().map(|(slot, (_, bytes))| (slot, bytes)).collect()
    }
}

impl Owner for Slots {
    fn names(&self, slot: u32, at: Location) -> bool {
        self.0.lock().get(&slot).is_some_and(|(spilled, _)| spilled.at == at)
    }

    fn moved(&self, from: Location, to: Spilled) -> bool {
        let mut slots = self.0.lock();
        let named = slots.get_mut(&to.record.slot).filter(|(spilled, _)| spilled.at == from);
        named.map(|(spilled, _)| *spilled = to).is_some()
    }

    fn lost(&self, slot: u32, _: Location) -> bool {
        panic!("slot {slot} is lost on a sound device")
    }
}

/// Batches of random lengths, most of them over slots that have spilled before; some slots are released.
async fn story(store: &Arc<Store>, slots: &Slots, mut random: Random, batches: u64) {
    for _ in 0..batches {
        let mut batch = store.batch().await;
        let mut pages = Vec::new();
        for _ in 0..1 + random.below(40) {
            let mut bytes = vec![0; 1 + random.below(4096) as usize];
            random.fill(&mut bytes);
            let (slot, codec) = (random.below(700) as u32, RecordCodec::compressed(random.below(8) as u8));
            let codec = if bytes.len() > 3632 { RecordCodec::RAW } else { codec };
            if batch.push(slot, codec, &bytes) {
                pages.push((slot, bytes));
            }
        }
        let (_, result) = batch
            .write(slots, |index, spilled| {
                let (slot, bytes) = pages[index].clone();
                let before = slots.0.lock().insert(slot, (spilled, bytes));
                before.into_iter().for_each(|(before, _)| store.release(&before));
                true
            })
            .await;
        result.expect("less is live than fits");
        let gone = slots.0.lock().remove(&(random.below(700) as u32));
        gone.into_iter().for_each(|(gone, _)| store.release(&gone));
    }
}

/// The bytes of a file, and what its slots named when it was stopped.
fn stopped(seed: u64, shift: u32, segments: u64, batches: u64) -> (Vec<u8>, BTreeMap<u32, Vec<u8>>, u64) {
    let world = World::new(seed);
    let bytes = (segments + 1) << shift;
    let config = memory::Config { size: bytes, block_size: SECTOR };
    let device = Memory::new(&config, Budget::new(Budget::UNLIMITED)).expect("a valid size");
    let (below, env) = (device.clone(), world.clone());
    let named = Answer::pending(async move {
        let codecs = vec!["lz4".into(), "zstd".into()];
        let settings = Settings { segment_shift: shift, codecs, ..Settings::new("ram7", 700) };
        let store = Store::open(below, &settings, env, &Budget::new(64 << 20), &mut |_| {
            Err(spillway_core::Kind::Corrupt)
        })
        .await
        .expect("it is blank")
        .0;
        let slots = Slots::default();
        story(&store, &slots, Random(seed), batches).await;
        store.stop(&slots, None).await.expect("the device is sound");
        let cleaned = store.count(Count::SegmentsCleaned);
        (slots.into_named(), cleaned)
    });
    let (named, cleaned) = world.run(named);
    let file = world.run(device.submit(Request::read(0, IoBuf::new(bytes as usize)))).buf.to_vec();
    (file, named, cleaned)
}

fn check(seed: u64, shift: u32, segments: u64, batches: u64) -> u64 {
    let (file, named, cleaned) = stopped(seed, shift, segments, batches);
    let found = reader::read(&file).expect("it was stopped");
    assert_eq!((found.name.as_str(), found.codecs[1].as_str(), found.slots), ("ram7", "zstd", 700));
    let as_written = |page: &reader::Page| (page.codec == 13) == (page.bytes.len() > 3632);
    assert!(found.live.iter().all(as_written), "seed {seed}: a page has another codec");
    let slots: BTreeMap<u32, Vec<u8>> = found.live.into_iter().map(|page| (page.slot, page.bytes)).collect();
    assert!(slots.keys().eq(named.keys()), "seed {seed}: {} found, {} named", slots.len(), named.len());
    assert!(slots == named, "seed {seed}: a page is not as it was written");
    cleaned
}

#[test]
fn every_named_record_of_a_stopped_file_is_found_and_nothing_else() {
    // Segments of 64 KiB in files that are cleaned: 700 pages of 2 KiB are 22 of them.
    let cleaned: u64 = (0..6).map(|seed| check(seed, 16, 40, 700)).sum();
    assert!(cleaned > 20, "{cleaned} segments were cleaned");
    check(7, 16, 40, 0);
    check(8, 16, 40, 1);
    // Checkpoints of several segments, and the segments of the product.
    check(9, 14, 400, 100);
    check(10, 22, 7, 40);
}

#[test]
fn a_file_in_use_is_no_stopped_one() {
    let (mut file, ..) = stopped(1, 16, 40, 20);
    file[44] = 1;
    assert!(reader::read(&file).is_err(), "its checksum covers its state");
}
