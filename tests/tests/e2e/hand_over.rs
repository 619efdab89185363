//! `spillway hand-over`: what another host finds in the origin.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use spillway_tests::raw::command;
use spillway_tests::{Cluster, Launch, Scratch, Store, Upstream, pattern, text, tool, until};

use crate::nbd_outage::{disk, file};
use crate::origin_timeout::{falls_silent, limited};
use crate::rbd::{BUSY, FAILED, MIB, SIZE, STACKS, cached, lazy, plain, stop};
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
    falls_silent(&cluster, &server);
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

/// An NBD server lets any host come next.
#[test]
fn an_export_that_is_handed_over_is_complete() {
    let (folder, file) = file();
    let upstream = Upstream::nbdkit_file(&file);
    let uri = upstream.uri();
    let cache = folder.write("cache.raw", vec![0; 8 * MIB]);
    let paged = Launch::disk(folder.clone(), Path::new(&uri));
    let launches = [paged, lazy(Launch::cache(folder, Path::new(&uri), &cache))];
    for (seed, launch) in (0..).zip(launches) {
        let mut server = launch.with("--name", "d").start();
        let bytes = pattern::random(seed, 0, MIB);
        server.client().write(MIB as u64, &bytes).expect("a write");
        server.spillway(&["hand-over", "d"]).well();
        assert!(server.ends().success(), "{}", server.log());
        assert!(fs::read(&file).expect("it exists")[MIB..2 * MIB] == bytes, "{}", server.log());
        let other = disk(&uri).start();
        assert!(other.client().read(MIB as u64, MIB) == Ok(bytes), "{}", other.log());
    }
}

/// Its cache takes nothing from then on.
#[test]
fn a_device_that_is_attached_is_drained_and_handed_over_once_it_is_detached() {
    let folder = Arc::new(Scratch::new());
    let [origin, cache] = ["origin", "cache"].map(|name| folder.write(name, vec![0; 8 * MIB]));
    let launch = lazy(Launch::cache(folder, &origin, &cache)).with("--name", "d").mounted();
    let mut server = launch.start();
    let device = server.spillway(&["attach", "d", "--via", "loop"]).well().out;
    let [first, second] = [1, 2].map(|seed| pattern::random(seed, 0, MIB));
    let write = |bytes: &[u8]| {
        let file = File::options().write(true).open(device.trim());
        file.and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all())).expect("a device");
    };
    let is_at_origin = |bytes: &[u8]| fs::read(&origin).expect("it exists")[..MIB] == *bytes;
    write(&first);
    assert!(!is_at_origin(&first), "it is not dirty");
    server.spillway(&["hand-over", "d"]).refused(BUSY, "d is drained, and its cache takes nothing");
    assert!(server.lives() && is_at_origin(&first), "{}", server.log());
    write(&second);
    assert!(is_at_origin(&second), "{}", server.log());
    server.spillway(&["detach", "d"]).well();
    server.spillway(&["hand-over", "d"]).well();
    assert!(server.ends().success(), "{}", server.log());
}

/// Files of the tour, the last of which the second host writes.
const FILES: u64 = 8;

/// What fio writes to a file and verifies, or verifies only.
fn fio(file: &Path, what: &str) {
    let (file, folder) =
        (format!("--filename={}", text(file)), text(file.parent().expect("it is in a folder")));
    let job =
        ["--name=tour", "--rw=randwrite", "--bsrange=4k-64k", "--size=24M", "--ioengine=psync", "--fsync=64"];
    let checks = ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", what, &file];
    tool::finish(Command::new("fio").current_dir(folder).args(job).args(checks)).well();
}

/// The files of a mounted file system: fio's, and so many by number.
fn files(place: &Scratch, count: u64) -> Vec<Vec<u8>> {
    let names = std::iter::once("fio".to_owned()).chain((0..count).map(|number| number.to_string()));
    names.map(|name| fs::read(place.join(&name)).expect("the file is there")).collect()
}

/// The same of a copy of the image, without Spillway.
fn exported_files(copy: &Path, count: u64) -> Vec<Vec<u8>> {
    let place = Scratch::new();
    tool::run("mount", &["-o", "loop,ro", text(copy), text(place.path())]).well();
    let found = std::panic::catch_unwind(|| files(&place, count));
    tool::run("umount", &[text(place.path())]).well();
    found.expect("each file is there")
}

/// The tour: ext4 on an image behind a write cache, fio while an OSD dies and comes back, another host with a cache of its own, and what Ceph
/// itself exports.
#[test]
fn a_file_system_moves_to_another_host() {
    let cluster = Cluster::start(3, Store::Bluestore);
    let (image, place) = (cluster.image("image", 96), Scratch::new());
    let folder = text(place.path());
    let write = |seed: u64| {
        let file = place.join(&seed.to_string());
        fs::write(file, pattern::random(seed, 0, 3 * MIB)).expect("a file");
    };
    let mut first = cached(&cluster, Arc::default(), &image).mounted().start();
    first.spillway(&["attach", "d", "--via", "loop", "--mkfs", "ext4", folder]).well();
    (0..3).for_each(write);
    let written = || first.value("d", "writes").as_u64().expect("a number");
    thread::scope(|scope| {
        let before = written();
        scope.spawn(|| fio(&place.join("fio"), "--do_verify=1"));
        until("fio writes", || (written() > before + 500).then_some(()));
        cluster.kill("osd.1");
        (3..FILES - 1).for_each(write);
        cluster.restart("osd.1");
    });
    let content = files(&place, FILES - 1);
    first.spillway(&["detach", "d"]).well();
    first.spillway(&["hand-over", "d"]).well();
    assert!(first.ends().success(), "{}", first.log());
    let mut second = cached(&cluster, Arc::default(), &image).mounted().start();
    second.spillway(&["attach", "d", "--via", "loop", folder]).well();
    fio(&place.join("fio"), "--verify_only=1");
    let moved = files(&place, FILES - 1);
    write(FILES - 1);
    second.spillway(&["detach", "d"]).well();
    second.spillway(&["hand-over", "d"]).well();
    assert!(second.ends().success(), "{}", second.log());
    assert!(moved == content, "a file differs on the other host");
    let copy = place.write("exported", cluster.export(&image));
    tool::run("/usr/sbin/e2fsck", &["-fn", text(&copy)]).well();
    let found = exported_files(&copy, FILES);
    assert!(found[..content.len()] == content, "a file differs in the exported image");
    for (seed, bytes) in (0..FILES).zip(&found[1..]) {
        assert!(*bytes == pattern::random(seed, 0, 3 * MIB), "file {seed} is not what was written");
    }
}
