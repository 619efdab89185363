//! What is formatted, what is refused, and that a refusal leaves both devices as they are.

use spillway_core::Writers;

use super::*;
use crate::write_cache::format::{Entry, Layout, Superblock};

mod growing;
mod recovering;
mod restart;

const MIB: u64 = 1 << 20;

/// The whole content of a disk.
fn content(house: &House, disk: usize) -> Vec<u8> {
    house.read(house.device(disk), 0, house.device(disk).geometry().size as usize)
}

fn create() -> Config {
    Config { old_cache: OldCache::Create, ..config() }
}

fn force() -> Config {
    Config { force: true, ..create() }
}

/// The refusal, after which both disks are as before.
fn refused_untouched(house: &House, config: &Config) -> String {
    let before = [0, 1].map(|disk| content(house, disk));
    let refusal = house.refusal(config);
    assert!([0, 1].map(|disk| content(house, disk)) == before, "written in spite of: {refusal}");
    refusal
}

/// A cut leaves any of the sectors that are being written.
#[test]
fn a_new_cache_opens_whenever_the_power_goes() {
    let blank = House::new(MIB, MIB);
    opens_whenever_the_power_goes(&blank, &config(), 0);
    let first = House::new(MIB, MIB);
    let cache = first.open(&config()).unwrap();
    first.write(&cache, 0, 9, 1);
    set(&cache, "drain", "1").unwrap();
    first.wait_for("the end", || show(&cache, "drain_state") == "complete");
    drop(cache);
    opens_whenever_the_power_goes(&first, &create(), 9);
}

/// Over what the disks of `first` have, whose first block is of these bytes.
fn opens_whenever_the_power_goes(first: &House, new: &Config, byte: u8) {
    let media = [0, 1].map(|disk| first.survivor(disk));
    for (seed, boundary) in (0..20).flat_map(|seed| (0..16).map(move |boundary| (seed, boundary))) {
        let world = World::new(seed);
        let cuts = [None, Some(boundary)];
        let disks = [0, 1].map(|disk: usize| {
            let plan = Plan { cut_at: cuts[disk], ..Plan::default() };
            Arc::new(Disk::new(world.clone(), media[disk].clone(), BlockSize::SECTOR, plan, seed))
        });
        let house = House::of(&world, disks);
        let [origin, device] = [0, 1].map(|disk| house.device(disk));
        let (budget, env, opened) = (house.budget.clone(), world.clone(), new.clone());
        world.spawn_here(Box::pin(async move {
            let _ = WriteCache::open(&opened, origin, device, env, budget, Works::default()).await;
        }));
        while house.disks[1].boundaries() <= boundary && world.go_on() {}
        let house = house.again();
        let cache = house.open(&config()).expect("it goes on");
        assert_eq!(house.read(cache, 0, BLOCK), [byte; BLOCK], "seed {seed}, cut at {boundary}");
    }
}

/// All of these begin with eight zero bytes, as a blank device does.
#[test]
fn what_is_recognised_is_formatted_by_force_alone() {
    for (at, magic, name) in [
        (1024 + 56, &[0x53, 0xef][..], "ext4"),
        (4086, b"SWAPSPACE2", "swap"),
        (512, b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0LVM2 001", "LVM2"),
        (510, &[0x55, 0xaa], "MBR"),
        (4 * MIB - 512, b"EFI PART", "GPT"),
        (4 * MIB - 65536, &[0xfc, 0x4e, 0x2b, 0xa9], "md array"),
    ] {
        let house = House::new(MIB, 4 * MIB);
        house.put(1, at, magic);
        let refusal = refused_untouched(&house, &config());
        assert!(refusal.contains(name) && refusal.contains("--create --force"), "{name}: {refusal}");
        let refusal = refused_untouched(&house, &create());
        assert!(refusal.contains("--create --force") && refusal.contains(name), "{name}: {refusal}");
        house.open(&force()).unwrap();
        let house = house.again();
        house.open(&config()).expect("it is a cache now");
    }
}

#[test]
fn what_is_not_recognised_is_named_by_its_byte_and_formatted_when_asked() {
    // 96 MiB in blocks of 512: the metadata ends behind the first 2 MiB.
    let small = Config { block_size: 512, ..config() };
    let layout = Layout::largest(96 * MIB, 0, BlockSize::SECTOR).unwrap();
    assert!(layout.metadata_bytes() > 2 * MIB);
    for at in [0, 300 << 10, MIB - 1, MIB, layout.metadata_bytes() - 1, 95 * MIB, 96 * MIB - 1] {
        let house = House::new(MIB, 96 * MIB);
        house.put(1, at, &[7]);
        let refusal = house.refusal(&small);
        assert!(refusal.contains(&format!("byte {at} is not zero")), "{at}: {refusal}");
        assert_eq!(house.read(house.device(1), at / 512 * 512, 512)[(at % 512) as usize], 7);
        house.open(&Config { old_cache: OldCache::Create, ..small.clone() }).unwrap();
    }
    let house = House::new(MIB, 96 * MIB);
    house.put(1, layout.metadata_bytes(), &[7]);
    house.open(&small).expect("what lies in no metadata and at no end is not looked at");
}

/// Where the cache does not begin at the first sector, the whole device counts all the same.
#[test]
fn what_lies_before_the_start_is_looked_at_too() {
    let late = Config { start_sector: 4096, ..config() };
    for at in [0, 2 * MIB + 4096] {
        let house = House::new(MIB, 8 * MIB);
        house.put(1, at, &[7]);
        assert!(refused_untouched(&house, &late).contains(&format!("byte {at} is not zero")));
    }
    let house = House::new(MIB, 8 * MIB);
    house.put(1, 0, &superblock(4096, 254, 5));
    assert!(refused_untouched(&house, &late).contains("a write cache"), "a forgotten start_sector");
}

/// The other way round: the cache begins further back, where the device is looked at anyway.
#[test]
fn a_cache_whose_start_was_forgotten_is_formatted_by_force_alone() {
    // 96 MiB in blocks of 512: the metadata ends behind the first 2 MiB.
    for (start, size) in
        [(8, 8 * MIB), (3, 8 * MIB), (2 * MIB / SECTOR, 96 * MIB), (95 * MIB / SECTOR, 96 * MIB)]
    {
        let house = House::new(MIB, size);
        let late = Config { block_size: 512, start_sector: start, ..config() };
        let cache = house.open(&late).unwrap();
        let mut buf = IoBuf::new(512);
        buf.fill(9);
        assert_eq!(house.ask(cache.clone(), Request::write(0, buf).with_fua()).result, Ok(()));
        let house = house.again();
        for old_cache in [OldCache::Open, OldCache::Create] {
            let refusal = house.refusal(&Config { start_sector: 0, old_cache, ..late.clone() });
            assert!(
                refusal.contains("a write cache") && refusal.contains("--create --force"),
                "{start}: {refusal}"
            );
        }
        let cache = house.open(&late).unwrap();
        assert_eq!(house.read(cache, 0, 512), [9; 512]);
    }
}

#[test]
fn formatting_that_was_interrupted_goes_on() {
    let house = House::new(MIB, MIB);
    house.put(1, 0, &Superblock::unfinished());
    house.put(1, 64, &Entry::BLANK.encode().repeat(28));
    house.put(1, 4096, &[0xff; 512]);
    house.open(&config()).expect("nothing but the entries of a new cache was there");
}

#[test]
fn an_origin_that_is_a_cache_is_refused() {
    for at in [0, 4096] {
        let swapped = Config { start_sector: at / SECTOR, ..config() };
        let house = House::new(MIB, MIB);
        house.put(0, at, &superblock(4096, 200, 5));
        let refusal = refused_untouched(&house, &swapped);
        assert!(refusal.contains("swapped") && refusal.contains(&format!("byte {at}")), "{refusal}");
        assert!(
            refused_untouched(&house, &Config { old_cache: OldCache::Create, ..swapped.clone() })
                .contains("swapped")
        );
        house.open(&Config { force: true, ..swapped }).expect("it may be what a client has written");
    }
}

/// Otherwise a client could lock its own server out.
#[test]
fn a_client_may_write_a_cache_to_the_origin() {
    let house = House::new(MIB, MIB);
    let cache = house.open(&config()).unwrap();
    let mut block = IoBuf::new(BLOCK);
    block[..32].copy_from_slice(&superblock(4096, 254, 5));
    house.ask(cache.clone(), Request::write(0, block).with_fua());
    set(&cache, "message", "flush").unwrap();
    house.wait_for("the copy", || show(&cache, "dirty_blocks") == "0");
    let house = house.again();
    let cache = house.open(&config()).expect("the cache knows its origin");
    assert_eq!(house.read(cache, 0, BLOCK)[..32], superblock(4096, 254, 5));
}

#[test]
fn a_cache_that_holds_something_is_formatted_by_force_alone() {
    let house = dirty();
    let refusal = refused_untouched(&house, &create());
    assert!(refusal.contains("holds 1 blocks") && refusal.contains("--create --force"), "{refusal}");
    let cache = house.open(&force()).unwrap();
    assert_eq!(house.read(cache, 3 * 4096, 4096), [0; 4096]);
}

#[test]
fn a_cache_that_cannot_be_read_is_formatted_by_force_alone() {
    let house = House::new(MIB, MIB);
    house.open(&config()).unwrap();
    house.put(1, 0, &superblock(4096, 254, 1));
    house.put(1, 64, &entry(9, 0));
    let refusal = refused_untouched(&house, &create());
    assert!(refusal.contains("sector 9 of the origin") && refusal.contains("--force"), "{refusal}");
    house.open(&force()).unwrap();
}

/// Full of dirty blocks, a cache opens in exactly the memory in which it was created.
#[test]
fn a_cache_opens_with_the_memory_it_was_created_with() {
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let mut house = House::new(16 * MIB, 8 * MIB);
    let cache = house.open(&still).unwrap();
    let created = house.budget.used();
    (0..2000).for_each(|block| house.write(&cache, block * 1013 % 4096, 1, 1));
    house.flush(&cache);
    drop(cache);
    house = house.again();
    house.budget = Budget::new(created);
    let cache = house.open(&still).unwrap();
    assert_eq!(show(&cache, "dirty_blocks"), "2000");
}

#[test]
fn too_little_memory_is_refused_with_enough_before_anything_is_formatted() {
    let small = Config { block_size: 512, ..config() };
    let mut house = House::new(MIB, 31 * MIB);
    // Room for the buffers, and less than the index takes.
    house.budget = Budget::new(7 * MIB);
    let refusal = refused_untouched(&house, &small);
    let words: Vec<&str> = refusal.split_whitespace().collect();
    let enough = words.iter().find_map(|word| word.strip_suffix('M')?.parse::<u64>().ok()).expect("a size");
    house.budget = Budget::new(enough * MIB);
    house.open(&small).expect("what was said is enough");
}

/// A tebibyte is computed, not allocated: the index is all that opening is charged for, 8.6 GB at most over an origin of 16 TiB.
#[test]
fn a_tebibyte_is_charged_once() {
    let layout = Layout::largest(1 << 40, 0, BlockSize::PAGE).unwrap();
    let count = u32::try_from(layout.n_blocks).expect("blocks have numbers of 32 bits");
    let (blocks, tebibytes) = (u64::from(count), 16 << 40);
    let bytes = crate::write_cache::opening::fitting::memory(count, tebibytes / 4096, 4096);
    assert!(bytes <= 32 * blocks + (64 << 10) && bytes > 20 * blocks, "{bytes} bytes for {blocks} blocks");
    for (cache, origin, block) in
        [(254, 1 << 20, 4096), (254, 1 << 40, 4096), (2, 1 << 50, 65536), (1 << 22, 1 << 41, 512)]
    {
        let (bytes, regions) =
            (crate::write_cache::opening::fitting::memory(cache, origin / block, block), origin >> 20);
        assert!(
            bytes <= 32 * u64::from(cache) + regions / 7 + (64 << 10),
            "{bytes} bytes, {cache} blocks of {origin}"
        );
    }
}

/// As where another one has its address by now. The cache's block lies before either end.
#[test]
fn a_smaller_origin_is_refused_while_the_cache_holds_something_and_a_larger_one_is_taken() {
    let house = dirty();
    let had = |bytes: u64| house.put(1, 40, &bytes.to_le_bytes());
    had(2 * MIB);
    let refusal = refused_untouched(&house, &config());
    assert!(refusal.contains("has 1048576 bytes, and had 2097152"), "{refusal}");
    assert!(refusal.contains("holds 1 blocks") && refusal.contains("--recover"), "{refusal}");
    for (bytes, config) in
        [(MIB / 2, config()), (2 * MIB, Config { old_cache: OldCache::Recover, ..config() })]
    {
        had(bytes);
        let cache = house.open(&config).expect("it has grown, or that was said");
        assert_eq!(house.read(cache, 3 * 4096, 4096), [9; 4096]);
    }
    let empty = House::new(MIB, MIB);
    empty.open(&config()).unwrap();
    empty.put(1, 40, &(2 * MIB).to_le_bytes());
    empty.open(&config()).expect("nothing is missing there");
}

#[test]
fn an_origin_that_another_host_has_written_to_is_refused_with_what_the_cache_holds() {
    let open = |house: &House, last| {
        let below = house.device(0);
        let geometry = Geometry { writers: Some(Writers { last, own: 9 }), ..below.geometry() };
        let origin = by_way_as(geometry, below, |below, request| below.submit(request));
        house.open_over(&config(), origin, house.device(1))
    };
    let house = House::new(MIB, MIB);
    let (cache, _) = open(&house, 1).unwrap();
    house.write(&cache, 3, 9, 5);
    house.flush(&cache);
    let house = house.again();
    let refusal = open(&house, 2).err().expect("it is refused").to_string();
    assert!(refusal.contains("holds 5 blocks of 4096 bytes"), "{refusal}");
    open(&house, 1).expect("nobody else has written");
}

/// A superblock from before the last commits, as a rotten sector or a device that lies may leave it.
#[test]
fn a_superblock_that_fell_behind_frees_nothing() {
    let house = House::new(MIB, MIB);
    let cache = house.open(&config()).unwrap();
    for block in 0..4 {
        house.write(&cache, block, block as u8 + 1, 1);
        house.flush(&cache);
    }
    let house = house.again();
    let seq_count = house.read(house.device(1), 0, 512)[24];
    house.put(1, 24, &[1]);
    let refusal = refused_untouched(&house, &config());
    assert!(refusal.contains("--recover"), "{refusal}");
    house.put(1, 24, &[seq_count]);
    let cache = house.open(&config()).unwrap();
    assert_eq!(show(&cache, "dirty_blocks"), "4");
}
