//! Pages that are compressed after their write was answered.

use super::on_disk::{Spilling, content, medium, spilling};
use super::*;
use crate::zram::work::meter;

const MAX: u64 = 64 * PAGE as u64;

fn deferring(disksize: u64) -> Config {
    Config { deferred_bytes_max: MAX, ..sized(disksize) }
}

fn half(number: u64) -> Vec<u8> {
    content(number, 0)
}

/// Lets the background task find the device at rest.
fn rest(bench: &Bench) {
    for _ in 0..500 {
        bench.world.turn();
        bench.world.advance(Duration::from_millis(1));
    }
}

/// Compressions noted while `work` runs.
fn compressions(work: impl FnOnce()) -> u64 {
    let before = meter::compressions();
    work();
    meter::compressions() - before
}

#[test]
fn pages_stay_raw_up_to_the_limit_and_are_compressed_at_rest() {
    let bench = bench(deferring(4 << 20));
    (0..80).for_each(|slot| bench.write(slot, &half(slot)).unwrap());
    assert_eq!(bench.number("deferred_bytes"), MAX, "so many, and no more");
    assert!(bench.number("compr_data_size") > MAX && bench.number("mem_used_total") > MAX, "charged in full");
    assert_eq!(bench.columns("mm_stat")[7], 0, "no page is huge that was not tried");
    (0..80).for_each(|slot| assert!(bench.read(slot, 1) == half(slot), "slot {slot}"));
    rest(&bench);
    assert_eq!(bench.number("deferred_bytes"), 0);
    assert!(bench.number("compr_data_size") < 80 * PAGE as u64 * 6 / 10);
    (0..80).for_each(|slot| assert!(bench.read(slot, 1) == half(slot), "slot {slot}"));
}

#[test]
fn without_the_knob_nothing_is_deferred_and_lowering_it_compresses_what_is() {
    let bench = bench(sized(4 << 20));
    (0..10).for_each(|slot| bench.write(slot, &half(slot)).unwrap());
    assert_eq!(bench.number("deferred_bytes"), 0);
    bench.set("deferred_bytes_max", "32K");
    assert_eq!(bench.number("deferred_bytes_max"), 32 << 10);
    (0..20).for_each(|slot| bench.write(slot, &half(slot)).unwrap());
    assert_eq!(bench.number("deferred_bytes"), 32 << 10);
    bench.set("deferred_bytes_max", "0");
    let mut writes = 100..;
    // Never at rest.
    while bench.number("deferred_bytes") > 0 {
        let slot = writes.next().unwrap();
        assert!(slot < 1000, "what is above the limit is compressed at the next look");
        bench.write(slot, &half(slot)).unwrap();
        bench.world.turn();
        bench.world.advance(Duration::from_millis(10));
    }
}

#[test]
fn a_page_that_is_written_again_is_compressed_once_and_a_discarded_one_never() {
    let bench = bench(deferring(4 << 20));
    let spent = compressions(|| {
        for version in 0..50 {
            (0..8).for_each(|slot| bench.write(slot, &content(slot, version)).unwrap());
        }
        assert_eq!(bench.number("deferred_bytes"), 8 * PAGE as u64, "written in place");
        bench.discard(0, 4 * PAGE as u64);
        bench.write(4, &[7; PAGE]).unwrap();
        assert_eq!(bench.number("deferred_bytes"), 3 * PAGE as u64, "a repeated word is kept at once");
        rest(&bench);
    });
    assert_eq!(spent, 3);
    (5..8).for_each(|slot| assert!(bench.read(slot, 1) == content(slot, 49), "slot {slot}"));
    assert_eq!(bench.read(0, 4), vec![0; 4 * PAGE]);
}

#[test]
fn what_does_not_compress_stays_in_its_cell_and_is_huge_from_then_on() {
    let bench = bench(deferring(4 << 20));
    let noise = page(&mut Random(5), 100);
    bench.write(3, &noise).unwrap();
    assert_eq!(bench.number("compr_data_size"), PAGE as u64);
    rest(&bench);
    assert_eq!(bench.number("deferred_bytes"), 0);
    assert_eq!(bench.columns("mm_stat")[7..], [1, 1], "huge now, and ever");
    assert!(bench.read(3, 1) == noise);
}

#[test]
fn at_the_limit_what_is_deferred_is_compressed_before_a_write_is_refused() {
    let fill = |deferred: u64| {
        let bench = bench(Config { deferred_bytes_max: deferred, ..sized(16 << 20) });
        bench.set("mem_limit", "1M");
        let stored = (0..4096).find(|&slot| bench.write(slot, &half(slot)).is_err()).unwrap();
        assert_eq!(bench.number("deferred_bytes"), 0);
        (0..stored).for_each(|slot| assert!(bench.read(slot, 1) == half(slot), "slot {slot}"));
        assert!(bench.number("mem_used_total") <= 1 << 20);
        stored
    };
    let (without, with) = (fill(0), fill(8 << 20));
    // A packed span that is begun.
    assert!(with + 20 >= without, "{with} pages fit, {without} without deferring");
}

#[test]
fn a_command_that_looks_at_pages_finds_them_compressed() {
    let config = Config { deferred_bytes_max: MAX, compressed_writeback: true, ..super::on_disk::config() };
    for command in [("idle", "all"), ("writeback", "page_indexes=0-15"), ("compact", "1")] {
        let device = spilling(config.clone(), medium(100));
        (0..16).for_each(|slot| device.write(slot, &half(slot)).unwrap());
        assert_eq!(device.number("deferred_bytes"), 16 * PAGE as u64);
        device.set(command.0, command.1);
        assert_eq!(device.number("deferred_bytes"), 0, "{}", command.0);
        if command.0 == "writeback" {
            assert_eq!(device.bd_stat()[0], 16);
            assert!(device.number("spill_bytes") < 16 * PAGE as u64 * 6 / 10, "they lie there compressed");
        }
        device.check(0..16, 0);
    }
}

#[test]
fn pages_are_compressed_before_any_leaves_memory() {
    let device: Spilling =
        spilling(Config { deferred_bytes_max: 8 << 20, ..super::on_disk::config() }, medium(100));
    device.set("mem_limit", "2M");
    // Raw they would be more than the limit; compressed they stay below the watermark.
    (0..600).for_each(|slot| device.write(slot, &half(slot)).unwrap());
    rest(&device);
    assert_eq!(device.bd_stat(), [0, 0, 0], "none has left");
    assert_eq!(device.number("deferred_bytes"), 0);
    device.check(0..600, 0);
}

#[test]
fn beside_writes_what_is_old_is_compressed_and_what_is_written_again_stays() {
    let bench = bench(deferring(4 << 20));
    let mut version = 0;
    // 40 of 64: above half. The last eight are written again and again.
    (0..40).for_each(|slot| bench.write(slot, &content(slot, 0)).unwrap());
    let mut busy = |looks: u64| {
        for _ in 0..looks * 10 {
            version += 1;
            (32..40).for_each(|slot| bench.write(slot, &content(slot, version)).unwrap());
            bench.world.turn();
            bench.world.advance(Duration::from_millis(10));
        }
        version
    };
    let spent = compressions(|| _ = busy(5));
    assert_eq!((spent, bench.number("deferred_bytes")), (32, 8 * PAGE as u64));
    let spent = compressions(|| _ = busy(50));
    assert_eq!((spent, bench.number("deferred_bytes")), (0, 8 * PAGE as u64), "they are never old");
}

#[test]
fn a_reset_drops_what_is_deferred() {
    let bench = bench(deferring(4 << 20));
    (0..40).for_each(|slot| bench.write(slot, &half(slot)).unwrap());
    bench.set("reset", "1");
    assert_eq!([bench.number("deferred_bytes"), bench.number("mem_used_total")], [0, 0]);
    bench.set("disksize", "64K");
    rest(&bench);
    bench.write(3, &half(3)).unwrap();
    assert_eq!(bench.number("deferred_bytes"), PAGE as u64);
    assert!(bench.read(3, 1) == half(3));
}
