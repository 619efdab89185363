//! The operating system, as the rest of Spillway may have it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`driver`] | io_uring, or poll with blocking threads where io_uring is refused |
//! | [`workers`] | [`Workers`]: one thread for each core, a few for background work and computing, one that accepts |
//! | [`thread`], `blocking` | threads that the system may refuse, and those for calls that can only block |
//! | [`local`] | [`block_on`] and [`Local`]: the same runtime on the calling thread, for tests and tools |
//! | [`mod@env`] | [`SystemEnv`]: clock, timers, tasks and chance |
//! | [`memory`], `nodes` | [`MmapRegions`]: memory that costs nothing until touched; [`memory_nodes`] |
//! | [`mod@file`] | [`open`]: files and block devices, and the calls on them |
//! | [`fuse`] | [`Mount`](fuse::Mount), [`MountServing`](fuse::MountServing): exchanges on a FUSE mount |
//! | [`patient`], [`signals`] | writing to who may not read, and signals that are ignored |
//! | [`processes`] | looks at other processes, of which none is waited for |
//! | `child` | [`end_with_us`]: programs that end with this one |
//! | [`mod@mutant`] | deliberate defects, of builds for tests alone |
//! | [`socket`], [`mod@serve`] | [`Listener`], [`Serving`]: sessions on unix and TCP sockets |
//! | `access` | [`Access`]: who may connect to a unix socket |
//!
//! Futures of this crate live and die on the thread that polls them first. Nothing outside names the asynchronous runtime.

pub mod driver;
pub mod env;
pub mod file;
pub mod fuse;
pub mod local;
pub mod memory;
pub mod mutant;
pub mod patient;
pub mod processes;
pub mod serve;
pub mod signals;
pub mod socket;
pub mod thread;
pub mod workers;

mod access;
mod blocking;
mod child;
mod clock;
mod connection;
mod control;
mod hall;
mod idle_backoff;
mod nodes;
mod op;
mod peer;
mod pool;
mod roll;
mod shares;
mod waits;

pub use access::{Access, group_id};
pub use blocking::on_blocking_thread;
pub use child::end_with_us;
pub use driver::{Driver, DriverChoice};
pub use env::SystemEnv;
pub use file::{Direct, FileOptions, Footprint, Opened, lock_file, open, program_of};
pub use hall::{Limits, NewSession};
pub use local::{Local, block_on};
pub use memory::MmapRegions;
pub use nodes::memory_nodes;
pub use pool::BULK_LEN;
pub use serve::{Serving, serve};
pub use socket::{Listener, connect_within, is_listening};
pub use workers::{OnFailure, WORKERS_MAX, Workers, WorkersOptions};
