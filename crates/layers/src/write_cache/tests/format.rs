//! The format to the byte: caches made by hand, what is committed, and metadata that cannot be.

use super::*;
use crate::write_cache::format::{ENTRY_LEN, FREE, SUPERBLOCK_LEN};

#[test]
fn a_cache_made_by_hand_is_served() {
    let house = House::new(1 << 20, 1 << 20);
    house.put(1, 0, &superblock(4096, 254, 5));
    house.put(1, 64, &[entry(16, 3), entry(16, 2), entry(8, 5), entry(u64::MAX, FREE)].concat());
    for slot in 4..254 {
        house.put(1, 64 + 16 * slot, &entry(u64::MAX, FREE));
    }
    (0..3).for_each(|block| house.put(1, 8192 + block * 4096, &[block as u8 + 1; 16]));
    let cache = house.open(&config()).unwrap();
    assert_eq!(house.read(cache.clone(), 8192, 4096)[..16], [1; 16], "the higher seq_count counts");
    assert_eq!(house.read(cache.clone(), 4096, 4096)[..16], [0; 16], "5 is not committed");
    assert_eq!((show(&cache, "dirty_blocks"), show(&cache, "seq_count")), ("1".into(), "5".into()));
    let entries = house.read(house.device(1), 0, 512);
    for slot in [1, 2] {
        assert_eq!(entries[64 + 16 * slot + 8..][..8], [0xff; 8], "entry {slot} is free on the device");
    }
}

#[test]
fn what_is_committed_lies_where_the_format_says() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 7, 0xaa, 2);
    house.flush(&cache);
    let head = house.read(house.device(1), 0, 8192);
    assert_eq!(head[..32], superblock(4096, 254, 1)[..]);
    assert_eq!(head[32..40], *b"spillway");
    assert_eq!(head[40..48], (1u64 << 20).to_le_bytes());
    assert_eq!(head[48..64], [0; 16], "a simulated disk has no identity");
    let entries: Vec<&[u8]> = head[SUPERBLOCK_LEN..].chunks_exact(ENTRY_LEN).take(254).collect();
    for origin in [7, 8] {
        let index = entries.iter().position(|found| *found == entry(origin * 8, 0)).expect("committed");
        assert_eq!(house.read(house.device(1), 8192 + index as u64 * 4096, 4096), [0xaa; 4096]);
    }
    assert_eq!(entries.iter().filter(|found| found[8..] == [0xff; 8]).count(), 252);
    assert_eq!(house.read(house.device(0), 7 * 4096, 4096), [0; 4096], "the origin has nothing yet");
}

#[test]
fn what_does_not_fit_is_refused_and_left_as_it_is() {
    let house = House::new(1 << 20, 1 << 20);
    house.put(1, 0, b"something else");
    let before = house.read(house.device(1), 0, 512);
    assert!(house.refusal(&config()).contains("use --create"));
    assert_eq!(house.read(house.device(1), 0, 512), before);
    house.open(&Config { old_cache: OldCache::Create, ..config() }).unwrap();
    assert!(house.refusal(&Config { block_size: 8192, ..config() }).contains("--block-size 4096"));
    assert!(house.refusal(&Config { start_sector: 4096, ..config() }).contains("2048 sectors"));
    for (at, bytes, part) in [
        (16, &1000u64.to_le_bytes()[..], "was it shrunk"),
        (16, &u64::MAX.to_le_bytes(), "cache of 18446744073709551615 blocks"),
        (16, &0u64.to_le_bytes(), "it tells of 0 blocks"),
        (24, &u64::MAX.to_le_bytes(), "seq_count 18446744073709551615 cannot come"),
        (4, &2u32.to_le_bytes(), "version 2"),
        (8, &3000u32.to_le_bytes(), "superblock is damaged"),
    ] {
        let house = house.again();
        house.put(1, at, bytes);
        let refusal = house.refusal(&config());
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
}

#[test]
fn a_superblock_with_any_field_changed_is_refused_or_serves() {
    let first = dirty();
    let head = first.read(first.device(1), 0, 4096);
    let entry = (0..254).find(|slot| head[64 + 16 * slot + 8] != 0xff).expect("one block is committed");
    let fields = [(0, 4), (4, 4), (8, 4), (12, 4), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8)];
    let entries = [(64 + 16 * entry, 8), (64 + 16 * entry + 8, 8)];
    for (at, len) in fields.into_iter().chain(entries) {
        let mut now = [0; 8];
        now[..len].copy_from_slice(&head[at..at + len]);
        let now = u64::from_le_bytes(now);
        for value in [0, 1, u64::MAX, now.wrapping_add(1), now.wrapping_sub(1)] {
            let house = first.again();
            house.put(1, at as u64, &value.to_le_bytes()[..len]);
            match house.open(&config()) {
                Ok(cache) => {
                    house.read(cache.clone(), 0, 1 << 20);
                    house.write(&cache, 3, 1, 4);
                    house.flush(&cache);
                }
                Err(error) => assert!(error.message().len() > 20, "{at}: {value:#x}: {error}"),
            }
        }
    }
}

#[test]
fn a_cache_device_of_any_length_is_refused_or_serves() {
    for sectors in (1..64).chain(2000..2048) {
        let house = House::new(1 << 20, sectors * SECTOR);
        match house.open(&config()) {
            Ok(cache) => {
                house.write(&cache, 3, 1, 1);
                house.flush(&cache);
            }
            Err(error) => assert!(error.message().contains("has no room"), "{sectors}: {error}"),
        }
        let cut = dirty();
        let whole = cut.read(cut.device(1), 0, (sectors * SECTOR) as usize);
        for (at, sector) in (0..).step_by(SECTOR as usize).zip(whole.chunks(SECTOR as usize)) {
            house.put(1, at, sector);
        }
        assert!(house.open(&config()).is_err(), "a cache of 2048 sectors on {sectors}");
    }
}

#[test]
fn entries_that_cannot_be_are_refused() {
    for (entries, part) in [
        ([entry(8, 0), entry(8, 0)], "entries 0 and 1 of the cache both hold block 1"),
        ([entry(9, 0), entry(u64::MAX, FREE)], "sector 9 of the origin is not a multiple of 8"),
        ([entry(2048, 0), entry(u64::MAX, FREE)], "block 256 of the origin, which has only 256"),
    ] {
        let house = House::new(1 << 20, 1 << 20);
        house.open(&config()).unwrap();
        house.put(1, 0, &superblock(4096, 254, 1));
        house.put(1, 64, &entries.concat());
        let refusal = house.refusal(&config());
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
}

#[test]
fn of_two_equal_versions_the_later_block_is_taken_when_asked_for() {
    let house = House::new(1 << 20, 1 << 20);
    house.open(&config()).unwrap();
    house.put(1, 0, &superblock(4096, 254, 1));
    house.put(1, 64, &[entry(8, 0), entry(8, 0)].concat());
    house.put(1, 8192 + 4096, &[9; 16]);
    let cache = house.open(&Config { old_cache: OldCache::Recover, ..config() }).unwrap();
    assert_eq!(house.read(cache, 4096, 4096)[..16], [9; 16]);
    house.open(&config()).expect("the other one is gone for good");
}
