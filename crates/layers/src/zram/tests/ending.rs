//! Commands that are under way, or are given, while the device ends.

use spillway_core::Suspend;

use super::on_disk::{config, medium, spilling};
use super::recompressing::digits;
use super::*;

/// Of so many pages each command takes many slices.
const PAGES: u64 = 6000;

/// Gives a command, and ends the device once it has begun, or before. What the command answers then, and what `left` is by then of what it
/// had to do.
fn interrupted(
    bench: &Bench,
    (name, value): (&str, &str),
    late: bool,
    left: impl Fn() -> u64,
) -> (Kind, u64) {
    let all = left();
    let end = || bench.zram.wind_down();
    let command = if late {
        end();
        bench.table.store(name, value)
    } else {
        let command = bench.table.store(name, value);
        bench.world.run_until(|| left() < all);
        end();
        command
    };
    (bench.run(command).expect_err("the device ends").kind, left())
}

fn sparse() -> Bench {
    let bench = bench(sized(PAGES * PAGE as u64));
    let mut random = Random(5);
    (0..PAGES).for_each(|index| bench.write(index, &page(&mut random, 20 + index as usize % 70)).unwrap());
    (0..PAGES)
        .filter(|index| index % 4 > 0)
        .for_each(|index| bench.discard(index * PAGE as u64, PAGE as u64));
    bench
}

#[test]
fn a_pass_ends() {
    for late in [false, true] {
        let bench = sparse();
        let used = || bench.number("mem_used_total");
        let all = used();
        let (kind, left) = interrupted(&bench, ("compact", "1"), late, used);
        assert_eq!(kind, Kind::ShuttingDown);
        assert!(left > all / 2, "{left} of {all}: it went on to its end");
    }
}

#[test]
fn recompression_ends() {
    for order in ["", "max_pages=5000"] {
        for late in [false, true] {
            let config = Config { recomp_algorithm: Some("algo=zstd".into()), ..sized(PAGES * PAGE as u64) };
            let bench = bench(config);
            (0..PAGES).for_each(|index| bench.write(index, &digits(index, 900)).unwrap());
            let left = || PAGES - bench.number("recompressed_pages");
            let (kind, left) = interrupted(&bench, ("recompress", order), late, left);
            assert_eq!(kind, Kind::ShuttingDown);
            assert!(left > PAGES * 3 / 4, "{left} of {PAGES} pages: it went on to its end");
        }
    }
}

#[test]
fn write_back_ends() {
    for late in [false, true] {
        let device = spilling(Config { disksize: PAGES * PAGE as u64, ..config() }, medium(600));
        device.fill(0..PAGES, 1);
        device.set("idle", "all");
        let left = || PAGES - device.bd_stat()[0];
        let (kind, left) = interrupted(&device, ("writeback", "idle"), late, left);
        assert_eq!(kind, Kind::ShuttingDown);
        assert!(left > PAGES / 2, "{left} of {PAGES} pages: it went on to its end");
        device.check(0..PAGES, 1);
        device.settle();
    }
}

#[test]
fn a_reset_ends_and_leaves_a_device_without_a_size() {
    for late in [false, true] {
        let bench = bench(sized(PAGES * PAGE as u64));
        let mut random = Random(6);
        (0..PAGES).for_each(|index| bench.write(index, &page(&mut random, 50)).unwrap());
        let left = || bench.number("orig_data_size");
        let (kind, left) = interrupted(&bench, ("reset", "1"), late, left);
        assert_eq!((kind, bench.zram.geometry().size), (Kind::ShuttingDown, 0));
        assert!(left > PAGES * PAGE as u64 / 2, "{left} bytes: it went on to its end");
    }
}

/// What is deferred is compressed before a command begins: that takes long, too.
#[test]
fn a_command_ends_before_it_has_begun() {
    let bench = bench(Config { deferred_bytes_max: PAGES * PAGE as u64, ..sized(PAGES * PAGE as u64) });
    let mut random = Random(7);
    (0..PAGES).for_each(|index| bench.write(index, &page(&mut random, 50)).unwrap());
    let left = || bench.zram.core.table.deferred.pages();
    let all = left();
    let (kind, left) = interrupted(&bench, ("compact", "1"), false, left);
    assert_eq!(kind, Kind::ShuttingDown);
    assert!(all > PAGES / 2 && left > all / 2, "{left} of {all} pages: it went on to its end");
}
