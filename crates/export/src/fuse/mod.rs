//! The server's side of the FUSE protocol, without I/O.
//!
//! What it is: a [`Tree`] is what a mount shows, `NAME/disk` for each device and `NAME/PART/ATTRIBUTE` for what it is made of, and `zram-control` to
//! add and remove devices; a [`FuseSession`] is an
//! [`Exchange`](spillway_core::exchange::Exchange) for one reader of the mount: messages of the kernel in, requests to an
//! [`Aligned`](spillway_core::Aligned) device, messages out. A mount has several readers, each a session on a thread of its own;
//! whichever reads a request answers it. What they share stands in the tree. The source of all facts is the kernel's interface
//! description, `linux/fuse.h`.
//!
//! What it promises upwards: any message gives at most one reply, never a panic; a request is answered exactly once, or not at
//! all after [`hang_up`](spillway_core::exchange::Exchange::hang_up); what a session holds is bounded by its [`Config`] plus one
//! request, and counted by the rule in [`nbd`](crate::nbd)'s `memory`.
//!
//! What it needs below: devices that take bytes ([`Aligned::to_bytes`](spillway_core::Aligned::to_bytes)), and a driver that
//! keeps the loop of [`spillway_core::exchange`].
//!
//! The disk file is opened for direct I/O, whatever the program asked for: the kernel's page cache keeps nothing of it, so that
//! all exports of a device show the same bytes at any time.
//!
//! Lock order: the list of volumes, the open files of a volume and the texts are leaves; an attribute is read with none of them held.

mod class;
mod config;
mod controls;
mod folder;
mod seek;
mod session;
mod stat;
#[cfg(test)]
mod tests;
mod texts;
mod transfers;
mod tree;
mod view;
pub mod wire;

pub use class::CLASS;
pub use config::{Config, MESSAGE_FORMAT};
pub use controls::Folder;
pub use session::FuseSession;
pub use texts::TEXT_BYTES;
pub use tree::{Opener, Tree, Volume};
