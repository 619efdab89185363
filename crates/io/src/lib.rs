//! The operating system, as the rest of Spillway may have it.
//!
//! | folder | holds |
//! | --- | --- |
//! | `runtime` | [`Workers`]: io_uring, or poll with blocking threads where io_uring is refused; [`SystemEnv`]: clock, timers, tasks and chance; [`MmapRegions`]; [`Local`]: the same on the calling thread |
//! | [`mod@file`] | [`open`]: files and block devices, and the calls on them; [`Survey`]: a look at one |
//! | [`rbd`] | [`open_rbd`](rbd::open_rbd): images of Ceph RBD, and the calls on them |
//! | `net` | [`Listener`], [`Serving`]: sessions on unix and TCP sockets |
//! | [`fuse`] | [`Mount`](fuse::Mount), [`MountServing`](fuse::MountServing): exchanges on a FUSE mount |
//! | [`nbd_device`] | [`NbdDevice`](nbd_device::NbdDevice): block devices of the kernel's NBD client |
//! | [`vhost`] | [`serve_vhost`](vhost::serve_vhost): conversations with virtual machine monitors, and queues in memory that these share |
//! | [`patient`], [`signals`] | writing to who may not read, and signals that are ignored |
//! | [`processes`], `child` | looks at other processes, of which none is waited for; [`end_with_us`], [`Before`]: programs that it starts |
//! | `sysfs` | what the kernel shows of block devices |
//! | [`mod@mutant`] | deliberate defects, of builds for tests alone |
//!
//! Futures of this crate live and die on the thread that polls them first. Nothing outside names the asynchronous runtime.

pub mod file;
pub mod fuse;
pub mod mutant;
pub mod nbd_device;
pub mod patient;
pub mod processes;
pub mod rbd;
pub mod signals;
pub mod vhost;

mod child;
mod net;
mod runtime;
mod sysfs;

pub use child::{Before, end_with_us, keep_descriptors_from};
pub use file::{Direct, FileOptions, Footprint, Survey, identity_of, lock_file, open, program_of};
pub use net::access::{SocketAccess, group_id};
pub use net::dial::{Dialer, ServerAddress};
pub use net::listener_state::{ConnectionLimits, NewSession};
pub use net::networks::{AllowedNetworks, Network};
pub use net::passed::{PASSED_VARIABLES, passed, passed_count};
pub use net::peers::Peers;
pub use net::serve::{Serving, serve};
pub use net::socket::{Listener, connect_within, is_listening};
pub use runtime::blocking::on_blocking_thread;
pub use runtime::driver::{Driver, DriverChoice};
pub use runtime::env::SystemEnv;
pub use runtime::local::{Local, block_on};
pub use runtime::memory::{self, MmapRegions};
pub use runtime::nodes::memory_nodes;
pub use runtime::pool::BULK_LEN;
pub use runtime::workers::{OnFailure, WORKERS_MAX, Workers, WorkersOptions};
