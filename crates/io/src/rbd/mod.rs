//! Images of Ceph RBD, through Ceph's own client library.
//!
//! What it is: [`open_rbd`] opens an image as a [`Storage`](spillway_core::Storage). librbd is loaded when the first one is opened. Its calls go on
//! by themselves: their ends wake the tasks that wait for them.
//!
//! What it promises upwards: a call ends with what the cluster says of it, or fails with
//! [`Kind::Unreachable`](spillway_core::Kind::Unreachable) after [`RbdOptions::timeout`], or what is set later. A change for which the pool
//! has no room fails with [`Kind::Exhausted`](spillway_core::Kind::Exhausted). The cluster may still do one that was given up: no later
//! call that overlaps it begins before it is known to be over. librbd's own caches are off, and an image that has one turned on is refused
//! unless it is read-only: what was acknowledged has reached the cluster. An image with the feature `exclusive-lock` is locked until it is
//! closed; once another client has taken the lock over, or the image was removed, every call fails, and nothing is written any more.
//!
//! What it needs below: librados and librbd of Ceph 14 or later, and a cluster that does what it acknowledges.
//!
//! Locks: the state of a call, the timeout, and the health of the connection are leaves.

mod caches;
mod calls;
mod cluster;
mod completion;
mod health;
mod image;
mod library;
mod lock;
mod name;
mod snapshot;
mod storage;
#[cfg(test)]
mod tests;

pub use cluster::RbdOptions;
pub use library::{exit_if_loaded, load};
pub use name::ImageName;
pub use storage::open_rbd;
