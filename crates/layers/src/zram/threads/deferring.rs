//! Pages that are compressed beside those that write, read and discard them.

use super::*;
use crate::zram::mover::deferring::Which;

fn deferring() -> Arc<Zram> {
    let zram = zram(&Budget::new(64 << 20));
    zram.core.table.set_deferred(4).expect("there is room");
    zram
}

fn compress(zram: &Zram) {
    block_on(zram.core.compress_deferred(Which::All, Caller::Requests));
}

fn compressor(zram: &Arc<Zram>) -> thread::JoinHandle<()> {
    let zram = zram.clone();
    thread::spawn(move || compress(&zram))
}

#[test]
fn a_deferred_page_is_whole_under_a_writer_a_reader_and_what_compresses_it() {
    every_order(2000, || {
        let zram = deferring();
        write(&zram, 0, &page(0));
        assert_eq!(zram.core.table.deferred.pages(), 1);
        let compressors = [compressor(&zram), compressor(&zram)];
        let writer = {
            let zram = zram.clone();
            thread::spawn(move || {
                write(&zram, 0, &page(1));
                read(&zram, 0, &page(1));
                write(&zram, 0, &page(2));
            })
        };
        let reply = block_on(zram.submit(Request::read(0, IoBuf::new(PAGE))));
        let allowed = [0, 1, 2].map(page);
        assert!(allowed.iter().any(|page| page[..] == reply.buf[..]), "a reader saw a mixture");
        compressors.into_iter().chain([writer]).for_each(|thread| thread.join().expect("it ends"));
        read(&zram, 0, &page(2));
        zram.verify();
        compress(&zram);
        assert_eq!(zram.core.table.deferred.pages(), 0, "the last write is compressed by the next lap");
        read(&zram, 0, &page(2));
        discard(&zram, 0);
        zram.verify();
    });
}

#[test]
fn the_checker_finds_a_page_that_is_overwritten_while_it_is_compressed() {
    finds(
        "zram: overwrite what is picked",
        a_deferred_page_is_whole_under_a_writer_a_reader_and_what_compresses_it,
    );
}

#[test]
fn the_checker_finds_a_deferred_page_that_is_published_over_a_newer_write() {
    finds(
        "zram: publish over a newer write",
        a_deferred_page_is_whole_under_a_writer_a_reader_and_what_compresses_it,
    );
}

/// The second of two laps begins after the write was answered.
#[test]
fn every_page_that_was_deferred_before_a_lap_is_compressed_at_its_end() {
    every_order(3000, || {
        let zram = deferring();
        let lap = compressor(&zram);
        let writer = {
            let zram = zram.clone();
            thread::spawn(move || {
                write(&zram, 0, &page(0));
                compress(&zram);
                let held = zram.core.table.lock(SlotIndex(0)).map(|slot| slot.get());
                assert!(!matches!(held, Some(Slot::Deferred(_))), "{held:?} was deferred before the lap");
            })
        };
        // On the same page of slots, and discarded again.
        write(&zram, 1, &page(1));
        discard(&zram, 1);
        [lap, writer].into_iter().for_each(|thread| thread.join().expect("it ends"));
        read(&zram, 0, &page(0));
        zram.verify();
    });
}

#[test]
fn the_checker_finds_a_page_that_is_noted_before_it_is_there() {
    finds(
        "zram: note a deferred page before it is there",
        every_page_that_was_deferred_before_a_lap_is_compressed_at_its_end,
    );
}

/// A page comes and goes while its slot is filled by two writers: its room comes back once.
#[test]
fn room_comes_back_once_whoever_replaces_a_page() {
    every_order(2000, || {
        let zram = deferring();
        let writer = |number| {
            let zram = zram.clone();
            thread::spawn(move || {
                write(&zram, 0, &page(number));
                discard(&zram, 0);
            })
        };
        let threads = [writer(1), writer(2), compressor(&zram)];
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(zram.core.table.deferred.pages(), 0);
        zram.verify();
    });
}
