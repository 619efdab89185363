//! RBD images that are removed below devices, or while a write cache has blocks for them.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::{command, errno};
use spillway_tests::{Cluster, Store, pattern, until};

use crate::nbd_outage::flush;
use crate::rbd::{MIB, SIZE, STACKS, cached, lazy, plain, refused};
use crate::rbd_locks::{SOON, ends, is_fenced};
use crate::rbd_names::with_a_dirty_block;

/// Objects with data of images in the pool.
fn objects(cluster: &Cluster) -> usize {
    let said = cluster.run("rados", &["-p", "rbd", "ls"]).well();
    said.out.lines().filter(|name| name.starts_with("rbd_data.")).count()
}

/// It hangs until the cluster takes it for dead: only then can an image be removed. Its writes must not make objects of the image anew.
#[test]
fn a_device_whose_image_was_removed_fails_requests_and_leaves_nothing_in_the_pool() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    for (name, stack) in [STACKS[0], STACKS[1]] {
        let image = cluster.import(name, &pattern::random(1, 0, SIZE * MIB));
        let server = stack(&cluster, Arc::default(), &image).start();
        let mut client = server.client();
        client.write(0, &[0xaa; 4096]).expect("a write");
        server.signal(Signal::STOP);
        client.send(command::WRITE, 4096, 4096).expect("the socket has room");
        client.stream.write_all(&[0xee; 4096]).expect("the socket has room");
        until("the cluster takes it for dead", || (cluster.watchers(&image) == 0).then_some(()));
        assert!(objects(&cluster) > 0, "{name}: there is nothing to remove");
        cluster.rbd(&["rm", "--no-progress", &image]);
        assert_eq!(objects(&cluster), 0, "{name}: the image is not removed");
        server.signal(Signal::CONT);
        let (answer, _) = client.reply().expect("an answer");
        match name {
            "disk" => assert_eq!(answer, errno::EIO, "{}", server.log()),
            _ => assert_eq!(flush(&server), Err(errno::EIO), "{}", server.log()),
        }
        is_fenced(&server);
        ends(server);
        assert_eq!(objects(&cluster), 0, "{name}: a removed image was written to");
    }
}

/// No lock is lost with it.
#[test]
fn a_device_whose_unlocked_image_was_removed_fails_requests_too() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    let image = cluster.image_with("unlocked", SIZE, &["--image-feature", "layering"]);
    let server = plain(&cluster, Arc::default(), &image).start();
    server.client().write(0, &[0xaa; 4096]).expect("a write");
    server.signal(Signal::STOP);
    until("the cluster takes it for dead", || (cluster.watchers(&image) == 0).then_some(()));
    cluster.rbd(&["rm", "--no-progress", &image]);
    server.signal(Signal::CONT);
    is_fenced(&server);
    assert!(server.log().contains("was removed"), "{}", server.log());
    ends(server);
    assert_eq!(objects(&cluster), 0, "a removed image was written to");
}

/// Ceph keeps nobody from removing it, and what it had reads as zeroes.
#[test]
fn a_device_that_only_reads_an_image_fails_requests_once_that_was_removed() {
    let cluster = Cluster::shared();
    let image = cluster.import("removed below a reader", &pattern::random(1, 0, SIZE * MIB));
    let server = plain(cluster, Arc::default(), &image).flag("--read-only").start();
    server.client().read(0, 4096).expect("a read");
    cluster.rbd(&["rm", "--no-progress", &image]);
    server.says("was removed");
    assert_eq!(server.client().read(0, 4096), Err(errno::EIO), "{}", server.log());
    assert_eq!(server.value("d", "connection"), "fenced");
}

/// The image stays, and another snapshot gets the name.
#[test]
fn a_device_over_a_snapshot_fails_requests_once_that_was_removed_and_others_go_on() {
    let cluster = Cluster::shared();
    let content = pattern::random(1, 0, SIZE * MIB);
    let image = cluster.import("snapshot removed below a reader", &content);
    let snapshots = ["stays", "removed"].map(|name| format!("{image}@{name}"));
    let [stays, removed] = snapshots.each_ref().map(|snapshot| {
        cluster.rbd(&["snap", "create", "--no-progress", snapshot]);
        let server = plain(cluster, Arc::default(), snapshot).flag("--read-only").start();
        assert!(server.content() == content, "{snapshot}");
        server
    });
    cluster.rbd(&["snap", "rm", "--no-progress", &snapshots[1]]);
    cluster.rbd(&["snap", "create", "--no-progress", &snapshots[1]]);
    removed.says("was removed");
    assert_eq!(removed.client().read(0, 4096), Err(errno::EIO), "{}", removed.log());
    assert_eq!(removed.value("d", "connection"), "fenced");
    // It was started before the other, and has asked as often.
    assert!(stays.content() == content && stays.value("d", "connection") == "up", "{}", stays.log());
}

/// Its blocks are for an image that is gone. No other gets them, whatever its name.
#[test]
fn a_write_cache_whose_image_was_removed_keeps_its_blocks_and_leaves_a_new_one_alone() {
    let cluster = Cluster::shared();
    let image = cluster.image("removed", SIZE);
    let (folder, _) = with_a_dirty_block(cluster, &image);
    let launch = lazy(cached(cluster, folder.clone(), &image));
    let cache = || fs::read(folder.join("cache.raw")).expect("it exists");
    let before = cache();
    cluster.rbd(&["rm", "--no-progress", &image]);
    refused(launch.clone(), "no such image");
    assert!(cache() == before, "the cache of an image that is gone was written");
    let content = pattern::random(1, 0, SIZE * MIB);
    assert_eq!(cluster.import("removed", &content), image);
    refused(launch, "the cache holds blocks of another origin");
    assert!(cache() == before, "the refused cache was written");
    assert!(cluster.export(&image) == content, "blocks of the former image are in the new one");
}
