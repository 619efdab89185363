//! Ceph clusters and pools without room.

use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::{Client, command, errno};
use spillway_tests::{Cluster, Server, Store, pattern, until};

use crate::nbd_outage::{flush, lines};
use crate::rbd::{MIB, OBJECT, SIZE, STACKS, Stack, cached, lazy, plain, settle, stop};
use crate::rbd_locks::{SOON, starts};

/// Bytes of a write.
const BLOCK: usize = 4096;

/// Bytes that a pool with a quota may hold: less than it holds before.
const QUOTA: u64 = 1 << 20;

/// Makes the cluster full, or not.
fn set_full(cluster: &Cluster, full: bool) {
    let lower = [("nearfull", "0.0001"), ("backfillfull", "0.0002"), ("full", "0.0003")];
    let usual = [("full", "0.95"), ("backfillfull", "0.9"), ("nearfull", "0.85")];
    for (name, ratio) in if full { lower } else { usual } {
        cluster.ceph(&["osd", &format!("set-{name}-ratio"), ratio]);
    }
}

/// What was acknowledged stays.
#[test]
fn a_full_cluster_fails_writes_and_loses_nothing_acknowledged() {
    let cluster = Cluster::start(1, Store::Bluestore);
    let image = cluster.image("image", 64);
    let mut server = plain(&cluster, Arc::default(), &image).start();
    let mut client = server.client();
    let write = |client: &mut Client, number: u64| {
        client.write(number * BLOCK as u64, &pattern::random(number, 0, BLOCK))
    };
    (0..100).for_each(|number| write(&mut client, number).expect("a write"));
    set_full(&cluster, true);
    let mut written = 100;
    let error = until("a write fails", || {
        let outcome = write(&mut client, written);
        written += u64::from(outcome.is_ok());
        outcome.err()
    });
    assert_eq!(error, errno::ENOSPC);
    assert!(client.read(0, BLOCK) == Ok(pattern::random(0, 0, BLOCK)), "a full cluster is read");
    set_full(&cluster, false);
    until("writes go on", || write(&mut client, written).ok());
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    stop(&mut server);
    let found = cluster.export(&image);
    for number in 0..=written {
        let block = &found[number as usize * BLOCK..][..BLOCK];
        assert!(block == pattern::random(number, 0, BLOCK), "write {number} of {written} is lost");
    }
}

/// One whose pools keep their quotas, and notice soon that they have reached them.
fn with_quotas() -> Cluster {
    let cluster = Cluster::with(1, Store::Memory, &[&SOON[..], &["[mon]", "mon tick interval = 1"]].concat());
    cluster.keep_quotas();
    cluster
}

/// A pool that has reached its quota takes what needs no more room.
fn takes_what_needs_no_room(client: &mut Client, model: &mut [u8]) {
    let bytes = pattern::random(3, 0, BLOCK);
    client.write(BLOCK as u64, &bytes).expect("a write over an older one");
    model[BLOCK..2 * BLOCK].copy_from_slice(&bytes);
    client.ask(command::WRITE_ZEROES, 4 * BLOCK as u64, BLOCK as u32).expect("zeroes over an older write");
    model[4 * BLOCK..5 * BLOCK].fill(0);
    assert!(client.read(0, MIB).as_deref() == Ok(&model[..MIB]), "it is read");
}

/// A device over an image that has one object.
struct Device {
    name: &'static str,
    image: String,
    server: Server,
    client: Client,
    /// What it holds.
    model: Vec<u8>,
    /// What the second object gets.
    bytes: Vec<u8>,
}

impl Device {
    fn start(cluster: &Cluster, (name, stack): (&'static str, Stack)) -> Self {
        let mut model = pattern::random(1, 0, OBJECT);
        model.resize(SIZE * MIB, 0);
        let image = cluster.import(&format!("quota of {name}"), &model);
        let server = stack(cluster, Arc::default(), &image).start();
        // The first flush of a start covers what may have bypassed a cache before.
        flush(&server).expect("a flush");
        let client = server.client();
        Self { name, image, server, client, model, bytes: pattern::random(2, 0, MIB) }
    }

    fn is_shown(&self, state: &str) {
        until("it is shown", || (self.server.value("d", "connection") == state).then_some(()));
    }

    fn write_more(&mut self) -> Result<(), u32> {
        self.client.write(OBJECT as u64, &self.bytes)
    }

    fn meets_the_quota(&mut self) {
        takes_what_needs_no_room(&mut self.client, &mut self.model);
        let fails = |whether| if whether { Err(errno::ENOSPC) } else { Ok(()) };
        for _ in 0..2 {
            assert_eq!(self.write_more(), fails(self.name == "disk"), "{}", self.name);
            assert_eq!(flush(&self.server), fails(self.name == "page cache"), "{}", self.name);
        }
        if self.name.contains("write cache") {
            assert_ne!(self.server.spillway(&["drain", "d"]).code, Some(0), "{}", self.server.log());
        }
        self.is_shown("full");
    }

    /// What is dirty is written back, and the end is said.
    fn goes_on(&mut self) {
        until("writes go on", || self.write_more().ok());
        until("what is dirty is durable", || flush(&self.server).ok());
        self.model[OBJECT..OBJECT + MIB].copy_from_slice(&self.bytes);
        settle(&self.server, self.name);
        self.is_shown("up");
        self.server.says("refused no write");
        let told = ["reached its quota", "refused no write"].map(|words| lines(&self.server, words));
        assert_eq!(told, [1, 1], "{}", self.server.log());
    }
}

/// People are told once, and of the end. Nothing that was acknowledged is lost, and no error sticks.
#[test]
fn a_pool_that_reaches_its_quota_fails_what_needs_room_and_goes_on_with_more() {
    let cluster = with_quotas();
    let mut devices = STACKS.map(|stack| Device::start(&cluster, stack));
    cluster.set_quota(QUOTA, true);
    devices.iter_mut().for_each(Device::meets_the_quota);
    cluster.set_quota(0, false);
    devices.iter_mut().for_each(Device::goes_on);
    for mut device in devices {
        stop(&mut device.server);
        assert!(
            cluster.export(&device.image) == device.model,
            "{}: something acknowledged is lost",
            device.name
        );
    }
}

/// It fills up meanwhile, and is killed.
#[test]
fn a_write_cache_keeps_what_its_pool_has_no_room_for() {
    let cluster = with_quotas();
    let mut model = pattern::random(1, 0, OBJECT);
    model.resize(SIZE * MIB, 0);
    let image = cluster.import("image", &model);
    let launch = lazy(cached(&cluster, Arc::default(), &image));
    let mut server = launch.clone().start();
    flush(&server).expect("a flush");
    cluster.set_quota(QUOTA, true);
    let mut client = server.client();
    let mut at = OBJECT;
    let error = until("the cache is full", || {
        let bytes = pattern::random(2, at as u64, MIB / 2);
        let written = client.write(at as u64, &bytes);
        if written.is_ok() {
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            at += bytes.len();
        }
        written.err()
    });
    assert_eq!(error, errno::ENOSPC);
    assert!(at > 2 * OBJECT, "{at} bytes");
    // What was written in part by the write that failed.
    let part = at..at + MIB / 2;
    flush(&server).expect("a flush of the cache");
    server.signal(Signal::KILL);
    server.ends();
    let mut server = starts(&launch);
    let found = server.client().read(OBJECT as u64, at - OBJECT);
    assert!(found.as_deref() == Ok(&model[OBJECT..at]), "{}", server.log());
    cluster.set_quota(0, false);
    server.client().write(part.start as u64, &vec![7; part.len()]).expect("there is room");
    model[part].fill(7);
    server.spillway(&["drain", "d"]).well();
    stop(&mut server);
    assert!(cluster.export(&image) == model, "a flushed write is lost");
}
