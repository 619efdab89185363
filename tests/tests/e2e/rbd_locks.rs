//! Who may write to an RBD image: one client at a time, and one that has lost the lock never again.

use std::io::Write;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use spillway_tests::killed::Served;
use spillway_tests::raw::{command, errno};
use spillway_tests::{Cluster, Launch, Server, Store, pattern, until};

use crate::nbd_outage::{flush, lines};
use crate::rbd::{MIB, SIZE, STACKS, Stack, address, cached, lazy, plain, refused, settle, stop, write_all};

/// A cluster that notices soon that a client is gone. Usually that takes half a minute.
pub(super) const SOON: [&str; 3] = ["osd client watch timeout = 8", "[client]", "objecter tick interval = 1"];

/// Starts it once the lock of a client that is gone is free.
pub(super) fn starts(launch: &Launch) -> Server {
    until("the lock of a client that is gone is free", || {
        let (server, ended) = launch.clone().attempt();
        let refused = ended.is_some();
        assert!(!refused || server.log().contains("is locked by"), "{}", server.log());
        (!refused).then_some(server)
    })
}

/// Every request fails, for good, and people are told why, once.
pub(super) fn is_fenced(server: &Server) {
    server.says("fenced");
    let mut client = server.client();
    for _ in 0..2 {
        assert_eq!(client.write(0, &[0xee; 4096]), Err(errno::EIO));
        assert_eq!(client.read(0, 4096), Err(errno::EIO));
        assert_eq!(client.ask(command::WRITE_ZEROES, 0, 4096), Err(errno::EIO));
        assert_eq!(client.ask(command::TRIM, 0, 65536), Err(errno::EIO));
    }
    says_so(server);
}

fn says_so(server: &Server) {
    assert_eq!(lines(server, "fenced"), 1, "{}", server.log());
    assert_eq!(server.value("d", "connection"), "fenced");
}

/// Whatever it has not written is lost, and it may say so: in its log, which is returned.
pub(super) fn ends(mut server: Server) -> String {
    server.signal(Signal::TERM);
    server.ends();
    assert!(!server.log().contains("panicked"), "{}", server.log());
    server.log()
}

#[test]
fn a_second_device_is_refused_with_the_holder_until_the_first_has_stopped() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let image = cluster.image(&format!("locked through {name}"), SIZE);
        let mut first = stack(cluster, Arc::default(), &image).start();
        let owner = cluster.owner(&image).expect("it is locked");
        for (_, second) in STACKS {
            let said = refused(second(cluster, Arc::default(), &image), "is locked by");
            assert!(said.err.contains(&owner.address), "{owner:?} is not in: {said}");
        }
        let bytes = pattern::random(1, 0, MIB);
        first.client().write(0, &bytes).expect("the first is not disturbed");
        settle(&first, name);
        assert_eq!(cluster.owner(&image), Some(owner), "{name}: the lock was passed on");
        assert_eq!(cluster.watchers(&image), 1, "{name}: one that was refused has it open");
        stop(&mut first);
        assert_eq!(cluster.owner(&image), None, "{name}: the lock is left behind");
        let second = plain(cluster, Arc::default(), &image).start();
        assert!(second.client().read(0, MIB) == Ok(bytes), "{name}");
    }
}

#[test]
fn a_server_does_not_take_an_image_twice() {
    let cluster = Cluster::shared();
    let image = cluster.image("taken twice", SIZE);
    let device = |name: &str| {
        let path = address(&image);
        format!(
            "[[device]]\nname = \"{name}\"\norigin = {{ kind = \"file\", path = {path:?}, ceph_conf = {:?} }}\n",
            cluster.conf()
        )
    };
    refused(Launch::serve(Arc::default(), device("one") + &device("two")), &address(&image));
    until("it has left the image", || (cluster.watchers(&image) == 0).then_some(()));
}

#[test]
fn a_device_that_takes_over_fences_the_other_which_writes_nothing_more() {
    let cluster = Cluster::shared();
    for (name, stack) in STACKS {
        let image = cluster.image(&format!("taken over from {name}"), SIZE);
        let first = stack(cluster, Arc::default(), &image).start();
        let [old, new] = [1, 2].map(|seed| pattern::random(seed, 0, 8 * MIB));
        write_all(&mut first.client(), 0, &old);
        settle(&first, name);
        // Some of it is dirty, where there is a cache.
        write_all(&mut first.client(), 0, &old[MIB..]);
        let mut second = plain(cluster, Arc::default(), &image).flag("--take-over").start();
        write_all(&mut second.client(), 0, &new);
        match name {
            "disk" => {}
            "page cache" => assert_eq!(flush(&first), Err(errno::EIO)),
            _ => assert_ne!(first.spillway(&["drain", "d"]).code, Some(0), "{}", first.log()),
        }
        first.says("fenced");
        says_so(&first);
        ends(first);
        assert!(second.client().read(0, MIB).expect("a read") == new[..MIB], "{name}");
        stop(&mut second);
        let mut wanted = new;
        wanted.resize(SIZE * MIB, 0);
        assert!(cluster.export(&image) == wanted, "{name}: the former holder has written");
    }
}

/// Writes to a MiB until that fails, and says how.
fn write_on(server: &Server, part: usize, begun: &AtomicBool) -> u32 {
    let mut client = server.client();
    let places = (0..MIB).step_by(4096).cycle().map(|at| (part * MIB + at) as u64);
    let mut outcomes = places.map(|at| client.write(at, &[0xee; 4096]));
    let error = outcomes.find_map(|outcome| {
        begun.store(true, Ordering::Relaxed);
        outcome.err()
    });
    error.expect("they have no end")
}

/// Has the image taken over while clients write through `first`, and writes `wanted` at once.
fn take_over_in_mid_write(first: &Server, second: Launch, wanted: &[u8]) -> Server {
    let begun = [const { AtomicBool::new(false) }; 4];
    thread::scope(|scope| {
        let begin = |(part, begun)| scope.spawn(move || write_on(first, part, begun));
        let writers: Vec<_> = begun.iter().enumerate().map(begin).collect();
        until("all write", || begun.iter().all(|begun| begun.load(Ordering::Relaxed)).then_some(()));
        let second = second.start();
        write_all(&mut second.client(), 0, wanted);
        for writer in writers {
            assert_eq!(writer.join().expect("it ends"), errno::EIO);
        }
        second
    })
}

/// Of four writers, in the middle of what they do. What the new holder writes stays.
#[test]
fn a_lock_that_is_taken_over_in_mid_write_cuts_every_write_off() {
    let cluster = Cluster::shared();
    for round in 0..3 {
        let image = cluster.image(&format!("taken over in mid write {round}"), SIZE);
        let first = plain(cluster, Arc::default(), &image).with("--workers", "2").start();
        let wanted = pattern::random(round, 0, 4 * MIB);
        let second = plain(cluster, Arc::default(), &image).flag("--take-over");
        let mut second = take_over_in_mid_write(&first, second, &wanted);
        is_fenced(&first);
        stop(&mut second);
        assert!(cluster.export(&image)[..4 * MIB] == wanted, "a late write of the former holder");
        ends(first);
    }
}

/// As an administrator does with Ceph's own tool.
#[test]
fn a_lock_that_is_broken_by_hand_fences_the_device_until_it_is_started_again() {
    let cluster = Cluster::shared();
    let image = cluster.image("broken", SIZE);
    let first = plain(cluster, Arc::default(), &image).start();
    let bytes = pattern::random(1, 0, MIB);
    first.client().write(MIB as u64, &bytes).expect("a write");
    let owner = cluster.owner(&image).expect("it is locked");
    cluster.rbd(&["lock", "rm", &image, &owner.lock, &owner.client]);
    assert_eq!(first.client().write(0, &[0xee; 4096]), Err(errno::EIO));
    is_fenced(&first);
    ends(first);
    let mut second = starts(&plain(cluster, Arc::default(), &image));
    second.client().write(0, &[7; 4096]).expect("a write");
    stop(&mut second);
    let found = cluster.export(&image);
    assert!(found[..4096] == [7; 4096] && found[MIB..2 * MIB] == bytes);
}

/// Also where nobody has it.
#[test]
fn to_take_over_a_free_image_is_to_start() {
    let cluster = Cluster::shared();
    let image = cluster.image("free", SIZE);
    let mut server = plain(cluster, Arc::default(), &image).flag("--take-over").start();
    server.client().write(0, &[1; 4096]).expect("a write");
    let owner = cluster.owner(&image).expect("it is locked");
    refused(plain(cluster, Arc::default(), &image), &owner.address);
    stop(&mut server);
}

#[test]
fn other_clients_cannot_write_to_or_remove_an_image_while_it_is_served() {
    let cluster = Cluster::shared();
    let image = cluster.image("served", SIZE);
    let bench = || cluster.run("rbd", &["bench", "--io-type", "write", "--io-total", "1M", &image]);
    let mut server = plain(cluster, Arc::default(), &image).start();
    let mut content = pattern::random(1, 0, 4 * MIB);
    write_all(&mut server.client(), 0, &content);
    let said = bench();
    assert!(said.code != Some(0), "another client writes: {said}");
    let said = cluster.run("rbd", &["rm", "--no-progress", &image]);
    assert!(said.code != Some(0) && said.err.contains("watchers"), "{said}");
    content.resize(SIZE * MIB, 0);
    assert!(cluster.export(&image) == content);
    server.client().write(0, &content[..MIB]).expect("it still has the lock");
    stop(&mut server);
    let said = bench();
    assert_eq!(said.code, Some(0), "{said}");
    assert!(cluster.export(&image) != content, "the bench writes nothing");
    cluster.rbd(&["rm", "--no-progress", &image]);
}

/// `rbd bench` at work, without an end.
struct Bench(Child);

impl Bench {
    fn over(cluster: &Cluster, image: &str) -> Self {
        let words = ["bench", "--io-type", "write", "--io-pattern", "rand", "--io-total", "1T", image];
        let mut command = cluster.command("rbd", &words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let bench = Self(command.spawn().expect("timeout is everywhere"));
        until("it has the lock", || cluster.owner(image));
        bench
    }

    fn fails(mut self) {
        let ended = until("the bench ends", || self.0.try_wait().expect("it is our child"));
        // 124 is the end of its time.
        assert!(!ended.success() && ended.code() != Some(124), "{ended}");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            // `timeout` passes it on.
            let id = Pid::from_raw(self.0.id() as i32).expect("an id is not 0");
            let _ = kill_process(id, Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

#[test]
fn a_client_of_another_kind_is_fenced_too() {
    let cluster = Cluster::shared();
    let image = cluster.image("of a bench", SIZE);
    let bench = Bench::over(cluster, &image);
    let owner = cluster.owner(&image).expect("it is locked");
    refused(plain(cluster, Arc::default(), &image), &owner.address);
    let mut server = plain(cluster, Arc::default(), &image).flag("--take-over").start();
    let content = pattern::random(1, 0, SIZE * MIB);
    write_all(&mut server.client(), 0, &content);
    bench.fails();
    assert!(server.content() == content);
    stop(&mut server);
    assert!(cluster.export(&image) == content, "the bench has written after it had lost the lock");
}

#[test]
fn an_image_without_the_feature_is_served_and_said_to_be_open_to_all() {
    let cluster = Cluster::shared();
    let image = cluster.image_with("without a lock", SIZE, &["--image-feature", "layering"]);
    let mut server = plain(cluster, Arc::default(), &image).start();
    assert!(server.log().contains("exclusive-lock"), "{}", server.log());
    server.client().write(0, &[1; 4096]).expect("a write");
    stop(&mut server);
}

/// Kills in a row, each while clients write.
const KILLS: u64 = 2;

fn survives_kills(cluster: &Cluster, name: &str, stack: Stack) {
    let image = cluster.image(&format!("killed {name}"), SIZE);
    let launch = stack(cluster, Arc::default(), &image).with("--workers", "2");
    let mut served = Served::default();
    for round in 0..KILLS {
        served.kill(launch.clone(), round);
        until("the cluster notices", || (cluster.watchers(&image) == 0).then_some(()));
        // Before anybody opens it again. A cache has it on its device.
        if !name.contains("write cache") {
            assert!(cluster.owner(&image).is_some(), "{name}: nobody has the lock");
            served.check(&cluster.export(&image));
        }
    }
    let mut server = served.look(launch);
    settle(&server, name);
    served.check(&cluster.export(&image));
    stop(&mut server);
}

/// A disk has it in the image, for Ceph's own tools too while the dead client has the lock; a write cache on its device.
#[test]
fn what_was_flushed_survives_a_kill() {
    let cluster = &Cluster::with(1, Store::Memory, &SOON);
    thread::scope(|scope| {
        for (name, stack) in STACKS {
            scope.spawn(move || survives_kills(cluster, name, stack));
        }
    });
}

/// Without anybody's help.
#[test]
fn a_killed_holder_loses_the_lock_and_the_next_one_starts() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    let image = cluster.image("image", SIZE);
    let mut first = plain(&cluster, Arc::default(), &image).start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = first.client();
    client.write(0, &bytes).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    first.signal(Signal::KILL);
    first.ends();
    let mut second = starts(&plain(&cluster, Arc::default(), &image));
    assert!(second.client().read(0, MIB) == Ok(bytes), "what was flushed is lost");
    second.client().write(0, &[7; MIB]).expect("a write");
    second.signal(Signal::KILL);
    second.ends();
    let mut third = plain(&cluster, Arc::default(), &image).flag("--take-over").start();
    assert!(third.client().read(0, MIB) == Ok(vec![7; MIB]));
    stop(&mut third);
}

/// It has requests of clients, and dirty pages, when it goes on.
#[test]
fn a_holder_that_hangs_for_long_is_fenced_when_it_goes_on() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    for (name, stack) in [STACKS[0], STACKS[1], STACKS[2]] {
        let image = cluster.image(&format!("hanging {name}"), SIZE);
        let first = lazy_where_it_can(name, stack, &cluster, &image).start();
        let mut client = first.client();
        write_all(&mut client, 0, &[0xaa; 4 * MIB]);
        first.signal(Signal::STOP);
        client.send(command::WRITE, 0, 4096).expect("the socket has room");
        client.stream.write_all(&[0xee; 4096]).expect("the socket has room");
        let mut second = starts(&plain(&cluster, Arc::default(), &image));
        let content = pattern::random(1, 0, SIZE * MIB);
        write_all(&mut second.client(), 0, &content);
        first.signal(Signal::CONT);
        client.reply().expect("an answer, whichever");
        match name {
            "disk" => is_fenced(&first),
            "page cache" => assert_eq!(flush(&first), Err(errno::EIO)),
            _ => assert_ne!(first.spillway(&["drain", "d"]).code, Some(0), "{}", first.log()),
        }
        is_fenced(&first);
        ends(first);
        stop(&mut second);
        assert!(cluster.export(&image) == content, "{name}: what hung has written");
    }
}

pub(super) fn lazy_where_it_can(name: &str, stack: Stack, cluster: &Cluster, image: &str) -> Launch {
    let launch = stack(cluster, Arc::default(), image);
    if name.contains("write cache") { lazy(launch) } else { launch }
}

/// Its dirty blocks would overwrite what the new holder has written.
#[test]
fn a_write_cache_that_was_fenced_is_refused_when_it_is_started_again() {
    let cluster = Cluster::shared();
    let image = cluster.image("fenced cache", SIZE);
    let launch = lazy(cached(cluster, Arc::default(), &image));
    let first = launch.clone().start();
    let mut client = first.client();
    write_all(&mut client, 0, &[0xaa; 4 * MIB]);
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    let mut second = plain(cluster, Arc::default(), &image).flag("--take-over").start();
    let content = pattern::random(1, 0, SIZE * MIB);
    write_all(&mut second.client(), 0, &content);
    // Nothing of it reaches the cluster, and what it reads is in the cache.
    is_fenced(&first);
    assert_ne!(first.spillway(&["drain", "d"]).code, Some(0), "{}", first.log());
    let said = ends(first);
    assert!(said.contains("d: write cache: 1024 dirty blocks of 4096 bytes stay"), "{said}");
    refused(launch.clone(), "is locked by");
    stop(&mut second);
    let said = refused(launch, "another host");
    assert!(said.err.contains("holds 1024 blocks of 4096 bytes"), "{said}");
    assert!(cluster.export(&image) == content);
}
