//! Recompression beside a writer, a reader and what moves the same page.

use super::*;
use crate::zram::device::Count;
use crate::zram::mover::recompress::{self, RecompressOrder};

/// A page that lz4hc makes smaller than lz4 does: it repeats in a way that one look back does not show.
fn repetitive(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    let words: Vec<[u8; 6]> =
        (0..24).map(|_| random.draw().to_le_bytes()[..6].try_into().expect("six")).collect();
    (0..PAGE.div_ceil(6)).flat_map(|_| words[random.below(24) as usize]).take(PAGE).collect()
}

fn recompress(zram: &Zram) {
    let order = RecompressOrder::parse(&zram.core, "").expect("it has a secondary");
    block_on(recompress::run(zram.core.clone(), order)).expect("there is room");
}

/// A page is recompressed by one thread, moved by another, and written and read by a third.
#[test]
fn a_write_survives_recompression() {
    every_order(1000, || {
        let budget = Budget::new(64 << 20);
        let zram = zram(&budget);
        write(&zram, 1, &repetitive(0));
        recompress(&zram);
        assert_eq!(zram.core.counted(Count::Recompressed), 1, "pages of this kind get smaller");
        discard(&zram, 1);
        write(&zram, 0, &repetitive(0));
        let recompressor = {
            let zram = zram.clone();
            thread::spawn(move || recompress(&zram))
        };
        let mover = {
            let zram = zram.clone();
            thread::spawn(move || pick(&zram, true))
        };
        let writer = {
            let zram = zram.clone();
            thread::spawn(move || {
                read(&zram, 0, &repetitive(0));
                write(&zram, 0, &repetitive(1));
                read(&zram, 0, &repetitive(1));
            })
        };
        [recompressor, mover, writer].into_iter().for_each(|thread| thread.join().expect("it ends"));
        read(&zram, 0, &repetitive(1));
        zram.verify();
        discard(&zram, 0);
        zram.verify();
        drop(zram);
        assert_eq!(budget.used(), 0);
    });
}

#[test]
fn the_model_of_recompression_finds_what_is_published_over_a_newer_write() {
    finds("zram: publish over a newer write", a_write_survives_recompression);
}
