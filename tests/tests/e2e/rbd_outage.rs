//! Caches in front of RBD images whose cluster is away, and no limit for requests: they wait, and nothing acknowledged is lost.

use std::sync::Arc;

use spillway_tests::killed::Served;

use crate::rbd::{SIZE, cached, eager, paged};
use crate::rbd_faults::{goes_on, is_kept, three};

/// Both kinds of caches at once, while clients write and write-back is under way.
#[test]
fn osds_that_are_killed_below_caches_cost_nothing() {
    let cluster = three();
    let images = ["paged", "cached"].map(|name| cluster.image(name, SIZE));
    let servers = [
        paged(&cluster, Arc::default(), &images[0]).start(),
        eager(cached(&cluster, Arc::default(), &images[1])).start(),
    ];
    let [mut first, mut second] = [(); 2].map(|()| Served::default());
    let go_on = |seed| servers.iter().for_each(|server| goes_on(server, seed));
    first.write_during(&servers[0], 1, || {
        second.write_during(&servers[1], 1, || {
            cluster.kill("osd.0");
            go_on(1);
            ["osd.1", "osd.2"].iter().for_each(|osd| cluster.kill(osd));
            cluster.osds().for_each(|osd| cluster.restart(&osd));
            go_on(2);
        });
    });
    let devices = [("page cache", first), ("write cache", second)];
    for ((image, server), (name, served)) in images.iter().zip(servers).zip(devices) {
        is_kept(&cluster, image, name, server, served);
    }
}
