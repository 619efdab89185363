//! The command line: options, their help and their checks.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use spillway_core::block::DEVICE_BYTES_MAX;
use spillway_core::size;

use crate::exit;
use crate::server_options::{Endpoint, ServerOptions, bytes};

const EXAMPLES: &str = "\
Examples:
  spillway ram --size 4G                          a compressed RAM disk of 4 GiB
  qemu-img info 'nbd+unix:///ram0?socket=...'     use it; the server prints the URI
  spillway ls                                     what is served, and how well it compresses
  spillway get ram0 mm_stat                       one attribute, as zram shows it
  spillway set ram0 mem_limit 1G                  change an attribute of a running device
  spillway stop ram0                              flush, disconnect clients, end";

const RAM_EXAMPLES: &str = "\
Examples:
  spillway ram --size 4G
  spillway ram --size 64G --memory 8G --algorithm zstd --background
  spillway ram --size 1G --name scratch --listen 127.0.0.1:10809

Without --size the device has no size and is not exported until it gets one:
  spillway ram --background
  spillway set ram0 comp_algorithm zstd
  spillway set ram0 disksize 4G

The content lives in memory only: it is gone when the server ends.";

const DISK_EXAMPLES: &str = "\
Examples:
  spillway disk --origin image.raw
  spillway disk --origin /dev/vdb --name data --read-only

The file or block device is opened without the kernel's page cache where it allows that, and locked against a second
server. A flush of a client reaches the disk.";

const CACHE_EXAMPLES: &str = "\
Examples:
  spillway cache --origin /dev/vdb --cache /ssd/cache.img
  spillway cache --origin big.img --cache cache.img --block-size 16K --high-watermark 80 --low-watermark 70
  spillway get cache0 status                      the kernel's status line; get cache0 shows each field by name
  spillway drain cache0                           copy everything to the origin, to remove the cache

Writes go to the cache and are copied to the origin later. A flush of a client commits to the cache: what it covers survives a
crash, and is there when the same command is given again. The cache is in the format of Linux's dm-writecache (mode s), which
can take it over, and back. A blank file becomes a cache at the first start: truncate -s 10G /ssd/cache.img

After an error of either device writes fail until the command is given again; what was committed is still in the cache.";

/// A userspace block storage engine: compressed RAM disks and disks, served over NBD, without root and without a kernel
/// module.
#[derive(Debug, Parser)]
#[command(name = "spillway", version, max_term_width = 110, arg_required_else_help = true)]
#[command(after_long_help = [EXAMPLES, "\n\n", exit::TABLE].concat(), after_help = "Try --help for examples and exit codes.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogOptions,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is logged, to where.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogOptions {
    /// Log more to standard error: -v what happens, -vv how
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,

    /// Form of the log
    #[arg(long, value_enum, value_name = "FORM", default_value_t = LogFormat::Text, global = true)]
    pub(crate) log_format: LogFormat,

    /// Append the log to a file instead of standard error
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) log_file: Option<PathBuf>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a compressed RAM disk
    #[command(after_long_help = RAM_EXAMPLES)]
    Ram(RamOptions),
    /// Serve a file or block device as it is
    #[command(after_long_help = DISK_EXAMPLES)]
    Disk(DiskOptions),
    /// Serve a slow disk with a crash-safe write cache on a fast one
    #[command(after_long_help = CACHE_EXAMPLES)]
    Cache(CacheOptions),
    /// Serve any devices, described in a file
    #[command(after_long_help = crate::config::help())]
    Serve(ServeOptions),
    /// List the devices of all your servers
    Ls(LsOptions),
    /// Show the attributes of a device, or one of them
    Get(GetOptions),
    /// Change an attribute of a running device
    Set(SetOptions),
    /// Forget everything a device holds and take its size away
    ///
    /// Refused while clients are connected. Afterwards the device is not exported until it gets a size again:
    /// spillway set DEVICE disksize 4G
    Reset(DeviceOption),
    /// Copy everything in a write cache to the origin, and let nothing enter it any more
    ///
    /// Clients may go on; their writes go to the origin. Ends when the origin is complete. spillway set DEVICE cleaner 0
    /// uses the cache again.
    Drain(DeviceOption),
    /// Flush a device, disconnect its clients and end its server with its last device
    Stop(DeviceOption),
    /// Print a completion script for a shell
    Completions {
        /// For which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Options of `spillway ram`.
#[derive(Debug, Args)]
pub(crate) struct RamOptions {
    /// Size of the device: bytes, or with K, M, G, T (powers of 1024, also written KiB)
    #[arg(long, value_name = "SIZE", value_parser = device_size)]
    pub(crate) size: Option<u64>,

    /// Name of the device, by which clients and commands find it
    #[arg(long, default_value = "ram0")]
    pub(crate) name: String,

    /// Compression algorithm, such as lz4 or zstd [default: lz4]
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,

    /// Compression streams: how many writers compress at once [default: number of cores]
    #[arg(long, value_name = "N")]
    pub(crate) streams: Option<NonZeroUsize>,

    /// Let clients read only
    #[arg(long)]
    pub(crate) read_only: bool,

    #[command(flatten)]
    pub(crate) endpoint: Endpoint,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway disk`.
#[derive(Debug, Args)]
pub(crate) struct DiskOptions {
    /// File or block device to serve
    #[arg(long, value_name = "PATH")]
    pub(crate) origin: PathBuf,

    /// Name of the device, by which clients and commands find it
    #[arg(long, default_value = "disk0")]
    pub(crate) name: String,

    /// Open the origin for reading only, and let clients read only
    #[arg(long)]
    pub(crate) read_only: bool,

    #[command(flatten)]
    pub(crate) endpoint: Endpoint,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway cache`.
#[derive(Debug, Args)]
pub(crate) struct CacheOptions {
    /// File or block device that is served: large and slow
    #[arg(long, value_name = "PATH")]
    pub(crate) origin: PathBuf,

    /// File or block device that holds the cache: fast, and safe against crashes
    #[arg(long, value_name = "PATH")]
    pub(crate) cache: PathBuf,

    /// Format the cache although it is not blank, unless it holds a cache with dirty blocks or something that is recognised
    #[arg(long)]
    pub(crate) create: bool,

    /// With --create: format the cache whatever it holds. Also use an origin that holds a write cache
    #[arg(long)]
    pub(crate) force: bool,

    /// Take a cache that is refused for its origin, for two equally new versions of a block, of which the later one counts, or for
    /// entries ahead of its superblock, which are dropped
    #[arg(long, conflicts_with = "create")]
    pub(crate) recover: bool,

    /// Name of the device, by which clients and commands find it
    #[arg(long, default_value = "cache0")]
    pub(crate) name: String,

    /// Bytes of a block: a power of two from 512 to 64K [default: 4096]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) block_size: Option<u64>,

    /// When a write is acknowledged: received or committed; committed survives a crash without a flush [default: received]
    #[arg(long, value_name = "WHEN")]
    pub(crate) ack: Option<String>,

    /// Let clients read only
    #[arg(long)]
    pub(crate) read_only: bool,

    #[command(flatten)]
    pub(crate) target: TargetOptions,

    #[command(flatten)]
    pub(crate) endpoint: Endpoint,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of the kernel's writecache target.
#[derive(Debug, Args)]
#[command(next_help_heading = "As dm-writecache has them")]
pub(crate) struct TargetOptions {
    /// How the cache device is reached: s, by I/O; p, as memory, for persistent memory and tmpfs [default: s]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,

    /// In mode p: write copies to the origin with FUA, which is the default there
    #[arg(long, conflicts_with = "nofua")]
    pub(crate) fua: bool,

    /// In mode p: write copies to the origin plainly, and flush it after them
    #[arg(long)]
    pub(crate) nofua: bool,

    /// Where the cache begins on its device, in sectors of 512 bytes [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) start_sector: Option<u64>,

    /// Begin to copy to the origin when so many percent of the blocks are used [default: 50]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) high_watermark: Option<u64>,

    /// Stop when fewer than this are used [default: 45]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) low_watermark: Option<u64>,

    /// Blocks that are copied at a time; 0 is as many as 16 MiB hold, which is the most [default: 65536]
    #[arg(long, value_name = "N")]
    pub(crate) writeback_jobs: Option<u64>,

    /// Commit after so many uncommitted blocks [default: 65536, 64 in mode p]
    #[arg(long, value_name = "N")]
    pub(crate) autocommit_blocks: Option<u64>,

    /// Commit what was written so many milliseconds ago, at most 3600000 [default: 1000]
    #[arg(long, value_name = "MS")]
    pub(crate) autocommit_time: Option<u64>,

    /// Copy blocks to the origin that are older than this, at most 86400000 [default: none]
    #[arg(long, value_name = "MS")]
    pub(crate) max_age: Option<u64>,

    /// Copy everything to the origin, and let nothing new enter the cache
    #[arg(long)]
    pub(crate) cleaner: bool,

    /// Let only metadata of file systems enter the cache; NBD does not tell what is metadata, so nothing new does
    #[arg(long)]
    pub(crate) metadata_only: bool,

    /// Copy only when the last write around the cache is so long ago, at most 60000; not in mode p [default: 3000]
    #[arg(long, value_name = "MS")]
    pub(crate) pause_writeback: Option<u64>,
}

/// Options of `spillway serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Description of the devices, in TOML
    pub(crate) config: PathBuf,

    #[command(flatten)]
    pub(crate) endpoint: Endpoint,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway ls`.
#[derive(Debug, Args)]
pub(crate) struct LsOptions {
    /// Print JSON: a list of devices with sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,

    /// Print sizes in bytes
    #[arg(long, short)]
    pub(crate) bytes: bool,
}

/// Options of `spillway get`.
#[derive(Debug, Args)]
pub(crate) struct GetOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Name of the attribute; all that can be read where absent
    pub(crate) attribute: Option<String>,

    /// Print JSON: an object of names and values
    #[arg(long)]
    pub(crate) json: bool,

    /// List the attributes with unit, access and help instead of their values
    #[arg(long, conflicts_with = "attribute")]
    pub(crate) describe: bool,
}

/// Options of `spillway set`.
#[derive(Debug, Args)]
pub(crate) struct SetOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Name of the attribute
    pub(crate) attribute: String,

    /// New value
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: String,
}

/// A command about one device.
#[derive(Debug, Args)]
pub(crate) struct DeviceOption {
    /// Name of the device
    pub(crate) device: String,
}

fn device_size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        size @ 1..=DEVICE_BYTES_MAX => Ok(size),
        0 => Err("a device of 0 bytes holds nothing: leave --size out to set it later".to_owned()),
        _ => Err(format!("larger than the {} that a device can have", size::human(DEVICE_BYTES_MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_documented_lines_are_accepted() {
        for line in [
            "spillway ram --size 4G",
            "spillway ram --size 1.5GiB --name r --memory 1G --algorithm lz4 --streams 3 --socket /tmp/s",
            "spillway ram --listen 127.0.0.1:10809 --read-only --background --driver io_uring --workers 2 --poll-us 50",
            "spillway disk --origin /dev/vdb --name d --read-only --driver poll",
            "spillway cache --origin o --cache c --create --block-size 4K --max-age 1000 --cleaner --ack committed",
            "spillway drain cache0",
            "spillway serve config.toml --log-format json -vv",
            "spillway ls --json",
            "spillway get ram0",
            "spillway get ram0 mm_stat",
            "spillway set ram0 compact -1",
            "spillway reset ram0",
            "spillway stop ram0",
            "spillway completions bash",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn bad_values_are_named_with_what_is_allowed() {
        for (line, part) in [
            ("spillway ram --size 4X", "unknown unit"),
            ("spillway ram --size 0", "leave --size out"),
            ("spillway ram --size 8E", "can have"),
            ("spillway ram --streams 0", "0"),
            ("spillway ram --socket a --listen b", "cannot be used with"),
            ("spillway disk", "--origin"),
            ("spillway cache --origin o", "--cache"),
            ("spillway ram --driver kqueue", "io_uring"),
            ("spillway ram --poll-us 1001", "1000"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn help_shows_examples_and_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("spillway ram --size 4G") && help.contains("130"), "{help}");
    }
}
