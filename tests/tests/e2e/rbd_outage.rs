//! Caches in front of RBD images whose cluster is away: requests wait unless there is a limit, and nothing acknowledged is lost.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, errno};
use spillway_tests::{Cluster, Store, pattern, until};

use crate::nbd_outage::flush;
use crate::origin_timeout::{answers_again, falls_silent, limited};
use crate::rbd::{MIB, SIZE, STACKS, cached, eager, lazy, paged, settle, stop};
use crate::rbd_faults::{goes_on, is_kept, three, three_that_may_hang};
use crate::rbd_locks::lazy_where_it_can;

/// Both kinds of caches at once, while clients write, write-back is under way, and `work` does things to the cluster. What it is given has
/// more requests to both end, and right.
fn survive(cluster: &Cluster, work: impl FnOnce(&dyn Fn(u64))) {
    let images = ["paged", "cached"].map(|name| cluster.image(name, SIZE));
    let servers = [
        paged(cluster, Arc::default(), &images[0]).start(),
        eager(cached(cluster, Arc::default(), &images[1])).start(),
    ];
    let [mut first, mut second] = [(); 2].map(|()| Served::default());
    let go_on = |seed: u64| servers.iter().for_each(|server| goes_on(server, seed));
    first.write_during(&servers[0], 1, || {
        second.write_during(&servers[1], 1, || work(&go_on));
    });
    let devices = [("page cache", first), ("write cache", second)];
    for ((image, server), (name, served)) in images.iter().zip(servers).zip(devices) {
        is_kept(cluster, image, name, server, served);
    }
}

#[test]
fn osds_that_are_killed_below_caches_cost_nothing() {
    let cluster = three();
    survive(&cluster, |go_on| {
        cluster.kill("osd.0");
        go_on(1);
        ["osd.1", "osd.2"].iter().for_each(|osd| cluster.kill(osd));
        cluster.osds().for_each(|osd| cluster.restart(&osd));
        go_on(2);
    });
}

/// One is declared dead by the monitor while it hangs, and comes back with what it was sent before; then all hang.
#[test]
fn osds_that_hang_below_caches_cost_nothing() {
    let cluster = three_that_may_hang();
    survive(&cluster, |go_on| {
        cluster.stop("osd.0");
        cluster.ceph(&["osd", "down", "osd.0"]);
        go_on(1);
        cluster.go_on("osd.0");
        cluster.until_up();
        go_on(2);
        cluster.stop_osds();
        cluster.go_on_osds();
        go_on(3);
    });
}

/// Hits, writes that fit, and flushes of a write cache, while a read that misses waits.
#[test]
fn caches_answer_what_they_have_while_no_osd_answers() {
    let cluster = Cluster::start(1, Store::Memory);
    let [old, new] = [1, 2].map(|seed| pattern::random(seed, 0, MIB));
    // What no object has is read without the cluster.
    let content = pattern::random(3, 0, SIZE * MIB);
    let devices = [STACKS[1], STACKS[2]].map(|(name, stack)| {
        let image = cluster.import(name, &content);
        let server = lazy_where_it_can(name, stack, &cluster, &image).start();
        server.client().write(0, &old).expect("a write");
        // The first flush of a start covers what may have bypassed a write cache before.
        flush(&server).expect("a flush");
        (name, image, server)
    });
    cluster.stop_osds();
    let misses = devices.each_ref().map(|(_, _, server)| {
        let mut client = server.client();
        client.send(command::READ, 8 << 20, 4096).expect("it is sent");
        client
    });
    for ((name, _, server), miss) in devices.iter().zip(&misses) {
        until("it waits", || (server.value("d", "connection") == "reconnecting").then_some(()));
        let mut client = server.client();
        assert!(client.read(0, MIB).as_deref() == Ok(&old[..]), "{name}: {}", server.log());
        client.write(0, &new).expect("a write to the cache");
        assert!(client.read(0, MIB).as_deref() == Ok(&new[..]), "{name}: {}", server.log());
        if *name == "write cache" {
            client.ask(command::FLUSH, 0, 0).expect("a flush of the cache");
        }
        assert!(!miss.is_answered(), "{name}: the cluster answers");
    }
    cluster.go_on_osds();
    for ((name, image, mut server), mut miss) in devices.into_iter().zip(misses) {
        assert_eq!(miss.reply().expect("an answer").0, 0, "{name}");
        settle(&server, name);
        stop(&mut server);
        assert!(cluster.export(&image)[..MIB] == new, "{name}: a write is lost");
    }
}

/// A write to the image is under way for ever: the stop waits for it, and the device of the cache has its blocks all the same.
#[test]
fn a_write_cache_that_is_ended_by_a_second_signal_has_its_blocks_at_the_next_start() {
    let cluster = Cluster::start(1, Store::Memory);
    let image = cluster.image("image", SIZE);
    let launch = cached(&cluster, Arc::default(), &image);
    let mut server = eager(launch.clone()).flag("-v").start();
    server.client().write(0, &[1; 4096]).expect("a write");
    // The first flush of a start covers what may have bypassed the cache before.
    flush(&server).expect("a flush");
    until("it is written back", || (server.value("d", "dirty_blocks") == 0).then_some(()));
    cluster.stop_osds();
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(0, &bytes).expect("a write to the cache");
    flush(&server).expect("a flush of the cache");
    until("write-back", || (server.value("d", "writeback_blocks").as_u64() > Some(0)).then_some(()));
    server.signal(Signal::TERM);
    server.says("at once from now on");
    server.says("d: write cache: 256 dirty blocks of 4096 bytes stay");
    assert!(server.lives(), "it did not wait: {}", server.log());
    until("it ends", || {
        server.signal(Signal::TERM);
        (!server.lives()).then_some(())
    });
    assert_eq!(server.ends().code(), Some(143), "{}", server.log());
    cluster.go_on_osds();
    // The cluster keeps the lock for the former one for a while.
    let mut server = lazy(launch).flag("--take-over").start();
    assert_eq!(server.value("d", "dirty_blocks"), 256, "{}", server.log());
    assert!(server.client().read(0, MIB).as_ref() == Ok(&bytes), "{}", server.log());
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    assert!(cluster.export(&image)[..MIB] == bytes, "a flushed write is lost");
}

/// Or it would flush nothing: the end of a device waits for the change that is under way.
#[test]
fn a_resize_while_no_osd_answers_keeps_no_stop_waiting() {
    let cluster = Cluster::start(1, Store::Memory);
    let (name, stack) = STACKS[3];
    let image = cluster.image(name, SIZE);
    let launch = lazy_where_it_can(name, stack, &cluster, &image);
    let mut server = launch.clone().start();
    flush(&server).expect("a flush");
    cluster.stop_osds();
    let said = server.spillway(&["resize", "d", "24M"]);
    assert!(said.code != Some(0) && said.err.contains("its server does not answer"), "{said}");
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(0, &bytes).expect("a write to the page cache");
    server.signal(Signal::TERM);
    server.ends();
    cluster.go_on_osds();
    // The cluster was not there to take the lock back.
    let mut server = launch.flag("--take-over").start();
    assert!(server.client().read(0, MIB).as_deref() == Ok(&bytes[..]), "{}", server.log());
    server.spillway(&["resize", "d", "24M"]).well();
    assert_eq!([server.client().size, cluster.size(&image)], [24 << 20; 2]);
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    assert!(cluster.export(&image)[..MIB] == bytes, "a write is lost");
}

/// MiB that fit the cache for sure, and that do not fit it: its device has 8.
const FITS: usize = 4;
const TOO_MUCH: usize = 12;

/// What does not fit finds no room, and nobody who writes it to the image.
#[test]
fn a_write_cache_that_is_full_keeps_writes_waiting_while_no_osd_answers() {
    let cluster = Cluster::start(1, Store::Memory);
    let image = cluster.image("image", SIZE);
    let mut server = cached(&cluster, Arc::default(), &image).with("--pause-writeback", "0").start();
    flush(&server).expect("a flush");
    cluster.stop_osds();
    let mut content = pattern::random(1, 0, TOO_MUCH * MIB);
    let (fits, beyond) = content.split_at(FITS * MIB);
    let mut client = server.client();
    for (at, bytes) in fits.chunks(MIB).enumerate() {
        client.write((at * MIB) as u64, bytes).expect("there is room");
    }
    let waiting = beyond.chunks(MIB).enumerate().map(|(at, bytes)| {
        let mut client = server.client();
        client.send(command::WRITE, ((FITS + at) * MIB) as u64, MIB as u32).expect("it is sent");
        client.stream.write_all(bytes).expect("it is sent");
        client
    });
    let mut waiting: Vec<Client> = waiting.collect();
    until("the cluster is silent", || (server.value("d", "connection") == "reconnecting").then_some(()));
    let answered = waiting.iter().filter(|client| client.is_answered()).count();
    assert!(FITS + answered < 8, "{answered} MiB more than {FITS} are in a cache of less than 8");
    assert!(client.read(0, FITS * MIB).as_deref() == Ok(fits), "{}", server.log());
    cluster.go_on_osds();
    for client in &mut waiting {
        assert_eq!(client.reply().expect("an answer").0, 0, "{}", server.log());
    }
    settle(&server, "write cache");
    stop(&mut server);
    content.resize(SIZE * MIB, 0);
    assert!(cluster.export(&image) == content, "an acknowledged write is lost");
}

/// Several times the limit: one for each step of a request, and the pause before the next attempt.
const FAILS_WITHIN: Duration = Duration::from_secs(40);

#[test]
fn a_write_cache_that_is_full_fails_writes_after_the_limit_and_loses_nothing_acknowledged() {
    let cluster = Cluster::start(1, Store::Memory);
    let image = cluster.image("image", SIZE);
    let launch = limited(cached(&cluster, Arc::default(), &image)).with("--pause-writeback", "0");
    let mut server = launch.start();
    flush(&server).expect("a flush");
    falls_silent(&cluster, &server);
    let mut content = pattern::random(1, 0, TOO_MUCH * MIB);
    let write = |client: &mut Client, at: usize| client.write((at * MIB) as u64, &content[at * MIB..][..MIB]);
    let mut client = server.client();
    let mut begun = Instant::now();
    let fits = |at: &usize| {
        begun = Instant::now();
        write(&mut client, *at).is_ok()
    };
    let taken = (0..TOO_MUCH).take_while(fits).count();
    assert!(begun.elapsed() < FAILS_WITHIN, "it has failed after {:?}", begun.elapsed());
    assert!((FITS..8).contains(&taken), "{taken} MiB are in a cache of less than 8");
    assert_eq!(write(&mut client, taken), Err(errno::EIO), "{}", server.log());
    client.ask(command::FLUSH, 0, 0).expect("a flush of the cache");
    assert!(client.read(0, taken * MIB).as_deref() == Ok(&content[..taken * MIB]), "{}", server.log());
    answers_again(&cluster, &server);
    for at in taken..TOO_MUCH {
        until("there is room", || write(&mut client, at).ok());
    }
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    until("all is written back", || (server.spillway(&["drain", "d"]).code == Some(0)).then_some(()));
    stop(&mut server);
    content.resize(SIZE * MIB, 0);
    assert!(cluster.export(&image) == content, "an acknowledged write is lost");
}
