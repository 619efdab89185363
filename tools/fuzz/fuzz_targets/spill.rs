//! A file that holds anything, opened as a spill file, and one in use whose bytes change.
//!
//! Input: a byte of choices, then bytes. They are the parts of the format, each decoded and encoded again; then the first bytes of a
//! file, which is refused with words, or opened, and taken by force; then changes of a file in use, three bytes each: where, and what is
//! flipped; the last one of a file that is kept. Checked: what decodes has the bytes that it came from; a record that slots name reads as it
//! was written or as an error, whatever was changed; cleaning and stopping come to an end; what is kept is there as a whole, or nothing is.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use spillway_core::{Answer, BlockDevice, Budget, IoBuf, Kind, Request, SECTOR};
use spillway_layers::small::memory::{self, Memory};
use spillway_layers::spill::format::{
    CheckpointEntry, FOOTER_LEN, Footer, Found, RECORD_LEN, Record, RecordCodec, Superblock, UNIT, read_tail,
};
use spillway_layers::spill::{Keep, Location, Owner, Settings, Spilled, Store, WholeDevice};
use spillway_sim::world::World;

const SHIFT: u32 = 14;
const SEGMENTS: u64 = 12;

/// What slots name, and the bytes that were written.
#[derive(Default)]
struct Slots(Mutex<BTreeMap<u32, (Spilled, Vec<u8>)>>);

impl Slots {
    fn named<T>(&self, slot: u32, at: Location, then: impl FnOnce(&mut Spilled) -> T) -> Option<T> {
        let mut slots = self.0.lock().expect("nobody panics here");
        let spilled = &mut slots.get_mut(&slot)?.0;
        (spilled.at == at).then(|| then(spilled))
    }
}

impl Owner for Slots {
    fn names(&self, slot: u32, at: Location) -> bool {
        self.named(slot, at, |_| ()).is_some()
    }

    fn moved(&self, from: Location, to: Spilled) -> bool {
        self.named(to.record.slot, from, |spilled| *spilled = to).is_some()
    }

    fn lost(&self, slot: u32, at: Location) -> bool {
        let lost = self.named(slot, at, |_| ()).is_some();
        if lost {
            self.0.lock().expect("nobody panics here").remove(&slot);
        }
        lost
    }
}

fn formats(bytes: &[u8]) {
    let mut unit = [0; UNIT];
    let len = bytes.len().min(UNIT);
    unit[..len].copy_from_slice(&bytes[..len]);
    if let Found::Superblock(found) = Superblock::decode(&unit) {
        assert_eq!(Superblock::decode(&found.encode()), Found::Superblock(found));
    }
    // Some bits have no meaning.
    if let Some(record) = bytes.first_chunk::<RECORD_LEN>().map(Record::decode) {
        assert_eq!(Record::decode(&record.encode()), record);
    }
    if let Some(footer) = bytes.first_chunk::<FOOTER_LEN>().and_then(Footer::decode) {
        assert_eq!(Footer::decode(&footer.encode()), Some(footer));
    }
    let mut rest = bytes;
    while let Some((entry, behind)) = CheckpointEntry::decode(rest) {
        let mut encoded = vec![0; CheckpointEntry::bytes(entry.records)];
        assert_eq!(entry.encode(&mut encoded), rest.len() - behind.len());
        assert_eq!(encoded, rest[..encoded.len()]);
        rest = behind;
    }
    if let Some((footer, records)) = read_tail(bytes) {
        assert_eq!(records.count(), footer.records as usize);
    }
}

fn memory() -> Arc<Memory> {
    let config = memory::Config { size: (SEGMENTS + 1) << SHIFT, block_size: SECTOR };
    Memory::new(&config, Budget::new(Budget::UNLIMITED)).expect("a valid size")
}

fn settings(force: bool) -> Settings {
    Settings { segment_shift: SHIFT, force, ..Settings::new("ram0", 64) }
}

async fn open(device: Arc<Memory>, world: Arc<World>, force: bool) -> Option<Arc<Store>> {
    let mut kept = |_| Err(Kind::Corrupt);
    let opened = Store::open(device, &settings(force), world, &Budget::new(64 << 20), &mut kept).await;
    match opened {
        Ok((store, _)) => Some(store),
        Err(error) => {
            assert!(!error.message().is_empty() && !force, "{error}");
            None
        }
    }
}

async fn spill(store: &Arc<Store>, slots: &Slots, first: u32, byte: u8) {
    let mut batch = store.batch().await;
    let pages: Vec<_> =
        (first..first + 3).map(|slot| (slot % 32, vec![byte; 100 + 37 * slot as usize % 1200])).collect();
    for (slot, bytes) in &pages {
        assert!(batch.push(*slot, RecordCodec::RAW, bytes));
    }
    let publish = |index: usize, spilled: Spilled| {
        let (slot, bytes) = pages[index].clone();
        let before = slots.0.lock().expect("nobody panics here").insert(slot, (spilled, bytes));
        before.into_iter().for_each(|(before, _)| store.release(&before));
        true
    };
    let (_, result) = batch.write(slots, publish).await;
    assert!(matches!(result, Ok(()) | Err(Kind::NoSpace)), "{result:?}");
}

async fn read(store: &Arc<Store>, slots: &Slots) {
    let held: Vec<_> = slots.0.lock().expect("nobody panics here").values().cloned().collect();
    let wanted: Vec<Spilled> = held.iter().map(|(spilled, _)| *spilled).collect();
    let pins: Vec<_> = wanted.iter().map(|spilled| store.pin(spilled)).collect();
    let check = |index: usize, found: Result<&[u8], Kind>| match found {
        Ok(bytes) => {
            assert!(bytes == held[index].1, "slot {} holds something else", wanted[index].record.slot)
        }
        Err(kind) => assert_eq!(kind, Kind::Corrupt),
    };
    store.read(&wanted, check).await;
    drop(pins);
}

/// A file in use, of which bits change between batches.
async fn change(device: Arc<Memory>, world: Arc<World>, changes: Vec<[u8; 3]>, keeps: bool) {
    let store = open(device.clone(), world.clone(), true).await.expect("by force anything is taken");
    let slots = Slots::default();
    let last = changes.last().copied();
    for (step, change) in changes.into_iter().enumerate() {
        spill(&store, &slots, u32::from(change[0]), step as u8).await;
        flip(&device, change).await;
        read(&store, &slots).await;
    }
    if !keeps {
        store.stop(&slots, None).await.expect("memory takes what is written");
        return read(&store, &slots).await;
    }
    // Of a segment whose summary has changed nothing can be kept.
    let stopped = store.stop(&slots, Some(&WholeDevice { slots: 64, codecs: vec![] })).await;
    read(&store, &slots).await;
    drop(store);
    if let (Ok(()), Some(change)) = (stopped, last) {
        flip(&device, change).await;
        start(device, world, slots).await;
    }
}

async fn flip(device: &Arc<Memory>, [low, high, flip]: [u8; 3]) {
    let at = u64::from(u16::from_le_bytes([low, high])) * 16 % ((SEGMENTS + 1) << SHIFT);
    let sector = at / SECTOR * SECTOR;
    let mut buf = device.submit(Request::read(sector, IoBuf::new(SECTOR as usize))).await.buf;
    buf[(at - sector) as usize] ^= flip;
    assert_eq!(device.submit(Request::write(sector, buf)).await.result, Ok(()));
}

/// A file that keeps what `slots` hold, and of which a bit has changed.
async fn start(device: Arc<Memory>, world: Arc<World>, slots: Slots) {
    let mut kept = BTreeMap::new();
    let mut keep = |spilled: Spilled| {
        if kept.insert(spilled.record.slot, spilled).is_none() { Ok(()) } else { Err(Kind::Corrupt) }
    };
    let settings = Settings { keep: Keep::Always, ..settings(false) };
    let Ok((store, _)) = Store::open(device, &settings, world, &Budget::new(64 << 20), &mut keep).await
    else {
        return;
    };
    let held: BTreeMap<u32, Spilled> =
        slots.0.lock().expect("nobody panics here").iter().map(|(&slot, held)| (slot, held.0)).collect();
    assert_eq!(kept, held, "what is kept");
    read(&store, &slots).await;
}

fuzz_target!(|input: &[u8]| {
    let Some((choices, bytes)) = input.split_first() else { return };
    formats(bytes);
    let (world, device) = (World::new(1), memory());
    if choices & 1 == 1 {
        let mut content = bytes.to_vec();
        content
            .resize(bytes.len().next_multiple_of(SECTOR as usize).min((SEGMENTS as usize + 1) << SHIFT), 0);
        if choices & 2 == 2 && content.len() >= 8 {
            content[..8].copy_from_slice(b"SpillFil");
        }
        if !content.is_empty() {
            world.run(device.submit(Request::write(0, IoBuf::copy_of(&content))));
        }
        world.run(Answer::pending(open(device.clone(), world.clone(), false)));
    }
    let (changes, _) = bytes.as_chunks();
    let changes = changes.iter().take(64).copied().collect();
    world.run(Answer::pending(change(device, world.clone(), changes, choices & 4 == 4)));
    world.power_off();
});
