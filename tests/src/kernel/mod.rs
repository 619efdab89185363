//! Linux's dm-writecache and the write cache take over each other's caches, in order and after being cut off in mid-write.
//!
//! A chain of turns over one origin and one cache device: each looks at the whole device that the side before has left, block by block against what
//! was acknowledged and flushed, and leaves another state behind. The kernel runs in an [`emulated`](spillway_fixture::emulated) machine. Both sides write
//! with the writers of [`crate::versions`].
//!
//! A kill is no power cut: what either program has written is in its files. What drives lose is a matter of the simulation.

mod turns;

use spillway_fixture::emulated::Recipe;

/// What the kernel's side boots.
pub const RECIPE: Recipe = Recipe {
    folder: "kernel-writecache",
    modules: &["virtio_pci", "virtio_blk", "dm-writecache"],
    programs: &["spillway-guest", "/usr/sbin/dmsetup"],
    init: include_str!("init.sh"),
};

pub use turns::{CHAINS, End, Side, run};
