//! What the end-to-end tests share: a running server, real clients, and a raw client that breaks rules.
//!
//! Tests wait for conditions, never for time; each has a folder and sockets of its own, so that all run side by side. A
//! tool that is missing fails the test and names its Debian package.
#![forbid(unsafe_code)]

mod acknowledged;
pub mod binary;
mod browser;
mod certificates;
pub mod clients;
mod connection;
pub mod counted;
mod drive;
pub mod exerciser;
pub mod guest;
pub mod hostile;
pub mod kernel;
pub mod killed;
pub mod logging;
mod loop_device;
mod ordinary_user;
pub mod pattern;
mod proxy;
pub mod raw;
mod refusal;
pub mod refused;
mod server;
pub mod systemd;
mod terminal;
pub mod upstream;
pub mod versions;
mod vitals;

pub use acknowledged::{Acknowledged, PART, Way};
pub use browser::{Browser, Picture};
pub use certificates::Authority;
pub use connection::FuseConnection;
pub use drive::Drive;
pub use loop_device::LoopDevice;
pub use ordinary_user::{WITHOUT_OTHERS, copy_program, script_of_root, script_of_user};
pub use proxy::{Fault, Proxy};
pub use refusal::{Refusal, Refusing};
pub use server::{Launch, Server};
pub use spillway_fixture::{Cluster, Owner, PATIENCE, Scratch, Store, text, tool, until};
pub use terminal::{Terminal, behind};
pub use upstream::Upstream;
pub use vitals::Vitals;
