//! Options of the commands that start a server, and their examples.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use spillway_core::Value;
use spillway_layers::options::{Field, Options};
use spillway_layers::page_cache::Mode;
use spillway_layers::{file, limits, page_cache, write_cache, zram};

use crate::cli::declared::Declared;
use crate::cli::server_options::ServerOptions;

pub(super) const RAM_EXAMPLES: &str = "\
Examples:
  spillway ram --size 4G
  spillway ram --size 64G --memory 8G --algorithm zstd --background
  spillway ram --size 1G --name scratch --listen 127.0.0.1:10809
  spillway ram --size 64G --memory 8G --spill /var/tmp/ram0.spill --spill-size 70G
  spillway ram --size 4G -- sh -c 'qemu-io -f raw -c \"write 0 1M\" $SPILLWAY_URI'

Without --size the device has no size and is not exported until it gets one:
  spillway ram --background
  spillway set ram0 comp_algorithm zstd
  spillway set ram0 disksize 4G

The content lives in memory only, and is gone when the server ends, unless --spill and --keep are given. spillway save and load
keep it by hand.";

pub(super) const DISK_EXAMPLES: &str = "\
Examples:
  spillway disk --origin image.raw
  spillway disk --origin /dev/vdb --name data --read-only
  spillway disk --origin image.raw --memory 2G --at-risk-seconds-max 5
  spillway disk --origin image.raw --page-cache none
  spillway disk --origin nbd://storage.example/data --origin-timeout 60

The file or block device is opened without the kernel's page cache where it allows that, and locked against a second
server. A page cache in the server's memory takes its place: writes are acknowledged from there, and written back later. A
flush of a client reaches the disk. What was not flushed is lost if the server is killed: stop it, don't kill it.";

pub(super) const CACHE_EXAMPLES: &str = "\
Examples:
  spillway cache --origin /dev/vdb --cache /ssd/cache.img
  spillway cache --origin big.img --cache cache.img --block-size 16K --high-watermark 80 --low-watermark 70
  spillway cache --origin nbd://storage.example/data --cache /ssd/cache.img
  spillway get cache0 status                      the kernel's status line; get cache0 shows each field by name
  spillway drain cache0                           write everything back, to remove the cache

Writes go to the cache and are written back to the origin later. A flush of a client commits to the cache: what it covers survives a
crash, and is there when the same command is given again. The cache is in the format of Linux's dm-writecache (mode s), which
can take it over, and back. A blank file becomes a cache at the first start: truncate -s 10G /ssd/cache.img

After an error of either device writes fail until the command is given again; what was committed is still in the cache.";

/// How clients reach the device of a command that serves one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clients")]
pub(crate) struct ReachOptions {
    /// Also serve the device over NBD as NAME, where clients can only read; % is the number that stands for % in --name
    #[arg(long, value_name = "NAME")]
    pub(crate) read_only_name: Option<String>,

    /// Leave the device's name out of the lists of NBD clients: only those that know it can connect by it
    #[arg(long)]
    pub(crate) hidden: bool,

    /// Leave the read-only name out of these lists
    #[arg(long, requires = "read_only_name")]
    pub(crate) read_only_name_hidden: bool,

    /// Also serve the device to a virtual machine monitor, by vhost-user-blk at this socket
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) vhost_user: Option<PathBuf>,

    /// Let a guest go on with the device after a restart of this server in which the content was lost
    #[arg(long, requires = "vhost_user")]
    pub(crate) vhost_user_accept_empty: bool,
}

/// Options of `spillway ram`.
#[derive(Debug, Args)]
pub(crate) struct RamOptions {
    #[command(flatten)]
    pub(crate) zram: Declared<zram::Config>,

    /// Name of the device, by which clients and commands find it; % is the lowest number that is free [default: ram0, or ram% with a COMMAND]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Let clients read only
    #[arg(long)]
    pub(crate) read_only: bool,

    #[command(flatten)]
    pub(crate) reach: ReachOptions,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// The page cache of a stack: how writes are acknowledged, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCacheMode(pub(crate) Option<Mode>);

/// The word for no page cache.
const NONE: &str = "none";

/// Reads the layer's modes, and none.
fn page_cache() -> impl TypedValueParser<Value = PageCacheMode> {
    PossibleValuesParser::new([NONE].iter().chain(Mode::NAMES).copied()).map(|name| {
        let mode = Mode::NAMES.iter().find(|mode| **mode == name);
        PageCacheMode(mode.map(|mode| Mode::of(Value::Choice(mode))))
    })
}

fn page_cache_help() -> String {
    let mode = page_cache::Config::specs().iter().find(|spec| spec.name == "mode");
    let mode = mode.expect("a page cache has a mode");
    let presets = "[default: writeback for a disk, none above a write cache]";
    format!("Keep reads and writes in memory, unless it is {NONE}. {} {presets}", mode.help)
}

/// Options of a page cache.
#[derive(Debug, Args)]
#[command(next_help_heading = "Page cache")]
pub(crate) struct PageCacheOptions {
    #[arg(long, value_name = "MODE", value_parser = page_cache(), help = page_cache_help())]
    pub(crate) page_cache: Option<PageCacheMode>,

    #[command(flatten)]
    pub(crate) config: Declared<page_cache::Config>,
}

/// Options of `spillway disk`.
#[derive(Debug, Args)]
pub(crate) struct DiskOptions {
    #[command(flatten)]
    pub(crate) file: Declared<file::Config>,

    /// Name of the device, by which clients and commands find it; % is the lowest number that is free [default: disk0, or disk% with a COMMAND]
    #[arg(long)]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) page_cache: PageCacheOptions,

    #[command(flatten, next_help_heading = "Limits")]
    pub(crate) limits: Declared<limits::Config>,

    #[command(flatten)]
    pub(crate) reach: ReachOptions,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway cache`.
#[derive(Debug, Args)]
pub(crate) struct CacheOptions {
    #[command(flatten)]
    pub(crate) file: Declared<file::Config>,

    /// Name of the device, by which clients and commands find it; % is the lowest number that is free [default: cache0, or cache% with a COMMAND]
    #[arg(long)]
    pub(crate) name: Option<String>,

    #[command(flatten, next_help_heading = "Cache")]
    pub(crate) cache: Declared<write_cache::Config>,

    #[command(flatten)]
    pub(crate) page_cache: PageCacheOptions,

    #[command(flatten, next_help_heading = "Limits")]
    pub(crate) limits: Declared<limits::Config>,

    #[command(flatten)]
    pub(crate) reach: ReachOptions,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Description of the devices, in TOML
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}
