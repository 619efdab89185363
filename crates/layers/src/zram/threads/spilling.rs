//! Pages that are spilled and brought back beside those that write, read and discard them, and beside a reset.

use std::path::PathBuf;

use spillway_core::{Error, Kind};

use super::*;
use crate::spill::threads::{Disk, until_kept_up};
use crate::spill::{Owner, Settings, Store};
use crate::zram::codec;
use crate::zram::config::Promotion;
use crate::zram::control::scan::{self, SlotScan};
use crate::zram::device::backing::Backing;
use crate::zram::mover::recompress::{self, RecompressOrder};
use crate::zram::spill::writeback::{self, Why};

/// Segments of which each takes three pages that do not compress, or seven, of which one that is live can be copied with profit.
const SMALL: u32 = 14;
const LARGE: u32 = 15;
const SEGMENTS: usize = 7;

/// Pages that fill the room which new content has in a file of large segments.
const PAGES_FULL: u64 = 28;

const SLOTS: u64 = 32;

/// A device that spills to segments of that size.
fn spilling(shift: u32) -> Arc<Zram> {
    let (env, budget) = (Impatient::new(true), Budget::new(64 << 20));
    let config = Config {
        disksize: SLOTS << 12,
        max_comp_streams: 1,
        recomp_algorithm: Some("algo=lz4hc".into()),
        bring_back: Promotion::Always,
        writeback_depth: 2,
        ..Config::default()
    };
    let regions = Arc::new(VecRegions::new(256 << 20));
    let zram = Zram::new(config, env.clone(), regions, budget.clone()).expect("a valid configuration");
    let codecs = codec::NAMES.map(str::to_owned).to_vec();
    let settings = Settings { segment_shift: shift, batches: 2, codecs, ..Settings::new("ram0", SLOTS) };
    let disk = Arc::new(Disk::new((SEGMENTS + 1) << shift));
    let store = block_on(Store::open(disk, &settings, env.clone(), &budget, &mut |_| Err(Kind::Corrupt)))
        .expect("it is blank")
        .0;
    let of_all = (&zram.core.meter, &zram.core.pressure);
    let backing = Backing::new(store, PathBuf::from("disk"), true, env, of_all);
    zram.core.table.copies.begin(SLOTS).expect("there is memory");
    zram.core.pressure.begin();
    zram.core.backing.put(Some(Arc::new(backing)));
    zram
}

/// A page that does not compress.
pub(super) fn noise(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    (0..PAGE / 8).flat_map(|_| random.draw().to_le_bytes()).collect()
}

pub(super) fn write_back(zram: &Zram, slots: std::ops::Range<u64>) -> Result<(), Error> {
    let scan = SlotScan { pages: scan::PageFilter::All, slots };
    block_on(writeback::run(zram.core.clone(), zram.core.resets(), vec![scan], Why::Command))
}

fn spill(zram: &Zram, slots: std::ops::Range<u64>) {
    write_back(zram, slots.clone()).expect("there is room");
    assert!(slots.clone().all(|slot| is_away(zram, slot)), "{slots:?} have left");
}

fn is_away(zram: &Zram, slot: u64) -> bool {
    zram.core.table.away(SlotIndex::new(slot)).is_some()
}

/// A read that may come before the write of any of these, but for the first.
fn read_one_of(zram: &Zram, index: u64, allowed: &[u64]) {
    let reply = block_on(zram.submit(Request::read(index * PAGE as u64, IoBuf::new(PAGE))));
    assert_eq!(reply.result, Ok(()), "slot {index}");
    let known = allowed.iter().any(|&number| noise(number)[..] == reply.buf[..]);
    assert!(known, "slot {index} holds what it never held, or holds no longer");
}

/// Runs `work` on a thread.
pub(super) fn on_thread(
    zram: &Arc<Zram>,
    work: impl FnOnce(&Arc<Zram>) + Send + 'static,
) -> thread::JoinHandle<()> {
    let zram = zram.clone();
    thread::spawn(move || work(&zram))
}

/// Once nothing is under way, table, pool and file agree.
pub(super) fn verify(zram: &Zram) {
    let backing = zram.core.backing().expect("it spills");
    block_on(backing.rest());
    until_kept_up(&backing.store);
    zram.verify();
}

/// A page is spilled by two threads, and written and read by others.
#[test]
fn a_write_survives_that_its_page_is_spilled() {
    every_order(1000, || {
        let zram = spilling(SMALL);
        write(&zram, 0, &noise(0));
        let spillers = [(); 2].map(|()| on_thread(&zram, |zram| _ = write_back(zram, 0..1)));
        let writer = on_thread(&zram, |zram| {
            write(zram, 0, &noise(1));
            read(zram, 0, &noise(1));
            write(zram, 0, &noise(2));
        });
        let reader = on_thread(&zram, |zram| read_one_of(zram, 0, &[0, 1, 2]));
        join(spillers.into_iter().chain([writer, reader]));
        read(&zram, 0, &noise(2));
        verify(&zram);
        discard(&zram, 0);
        verify(&zram);
        assert_eq!(zram.core.table.holdings(), Default::default());
    });
}

/// A page that came back may leave as it was, while it is written and read, and while the file gives its copy up.
#[test]
fn a_copy_is_of_the_page_that_it_is_a_copy_of() {
    every_order(1000, || {
        let zram = spilling(SMALL);
        write(&zram, 0, &noise(0));
        spill(&zram, 0..1);
        let at = zram.core.table.away(SlotIndex::new(0)).expect("it has left").at;
        read(&zram, 0, &noise(0));
        assert_eq!((zram.core.table.copies.count(), is_away(&zram, 0)), (1, false));
        let cleaner = on_thread(&zram, move |zram| _ = zram.core.needs(0, at));
        let spiller = on_thread(&zram, |zram| _ = write_back(zram, 0..1));
        let reader = on_thread(&zram, |zram| read_one_of(zram, 0, &[0, 1]));
        let writer = on_thread(&zram, |zram| write(zram, 0, &noise(1)));
        join([cleaner, spiller, reader, writer]);
        read(&zram, 0, &noise(1));
        verify(&zram);
        discard(&zram, 0);
        verify(&zram);
        assert_eq!((zram.core.table.holdings(), zram.core.table.copies.count()), (Default::default(), 0));
    });
}

/// Its segment is closed; it is read, and brought back, while all that its segment holds is replaced.
#[test]
fn a_spilled_page_is_whole_while_it_is_replaced() {
    // What comes back keeps its record, so that readers release none.
    let replaced = |bring_back| {
        let zram = spilling(SMALL);
        zram.core.settings.bring_back.set(bring_back);
        (0..4).for_each(|slot| write(&zram, slot, &noise(slot)));
        // The first three fill a segment, and the last opens the next one.
        spill(&zram, 0..4);
        let readers = [(); 2].map(|()| on_thread(&zram, |zram| read_one_of(zram, 0, &[0, 10])));
        let writer = on_thread(&zram, |zram| {
            write(zram, 0, &noise(10));
            read(zram, 0, &noise(10));
        });
        let remover = on_thread(&zram, |zram| {
            discard(zram, 1);
            discard(zram, 2);
        });
        join(readers.into_iter().chain([writer, remover]));
        read(&zram, 0, &noise(10));
        read(&zram, 3, &noise(3));
        verify(&zram);
    };
    let all = [Promotion::Always, Promotion::Never];
    all.into_iter().for_each(|bring_back| every_order(1000, move || replaced(bring_back)));
}

/// A full file is cleaned for one writer, while what is moved is written and spilled again, and read.
#[test]
fn a_record_is_moved_beside_writers_and_readers() {
    every_order(300, || {
        let zram = spilling(LARGE);
        let fill = |slots: std::ops::Range<u64>| {
            slots.clone().for_each(|slot| write(&zram, slot, &noise(slot)));
            spill(&zram, slots);
        };
        fill(0..14);
        // Its old record stays in the second segment, beside that of slot 13.
        write(&zram, 7, &noise(107));
        spill(&zram, 7..8);
        fill(14..PAGES_FULL - 1);
        (0..13).filter(|slot| ![6, 7].contains(slot)).for_each(|slot| discard(&zram, slot));
        let cleaner = on_thread(&zram, |zram| {
            write(zram, 30, &noise(30));
            spill(zram, 30..31);
        });
        let writer = on_thread(&zram, |zram| {
            write(zram, 6, &noise(100));
            let _ = write_back(zram, 6..7);
            read(zram, 6, &noise(100));
        });
        let reader = on_thread(&zram, |zram| {
            read_one_of(zram, 6, &[6, 100]);
            read(zram, 13, &noise(13));
        });
        join([cleaner, writer, reader]);
        read(&zram, 6, &noise(100));
        read(&zram, 7, &noise(107));
        (13..PAGES_FULL - 1).chain([30]).for_each(|slot| read(&zram, slot, &noise(slot)));
        verify(&zram);
    });
}

/// A device is reset, and has a size again, while pages are spilled and compressed again; one that was to compress them comes only then.
/// Nobody is connected to it before it has.
#[test]
fn a_reset_leaves_nothing_of_what_is_under_way() {
    every_order(600, || {
        let zram = spilling(SMALL);
        (0..3).for_each(|slot| write(&zram, slot, &noise(slot)));
        spill(&zram, 0..1);
        let order = RecompressOrder::parse(&zram.core, "").expect("it has a secondary");
        let spiller = on_thread(&zram, |zram| _ = write_back(zram, 0..SLOTS));
        let recompress = |order: RecompressOrder| {
            on_thread(&zram, move |zram| {
                block_on(recompress::run(zram.core.clone(), order)).expect("there is room");
            })
        };
        let recompressor = recompress(order.clone());
        block_on(zram.core.reset()).expect("no other one runs");
        zram.core.resize(SLOTS << 12).expect("there is room");
        read(&zram, 1, &[0; PAGE]);
        write(&zram, 0, &noise(10));
        join([spiller, recompressor, recompress(order)]);
        read(&zram, 0, &noise(10));
        (1..3).for_each(|slot| read(&zram, slot, &[0; PAGE]));
        verify(&zram);
        discard(&zram, 0);
        verify(&zram);
        assert_eq!(zram.core.table.holdings(), Default::default());
    });
}

#[test]
fn a_model_of_spilling_finds_what_is_published_over_a_newer_write() {
    finds("zram: publish over a newer write", a_write_survives_that_its_page_is_spilled);
}

#[test]
fn a_model_of_spilling_finds_a_cell_that_both_sides_free() {
    finds("zram: free what was picked", a_write_survives_that_its_page_is_spilled);
}

#[test]
fn a_model_of_spilling_finds_what_is_brought_back_over_a_newer_write() {
    finds("zram: bring back what was replaced meanwhile", a_spilled_page_is_whole_while_it_is_replaced);
}

#[test]
fn a_model_of_spilling_finds_a_segment_that_is_used_again_while_it_is_read() {
    finds("spill: free a segment that is read", a_spilled_page_is_whole_while_it_is_replaced);
}

#[test]
fn a_model_of_spilling_finds_a_segment_that_is_pinned_too_late() {
    finds("zram: unlock a slot before its segment is pinned", a_spilled_page_is_whole_while_it_is_replaced);
}

#[test]
fn a_model_of_spilling_finds_a_segment_that_is_freed_by_both() {
    finds("spill: free a segment by both who leave it", a_spilled_page_is_whole_while_it_is_replaced);
}

#[test]
fn a_model_of_spilling_finds_an_old_record_that_is_moved_over_a_newer_one() {
    finds("zram: move an old record over a newer one", a_record_is_moved_beside_writers_and_readers);
}

#[test]
fn a_model_of_spilling_finds_a_record_that_is_released_before_its_copy_is_named() {
    finds("spill: release a record before its copy is named", a_record_is_moved_beside_writers_and_readers);
}

#[test]
fn a_model_of_spilling_finds_a_run_with_a_codec_that_a_reset_took_away() {
    finds(
        "zram: recompress with a codec that a reset took away",
        a_reset_leaves_nothing_of_what_is_under_way,
    );
}
