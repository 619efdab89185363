//! Clusters that do not know the lock of a device, for a moment or for good, and whether they reject its client. Images that mirrors write.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use spillway_tests::{Cluster, Store, pattern};

use crate::rbd::{MIB, SIZE, plain, plain_with, refused, stop};
use crate::rbd_locks::{ends, is_fenced, starts};

/// A tool for the attribute of an image's header that is its lock.
fn on_lock(cluster: &Cluster, image: &str, verb: &str) -> Command {
    let info = cluster.json(&["info", image]);
    let id = info["id"].as_str().unwrap_or_else(|| panic!("{info}"));
    cluster.command("rados", &["-p", "rbd", verb, &format!("rbd_header.{id}"), "lock.rbd_lock"])
}

/// As while librbd renews its lock: it has another name in the cluster than the one that is asked for.
#[test]
fn a_lock_that_is_not_known_for_a_moment_fences_nothing() {
    let cluster = Cluster::shared();
    let image = cluster.image("not known for a moment", SIZE);
    let mut server = plain(cluster, Arc::default(), &image).flag("-v").start();
    let lock = on_lock(cluster, &image, "getxattr").output().expect("timeout is everywhere");
    assert!(lock.status.success() && !lock.stdout.is_empty(), "{lock:?}");
    // It waits for the value, and is connected by then.
    let mut restore =
        on_lock(cluster, &image, "setxattr").stdin(Stdio::piped()).spawn().expect("it ran before");
    let removed = on_lock(cluster, &image, "rmxattr").status().expect("it ran before");
    assert!(removed.success(), "{removed}");
    server.says("does not know the lock");
    restore.stdin.take().expect("it is piped").write_all(&lock.stdout).expect("it waits");
    assert!(restore.wait().expect("it is our child").success());
    server.says("knows the lock again");
    server.client().write(0, &[1; 4096]).expect("a write");
    assert_eq!(server.value("d", "connection"), "up", "{}", server.log());
    stop(&mut server);
    assert_eq!(cluster.owner(&image), None, "the lock is left behind");
}

/// Nothing but the question tells it.
#[test]
fn a_lock_that_is_broken_without_rejecting_the_client_fences_an_idle_device() {
    let cluster = Cluster::shared();
    let image = cluster.image("broken without rejecting", SIZE);
    let first = plain(cluster, Arc::default(), &image).start();
    let owner = cluster.owner(&image).expect("it is locked");
    let lenient = "--rbd_blocklist_on_break_lock=false";
    cluster.rbd(&["lock", "rm", lenient, &image, &owner.lock, &owner.client]);
    is_fenced(&first);
    ends(first);
    let mut second = starts(&plain(cluster, Arc::default(), &image));
    second.client().write(0, &[7; 4096]).expect("a write");
    stop(&mut second);
}

/// Whatever the configuration of the host says that takes it over.
#[test]
fn a_client_whose_lock_is_taken_over_is_rejected_by_the_cluster() {
    let cluster = Cluster::shared();
    let image = cluster.image("taken over by a lenient host", SIZE);
    let first = plain(cluster, Arc::default(), &image).start();
    let owner = cluster.owner(&image).expect("it is locked");
    let lenient = plain_with(cluster, &image, "rbd blocklist on break lock = false");
    let mut second = lenient.flag("--take-over").start();
    let rejected = cluster.ceph(&["osd", "blocklist", "ls"]);
    assert!(rejected.contains(&owner.address), "{owner:?} is not in: {rejected}");
    is_fenced(&first);
    ends(first);
    stop(&mut second);
}

/// As where librbd has taken the lock again after a hang that another Spillway has used, and the cluster rejects nobody.
#[test]
fn a_device_ends_once_another_has_written_to_its_image_though_it_has_the_lock() {
    let cluster = Cluster::shared();
    for writes in [true, false] {
        let image = cluster.image(&format!("written by another, {writes}"), SIZE);
        let server = plain(cluster, Arc::default(), &image).start();
        if writes {
            server.client().write(0, &[1; 4096]).expect("a write");
        }
        cluster.rbd(&["image-meta", "set", &image, "spillway.writer", "7"]);
        is_fenced(&server);
        ends(server);
    }
}

/// Nobody has its lock.
#[test]
fn the_copy_of_a_mirror_is_refused_with_the_remedy_and_can_be_read() {
    let cluster = Cluster::start(1, Store::Memory);
    let content = pattern::random(1, 0, SIZE * MIB);
    let image = cluster.import("image", &content);
    cluster.rbd(&["mirror", "pool", "enable", "rbd", "image"]);
    cluster.rbd(&["mirror", "image", "enable", &image, "snapshot"]);
    cluster.rbd(&["mirror", "image", "demote", &image]);
    let launch = plain(&cluster, Arc::default(), &image);
    refused(launch.clone(), "is the copy of a mirror until rbd mirror image promote");
    let server = launch.flag("--read-only").start();
    assert!(server.client().read(0, MIB).as_deref() == Ok(&content[..MIB]), "{}", server.log());
}
