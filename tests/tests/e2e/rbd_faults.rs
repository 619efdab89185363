//! Ceph clusters whose daemons are killed or hang.
//!
//! Devices without a page cache unless a test says otherwise: each write of a client is one to the cluster.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use rustix::process::Signal;
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, errno};
use spillway_tests::{Cluster, Scratch, Server, Store, pattern, until};

use crate::nbd_outage::{flush, lines};
use crate::origin_timeout::{answers_again, falls_silent, limited};
use crate::rbd::{FAILED, MIB, SIZE, STACKS, cached, lazy, paged, plain, plain_with, refused, settle, stop};
use crate::rbd_locks::{SOON, starts};

/// Where the part begins that the writers leave alone.
const APART: u64 = 8 << 20;

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Three OSDs with a copy each, which serve while two of them live.
pub(super) fn three() -> Cluster {
    Cluster::start(3, Store::Bluestore)
}

/// The same, where requests wait no longer than that for an OSD that may still answer reads.
pub(super) fn three_that_may_hang() -> Cluster {
    Cluster::with(3, Store::Bluestore, &["osd pool default read lease ratio = 0.1"])
}

/// Requests end, and right: in each object of a part of the image.
pub(super) fn goes_on(server: &Server, seed: u64) {
    let mut client = server.client();
    let bytes = pattern::random(seed, 0, 65536);
    for at in [APART, APART + (4 << 20)] {
        client.write(at, &bytes).expect("a write");
        client.ask(command::FLUSH, 0, 0).expect("a flush");
        assert!(client.read(at, 65536).expect("a read") == bytes, "seed {seed} at {at}");
    }
}

/// Has writers write while `work` does things to the cluster. In the end what was acknowledged is there, for clients
/// and for Ceph.
fn survives(cluster: &Cluster, work: impl FnOnce(&Server)) {
    let image = cluster.image("image", SIZE);
    let server = plain(cluster, Arc::default(), &image).with("--workers", "2").start();
    let mut served = Served::default();
    served.write_during(&server, 1, || work(&server));
    is_kept(cluster, &image, "disk", server, served);
}

/// What was acknowledged through a stack is there, for clients and for Ceph.
pub(super) fn is_kept(cluster: &Cluster, image: &str, stack: &str, mut server: Server, mut served: Served) {
    served.check(&server.content());
    settle(&server, stack);
    assert_eq!(server.value("d", "connection"), "up");
    stop(&mut server);
    served.check(&cluster.export(image));
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// A write that is sent while nobody can answer, and is answered once `work` is done.
fn waits_for(server: &Server, seed: u64, work: impl FnOnce()) {
    let (mut client, bytes) = (server.client(), pattern::random(seed, 0, 65536));
    client.send(command::WRITE, APART, 65536).expect("it is sent");
    client.stream.write_all(&bytes).expect("it is sent");
    work();
    assert_eq!(client.reply().expect("an answer").0, 0);
    assert!(client.read(APART, 65536).expect("a read") == bytes);
}

#[test]
fn osds_that_are_killed_and_started_again_cost_nothing() {
    let cluster = three();
    let restart = |osds: &[&str]| osds.iter().for_each(|osd| cluster.restart(osd));
    survives(&cluster, |server| {
        cluster.kill("osd.0");
        goes_on(server, 1);
        restart(&["osd.0"]);
        goes_on(server, 2);
        ["osd.1", "osd.2"].iter().for_each(|osd| cluster.kill(osd));
        waits_for(server, 3, || restart(&["osd.1", "osd.2"]));
        goes_on(server, 4);
        cluster.osds().for_each(|osd| cluster.kill(&osd));
        waits_for(server, 5, || restart(&["osd.0", "osd.1", "osd.2"]));
        goes_on(server, 6);
    });
}

/// Each is declared dead by the monitor while it hangs, and comes back with what it was sent before.
#[test]
fn osds_that_hang_and_go_on_cost_nothing() {
    let cluster = three_that_may_hang();
    survives(&cluster, |server| {
        for (seed, osd) in (0..).zip(cluster.osds()) {
            cluster.stop(&osd);
            cluster.ceph(&["osd", "down", &osd]);
            goes_on(server, 10 * seed);
            cluster.go_on(&osd);
            cluster.until_up();
            goes_on(server, 10 * seed + 1);
        }
        for seed in 100..105 {
            cluster.stop_osds();
            waits_for(server, seed, || cluster.go_on_osds());
        }
    });
}

#[test]
fn a_monitor_that_is_away_and_comes_back_costs_nothing() {
    let cluster = three();
    survives(&cluster, |server| {
        cluster.kill("mon.a");
        goes_on(server, 1);
        cluster.kill("osd.1");
        waits_for(server, 2, || {
            cluster.restart("mon.a");
            cluster.restart("osd.1");
        });
        goes_on(server, 3);
        cluster.stop("mon.a");
        goes_on(server, 4);
        cluster.go_on("mon.a");
        goes_on(server, 5);
    });
}

/// The cluster is away for longer than it keeps a client that says nothing.
fn is_away_for_long(server: &Server) {
    let seconds = || server.value("d", "connection_seconds").as_u64().expect("a number");
    until("the cluster forgets its clients", || (seconds() >= 9).then_some(()));
}

/// The lock is kept: nobody else has it, and nobody gets it.
fn is_locked(cluster: &Cluster, image: &str) {
    until("it has the lock", || cluster.owner(image));
    refused(plain(cluster, Arc::default(), image), "is locked by");
}

/// Also where the configuration of this host has a limit for calls.
#[test]
fn without_a_limit_requests_wait_and_people_are_told() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    let image = cluster.image("image", SIZE);
    let server = plain_with(&cluster, &image, "rados osd op timeout = 1").start();
    cluster.stop_osds();
    waits_for(&server, 1, || {
        until("it is said", || (server.value("d", "connection") == "reconnecting").then_some(()));
        is_away_for_long(&server);
        cluster.go_on_osds();
    });
    until("it is said", || (server.value("d", "connection") == "up").then_some(()));
    assert_eq!(server.value("d", "connections_lost"), 1);
    goes_on(&server, 2);
    is_locked(&cluster, &image);
}

#[test]
fn with_a_limit_requests_fail_while_no_osd_answers_and_go_on_afterwards() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    // What no object has is read and discarded without the cluster.
    let image = cluster.import("image", &pattern::random(9, 0, SIZE * MIB));
    let mut server = limited(plain(&cluster, Arc::default(), &image)).start();
    let [old, new] = [1, 2].map(|seed| pattern::random(seed, 0, MIB));
    let mut client = server.client();
    client.write(0, &old).expect("a write");
    falls_silent(&cluster, &server);
    assert_eq!(client.write(2 * MIB as u64, &new), Err(errno::EIO));
    assert_eq!(server.value("d", "connection"), "failing");
    assert_eq!(client.read(0, 4096), Err(errno::EIO));
    assert_eq!(client.ask(command::TRIM, 4 << 20, 4 << 20), Err(errno::EIO));
    assert_eq!(client.ask(command::WRITE_ZEROES, 8 << 20, 4096), Err(errno::EIO));
    is_away_for_long(&server);
    answers_again(&cluster, &server);
    until("it is up", || (server.value("d", "connection") == "up").then_some(()));
    assert!(client.read(0, MIB) == Ok(old.clone()), "what was acknowledged before is lost");
    client.write(2 * MIB as u64, &new).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    goes_on(&server, 3);
    is_locked(&cluster, &image);
    let fails = lines(&server, "requests fail");
    assert_eq!(fails, 1, "once, not for each request: {}", server.log());
    stop(&mut server);
    let found = cluster.export(&image);
    assert!(found[..MIB] == old && found[2 * MIB..3 * MIB] == new);
}

/// Bytes of what is written and given up, and of the newer write in the middle of it.
const GIVEN_UP: usize = 64 << 10;
const NEWER: Range<usize> = (24 << 10)..(40 << 10);

/// What may be in a part of the image: each block one of some.
struct Part {
    at: u64,
    allowed: Vec<Vec<Vec<u8>>>,
}

impl Part {
    fn new(number: usize) -> Self {
        let blocks = GIVEN_UP / BLOCK;
        Self { at: (number * GIVEN_UP) as u64, allowed: vec![vec![vec![0; BLOCK]]; blocks] }
    }

    /// A write of all of it that failed: it may have happened, and may happen later.
    fn fails(&mut self, client: &mut Client, bytes: &[u8]) {
        assert_eq!(client.write(self.at, bytes), Err(errno::EIO));
        self.allowed
            .iter_mut()
            .zip(bytes.chunks(BLOCK))
            .for_each(|(block, bytes)| block.push(bytes.to_vec()));
    }

    /// A write in the middle, which may have to be repeated.
    fn written(&mut self, client: &mut Client, bytes: &[u8]) {
        let at = self.at + NEWER.start as u64;
        until("a write", || client.write(at, bytes).ok());
        let blocks = &mut self.allowed[NEWER.start / BLOCK..NEWER.end / BLOCK];
        blocks.iter_mut().zip(bytes.chunks(BLOCK)).for_each(|(block, bytes)| *block = vec![bytes.to_vec()]);
    }

    fn check(&self, device: &[u8]) {
        for (number, allowed) in self.allowed.iter().enumerate() {
            let at = self.at as usize + number * BLOCK;
            let found = &device[at..at + BLOCK];
            assert!(
                allowed.iter().any(|bytes| bytes == found),
                "the block at {at} is not what was written last"
            );
        }
    }
}

/// Writes, and reads with them, whose memory belongs to others once they are given up.
#[test]
fn a_write_that_was_given_up_never_lands_on_a_newer_one() {
    let cluster = three();
    let image = cluster.image("image", SIZE);
    let mut server = limited(plain(&cluster, Arc::default(), &image)).with("--workers", "2").start();
    // What no object has is read without the cluster.
    server.client().write(APART, &[0; BLOCK]).expect("a write");
    let mut parts: Vec<_> = (0..8).map(Part::new).collect();
    for round in 0..4u64 {
        let bytes = |part: &Part, kind| pattern::random(round * 2 + kind, part.at, GIVEN_UP);
        falls_silent(&cluster, &server);
        thread::scope(|scope| {
            for part in &mut parts {
                let server = &server;
                scope.spawn(move || part.fails(&mut server.client(), &bytes(part, 0)));
                scope.spawn(|| assert_eq!(server.client().read(APART, MIB), Err(errno::EIO)));
            }
        });
        thread::scope(|scope| {
            for part in &mut parts {
                let server = &server;
                scope.spawn(move || part.written(&mut server.client(), &bytes(part, 1)[NEWER]));
            }
            answers_again(&cluster, &server);
        });
        let content = server.content();
        parts.iter().for_each(|part| part.check(&content));
    }
    flush(&server).expect("a flush");
    stop(&mut server);
    let content = cluster.export(&image);
    parts.iter().for_each(|part| part.check(&content));
}

/// A new device finds nothing of what the former has given up landing on its own writes.
#[test]
fn a_device_with_a_limit_ends_while_no_osd_answers() {
    let cluster = &Cluster::with(1, Store::Bluestore, &SOON);
    for (name, stack) in [STACKS[0], STACKS[1]] {
        let image = cluster.image(name, SIZE);
        let launch = limited(stack(cluster, Arc::default(), &image));
        let mut server = launch.clone().start();
        server.client().write(0, &[1; 65536]).expect("a write");
        flush(&server).expect("a flush");
        falls_silent(cluster, &server);
        let written = server.client().write(4096, &[2; 65536]);
        assert_eq!(written, if name == "disk" { Err(errno::EIO) } else { Ok(()) });
        server.signal(Signal::TERM);
        let ended = server.ends();
        if name == "page cache" {
            assert_eq!(ended.code(), Some(FAILED), "{}", server.log());
            let words = "65536 bytes of the page cache (16 blocks) cannot be written back";
            assert!(server.log().contains(words), "{}", server.log());
        }
        cluster.go_on_osds();
        let mut server = starts(&launch);
        server.client().write(8192, &[3; 4096]).expect("a write");
        flush(&server).expect("a flush");
        stop(&mut server);
        let found = cluster.export(&image);
        assert!(found[8192..12288] == [3; 4096] && found[..4096] == [1; 4096], "{name}");
    }
}

/// Without one it waits, until a second signal.
#[test]
fn a_device_without_a_limit_waits_for_its_cluster_until_a_second_signal() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    for comes_back in [true, false] {
        let image = cluster.image(&format!("comes back {comes_back}"), SIZE);
        let mut server = paged(&cluster, Arc::default(), &image).flag("-v").start();
        flush(&server).expect("a flush");
        cluster.stop_osds();
        let bytes = pattern::random(1, 0, MIB);
        server.client().write(0, &bytes).expect("a write to the cache");
        server.signal(Signal::TERM);
        server.says("at once from now on");
        assert!(server.lives(), "it did not wait: {}", server.log());
        if comes_back {
            cluster.go_on_osds();
            assert!(server.ends().success(), "{}", server.log());
            assert!(cluster.export(&image)[..MIB] == bytes, "a write is lost");
        } else {
            until("it ends", || {
                server.signal(Signal::TERM);
                (!server.lives()).then_some(())
            });
            assert_eq!(server.ends().code(), Some(143), "{}", server.log());
        }
    }
}

/// It serves what it has, goes on once one answers, and has its blocks still where it ends before.
#[test]
fn a_write_cache_keeps_its_blocks_while_no_osd_answers() {
    let cluster = Cluster::with(1, Store::Bluestore, &SOON);
    // What no object has is read without the cluster.
    let content = pattern::random(2, 0, SIZE * MIB);
    let (image, folder) = (cluster.import("image", &content), Arc::new(Scratch::new()));
    let launch = limited(lazy(cached(&cluster, folder, &image)));
    let mut server = launch.clone().start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    // The first flush of a start covers what may have bypassed the cache before.
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    falls_silent(&cluster, &server);
    client.write(0, &bytes).expect("a write to the cache");
    client.ask(command::FLUSH, 0, 0).expect("a flush of the cache");
    assert!(client.read(0, MIB) == Ok(bytes.clone()), "{}", server.log());
    assert_eq!(client.read(8 << 20, 4096), Err(errno::EIO));
    assert_ne!(server.spillway(&["drain", "d"]).code, Some(0), "{}", server.log());
    assert!(client.read(0, MIB) == Ok(bytes), "{}", server.log());
    answers_again(&cluster, &server);
    until("all is written back", || (server.spillway(&["drain", "d"]).code == Some(0)).then_some(()));
    server.spillway(&["set", "d", "cleaner", "0"]).well();
    falls_silent(&cluster, &server);
    let bytes = pattern::random(3, 0, MIB);
    client.write(0, &bytes).expect("a write to the cache");
    client.ask(command::FLUSH, 0, 0).expect("a flush of the cache");
    drop(client);
    server.signal(Signal::TERM);
    server.ends();
    assert_eq!(lines(&server, "d: write cache: 256 dirty blocks of 4096 bytes"), 1, "{}", server.log());
    cluster.go_on_osds();
    let mut server = starts(&launch);
    assert!(server.client().read(0, MIB) == Ok(bytes.clone()), "{}", server.log());
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    assert!(cluster.export(&image)[..MIB] == bytes);
}
