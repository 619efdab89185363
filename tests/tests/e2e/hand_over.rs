//! `spillway hand-over`: what another host finds in the origin.

use std::fs;
use std::sync::Arc;

use spillway_tests::raw::command;
use spillway_tests::{Cluster, Launch, Scratch, pattern};

use crate::rbd::{FAILED, MIB, SIZE, STACKS, cached, lazy, plain, stop};
use crate::rbd_faults::limited;

/// Nothing was flushed, and clients are still there.
#[test]
fn an_image_that_is_handed_over_is_complete_and_free() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let image = cluster.image(&format!("handed over by {name}"), SIZE);
        let mut server = stack(cluster, Arc::default(), &image).start();
        let bytes = pattern::random(1, 0, 2 * MIB);
        let mut client = server.client();
        client.write(MIB as u64, &bytes).expect("a write");
        server.spillway(&["hand-over", "d"]).well();
        assert!(server.ends().success(), "{name}: {}", server.log());
        assert!(cluster.export(&image)[MIB..3 * MIB] == bytes, "{name}");
        let mut other = plain(cluster, Arc::default(), &image).start();
        assert!(other.client().read(MIB as u64, 2 * MIB) == Ok(bytes), "{name}");
        stop(&mut other);
    }
}

/// The device goes on, and hands over once it can.
#[test]
fn a_device_that_cannot_write_back_keeps_its_blocks_and_its_image() {
    let cluster = Cluster::start(1, spillway_tests::Store::Memory);
    let (image, bytes) =
        (cluster.import("image", &pattern::random(2, 0, SIZE * MIB)), pattern::random(1, 0, MIB));
    let launch = limited(lazy(cached(&cluster, Arc::default(), &image)));
    let mut server = launch.clone().start();
    let mut client = server.client();
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    client.write(0, &bytes).expect("a write");
    cluster.stop_osds();
    assert_eq!(server.spillway(&["hand-over", "d"]).code, Some(FAILED));
    assert!(server.lives() && client.read(0, MIB) == Ok(bytes.clone()), "{}", server.log());
    cluster.go_on_osds();
    drop(client);
    server.signal(rustix::process::Signal::TERM);
    server.ends();
    let mut server = launch.start();
    server.spillway(&["hand-over", "d"]).well();
    server.ends();
    assert!(cluster.export(&image)[..MIB] == bytes);
}

/// What clients write after the drain goes past the cache.
#[test]
fn a_file_that_is_handed_over_needs_no_cache() {
    let folder = Arc::new(Scratch::new());
    let [origin, cache] = ["origin", "cache"].map(|name| folder.write(name, vec![0; 8 * MIB]));
    let mut server = Launch::cache(folder, &origin, &cache).with("--name", "d").start();
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(0, &bytes).expect("a write");
    server.spillway(&["hand-over", "d"]).well();
    assert!(server.ends().success(), "{}", server.log());
    assert!(fs::read(&origin).expect("it exists")[..MIB] == bytes);
}
