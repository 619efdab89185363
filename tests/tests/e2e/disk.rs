//! Origins that cannot do everything, behind a real server.

use std::sync::Arc;

use spillway_tests::raw::{Client, command, errno, flag};
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
    server.says("frees no room");
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

/// A page cache takes most of the memory that is left, whatever else the server was asked for, and in whatever order.
#[test]
fn the_least_memory_is_enough_for_a_page_cache_with_a_mount_and_other_devices() {
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin.raw", vec![0; 8 * MIB]);
    for memory in ["32M", "33M", "40M"] {
        let server = Launch::disk(folder.clone(), &origin).with("--memory", memory).mounted().start();
        assert_eq!(std::fs::read(server.file("disk0")).expect("a file").len(), 8 * MIB, "{memory}");
    }
    let config = format!(
        "[[device]]\nname = \"disk0\"\norigin = {{ kind = \"file\", path = {origin:?} }}\nlayers = [{{ kind = \"page_cache\" }}]\n\
         [[device]]\nname = \"ram0\"\norigin = {{ kind = \"zram\", disksize = \"8M\" }}\n"
    );
    let server = Launch::serve(folder, config).with("--memory", "32M").mounted().start();
    for name in ["disk0", "ram0"] {
        let mut client = Client::open(server.socket(), name);
        client.write(0, &pattern::random(2, 0, MIB)).expect("a write");
    }
    let listed = server.spillway(&["ls"]).well().out;
    assert!(listed.find("disk0") < listed.find("ram0"), "in the order of the configuration: {listed}");
}
