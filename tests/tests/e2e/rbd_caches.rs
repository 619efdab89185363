//! Caches of librbd's own. Ceph's configuration of an image or a pool turns them on whatever a client says, that of a host does not.

use std::sync::Arc;

use spillway_tests::{Cluster, pattern, until};

use crate::rbd::{MIB, SIZE, STACKS, Stack, plain, plain_with, refused, settle, stop};

/// A device starts and writes, and all of it is in the image.
fn serves(cluster: &Cluster, image: &str, seed: u64, (name, stack): (&str, Stack)) {
    let mut server = stack(cluster, Arc::default(), image).start();
    let bytes = pattern::random(seed, 0, MIB);
    server.client().write(0, &bytes).expect("a write");
    settle(&server, name);
    stop(&mut server);
    assert!(cluster.export(image)[..MIB] == bytes, "{image} through {name}");
}

/// Options of a cache that acknowledges what it keeps for minutes.
pub(super) const KEEPING: &str = "rbd cache = true\nrbd cache policy = writeback\n\
                       rbd cache writethrough until flush = false\nrbd cache max dirty age = 600";

#[test]
fn a_cache_that_the_configuration_of_the_host_turns_on_is_off() {
    let cluster = Cluster::shared();
    let image = cluster.image("turned-on-by-the-host", SIZE);
    let mut server = plain_with(cluster, &image, KEEPING).start();
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(0, &bytes).expect("a write");
    assert!(cluster.export(&image)[..MIB] == bytes, "it was acknowledged, and is not in the cluster");
    stop(&mut server);
}

#[test]
fn an_image_that_turns_a_cache_on_is_refused_until_it_no_longer_does() {
    let cluster = Cluster::shared();
    let image = cluster.image("turns-a-cache-on", SIZE);
    let command = format!("rbd config image remove {image} rbd_cache");
    cluster.rbd(&["config", "image", "set", &image, "rbd_cache", "true"]);
    for (name, stack) in STACKS {
        let said = refused(stack(cluster, Arc::default(), &image), "its image sets rbd_cache (true)");
        assert!(said.err.contains(&command), "{name}: {command} is not in: {said}");
    }
    until("it has left the image", || (cluster.watchers(&image) == 0).then_some(()));
    assert_eq!(cluster.owner(&image), None, "one that was refused has locked it");
    cluster.rbd(&["config", "image", "remove", &image, "rbd_cache"]);
    for (seed, stack) in (0..).zip(STACKS) {
        serves(cluster, &image, seed, stack);
    }
    cluster.rbd(&["config", "image", "set", &image, "rbd_cache", "false"]);
    serves(cluster, &image, 10, STACKS[0]);
}

/// As with a library of Ceph 14, over a pool that has no options.
#[test]
fn an_image_that_turns_a_cache_on_is_refused_though_the_library_lists_no_options() {
    let cluster = Cluster::shared();
    let image = cluster.image("turns-a-cache-on-unlisted", SIZE);
    let unlisted = || plain(cluster, Arc::default(), &image).with_mutant("rbd: list no options");
    cluster.rbd(&["config", "image", "set", &image, "rbd_cache", "true"]);
    let (server, ended) = unlisted().attempt();
    assert!(ended.is_some(), "it serves the image: {}", server.log());
    server.says("its image sets rbd_cache (true)");
    cluster.rbd(&["config", "image", "set", &image, "rbd_cache", "false"]);
    stop(&mut unlisted().start());
}

/// Also in a namespace, which has no configuration of its own. Who has the lock keeps it.
#[test]
fn a_pool_that_turns_a_cache_on_counts_unless_the_image_says_otherwise() {
    let cluster = Cluster::shared();
    let images = ["turns-on/image", "turns-on/space/image"];
    cluster.ceph(&["osd", "pool", "create", "turns-on"]);
    cluster.rbd(&["pool", "init", "turns-on"]);
    cluster.rbd(&["namespace", "create", "turns-on/space"]);
    for image in images {
        cluster.rbd(&["create", "--size", "16M", image]);
    }
    let holders = images.map(|image| plain(cluster, Arc::default(), image).start());
    cluster.rbd(&["config", "pool", "set", "turns-on", "rbd_cache", "true"]);
    for (image, mut holder) in images.into_iter().zip(holders) {
        let owner = cluster.owner(image).expect("it is locked");
        let taking = plain(cluster, Arc::default(), image).flag("--take-over");
        let said = refused(taking, "its pool sets rbd_cache (true)");
        let commands = ["config pool remove turns-on rbd_cache", "config image set"];
        assert!(commands.iter().all(|command| said.err.contains(command)), "{said}");
        assert_eq!(cluster.owner(image), Some(owner), "the lock was broken by one that was refused");
        holder.client().write(0, &[1; 4096]).expect("a write");
        stop(&mut holder);
        cluster.rbd(&["config", "image", "set", image, "rbd_cache", "false"]);
        serves(cluster, image, 1, STACKS[0]);
        cluster.rbd(&["config", "image", "remove", image, "rbd_cache"]);
        refused(plain(cluster, Arc::default(), image), "its pool sets rbd_cache (true)");
    }
    cluster.rbd(&["config", "pool", "remove", "turns-on", "rbd_cache"]);
    for image in images {
        serves(cluster, image, 2, STACKS[0]);
    }
}

/// It loses nothing.
#[test]
fn an_image_for_reading_may_turn_a_cache_on() {
    let cluster = Cluster::shared();
    let content = pattern::random(1, 0, SIZE * MIB);
    let image = cluster.import("turns-a-cache-on-for-reading", &content);
    let snapshot = format!("{image}@snap");
    cluster.rbd(&["snap", "create", "--no-progress", &snapshot]);
    cluster.rbd(&["config", "image", "set", &image, "rbd_cache", "true"]);
    for image in [&image, &snapshot] {
        let mut reader = plain(cluster, Arc::default(), image).flag("--read-only").start();
        assert!(reader.content() == content, "{image}");
        stop(&mut reader);
    }
}

/// Nothing makes one without the plugin.
#[test]
fn a_mode_of_the_persistent_cache_alone_turns_none_on() {
    let cluster = Cluster::shared();
    let image = cluster.image("has-a-mode", SIZE);
    cluster.rbd(&["config", "image", "set", &image, "rbd_persistent_cache_mode", "ssd"]);
    serves(cluster, &image, 1, STACKS[0]);
}
