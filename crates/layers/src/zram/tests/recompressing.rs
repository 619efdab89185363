//! Pages that are compressed again.

use super::on_disk::{medium, spilling};
use super::*;

/// A page that only a codec with an entropy coder makes smaller, but for its last `tail` bytes.
pub(super) fn digits(number: u64, tail: usize) -> Vec<u8> {
    let mut random = Random(number + 1);
    let mut page: Vec<u8> = (0..PAGE).map(|_| b"0123456789abcdef"[random.draw() as usize & 15]).collect();
    page[PAGE - tail..].fill(b'x');
    page
}

fn noise(number: u64) -> Vec<u8> {
    page(&mut Random(number), 100)
}

fn with(secondaries: &str) -> Config {
    Config { recomp_algorithm: Some(secondaries.into()), ..sized(4 << 20) }
}

const TWO: &str = "algo=lz4hc priority=1, algo=zstd priority=3";

fn huge_pages(bench: &Bench) -> u64 {
    bench.columns("mm_stat")[7]
}

#[test]
fn pages_get_smaller_and_stay_the_same() {
    for (primary, secondary) in [("lz4", "zstd"), ("lz4hc", "deflate"), ("lz4", "deflate")] {
        let config = with(&format!("algo={secondary}"));
        let bench = bench(Config { comp_algorithm: primary, ..config });
        let pages: Vec<Vec<u8>> = (0..40).map(|index| digits(index, 100 * index as usize)).collect();
        pages.iter().enumerate().for_each(|(index, page)| bench.write(index as u64, page).unwrap());
        bench.write(40, &[7; PAGE]).unwrap();
        let (before, huge) = (bench.number("compr_data_size"), huge_pages(&bench));
        assert!(huge > 0 && bench.number("recompressed_pages") == 0);
        bench.set("recompress", "type=huge");
        assert_eq!((bench.number("recompressed_pages"), huge_pages(&bench)), (huge, 0));
        bench.set("recompress", "");
        assert!(bench.number("recompressed_pages") > huge + 10, "{}", bench.number("recompressed_pages"));
        let after = bench.number("compr_data_size");
        assert!(after < before * 7 / 10, "{primary} {before}, {secondary} {after}");
        for _ in 0..2 {
            pages.iter().enumerate().for_each(|(index, page)| assert!(bench.read(index as u64, 1) == *page));
            bench.set("compact", "1");
        }
        bench.seam.verify();
        let done = bench.number("recompressed_pages");
        bench.set("recompress", "");
        assert_eq!(bench.number("recompressed_pages"), done, "there is nothing left to do");
        bench.write(3, &pages[9]).unwrap();
        assert!(bench.read(3, 1) == pages[9], "what is written is of the primary again");
    }
}

/// The last page of slots is not whole.
#[test]
fn a_run_and_a_lap_end_where_the_device_does() {
    let bench = bench(Config { disksize: 300 * PAGE as u64, ..with("algo=zstd") });
    (0..300).step_by(7).for_each(|index| bench.write(index, &digits(index, 900)).unwrap());
    bench.write(299, &digits(299, 0)).unwrap();
    bench.set("recompress", "max_pages=10");
    assert_eq!((bench.number("recompressed_pages"), huge_pages(&bench)), (10, 0));
    bench.set("recompress", "");
    assert_eq!(bench.number("recompressed_pages"), 44);
    bench.set("recompress_age", "1");
    for again in 1..4 {
        (0..300).step_by(7).for_each(|index| bench.write(index, &digits(index, 900)).unwrap());
        bench.world.advance(Duration::from_secs(5));
        bench.world.run_until(|| bench.number("recompressed_pages") == 44 + 43 * again);
    }
}

/// Two codecs that need state, of one device, in turn.
#[test]
fn codecs_of_several_priorities_are_read_side_by_side() {
    let config = with("algo=deflate priority=1, algo=zstd priority=2");
    let bench =
        bench(Config { comp_algorithm: "zstd", algorithm_params: Some("level=-50".into()), ..config });
    (0..12).for_each(|index| bench.write(index, &digits(index, 1000)).unwrap());
    bench.set("recompress", "priority=1 max_pages=4");
    bench.set("recompress", "algo=zstd max_pages=8");
    assert!(bench.number("recompressed_pages") >= 8, "{}", bench.number("recompressed_pages"));
    (0..12).for_each(|index| assert!(bench.read(index, 1) == digits(index, 1000), "{index}"));
}

#[test]
fn of_so_many_pages_the_largest_are_tried() {
    let bench = bench(with("algo=zstd"));
    let tails = [3000, 100, 2000, 0, 1000, 2900];
    (0..).zip(tails).for_each(|(index, tail)| bench.write(index, &digits(index, tail)).unwrap());
    let len = |index: u64| {
        let slot = bench.zram.core.table.lock(SlotIndex(index as u32)).map(|locked| locked.get());
        let Some(Slot::Stored(cell, codec)) = slot else { panic!("it holds an object") };
        (cell.len(), codec.0)
    };
    let before: Vec<_> = (0..6).map(len).collect();
    bench.set("recompress", "max_pages=0");
    assert_eq!(bench.number("recompressed_pages"), 0);
    bench.set("recompress", "max_pages=3");
    for index in 0..6 {
        let (now, codec) = len(index);
        let tried = tails[index as usize] <= 1000;
        assert_eq!(codec, u8::from(tried), "page {index}");
        assert!(now < before[index as usize].0 || !tried, "page {index}");
    }
    bench.set("recompress", "threshold=2000");
    assert_eq!(bench.number("recompressed_pages"), 4, "one more of at least 2000 bytes");
    bench.set("recompress", "threshold=900");
    assert_eq!(bench.number("recompressed_pages"), 6);
    bench.write(0, &digits(0, 1000)).unwrap();
    bench.set("recompress", "threshold=1200");
    assert_eq!(bench.number("recompressed_pages"), 6, "it does not come below 1200");
}

/// What a codec that is not the strongest cannot make smaller does not take the place of what comes behind it.
#[test]
fn pages_that_stay_as_they_are_are_tried_once_in_a_command() {
    let bench = bench(with("algo=zstd priority=1, algo=deflate priority=3"));
    (0..30).for_each(|index| bench.write(index, &noise(index)).unwrap());
    (30..130).for_each(|index| bench.write(index, &digits(index, 1000)).unwrap());
    bench.set("recompress", "max_pages=50");
    assert_eq!(bench.number("recompressed_pages"), 20);
}

#[test]
fn idle_pages_are_tried_once_and_count_as_accessed() {
    let bench = bench(with("algo=zstd"));
    (0..6).for_each(|index| bench.write(index, &digits(index, if index < 3 { 0 } else { 1500 })).unwrap());
    bench.write(6, &noise(6)).unwrap();
    bench.set("recompress", "type=idle");
    assert_eq!(bench.number("recompressed_pages"), 0, "none is idle");
    bench.set("idle", "all");
    bench.read(0, 1);
    bench.set("recompress", "type=huge_idle");
    assert_eq!(bench.number("recompressed_pages"), 2);
    bench.set("recompress", "type=idle");
    assert_eq!(bench.number("recompressed_pages"), 5);
    let idle = (0..7).filter(|index| bench.zram.core.table.lock(SlotIndex(*index)).unwrap().mark.is_idle());
    assert_eq!(idle.count(), 0, "an attempt is an access, in vain too");
}

#[test]
fn what_the_strongest_does_not_help_is_incompressible_until_it_is_written() {
    let bench = spilling(Config { recomp_algorithm: Some(TWO.into()), ..on_disk::config() }, medium(8));
    bench.write(0, &noise(0)).unwrap();
    bench.write(1, &digits(1, 0)).unwrap();
    bench.write(2, &noise(2)).unwrap();
    bench.set("recompress", "algo=lz4hc");
    bench.set("writeback", "incompressible");
    assert_eq!(bench.bd_stat(), [0, 0, 0], "a stronger one may help");
    bench.set("recompress", "priority=3");
    assert_eq!(bench.number("recompressed_pages"), 1);
    bench.write(2, &noise(3)).unwrap();
    bench.set("writeback", "incompressible");
    assert_eq!(bench.bd_stat(), [1, 0, 1]);
    assert!(bench.read(0, 1) == noise(0) && bench.read(1, 1) == digits(1, 0) && bench.read(2, 1) == noise(3));
    bench.settle();
}

#[test]
fn a_recompressed_page_is_spilled_and_comes_back_as_it_is() {
    let config =
        Config { recomp_algorithm: Some(TWO.into()), bring_back: Promotion::Always, ..on_disk::config() };
    let bench = spilling(config, medium(8));
    (0..8).for_each(|index| bench.write(index, &digits(index, 500)).unwrap());
    bench.set("recompress", "priority=3 max_pages=5");
    bench.set("writeback", "page_indexes=0-7");
    for _ in 0..2 {
        (0..8).for_each(|index| assert!(bench.read(index, 1) == digits(index, 500), "{index}"));
    }
    assert_eq!((bench.bd_stat()[0], bench.number("brought_back_pages")), (0, 8));
    bench.set("recompress", "priority=3");
    assert_eq!(bench.number("recompressed_pages"), 8, "those of the primary are known from the others");
    (0..8).for_each(|index| assert!(bench.read(index, 1) == digits(index, 500), "{index}"));
    bench.settle();
}

#[test]
fn old_pages_are_recompressed_with_the_strongest_by_themselves() {
    let bench = bench(with(TWO));
    (0..300).for_each(|index| bench.write(index, &digits(index, 900)).unwrap());
    bench.write(300, &noise(300)).unwrap();
    bench.world.advance(Duration::from_secs(60));
    bench.read(7, 1);
    assert_eq!(bench.number("recompressed_pages"), 0, "it is off");
    bench.set("recompress_age", "30");
    bench.world.run_until(|| bench.number("recompressed_pages") == 299);
    assert!(!bench.zram.core.table.lock(SlotIndex(7)).unwrap().mark.is_incompressible());
    bench.world.advance(Duration::from_secs(60));
    bench.world.run_until(|| bench.number("recompressed_pages") == 300);
    assert!(bench.zram.core.table.lock(SlotIndex(300)).unwrap().mark.is_incompressible());
    (0..300).for_each(|index| assert!(bench.read(index, 1) == digits(index, 900), "{index}"));
}

/// The next lap begins by the age of today, not by that of the lap before.
#[test]
fn an_age_that_is_lowered_counts_at_once() {
    let bench = bench(with(TWO));
    let pass = |seconds| {
        bench.world.advance(Duration::from_secs(seconds));
        (0..3000).for_each(|_| {
            bench.world.turn();
            bench.world.advance(Duration::from_millis(1));
        });
    };
    bench.set("recompress_age", "1000000");
    pass(60);
    (0..10).for_each(|index| bench.write(index, &digits(index, 900)).unwrap());
    bench.set("recompress_age", "10");
    pass(60);
    assert_eq!(bench.number("recompressed_pages"), 10);
}

/// A reset ends a run on its way, and the next device has no secondaries.
#[test]
fn a_reset_ends_a_run_and_drops_the_secondaries() {
    let bench = bench(with("algo=deflate priority=2"));
    (0..900).for_each(|index| bench.write(index, &digits(index, 900)).unwrap());
    let run = bench.table.store("recompress", "priority=2");
    bench.world.run_until(|| bench.number("recompressed_pages") > 0);
    bench.set("reset", "1");
    assert_eq!(bench.run(run), Ok(()));
    assert_eq!((bench.number("recompressed_pages"), bench.show("recomp_algorithm")), (0, String::new()));
    bench.set("disksize", "1M");
    assert_eq!(bench.refuse("recompress", ""), Kind::Invalid);
}

/// A run that waits while a reset has the turn finds a device that has a size again, and no secondaries.
#[test]
fn a_run_that_comes_after_a_reset_finds_nothing_to_do() {
    for seed in 1..=20 {
        let world = World::new(seed);
        let bench = bench_in(world.clone(), world, with("algo=deflate priority=2"));
        (0..40).for_each(|index| bench.write(index, &digits(index, 900)).unwrap());
        let run = bench.table.store("recompress", "priority=2");
        drop(bench.table.store("reset", "1"));
        bench.world.run_until(|| bench.number("disksize") == 0);
        bench.world.run_until(|| bench.table.store("disksize", "1M").now().is_ok());
        assert_eq!((bench.run(run), bench.number("recompressed_pages")), (Ok(()), 0), "seed {seed}");
        bench.write(7, &digits(7, 0)).unwrap();
        assert!(bench.read(7, 1) == digits(7, 0));
    }
}

#[test]
fn at_the_limit_pages_get_smaller_too() {
    let bench = bench(with("algo=zstd"));
    (0..600).for_each(|index| bench.write(index, &digits(index, 0)).unwrap());
    let used = bench.number("mem_used_total");
    bench.set("mem_limit", &used.to_string());
    bench.set("recompress", "type=huge");
    assert_eq!((bench.number("recompressed_pages"), huge_pages(&bench)), (600, 0));
    bench.set("compact", "1");
    let after = bench.number("mem_used_total");
    assert!(after < used * 3 / 4, "{used}, {after}");
}

#[test]
fn secondaries_are_chosen_and_shown_as_the_kernel_does() {
    let bench = bench(Config { max_comp_streams: 2, ..Config::default() });
    assert_eq!(bench.show("recomp_algorithm"), "");
    bench.set("recomp_algorithm", "algo=zstd\n");
    bench.set("recomp_algorithm", "priority=3 algo=deflate later=1");
    assert_eq!(
        bench.show("recomp_algorithm"),
        "#1: lz4 lz4hc [zstd] deflate \n#3: lz4 lz4hc zstd [deflate] "
    );
    for bad in ["", "algo", "priority=1", "algo=lzo", "algo=zstd priority=0", "algo=zstd priority=4", "algo="]
    {
        assert_eq!(bench.refuse("recomp_algorithm", bad), Kind::Invalid, "{bad}");
    }
    assert_eq!(bench.refuse("recomp_algorithm", &format!("algo={}", "x".repeat(128))), Kind::TooLong);
    bench.set("algorithm_params", "priority=1 level=19, algo=deflate level=9 deflate.winbits=-12, level=7");
    for bad in [
        "priority=1 level=30",
        "priority=2 level=3",
        "algo=lz4hc level=3",
        "algo=zstd priority=3",
        "algo=zstd deflate.winbits=12",
        "algo=deflate deflate.winbits=16",
    ] {
        assert_eq!(bench.refuse("algorithm_params", bad), Kind::Invalid, "{bad}");
    }
    assert_eq!(bench.refuse("recompress", ""), Kind::Invalid, "it has no size");
    bench.set("disksize", "1M");
    assert_eq!(bench.refuse("recomp_algorithm", "algo=zstd"), Kind::Busy);
    assert_eq!(bench.refuse("recomp_algorithm", "algo=lzo"), Kind::Invalid, "the name is looked at first");
}

#[test]
fn what_recompress_does_not_understand_is_refused() {
    let bench = bench(with(TWO));
    for bad in [
        "huge",
        "type=all",
        "type=incompressible",
        "max_pages=many",
        "max_pages=-1",
        "threshold=3633",
        "threshold=x",
        "priority=0",
        "priority=2",
        "priority=4",
        "algo=lz4",
        "algo=deflate",
        "algo=zstd priority=1",
    ] {
        assert_eq!(bench.refuse("recompress", bad), Kind::Invalid, "{bad}");
    }
    bench.set("recompress", "type=huge threshold=3632 algo=zstd priority=3 max_pages=5 later=1\n");
    bench.set("recompress", "priority=3");
    let bench = self::bench(with("algo=zstd priority=2"));
    assert_eq!(bench.refuse("recompress", "type=huge"), Kind::Invalid, "priority 1 is meant, and has none");
}
