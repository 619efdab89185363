//! What RBD images hold and where: zeroes, holes, clones and snapshots.

use std::sync::Arc;

use spillway_tests::raw::{Client, command, errno, flag};
use spillway_tests::{Cluster, Server, clients, pattern, until};

use crate::rbd::{MIB, OBJECT, SIZE, STACKS, paged, plain, refused, settle, stop, write_all};
use crate::rbd_locks::lazy_where_it_can;

/// Within a sector's neighbours, over the border of objects, whole objects, and with each flag.
const ZEROED: [(u16, usize, usize); 6] = [
    (0, 12288, 4096),
    (0, 512 * 3, 512),
    (0, OBJECT - 4096, 8192),
    (flag::FUA, 2 * OBJECT, OBJECT),
    (flag::NO_HOLE, 3 * OBJECT + 4096, 4096),
    (flag::FAST_ZERO, 3 * OBJECT + MIB + 512, 100 * 512),
];

#[test]
fn zeroes_are_exact() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let mut content = pattern::random(2, 0, SIZE * MIB);
        let image = cluster.import(&format!("zeroed through {name}"), &content);
        let mut server = stack(cluster, Arc::default(), &image).start();
        for (flags, at, len) in ZEROED {
            let zeroed = server.client().ask_with(flags, command::WRITE_ZEROES, at as u64, len as u32);
            // A cache may have no fast way.
            if zeroed != Err(errno::ENOTSUP) || flags != flag::FAST_ZERO {
                zeroed.expect("zeroes");
                content[at..at + len].fill(0);
            }
            assert!(server.content() == content, "{name}: {len} zeroes at {at}");
        }
        settle(&server, name);
        stop(&mut server);
        assert!(cluster.export(&image) == content, "{name}");
    }
}

/// Each sector is what it was or zero. `content` becomes what it is.
fn keeps_or_zeroes(client: &mut Client, content: &mut [u8], at: usize, len: usize) {
    client.ask(command::TRIM, at as u64, len as u32).expect("a discard");
    let found = client.read(at as u64, len).expect("a read");
    for (old, new) in content[at..at + len].chunks_mut(512).zip(found.chunks(512)) {
        assert!(new == old || new.iter().all(|&byte| byte == 0), "{len} bytes at {at} have become others");
        old.copy_from_slice(new);
    }
}

#[test]
fn a_discard_keeps_or_zeroes_each_sector_and_stays_with_that() {
    let cluster = Cluster::shared();
    let discards = [
        (20480, 4096),
        (512 * 9, 512),
        (3 * 65536 - 4096, 8192),
        (OBJECT - 65536, 131_072),
        (MIB + 4096, 61440),
        (2 * OBJECT - 4096, OBJECT + 8192),
    ];
    for (name, stack) in STACKS {
        let mut content = pattern::random(4, 0, SIZE * MIB);
        let image = cluster.import(&format!("discarded through {name}"), &content);
        let mut server = lazy_where_it_can(name, stack, cluster, &image).start();
        let mut client = server.client();
        // A cache has newer data than the image, whose own is not to come back.
        for at in [0, OBJECT - MIB / 2, 2 * OBJECT] {
            let newer = pattern::random(6, at as u64, MIB);
            client.write(at as u64, &newer).expect("a write");
            content[at..at + MIB].copy_from_slice(&newer);
        }
        for (at, len) in discards {
            keeps_or_zeroes(&mut client, &mut content, at, len);
            assert!(server.content() == content, "{name}: {len} bytes at {at} discard others");
        }
        assert!(content[2 * OBJECT..3 * OBJECT].iter().all(|&byte| byte == 0), "{name}: an object is kept");
        settle(&server, name);
        stop(&mut server);
        assert!(cluster.export(&image) == content, "{name}: it is otherwise later");
    }
}

/// librbd discards no less than 64 KiB.
#[test]
fn a_small_discard_leaves_the_data_and_one_of_an_object_zeroes_it() {
    let cluster = Cluster::shared();
    let mut content = pattern::random(7, 0, SIZE * MIB);
    let image = cluster.import("discarded in part and whole", &content);
    let mut server = plain(cluster, Arc::default(), &image).start();
    let mut client = server.client();
    for at in [0, 20480, OBJECT - 4096, 65536 * 3] {
        client.ask(command::TRIM, at as u64, 4096).expect("a discard");
    }
    assert!(server.content() == content, "a discard of 4 KiB does something");
    client.ask(command::TRIM, OBJECT as u64, OBJECT as u32).expect("a discard");
    content[OBJECT..2 * OBJECT].fill(0);
    assert!(server.content() == content, "an object is not zero, or another is");
    stop(&mut server);
    assert!(cluster.export(&image) == content, "it is otherwise later");
}

#[test]
fn a_discard_gives_memory_back_to_the_cluster() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let image = cluster.image(&format!("freed through {name}"), SIZE);
        let server = stack(cluster, Arc::default(), &image).start();
        let mut client = server.client();
        write_all(&mut client, 0, &pattern::random(5, 0, 2 * OBJECT));
        settle(&server, name);
        assert_eq!(cluster.used(&image), 2 * OBJECT as u64, "{name}");
        client.ask(command::TRIM, OBJECT as u64, OBJECT as u32).expect("a discard");
        client.ask(command::FLUSH, 0, 0).expect("a flush");
        until("an object is freed", || (cluster.used(&image) == OBJECT as u64).then_some(()));
        client.ask(command::TRIM, 0, (SIZE * MIB) as u32).expect("a discard");
        client.ask(command::FLUSH, 0, 0).expect("a flush");
        until("all objects are freed", || (cluster.used(&image) == 0).then_some(()));
    }
}

/// Everything from `at` on is of that kind in the extents of the device.
#[track_caller]
fn extents_are(server: &Server, at: usize, len: usize, kind: &str) {
    let extents = clients::map(server);
    let within =
        |extent: &&(String, u64, u64)| extent.1 < (at + len) as u64 && (at as u64) < extent.1 + extent.2;
    let found: Vec<_> = extents.iter().filter(within).collect();
    assert!(
        !found.is_empty() && found.iter().all(|extent| extent.0 == kind),
        "no {kind} at {at}: {extents:?}"
    );
}

/// Without a flush before: what is dirty is data too.
#[test]
fn extents_show_what_is_written_and_holes_where_no_object_is() {
    let cluster = Cluster::shared();
    for (name, stack) in [STACKS[0], STACKS[1]] {
        let image = cluster.image(&format!("mapped through {name}"), 2 * SIZE);
        let server = stack(cluster, Arc::default(), &image).start();
        assert_eq!(clients::map(&server), [("hole,zero".into(), 0, 2 * (SIZE * MIB) as u64)], "{name}");
        let mut client = server.client();
        client.write((OBJECT + MIB) as u64, &pattern::random(1, 0, MIB)).expect("a write");
        client.write((5 * OBJECT + 4096) as u64, &[7; 4096]).expect("a write");
        extents_are(&server, 0, OBJECT, "hole,zero");
        extents_are(&server, OBJECT + MIB, MIB, "data");
        extents_are(&server, 2 * OBJECT, 3 * OBJECT, "hole,zero");
        extents_are(&server, 5 * OBJECT + 4096, 4096, "data");
        extents_are(&server, 6 * OBJECT, 2 * OBJECT, "hole,zero");
        for (_, at, len) in clients::map(&server).iter().filter(|extent| extent.0.contains("zero")) {
            let found = client.read(*at, *len as usize).expect("a read");
            assert!(found.iter().all(|&byte| byte == 0), "{name}: no zeroes in the hole at {at}");
        }
    }
}

/// What is in its parent is neither a hole nor zero. Libraries before Ceph 17 mistake that, so that all counts as stored there.
#[test]
fn a_clone_shows_its_parent_where_it_was_not_written_to() {
    let cluster = Cluster::shared();
    let mut content = pattern::random(6, 0, SIZE * MIB);
    content[2 * OBJECT..].fill(0);
    let parent = cluster.import("parent", &content);
    let snapshot = format!("{parent}@base");
    cluster.rbd(&["snap", "create", "--no-progress", &snapshot]);
    cluster.rbd(&["snap", "protect", &snapshot]);
    for (name, stack) in [STACKS[0], STACKS[1]] {
        let (image, mut content) = (format!("rbd/child through {name}"), content.clone());
        cluster.rbd(&["clone", &snapshot, &image]);
        let mut server = stack(cluster, Arc::default(), &image).start();
        extents_are(&server, 0, 2 * OBJECT, "data");
        assert!(server.content() == content, "{name}");
        let mut client = server.client();
        let written = pattern::random(7, 0, 4096);
        client.write(12288, &written).expect("a write");
        content[12288..16384].copy_from_slice(&written);
        for (at, len) in [(65536, 4096), (OBJECT, OBJECT)] {
            client.ask(command::WRITE_ZEROES, at as u64, len as u32).expect("zeroes");
            content[at..at + len].fill(0);
        }
        keeps_or_zeroes(&mut client, &mut content, MIB, 65536);
        assert!(server.content() == content, "{name}");
        stop(&mut server);
        assert!(cluster.export(&image) == content, "{name}");
    }
    let unchanged = cluster.export(&snapshot);
    assert!(unchanged[..2 * OBJECT] == content[..2 * OBJECT], "the parent was written to");
}

/// Made by another client, while the device is written to.
#[test]
fn a_snapshot_is_served_for_reading_and_keeps_its_content() {
    let cluster = Cluster::shared();
    let image = cluster.image("with a snapshot", SIZE);
    let snapshot = format!("{image}@before");
    let server = plain(cluster, Arc::default(), &image).start();
    let mut client = server.client();
    let [old, new] = [1, 2].map(|seed| pattern::random(seed, 0, SIZE * MIB));
    write_all(&mut client, 0, &old);
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    cluster.rbd(&["snap", "create", "--no-progress", &snapshot]);
    for (_, stack) in STACKS {
        refused(stack(cluster, Arc::default(), &snapshot), "read-only");
    }
    refused(plain(cluster, Arc::default(), &snapshot), "is read-only: give --read-only");
    let absent = plain(cluster, Arc::default(), &format!("{image}@after")).flag("--read-only");
    refused(absent, "snapshot");
    let readers =
        [plain, paged].map(|stack| stack(cluster, Arc::default(), &snapshot).flag("--read-only").start());
    write_all(&mut client, 0, &new);
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    for reader in &readers {
        assert!(reader.content() == old, "the snapshot changes with its image");
        assert_eq!(reader.client().write(0, &[1; 4096]), Err(errno::EPERM));
    }
    assert!(server.content() == new);
}

/// As docs/rbd-origin.md says: drained before, and the cache is used again afterwards.
#[test]
fn a_snapshot_of_a_drained_device_holds_all_that_was_flushed() {
    let cluster = Cluster::shared();
    for (name, stack) in [STACKS[2], STACKS[3]] {
        let image = cluster.image(&format!("drained for a snapshot below {name}"), SIZE);
        let mut server = lazy_where_it_can(name, stack, cluster, &image).start();
        let (snapshot, mut client) = (format!("{image}@drained"), server.client());
        let mut write = |at: usize, seed: u64| {
            let bytes = pattern::random(seed, 0, 2 * MIB);
            write_all(&mut client, at, &bytes);
            client.ask(command::FLUSH, 0, 0).expect("a flush");
            bytes
        };
        let before = write(MIB, 1);
        assert!(cluster.export(&image)[MIB..3 * MIB] == vec![0; 2 * MIB], "{name}: nothing is dirty");
        server.spillway(&["drain", "d"]).well();
        let meanwhile = write(2 * OBJECT - MIB, 2);
        cluster.rbd(&["snap", "create", "--no-progress", &snapshot]);
        server.spillway(&["set", "d", "cleaner", "0"]).well();
        let after = write(MIB, 3);
        let holds = |image: &str, first: &[u8]| {
            let found = cluster.export(image);
            found[MIB..3 * MIB] == *first && found[2 * OBJECT - MIB..][..2 * MIB] == meanwhile
        };
        assert!(holds(&snapshot, &before), "{name}: the snapshot lacks something");
        assert!(holds(&image, &before), "{name}: the cache takes nothing any more");
        settle(&server, name);
        stop(&mut server);
        assert!(holds(&image, &after) && holds(&snapshot, &before), "{name}: it is otherwise later");
    }
}

#[test]
fn an_image_for_reading_takes_no_lock_and_no_write() {
    let cluster = Cluster::shared();
    let content = pattern::random(1, 0, SIZE * MIB);
    let image = cluster.import("for reading", &content);
    let readers =
        [plain, paged].map(|stack| stack(cluster, Arc::default(), &image).flag("--read-only").start());
    for reader in &readers {
        assert!(reader.content() == content);
        for what in [command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(reader.client().ask(what, 0, 4096), Err(errno::EPERM));
        }
        assert_eq!(reader.client().write(0, &[1; 4096]), Err(errno::EPERM));
    }
    assert_eq!(cluster.owner(&image), None);
    assert!(cluster.export(&image) == content);
}
