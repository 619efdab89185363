//! Large reads that another worker makes, beside a client that waits for them, or withdraws them.

use spillway_core::buffer::Buffers;
use spillway_core::sync::models::leave_early;
use spillway_core::{Answer, work};

use super::*;

/// Pages of a read that takes two slices.
const PAGES: u64 = 24;

/// A device whose codec is slow, and its content.
fn filled(env: &Arc<Impatient>) -> (Arc<Zram>, Vec<u8>) {
    let config =
        Config { disksize: PAGES << 12, comp_algorithm: "zstd", max_comp_streams: 1, ..Config::default() };
    let regions = Arc::new(VecRegions::new(64 << 20));
    let zram = Zram::new(config, env.clone(), regions, Budget::new(64 << 20)).expect("a valid configuration");
    let pages: Vec<Vec<u8>> = (0..PAGES).map(page).collect();
    (0..).zip(&pages).for_each(|(index, page)| write(&zram, index, page));
    (zram, pages.concat())
}

/// A read whose client waits is whole. One that is withdrawn has no slice any more, and its buffer becomes free.
#[test]
fn a_lent_read_is_whole_or_withdrawn_for_good() {
    every_order(300, || {
        let env = Impatient::new(true);
        let (zram, content) = filled(&env);
        let lend = || {
            let _turn = work::turn(work::TURN);
            work::spend(work::TURN / 2);
            let read = zram.submit(Request::read(0, IoBuf::new(content.len())));
            assert!(matches!(read, Answer::Pending(_)), "it is lent");
            read
        };
        let reply = block_on(lend());
        assert!(reply.result == Ok(()) && reply.buf[..] == content[..], "another content is read");
        drop(reply);
        block_on(leave_early(lend()));
        env.rests.store(true, Ordering::SeqCst);
        while Buffers::here().bytes_held() > 0 {
            thread::yield_now();
        }
    });
}

#[test]
fn the_checker_finds_a_read_that_goes_on_after_it_was_withdrawn() {
    finds("zram: a withdrawn read goes on", a_lent_read_is_whole_or_withdrawn_for_good);
}
