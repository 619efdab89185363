//! A page that was accessed keeps its second chance when compaction, recompression or a failed write-back works on it.

use spillway_sim::disk::{Call, Effect, Fault, Plan};

use super::on_disk::{config, medium, spilling_by};
use super::*;
use crate::zram::slots::table::PAGE_SLOTS;

const PAGES: u64 = 250;

/// Pages that were accessed since the hand came by.
fn accessed(bench: &Bench) -> usize {
    let mut accessed = 0;
    for first in (0..2 * PAGES).step_by(PAGE_SLOTS as usize) {
        bench.zram.core.table.marks(first..(first + PAGE_SLOTS).min(2 * PAGES), |_, mark| {
            accessed += usize::from(mark.is_referenced())
        });
    }
    accessed
}

/// Every other slot holds a page that was read; the rest was freed, so that spans are half empty.
fn read_pages(bench: &Bench) {
    let mut random = Random(1);
    (0..2 * PAGES).for_each(|slot| bench.write(slot, &page(&mut random, 45)).unwrap());
    (0..PAGES).for_each(|slot| _ = bench.read(2 * slot, 1));
    (0..PAGES).for_each(|slot| bench.discard((2 * slot + 1) * PAGE as u64, PAGE as u64));
    assert_eq!(accessed(bench), PAGES as usize);
}

#[test]
pub(in crate::zram) fn compaction_takes_it_from_none() {
    let bench = bench(sized(4 << 20));
    read_pages(&bench);
    bench.set("compact", "1");
    look(&bench, 10);
    assert!(bench.columns("mm_stat")[6] > 0, "something was moved");
    assert_eq!(accessed(&bench), PAGES as usize);
}

#[test]
pub(in crate::zram) fn recompression_takes_it_from_none() {
    let bench = bench(Config { recomp_algorithm: Some("algo=zstd".into()), ..sized(4 << 20) });
    read_pages(&bench);
    let mut random = Random(2);
    let mut of_four_letters =
        || -> Vec<u8> { (0..PAGE).map(|_| b"acgt"[random.below(4) as usize]).collect() };
    (0..PAGES).for_each(|slot| bench.write(2 * slot, &of_four_letters()).unwrap());
    bench.set("recompress", "");
    assert!(bench.number("recompressed_pages") > 0, "some became smaller");
    assert_eq!(accessed(&bench), PAGES as usize);
}

#[test]
pub(in crate::zram) fn deferred_compression_takes_it_from_none() {
    let bench = bench(Config { deferred_bytes_max: 4 << 20, ..sized(4 << 20) });
    read_pages(&bench);
    assert!(bench.number("deferred_bytes") > 0);
    look(&bench, 60);
    assert_eq!((bench.number("deferred_bytes"), accessed(&bench)), (0, PAGES as usize));
}

#[test]
fn a_write_back_that_fails_takes_it_from_none() {
    let fault = Fault { call: Some(Call::Write), nth: 2, effect: Effect::Fail(Kind::Io), sticky: false };
    let plan = Plan { faults: vec![fault], ..Plan::default() };
    let device = spilling_by(plan, Config { writeback_batch_size: 256, ..config() }, medium(100));
    read_pages(&device);
    assert_eq!(device.refuse("writeback", "page_indexes=0-19"), Kind::Io);
    let away = device.bd_stat()[0];
    assert_eq!((away < 10, accessed(&device) as u64 + away), (true, PAGES));
    device.set("writeback_limit_enable", "1");
    assert_eq!(device.refuse("writeback", "page_indexes=20-39"), Kind::Io);
    assert_eq!(accessed(&device) as u64 + away, PAGES, "no page may be written");
    device.settle();
}

/// What has left begins anew: the first read of it is the first.
#[test]
fn a_page_that_has_left_has_lost_it() {
    let device = spilling_by(Plan::default(), config(), medium(100));
    read_pages(&device);
    device.set("writeback", "page_indexes=0-499");
    assert_eq!((device.bd_stat()[0], accessed(&device)), (PAGES, 0));
    _ = device.read(0, 1);
    device.settle();
    assert_eq!(device.number("brought_back_pages"), 0, "it is the second read that brings a page back");
    device.settle();
}
