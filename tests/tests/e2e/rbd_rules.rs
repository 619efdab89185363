//! Rules of the client of an RBD image, each with a build that breaks it: a real cluster shows the difference.

use std::sync::Arc;
use std::thread;

use serde_json::Value;
use spillway_tests::raw::{command, errno};
use spillway_tests::{Cluster, Launch, Store, pattern, until};

use crate::origin_timeout::{limited, set};
use crate::rbd::{MIB, OBJECT, SIZE, cached, lazy, plain, plain_with, resize_image, stop};
use crate::rbd_caches::KEEPING;
use crate::rbd_names::with_a_dirty_block;

/// The defect of a build; the program that is released has none.
type Defect = Option<&'static str>;

/// Whether a build keeps a rule, tried on an image.
type Rule = fn(&Cluster, &str, Defect) -> bool;

fn with(defect: Defect, launch: Launch) -> Launch {
    match defect {
        Some(name) => launch.with_mutant(name),
        None => launch,
    }
}

/// The released program keeps the rule, and the one with the defect is seen to break it.
fn is_seen(name: &'static str, keeps: Rule) {
    let cluster = Cluster::shared();
    let keeps = |defect: Defect| {
        let image = format!("{}, {}", name.trim_start_matches("rbd: "), defect.is_some());
        keeps(cluster, &cluster.image(&image, SIZE), defect)
    };
    thread::scope(|scope| {
        let broken = scope.spawn(|| keeps(Some(name)));
        assert!(keeps(None), "{name}: the released program does that");
        assert!(!broken.join().expect("no panic"), "{name}: no difference");
    });
}

#[test]
fn an_image_is_locked_from_the_start() {
    is_seen("rbd: begin without the lock", |cluster, image, defect| {
        let _first = with(defect, plain(cluster, Arc::default(), image)).start();
        let (_second, refused) = plain(cluster, Arc::default(), image).attempt();
        refused.is_some()
    });
}

#[test]
fn a_client_that_loses_the_lock_is_rejected() {
    is_seen("rbd: break a lock and reject nobody", |cluster, image, defect| {
        let _first = plain(cluster, Arc::default(), image).start();
        let owner = cluster.owner(image).expect("it is locked");
        let lenient = plain_with(cluster, image, "rbd blocklist on break lock = false");
        let _second = with(defect, lenient).flag("--take-over").start();
        cluster.ceph(&["osd", "blocklist", "ls"]).contains(&owner.address)
    });
}

#[test]
fn what_is_acknowledged_is_in_the_cluster() {
    is_seen("rbd: leave the cache of librbd on", |cluster, image, defect| {
        let server = with(defect, plain_with(cluster, image, KEEPING)).start();
        let bytes = pattern::random(1, 0, MIB);
        server.client().write(0, &bytes).expect("a write");
        cluster.export(image)[..MIB] == bytes
    });
}

/// A cache is refused by what the image says of it.
#[test]
fn a_change_is_signed() {
    is_seen("rbd: change without a signature", |cluster, image, defect| {
        let (folder, _) = with_a_dirty_block(cluster, image);
        let mut other = with(defect, plain(cluster, Arc::default(), image)).start();
        other.client().write(2 * MIB as u64, &[9; 4096]).expect("a write");
        stop(&mut other);
        let (_server, refused) = lazy(cached(cluster, folder, image)).attempt();
        refused.is_some()
    });
}

/// librbd leaves out what lies behind the end, and says nothing.
#[test]
fn a_write_across_the_end_of_an_image_that_shrank_fails() {
    is_seen("rbd: take what lies behind the end for done", |cluster, image, defect| {
        let server = with(defect, plain(cluster, Arc::default(), image)).start();
        resize_image(cluster, image, SIZE / 2);
        server.client().write((SIZE / 2 * MIB - 4096) as u64, &[1; 8192]).is_err()
    });
}

/// Whatever librbd may do: here it has the lock still.
#[test]
fn nothing_dirty_is_written_back_once_another_host_has_written() {
    is_seen("rbd: serve a fenced image", |cluster, image, defect| {
        let server = with(defect, lazy(cached(cluster, Arc::default(), image))).start();
        let mut client = server.client();
        client.write(0, &[0xaa; MIB]).expect("a write to the cache");
        client.ask(command::FLUSH, 0, 0).expect("a flush");
        cluster.rbd(&["image-meta", "set", image, "spillway.writer", "7"]);
        server.says("fenced");
        let is_drained = server.spillway(&["drain", "d"]).code == Some(0);
        !is_drained && cluster.export(image).iter().all(|&byte| byte == 0)
    });
}

/// An image, the place of an object of it, and the OSD that has its object map, and neither its header nor that object.
fn lying_apart(cluster: &Cluster, name: &str) -> (String, u64, String) {
    let osd_of = |object: &str| {
        let said = cluster.ceph(&["osd", "map", "rbd", object, "--format", "json"]);
        let found: Value = serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}"));
        found["acting_primary"].as_u64().unwrap_or_else(|| panic!("{found}"))
    };
    let mut numbers = 0..;
    until("the parts of an image lie apart", || {
        let image = cluster.image(&format!("{name} {}", numbers.next()?), 64);
        let info = cluster.json(&["info", &image]);
        let id = info["id"].as_str().unwrap_or_else(|| panic!("{info}"));
        let osd = osd_of(&format!("rbd_object_map.{id}"));
        if osd_of(&format!("rbd_header.{id}")) == osd {
            return None;
        }
        let object = (0..16).find(|object| osd_of(&format!("rbd_data.{id}.{object:016x}")) != osd)?;
        Some((image, object * OBJECT as u64, format!("osd.{osd}")))
    })
}

/// librbd notes in the object map that an object will go, and removes it then. While the OSD of the map hangs, a write to the object, which is
/// in the map already, would overtake that.
#[test]
fn a_discard_that_was_given_up_never_lands_on_a_newer_write() {
    let cluster = Cluster::start(2, Store::Memory);
    // Each object is at one of the two.
    cluster.ceph(&["osd", "pool", "set", "rbd", "size", "1", "--yes-i-really-mean-it"]);
    for defect in [None, Some("rbd: begin beside a change that was given up")] {
        let (image, at, osd) = lying_apart(&cluster, if defect.is_some() { "broken" } else { "kept" });
        let launch = limited(plain(&cluster, Arc::default(), &image));
        let server = with(defect, launch).start();
        let [old, newer] = [1, 2].map(|seed| pattern::random(seed, 0, MIB));
        server.client().write(at, &old).expect("a write");
        cluster.stop(&osd);
        set(&server, "2");
        assert_eq!(server.client().ask(command::TRIM, at, OBJECT as u32), Err(errno::EIO));
        let write = || until("a write", || server.client().write(at, &newer).ok());
        let content = || server.client().read(at, MIB).expect("a read");
        let goes_on = || {
            set(&server, "3600");
            cluster.go_on(&osd);
        };
        if defect.is_some() {
            write();
            goes_on();
            until("the discard lands on it", || (content() == vec![0; MIB]).then_some(()));
        } else {
            thread::scope(|scope| {
                scope.spawn(write);
                goes_on();
            });
            assert!(content() == newer, "{}", server.log());
        }
    }
}
