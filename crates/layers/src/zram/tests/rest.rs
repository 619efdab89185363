//! A device comes to rest after the last change, however long the request that made it took.

use super::on_disk::{config, medium, spilling};
use super::recompressing::digits;
use super::*;

const PAGES: u64 = 8000;

/// Slots in an order in which every other one belongs to the first half: objects of both halves share their spans.
fn fill_interleaved(bench: &Bench) {
    let mut random = Random(21);
    for index in 0..PAGES {
        let slot = index / 2 + index % 2 * (PAGES / 2);
        bench.write(slot, &page(&mut random, 45)).unwrap();
    }
}

/// Runs a request that gets a turn every second only: the compactor looks ten times between two of its slices.
fn run_slowly(bench: &Bench, request: Request) -> usize {
    let mut submission = std::pin::pin!(bench.seam.submit(request));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for polls in 0..1000 {
        if let std::task::Poll::Ready(reply) = submission.as_mut().poll(&mut context) {
            assert_eq!(reply.result, Ok(()));
            return polls;
        }
        look(bench, 10);
    }
    panic!("no answer");
}

#[test]
fn a_request_that_outlives_the_quiet_time_leaves_the_pool_packed_too() {
    let half = ByteRange::new(0, PAGES / 2 * PAGE as u64);
    let zeroes = || IoBuf::new(half.len as usize);
    let mut noise = zeroes();
    Random(3).fill(&mut noise);
    let mut no_hole = Request::bare(Op::WriteZeroes, half);
    no_hole.flags.no_hole = true;
    let requests =
        [Request::bare(Op::Discard, half), no_hole, Request::write(0, noise), Request::write(0, zeroes())];
    for (number, request) in requests.into_iter().enumerate() {
        let bench = bench(sized(64 << 20));
        fill_interleaved(&bench);
        look(&bench, 10);
        assert!(run_slowly(&bench, request) > 2, "request {number} was over too soon");
        settle(&bench, &format!("after request {number}"), 50);
    }
}

/// There is room for the span of an object and none for the leaf of its slot: what was refused leaves a warm span behind.
#[test]
fn a_write_that_is_refused_at_rest_leaves_nothing_behind() {
    let mut refused = 0;
    for pages in 1..15 {
        let bench = bench(sized(1 << 20));
        look(&bench, 10);
        bench.zram.core.budget.set_limit(pages * PAGE as u64 + 512);
        match bench.write(0, &page(&mut Random(1), 100)) {
            Ok(()) => bench.discard(0, 1 << 20),
            Err(kind) => refused += u64::from(kind == Kind::NoSpace),
        }
        look(&bench, 20);
        assert_eq!(bench.number("mem_used_total"), 0, "with room for {pages} pages");
    }
    assert!((1..14).contains(&refused), "{refused} of 14 were refused");
}

/// Every other page gets smaller: cells of all sizes come free beside others that stay.
#[test]
fn a_recompression_at_rest_leaves_the_pool_packed_too() {
    const SMALLER: u64 = 2000;
    for (name, value) in [("recompress", ""), ("recompress_age", "1")] {
        let secondary = Some("algo=zstd".into());
        let bench = bench(Config { recomp_algorithm: secondary, ..sized(64 << 20) });
        let mut random = Random(5);
        for index in 0..SMALLER {
            bench.write(2 * index, &digits(index, 900 + 17 * (index as usize % 50))).unwrap();
            bench.write(2 * index + 1, &page(&mut random, 56 + index as usize % 22)).unwrap();
        }
        look(&bench, 20);
        assert_eq!(bench.number("recompressed_pages"), 0);
        bench.set(name, value);
        bench.world.run_until(|| bench.number("recompressed_pages") >= SMALLER);
        settle(&bench, name, 50);
    }
}

/// So does what leaves memory.
#[test]
fn pages_that_leave_at_rest_leave_the_pool_packed_too() {
    let device = spilling(Config { disksize: 64 << 20, ..config() }, medium(400));
    fill_interleaved(&device);
    look(&device, 20);
    device.set("writeback", &format!("page_indexes=0-{}", PAGES / 2 - 1));
    assert_eq!(device.bd_stat()[0], PAGES / 2);
    settle(&device, "after half of the pages have left", 50);
}
