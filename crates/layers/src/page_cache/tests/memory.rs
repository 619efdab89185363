//! Memory: what is charged, who leaves, and who waits.

use super::*;
use spillway_core::{Regions, Works};

#[test]
fn a_cache_charges_what_it_is_told_and_gives_it_back() {
    let house = House::new(&mebibyte());
    let charged = house.budget.used();
    assert!((900 << 10..=1 << 20).contains(&charged), "{charged}");
    for block in (0..4096).step_by(4) {
        house.write(block, block as u8, 2);
        house.read(block, 4);
    }
    assert_eq!(house.budget.used(), charged, "whatever it does");
    assert!(house.number("folio_bytes") <= house.number("folio_bytes_max"));
    assert!(house.number("folios_evicted") > 0);
    let budget = house.budget.clone();
    drop(house);
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_leaves_memory_is_on_the_disk() {
    let house = House::new(&Config { folio_size: Some(65536), dirty_ratio: 100, ..mebibyte() });
    let value = |block: usize| (block % 251) as u8 + 1;
    (0..4096).step_by(16).for_each(|block| house.write(block, value(block), 1));
    for block in (0..4096).step_by(16) {
        assert_eq!(house.read(block, 2), [value(block), 0]);
    }
}

#[test]
fn no_more_than_the_limit_is_ever_unsaved_and_writers_wait_for_it() {
    let house = House::new(&mebibyte());
    let limit = house.number("unsaved_bytes_max");
    let writes: Vec<_> = (0..200).map(|write| house.spawn(house.submit(filled(write * 8, 3, 8)))).collect();
    house.until("all writes", || {
        assert!(house.number("unsaved_bytes") <= limit);
        writes.iter().all(|write| write.get() == Some(Ok(())))
    });
    assert!(house.number("writes_blocked") > 0);
    assert_eq!(house.read(199 * 8, 8), [3; 8]);
}

#[test]
fn a_scan_of_ten_times_the_cache_leaves_what_is_used() {
    let house =
        House::new(&Config { folio_size: Some(4096), page_cache_bytes_max: Some(1 << 20), ..mebibyte() });
    let hot = 100;
    for _ in 0..4 {
        (0..hot).rev().for_each(|block| _ = house.read(block, 1));
    }
    (1000..1000 + 10 * 256).for_each(|block| _ = house.read(block, 1));
    house.below.take(Op::Read);
    (0..hot).rev().for_each(|block| _ = house.read(block, 1));
    let missed = house.below.take(Op::Read).len();
    assert!(missed <= 5, "{missed} of {hot} were evicted");
}

/// Write-back and readahead access nothing.
#[test]
fn folios_are_counted_by_who_brings_them_in_and_by_accesses_of_clients() {
    let house = House::new(&Config { folio_size: Some(4096), ..mebibyte() });
    house.write(3, 1, 3);
    _ = house.read(4000, 2);
    (100..110).for_each(|block| _ = house.read(block, 1));
    house.flush();
    let (created, ahead) = (house.number("folios_created"), house.number("folios_created_ahead"));
    assert!(ahead > 0, "what follows was read ahead");
    assert_eq!((created + ahead) * 4096, house.number("folio_bytes"));
    assert_eq!(created + house.number("readahead_used"), 3 + 2 + 10);
    (0..3).for_each(|_| _ = house.read(4000, 1));
    (1000..1600).for_each(|block| _ = house.read(block, 1));
    assert_eq!(house.number("folios_activated"), 1);
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let refusal = |config: &Config, geometry: Geometry, bytes: u64| {
        struct Plain(Geometry);
        impl BlockDevice for Plain {
            fn geometry(&self) -> Geometry {
                self.0
            }
            fn submit(&self, request: Request) -> Submission {
                Answer::Done(request.answer(Ok(())))
            }
        }
        let opened = PageCache::open(
            config,
            Arc::new(Plain(geometry)),
            World::new(1),
            &(Scarce::plenty() as Arc<dyn Regions>),
            &Budget::new(bytes),
            Works::default(),
        );
        opened.err().expect("it is refused").to_string()
    };
    let disk = |size, block| {
        let block_size = BlockSize::new(block).expect("a power of two");
        Geometry { volatile: false, block_size, optimal_io: block, ..Geometry::in_memory(size) }
    };
    let memory = Geometry::in_memory(1 << 20);
    assert!(refusal(&mebibyte(), memory, 64 << 20).contains("this one is memory itself"));
    let pages = Config { block_size: Some(4096), ..mebibyte() };
    assert!(refusal(&pages, disk(1 << 20, 65536), 64 << 20).contains("give 65536 or more"));
    let odd = refusal(&pages, disk((1 << 20) + 512, 512), 64 << 20);
    assert!(odd.contains("give block_size 512"), "{odd}");
    assert!(refusal(&mebibyte(), disk(1 << 20, 4096), 512 << 10).contains("give --memory more"));
    let little = Config { page_cache_bytes_max: Some(32768), ..mebibyte() };
    assert!(
        refusal(&little, disk(1 << 20, 4096), 64 << 20).contains("page_cache_bytes_max of 32K is too little")
    );
    let much = Config { page_cache_bytes_max: Some(1 << 60), ..mebibyte() };
    let much = refusal(&much, disk(1 << 20, 4096), Budget::UNLIMITED);
    assert!(much.contains("page_cache_bytes_max of 1E is too much: give at most 16T"), "{much}");
}

/// Lets others run for a while.
fn rest(house: &House) {
    (0..300).for_each(|_| _ = house.world.go_on());
}

#[test]
fn folios_leave_in_the_background_before_requests_need_their_memory() {
    let house = House::new(&Config { page_cache_bytes_max: Some(8 << 20), ..mebibyte() });
    for block in (0..8192).step_by(16) {
        house.read(block, 16);
        rest(&house);
    }
    let evicted = house.number("folios_evicted");
    assert!(evicted > 1000, "{evicted} of 2048 folios left");
    // A piece that is read ahead takes at once as many as are left where reclaim begins: by chance a read comes between the two.
    let direct = house.number("folios_evicted_directly");
    assert!(direct <= 1 && house.number("reads_uncached") == 0, "{direct} folios left directly");
    let free = house.number("folio_bytes_max") - house.number("folio_bytes");
    assert!(free > 0 && free < house.number("folio_bytes_max") / 10, "{free} bytes are kept free");
}

/// No folio is clean, and yet nobody waits: reclaim asks for write-back while there is a frame left.
#[test]
fn where_all_folios_are_dirty_they_are_written_back_before_writers_need_memory() {
    let config = Config { folio_size: Some(65536), dirty_expire: 86_400_000, ..mebibyte() };
    let house = House::new(&config);
    for folio in 0..200 {
        house.write(folio * 16, 5, 1);
        assert!(house.number("nr_dirty") <= house.number("nr_dirty_background_threshold"));
        rest(&house);
    }
    assert!(house.number("folios_evicted") > 150);
    assert_eq!((house.number("writes_blocked"), house.number("folios_evicted_directly")), (0, 0));
    assert_eq!(house.read(199 * 16, 2), [5, 0]);
}

#[test]
fn a_block_is_a_page_unless_the_device_below_has_other_blocks() {
    for (size, block, expected) in [
        (1 << 20, 512, 4096),
        ((1 << 20) + 512, 512, 512),
        ((1 << 20) + 2048, 512, 2048),
        (1 << 20, 8192, 8192),
    ] {
        let below = Geometry {
            volatile: false,
            block_size: BlockSize::new(block).expect("a power of two"),
            ..Geometry::in_memory(size)
        };
        assert_eq!(mebibyte().over(&below).block_size, Some(expected), "{size} bytes in blocks of {block}");
        assert_eq!(Config { block_size: Some(1024), ..mebibyte() }.over(&below).block_size, Some(1024));
    }
}

/// Each dirty block may have a region of its own; what that takes is charged before it may be dirty.
#[test]
fn a_higher_limit_of_dirty_blocks_is_charged_where_there_is_room() {
    let house = House::new(&Config { folio_size: Some(4096), ..mebibyte() });
    let (charged, limit) = (house.budget.used(), house.number("nr_dirty_threshold"));
    house.set("dirty_ratio", "40");
    let more = house.number("nr_dirty_threshold") - limit;
    assert!(more > 40 && house.budget.used() == charged + 34 * more, "{more} blocks more");
    house.set("dirty_ratio", "20");
    house.set("dirty_ratio", "40");
    assert_eq!(house.budget.used(), charged + 34 * more, "once");
    house.budget.set_limit(house.budget.used());
    house.set("dirty_ratio", "90");
    assert_eq!(house.number("nr_dirty_threshold"), limit + more, "there is no room for more");
    house.budget.set_limit(64 << 20);
    house.set("dirty_ratio", "90");
    assert!(house.number("nr_dirty_threshold") > 2 * (limit + more));
}

/// Of 8 MiB, of which the system gives so many slabs, and all may be dirty.
fn with_slabs(slabs: u64, division: Division) -> House {
    let bytes = Some(8 << 20);
    let config =
        Config { page_cache_bytes_max: bytes, folio_size: None, dirty_ratio: 100, division, ..mebibyte() };
    let house = House::new(&config);
    house.regions.give(slabs);
    house
}

/// Nothing is there that could leave: a write does not wait for it.
#[test]
fn where_the_system_refuses_memory_writes_fail_and_the_cache_goes_on() {
    let house = with_slabs(0, Division::default());
    assert_eq!(house.ask(filled(3, 7, 2)).result, Err(Kind::OutOfMemory));
    assert_eq!(house.ask(filled(3, 7, 2).with_fua()).result, Err(Kind::OutOfMemory));
    assert_eq!(house.read(3, 2), [0, 0]);
    assert_eq!((house.number("reads_uncached"), house.number("unsaved_bytes")), (1, 0));
    house.flush();
    house.regions.give(u64::MAX);
    house.write(3, 7, 2);
    assert_eq!((house.read(3, 2), house.text("error")), (vec![7, 7], "none".into()));
}

/// Writers wait for folios to leave as they do in a smaller cache, in which reclaim or they themselves take it; and the system is asked again.
#[test]
fn a_cache_lives_in_the_memory_that_the_system_gives() {
    for zones in [vec![], vec![1, 3]] {
        let context = format!("{zones:?}");
        let house = with_slabs(1, Division { zones, ..Division::default() });
        let value = |block: usize| (block / 16 % 251) as u8 + 1;
        (0..2048).step_by(16).for_each(|block| house.write(block, value(block), 16));
        assert!(house.number("folio_bytes") <= 2 << 20, "{context}");
        assert!(house.number("writes_blocked") > 0, "{context}: of 8 MiB in 2 MiB");
        (0..2048).step_by(8).for_each(|block| assert_eq!(house.read(block, 8), [value(block); 8]));
        assert!(house.number("folio_bytes") > 1 << 20, "{context}: it is in use");
        house.regions.give(u64::MAX);
        (0..2048).step_by(16).for_each(|block| _ = house.read(block, 16));
        assert!(house.number("folio_bytes") > 5 << 20, "{context}: it is asked again");
    }
}
