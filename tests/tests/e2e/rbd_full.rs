//! Ceph clusters without room.

use std::sync::Arc;

use spillway_tests::raw::{Client, command, errno};
use spillway_tests::{Cluster, Store, pattern, until};

use crate::rbd::{plain, stop};
use crate::rbd_faults::limited;

/// Bytes of a write.
const BLOCK: usize = 4096;

/// Makes the cluster full, or not.
fn set_full(cluster: &Cluster, full: bool) {
    let lower = [("nearfull", "0.0001"), ("backfillfull", "0.0002"), ("full", "0.0003")];
    let usual = [("full", "0.95"), ("backfillfull", "0.9"), ("nearfull", "0.85")];
    for (name, ratio) in if full { lower } else { usual } {
        cluster.ceph(&["osd", &format!("set-{name}-ratio"), ratio]);
    }
}

/// What fails may happen later, once there is room. What was acknowledged stays.
#[test]
fn a_full_cluster_fails_writes_and_loses_nothing_acknowledged() {
    let cluster = Cluster::start(1, Store::Bluestore);
    let image = cluster.image("image", 64);
    let mut server = limited(plain(&cluster, Arc::default(), &image)).start();
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
    assert!([errno::ENOSPC, errno::EIO].contains(&error), "errno {error}");
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
