//! Options that every server has, on the command line or in the file of `serve`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use spillway_core::size;

/// Longest time in microseconds for which a worker may look for news.
pub(crate) const POLL_US_MAX: u16 = 1000;

/// Options of every server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerOptions {
    /// Memory that the server may use in all, at least 32M [default: half of the smaller of RAM and cgroup limit]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) memory: Option<u64>,

    /// How system calls are made: auto takes io_uring where the system allows it
    #[arg(long, value_enum, value_name = "DRIVER")]
    pub(crate) driver: Option<Driver>,

    /// Threads that serve clients [default: number of cores]
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<NonZeroUsize>,

    /// Let a worker that has served a client look for news this long before it sleeps, at most 1000: shorter waits for clients
    /// with few requests in flight, at the price of a busy processor for each worker in use; where processors are not to spare,
    /// longer ones [default: 0]
    #[arg(long, value_name = "MICROSECONDS", value_parser = value_parser!(u16).range(..=i64::from(POLL_US_MAX)))]
    pub(crate) poll_us: Option<u16>,

    /// Also show the devices as files below this folder: DIR/NAME/disk, for losetup, mount, dd and every other program
    #[arg(long, value_name = "DIR", help_heading = "Clients")]
    pub(crate) mount: Option<PathBuf>,

    /// Detach from the terminal once clients can connect
    #[arg(long)]
    pub(crate) background: bool,
}

/// Where clients connect.
#[derive(Debug, Default, Args)]
#[group(multiple = false)]
#[command(next_help_heading = "Clients")]
pub(crate) struct Endpoint {
    /// Unix socket for NBD [default: NAME.sock in spillway's runtime folder]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Serve NBD over TCP instead, without encryption or password: anybody who can connect can read and write
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
}

/// How system calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driver {
    /// io_uring where the system allows it, otherwise poll
    Auto,
    /// io_uring, or fail
    #[value(name = "io_uring")]
    IoUring,
    /// poll and threads
    Poll,
}

/// A size as people write it, for options of the command line.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| error.message().to_owned())
}
