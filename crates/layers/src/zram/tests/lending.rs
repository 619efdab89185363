//! Large reads that another worker makes, one slice after the other.

use std::task::{Context, Waker};

use spillway_core::work;

use super::on_disk::{config, medium, spilling};
use super::*;

/// Pages of a read that takes three slices.
const PAGES: usize = 50;

/// A device with as many pages that do not compress well, and a codec that is slow.
fn fill(bench: &Bench) -> Vec<u8> {
    let pages: Vec<Vec<u8>> = (0..PAGES as u64).map(|number| page(&mut Random(number), 60)).collect();
    (0..).zip(&pages).for_each(|(index, page)| bench.write(index, page).unwrap());
    pages.concat()
}

/// A read of all of them by a worker that has done other work in its turn, while another is idle.
fn lend(bench: &Bench) -> Submission {
    bench.world.set_idle_workers(1);
    let _turn = work::turn(work::TURN);
    work::spend(work::TURN / 2);
    let read = bench.seam.submit(Request::read(0, IoBuf::new(PAGES * PAGE)));
    assert!(matches!(read, Answer::Pending(_)), "it is lent");
    read
}

/// The worker may end before the read does: the client's own makes what is left.
#[test]
pub(in crate::zram) fn a_lent_read_is_whole_whoever_makes_its_slices() {
    for slices in 0..5 {
        let bench = bench(Config { comp_algorithm: "zstd", ..sized(1 << 20) });
        let (content, mut read) = (fill(&bench), lend(&bench));
        let mut context = Context::from_waker(Waker::noop());
        assert!(std::pin::Pin::new(&mut read).poll(&mut context).is_pending());
        (0..slices).for_each(|_| _ = bench.world.turn());
        bench.world.power_off();
        let reply = bench.run(read);
        assert!(reply.result == Ok(()) && reply.buf[..] == content[..], "after {slices} slices");
    }
}

#[test]
pub(in crate::zram) fn a_lent_read_has_what_lies_in_the_spill_file() {
    let device = spilling(Config { comp_algorithm: "zstd", ..config() }, medium(20));
    let content = fill(&device);
    device.set("writeback", "page_indexes=7-9 page_index=49");
    assert_eq!(device.columns("bd_stat")[0], 4);
    let reply = device.run(lend(&device));
    assert!(reply.result == Ok(()) && reply.buf[..] == content[..]);
}
