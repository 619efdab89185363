//! Origins that cannot do everything, behind a real server.

use std::sync::Arc;

use spillway_tests::raw::{command, errno, flag};
use spillway_tests::{Launch, LoopDevice, Scratch, pattern, tool};

const MIB: usize = 1 << 20;

/// An origin that cannot free room: discards are not offered, a client that asks all the same finds its data unchanged, and zeroes are
/// zeroes, but not fast.
#[test]
fn an_origin_that_cannot_free_room_offers_no_discards_and_keeps_what_it_holds() {
    for mode in ["none", "writeback"] {
        offers_no_discards_and_keeps_what_it_holds(mode);
    }
}

fn offers_no_discards_and_keeps_what_it_holds(page_cache: &str) {
    let device = LoopDevice::without_discards(8 << 20);
    let launch = Launch::disk(Arc::new(Scratch::new()), device.path());
    let server = launch.with("--page-cache", page_cache).start();
    assert!(server.log().contains("frees no room"), "{}", server.log());
    let trim = tool::run("nbdinfo", &["--can", "trim", &server.uri()]);
    assert_eq!(trim.code, Some(2), "offered: {trim}");
    tool::run("nbdinfo", &["--can", "zero", &server.uri()]).well();
    let mut client = server.client();
    let old = pattern::random(1, 0, 4 * MIB);
    client.write(0, &old).expect("a write");
    client.ask(command::TRIM, 0, 4 * MIB as u32).expect("a discard may do nothing");
    assert!(client.read(0, 4 * MIB) == Ok(old.clone()), "a discard changed what cannot be discarded");
    client.ask(command::WRITE_ZEROES, MIB as u64, MIB as u32).expect("zeroes");
    assert_eq!(client.ask_with(flag::FAST_ZERO, command::WRITE_ZEROES, 0, 4096), Err(errno::ENOTSUP));
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    let mut wanted = old;
    wanted[MIB..2 * MIB].fill(0);
    assert!(client.read(0, 4 * MIB) == Ok(wanted), "zeroes and nothing else");
}
