//! Origins over the network: images of a Ceph cluster and exports of NBD servers, through `spillway cache` and `spillway disk`.
//!
//! The cluster is a monitor and three OSDs that keep objects in memory, on this host and its processors. The peer is librbd in the client:
//! fio's rbd engine, without librbd's cache. Each contender has an image of its own, and every block was written with content. All clients
//! are fio, the network is loopback.

mod cache;
mod image;
mod rig;
mod server;

use anyhow::Result;

use crate::measure::rounds::Rounds;

pub(crate) const PARTS: [&str; 3] = ["cache", "image", "server"];

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    match rounds.part {
        Some("cache") => cache::compare(rounds),
        Some("image") => image::compare(rounds),
        _ => server::compare(rounds),
    }
}
