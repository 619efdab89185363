//! `spillway hand-over`: what another host finds in the origin.

use std::fs;
use std::sync::Arc;

use spillway_tests::raw::command;
use spillway_tests::{Cluster, Launch, Scratch, Store, pattern, text, tool};

use crate::rbd::{FAILED, MIB, SIZE, STACKS, cached, lazy, plain, stop};
use crate::rbd_faults::limited;
use crate::rbd_locks::starts;

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
    let cluster = Cluster::start(1, Store::Memory);
    let (image, bytes) =
        (cluster.import("image", &pattern::random(2, 0, SIZE * MIB)), pattern::random(1, 0, MIB));
    let launch = lazy(cached(&cluster, Arc::default(), &image));
    let mut server = limited(launch.clone()).start();
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
    let mut server = starts(&launch);
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

/// A file system on a cached image, through the death of an OSD, to another host.
#[test]
fn a_file_system_moves_to_another_host() {
    let cluster = Cluster::start(3, Store::Bluestore);
    let (image, place) = (cluster.image("image", 64), Scratch::new());
    let folder = place.path().to_str().expect("text");
    let mut server = cached(&cluster, Arc::default(), &image).mounted().start();
    server.spillway(&["attach", "d", "--mkfs", "ext4", folder]).well();
    let write = |seed: u64| fs::write(place.join(&seed.to_string()), pattern::random(seed, 0, 4 * MIB));
    (0..3).for_each(|seed| write(seed).expect("a file"));
    cluster.kill("osd.1");
    (3..6).for_each(|seed| write(seed).expect("a file while an OSD is dead"));
    cluster.restart("osd.1");
    server.spillway(&["detach", "d"]).well();
    server.spillway(&["hand-over", "d"]).well();
    assert!(server.ends().success(), "{}", server.log());
    let mut other = plain(&cluster, Arc::default(), &image).mounted().start();
    other.spillway(&["attach", "d", folder]).well();
    let read = |seed: u64| fs::read(place.join(&seed.to_string())).expect("it is there");
    let right = (0..6).all(|seed| read(seed) == pattern::random(seed, 0, 4 * MIB));
    other.spillway(&["detach", "d"]).well();
    stop(&mut other);
    assert!(right, "a file differs on the other host");
    let exported = place.write("exported", cluster.export(&image));
    tool::run("/usr/sbin/e2fsck", &["-fn", text(&exported)]).well();
}
