//! Images of Ceph RBD as origins. Content is compared by Ceph's own tools.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::exerciser::{Exerciser, Part};
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, flag, header_with};
use spillway_tests::tool::Said;
use spillway_tests::{Cluster, Launch, Scratch, Server, clients, pattern, until};

pub(super) const MIB: usize = 1 << 20;

/// MiB of most images.
pub(super) const SIZE: usize = 16;

/// Bytes of an object of most images.
pub(super) const OBJECT: usize = 4 * MIB;

/// Exit codes as documented.
pub(super) const FAILED: i32 = 1;
const USAGE: i32 = 2;
pub(super) const BUSY: i32 = 4;

/// A device `d` over an image, with whatever else it needs in that folder.
pub(super) type Stack = fn(&Cluster, Arc<Scratch>, &str) -> Launch;

/// Disks first.
pub(super) const STACKS: [(&str, Stack); 4] = [
    ("disk", plain),
    ("page cache", paged),
    ("write cache", cached),
    ("page cache and write cache", paged_and_cached),
];

/// Each write of a client is one to the cluster.
pub(super) fn plain(cluster: &Cluster, folder: Arc<Scratch>, image: &str) -> Launch {
    over(cluster, Launch::disk(folder, Path::new(&address(image)))).with("--page-cache", "none")
}

/// The same with more lines in the configuration of this host alone.
pub(super) fn plain_with(cluster: &Cluster, image: &str, lines: &str) -> Launch {
    let (folder, conf) = (Arc::new(Scratch::new()), fs::read_to_string(cluster.conf()).expect("it exists"));
    let conf = folder.write("ceph.conf", conf.replacen("[global]\n", &format!("[global]\n{lines}\n"), 1));
    let launch = Launch::disk(folder, Path::new(&address(image))).with("--page-cache", "none");
    launch.with("--name", "d").with("--ceph-conf", conf)
}

/// The page cache is smaller than the image.
pub(super) fn paged(cluster: &Cluster, folder: Arc<Scratch>, image: &str) -> Launch {
    over(cluster, Launch::disk(folder, Path::new(&address(image)))).with("--page-cache-bytes-max", "8M")
}

/// The cache device, which is smaller than the image, stays in the folder.
pub(super) fn cached(cluster: &Cluster, folder: Arc<Scratch>, image: &str) -> Launch {
    let cache = folder.join("cache.raw");
    if !cache.exists() {
        folder.write("cache.raw", vec![0; 8 * MIB]);
    }
    cached_on(cluster, folder, image, &cache)
}

/// The same on that cache device.
pub(super) fn cached_on(cluster: &Cluster, folder: Arc<Scratch>, image: &str, cache: &Path) -> Launch {
    over(cluster, Launch::cache(folder, Path::new(&address(image)), cache))
}

fn paged_and_cached(cluster: &Cluster, folder: Arc<Scratch>, image: &str) -> Launch {
    cached(cluster, folder, image).with("--page-cache", "writeback").with("--page-cache-bytes-max", "4M")
}

fn over(cluster: &Cluster, launch: Launch) -> Launch {
    launch.with("--name", "d").with("--ceph-conf", cluster.conf())
}

pub(super) fn address(image: &str) -> String {
    format!("rbd:{image}")
}

/// Has a cache write back at once what is dirty.
pub(super) fn eager(launch: Launch) -> Launch {
    launch.with("--pause-writeback", "0").with("--high-watermark", "0").with("--low-watermark", "0")
}

/// Has a cache keep what is dirty.
pub(super) fn lazy(launch: Launch) -> Launch {
    launch.with("--pause-writeback", "0").with("--high-watermark", "100").with("--low-watermark", "100")
}

/// Everything that clients have written reaches the image.
pub(super) fn settle(server: &Server, stack: &str) {
    server.client().ask(command::FLUSH, 0, 0).expect("a flush");
    if stack.contains("write cache") {
        server.spillway(&["drain", "d"]).well();
    }
}

pub(super) fn stop(server: &mut Server) {
    server.spillway(&["stop", "d"]).well();
    assert!(server.ends().success(), "{}", server.log());
}

/// Writes `bytes` from `at` on, in pieces.
pub(super) fn write_all(client: &mut Client, at: usize, bytes: &[u8]) {
    for (number, piece) in bytes.chunks(MIB).enumerate() {
        client.write((at + number * MIB) as u64, piece).expect("a write");
    }
}

/// The launch ends by itself, soon, with a failure, and with `words` in what it says.
#[track_caller]
pub(super) fn refused(launch: Launch, words: &str) -> Said {
    let said = launch.through(["timeout", "--signal=KILL", "60"]).run();
    assert!(matches!(said.code, Some(FAILED | USAGE | BUSY)), "{said}");
    assert!(said.err.contains(words), "{words:?} is not in what was said: {said}");
    said
}

#[test]
fn what_clients_write_is_in_the_image() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let image = cluster.image(&format!("written through {name}"), SIZE);
        let mut server = stack(cluster, Arc::default(), &image).start();
        let mut served = Served::default();
        served.write(&server, 1, 100);
        served.check(&server.content());
        // A discard of blocks that are being written back does nothing.
        if !name.contains("write cache") {
            clients::patterns_verify(&server);
        }
        let content = server.content();
        settle(&server, name);
        assert!(cluster.export(&image) == content, "{name}: another client sees something else");
        assert_eq!(server.value("d", "connection"), "up");
        stop(&mut server);
        assert!(cluster.export(&image) == content, "{name}: the end has changed the image");
        assert_eq!(cluster.watchers(&image), 0, "{name}: the image is still open");
    }
}

/// Without [`settle`]: the end writes what is dirty, of a disk. A cache keeps it on its device.
#[test]
fn what_clients_have_not_flushed_is_in_the_image_after_a_stop() {
    let cluster = Cluster::shared();
    for (name, stack) in [STACKS[0], STACKS[1]] {
        let image = cluster.image(&format!("stopped {name}"), SIZE);
        let mut server = stack(cluster, Arc::default(), &image).start();
        let bytes = pattern::random(3, 0, 6 * MIB);
        write_all(&mut server.client(), 3 * MIB, &bytes);
        stop(&mut server);
        assert!(cluster.export(&image)[3 * MIB..9 * MIB] == bytes, "{name}");
    }
}

#[test]
fn what_another_client_has_written_is_read() {
    let cluster = Cluster::shared();
    let mut content = pattern::random(1, 0, SIZE * MIB);
    content[5 * MIB..10 * MIB].fill(0);
    for (name, stack) in STACKS {
        let image = cluster.import(&format!("read through {name}"), &content);
        let mut server = stack(cluster, Arc::default(), &image).start();
        let mut client = server.client();
        for (at, len) in [(512, 512), (OBJECT - 512, 1024), (OBJECT - 4096, OBJECT + 8192), (0, 9 * MIB)] {
            let found = client.read(at as u64, len).expect("a read");
            assert!(found == content[at..at + len], "{name}: {len} bytes at {at} differ");
        }
        assert!(server.content() == content, "{name}");
        settle(&server, name);
        stop(&mut server);
        assert!(cluster.export(&image) == content, "{name}: reading has changed the image");
    }
}

/// Options of `rbd create`.
const LAYOUTS: [(&str, &[&str]); 4] = [
    ("usual", &[]),
    ("small objects", &["--object-size", "16K"]),
    ("stripes", &["--object-size", "64K", "--stripe-unit", "4096", "--stripe-count", "3"]),
    ("few features", &["--image-feature", "layering"]),
];

#[test]
fn random_work_on_images_of_every_layout_is_as_on_a_file() {
    let cluster = Cluster::shared();
    let layouts = LAYOUTS.map(|(_, options)| (STACKS[0], options));
    let stacks = STACKS.map(|stack| (stack, LAYOUTS[0].1));
    for (number, ((name, stack), options)) in (0..).zip(layouts.into_iter().chain(stacks)) {
        let image = cluster.image_with(&format!("random {number}"), SIZE, options);
        let mut server = stack(cluster, Arc::default(), &image).mounted().start();
        let (file, object) = (server.file("d"), cluster.json(&["info", &image])["object_size"].as_u64());
        let preferred = fs::metadata(&file).expect("it is mounted").blksize();
        assert_eq!(Some(preferred), object, "{name} with {options:?}");
        let part = Part::Disk { start: 0, len: (SIZE * MIB) as u64 };
        Exerciser::new(&file, part, number).run(300).check_anew();
        let content = server.content();
        settle(&server, name);
        stop(&mut server);
        assert!(cluster.export(&image) == content, "{name} with {options:?}");
    }
}

#[test]
fn real_clients_verify_through_an_image() {
    let cluster = Cluster::shared();
    for (name, stack) in [STACKS[0], STACKS[1]] {
        let image = cluster.image(&format!("verified through {name}"), 64);
        let server = stack(cluster, Arc::default(), &image).with("--workers", "2").start();
        clients::overlapping_writes_are_whole(&server);
        clients::images_round_trip(&server);
        clients::mixed_writes_verify_also_after_a_reconnect(&server);
        clients::trims_verify(&server);
    }
}

fn write_durably(client: &mut Client, at: usize, bytes: &[u8]) {
    let header = header_with(flag::FUA, command::WRITE, 1, at as u64, bytes.len() as u32);
    client.stream.write_all(&header).and_then(|()| client.stream.write_all(bytes)).expect("it is taken");
    assert_eq!(client.reply().expect("an answer").0, 0);
}

#[test]
fn a_write_with_fua_and_a_flush_are_at_the_cluster_when_they_are_answered() {
    let cluster = Cluster::shared();
    for (name, stack) in [STACKS[0], STACKS[1]] {
        let image = cluster.image(&format!("durable through {name}"), SIZE);
        let server = stack(cluster, Arc::default(), &image).start();
        let [one, two] = [1, 2].map(|seed| pattern::random(seed, 0, MIB));
        write_durably(&mut server.client(), OBJECT - MIB / 2, &one);
        assert!(cluster.export(&image)[OBJECT - MIB / 2..][..MIB] == one, "{name}: FUA");
        let mut client = server.client();
        client.write(512, &two).expect("a write");
        client.ask(command::FLUSH, 0, 0).expect("a flush");
        assert!(cluster.export(&image)[512..][..MIB] == two, "{name}: a flush");
    }
}

pub(super) fn resize_image(cluster: &Cluster, image: &str, mib: usize) {
    cluster.rbd(&["resize", "--no-progress", "--allow-shrink", "--size", &format!("{mib}M"), image]);
}

#[test]
fn an_image_that_grew_makes_the_device_larger() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let image = cluster.image(&format!("grown under {name}"), SIZE);
        let mut server = stack(cluster, Arc::default(), &image).start();
        let bytes = pattern::random(1, 0, MIB);
        server.client().write(0, &bytes).expect("a write");
        resize_image(cluster, &image, 2 * SIZE);
        if name == "disk" {
            until("it is told", || {
                server.log().contains("has 33554432 bytes now, and had 16777216").then_some(())
            });
        }
        server.spillway(&["resize", "d"]).well();
        let mut client = server.client();
        assert_eq!(client.size, 2 * (SIZE * MIB) as u64, "{name}");
        client.write(client.size - MIB as u64, &bytes).expect("a write behind the former end");
        settle(&server, name);
        stop(&mut server);
        let found = cluster.export(&image);
        assert!(found[..MIB] == bytes && found[2 * SIZE * MIB - MIB..] == bytes, "{name}");
    }
}

#[test]
fn a_device_that_is_given_a_size_gives_it_to_its_image_and_never_shrinks_it() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let image = cluster.image(&format!("given a size under {name}"), SIZE);
        let mut server = stack(cluster, Arc::default(), &image).start();
        let size = |mib: usize| {
            let bytes = (mib * MIB) as u64;
            assert_eq!([server.client().size, cluster.size(&image)], [bytes; 2], "{name}");
        };
        server.spillway(&["resize", "d", "24M"]).well();
        size(24);
        server.spillway(&["resize", "d", "8M"]).refused(USAGE, "cannot shrink");
        resize_image(cluster, &image, 40);
        server.spillway(&["resize", "d", "32M"]).refused(USAGE, "there are 41943040 bytes, not 33554432");
        server.spillway(&["resize", "d", "48M"]).well();
        size(48);
        let bytes = pattern::random(1, 0, MIB);
        server.client().write(47 << 20, &bytes).expect("a write behind the former end");
        settle(&server, name);
        stop(&mut server);
        assert!(cluster.export(&image)[47 * MIB..] == bytes, "{name}");
    }
}

#[test]
fn a_snapshot_keeps_its_size() {
    let cluster = Cluster::shared();
    let image = cluster.image("a snapshot that is given a size", SIZE);
    cluster.rbd(&["snap", "create", "--no-progress", &format!("{image}@then")]);
    let launch = plain(cluster, Arc::default(), &format!("{image}@then")).flag("--read-only");
    let server = launch.start();
    server.spillway(&["resize", "d", "24M"]).refused(USAGE, "there are 16777216 bytes, not 25165824");
    assert_eq!([server.client().size, cluster.size(&image)], [(SIZE * MIB) as u64; 2]);
}

/// A part of a request that is left of the end is no reason for it to succeed.
#[test]
fn behind_the_end_of_an_image_that_shrank_requests_fail() {
    let cluster = Cluster::shared();
    let content = pattern::random(1, 0, SIZE * MIB);
    let image = cluster.import("shrunk", &content);
    let mut server = plain(cluster, Arc::default(), &image).start();
    let mut client = server.client();
    resize_image(cluster, &image, SIZE / 2);
    let end = (SIZE / 2 * MIB) as u64;
    for at in [end - 4096, end, end + 5 * MIB as u64] {
        assert!(client.write(at, &[1; 8192]).is_err(), "a write at {at}");
        assert!(client.read(at, 8192).is_err(), "a read at {at}");
        assert!(client.ask(command::WRITE_ZEROES, at, 8192).is_err(), "zeroes at {at}");
    }
    assert_ne!(server.spillway(&["resize", "d"]).code, Some(0));
    client.write(0, &[1; 4096]).expect("a write before the end");
    assert!(client.read(4096, MIB).expect("a read") == content[4096..][..MIB]);
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    assert_eq!(server.value("d", "connection"), "up");
    resize_image(cluster, &image, SIZE);
    assert!(client.read(end + 4096, MIB).expect("a read") == vec![0; MIB], "what was cut off is back");
    stop(&mut server);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[test]
fn a_flush_says_that_an_image_shrank_under_a_page_cache() {
    let cluster = Cluster::shared();
    let image = cluster.image("shrunk under a page cache", SIZE);
    let mut server = paged(cluster, Arc::default(), &image).start();
    let mut client = server.client();
    resize_image(cluster, &image, SIZE / 2);
    let written = client.write((SIZE * MIB - MIB) as u64, &[1; 4096]);
    let flushed = client.ask(command::FLUSH, 0, 0);
    assert!(written.is_err() || flushed.is_err(), "a write that is lost was flushed");
    server.signal(Signal::TERM);
    server.ends();
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// Those behind the new end keep the cache from being opened until the image is as long as before. The library cuts a write there off
/// without an error: one that counted as written back would be lost.
#[test]
fn an_image_that_shrank_below_the_blocks_of_a_write_cache_costs_none_of_them() {
    let cluster = Cluster::shared();
    let (mut content, end) = (pattern::random(1, 0, SIZE * MIB), SIZE / 2 * MIB);
    let image = cluster.import("shrunk under a write cache", &content);
    let launch = lazy(cached(cluster, Arc::default(), &image));
    let mut server = launch.clone().start();
    let mut client = server.client();
    content[end..].fill(0);
    for at in [MIB, end - MIB / 2, (SIZE - 1) * MIB] {
        let newer = pattern::random(2, at as u64, MIB);
        client.write(at as u64, &newer).expect("a write");
        content[at..at + MIB].copy_from_slice(&newer);
    }
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    resize_image(cluster, &image, SIZE / 2);
    assert_ne!(server.spillway(&["drain", "d"]).code, Some(0), "{}", server.log());
    assert!(client.ask(command::FLUSH, 0, 0).is_err(), "a cache that cannot be written back goes on");
    assert!(client.read(0, end).as_deref() == Ok(&content[..end]), "{}", server.log());
    server.signal(Signal::TERM);
    server.ends();
    refused(launch.clone(), "which has only 2048");
    resize_image(cluster, &image, SIZE);
    let mut server = launch.start();
    assert!(server.content() == content, "a block is lost");
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    assert!(cluster.export(&image) == content, "a block is lost in the image");
}
