//! The command line: options, their help and their checks.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use spillway_core::size;
use spillway_layers::{file, write_cache, zram};

use crate::declared::Declared;
use crate::exit;
use crate::server_options::ServerOptions;

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

The content lives in memory only: it is gone when the server ends. spillway save and load keep it by hand.";

const DISK_EXAMPLES: &str = "\
Examples:
  spillway disk --origin image.raw
  spillway disk --origin /dev/vdb --name data --read-only

The file or block device is opened without the kernel's page cache where it allows that, and locked against a second
server. A flush of a client reaches the disk.";

const RESIZE_EXAMPLES: &str = "\
Examples:
  spillway resize ram0 8G
  truncate -s 200G image.raw && spillway resize disk0
  lvextend -L 200G vg/slow && spillway resize cache0";

const SAVE_EXAMPLES: &str = "\
Examples:
  spillway save ram0 ram0.img && spillway stop ram0
  spillway ram --size 4G --background && spillway load ram0 ram0.img
  spillway save ram0 ram0.qcow2 --force           through qemu-img, in its own format";

const ATTACH_EXAMPLES: &str = "\
Examples:
  spillway ram --size 4G --mount /mnt/spillway --background
  spillway attach ram0 --mkfs ext4 /mnt/data      a file system on the RAM disk
  spillway attach ram0                            a loop device alone; its name is printed
  spillway detach ram0";

const CACHE_EXAMPLES: &str = "\
Examples:
  spillway cache --origin /dev/vdb --cache /ssd/cache.img
  spillway cache --origin big.img --cache cache.img --block-size 16K --high-watermark 80 --low-watermark 70
  spillway get cache0 status                      the kernel's status line; get cache0 shows each field by name
  spillway drain cache0                           write everything back, to remove the cache

Writes go to the cache and are written back to the origin later. A flush of a client commits to the cache: what it covers survives a
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
    /// Make a device larger while it is in use
    ///
    /// A RAM disk takes SIZE. A disk, and a cache, take what the file or device below has by then: make that larger first. Programs with
    /// the device's file see the new size at once, and loop devices over it when this is run as root; NBD clients when they connect
    /// again. A file system on it is made larger by its own tools, such as resize2fs or xfs_growfs.
    #[command(after_long_help = RESIZE_EXAMPLES)]
    Resize(ResizeOptions),
    /// Write back everything in a write cache, and keep the cache empty
    ///
    /// Clients may continue; their writes go to the origin. Ends when the origin is complete. To use the cache again:
    /// spillway set DEVICE cleaner 0
    Drain(DeviceOption),
    /// Make a block device of a device, as root; with a file system and mounted where that is asked for
    ///
    /// Sets up a loop device over the file of a server that was started with --mount, by root or by who calls sudo. It holds the device:
    /// other clients are refused until spillway detach.
    #[command(after_long_help = ATTACH_EXAMPLES)]
    Attach(AttachOptions),
    /// Undo spillway attach: unmount, write everything back, and give the loop device up
    Detach(DeviceOption),
    /// Write a device to an image file
    ///
    /// What reads as zero becomes holes. The image is complete and durable when the command says so; until then the old one stays.
    /// Clients that write meanwhile are in the image or not: unmount first.
    #[command(after_long_help = SAVE_EXAMPLES)]
    Save(SaveOptions),
    /// Fill a device from an image file
    ///
    /// What lies behind the end of the image becomes zero. Other clients are refused meanwhile. If it fails, the device holds a part of the
    /// image.
    #[command(after_long_help = SAVE_EXAMPLES)]
    Load(LoadOptions),
    /// Flush a device, disconnect its clients and end its server with its last device
    Stop(DeviceOption),
    /// Set up the loop device that is standard input, for a file that root cannot open
    #[command(hide = true)]
    LoopDevice(LoopOptions),
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
    #[command(flatten)]
    pub(crate) zram: Declared<zram::Config>,

    /// Name of the device, by which clients and commands find it
    #[arg(long, default_value = "ram0")]
    pub(crate) name: String,

    /// Let clients read only
    #[arg(long)]
    pub(crate) read_only: bool,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway disk`.
#[derive(Debug, Args)]
pub(crate) struct DiskOptions {
    #[command(flatten)]
    pub(crate) file: Declared<file::Config>,

    /// Name of the device, by which clients and commands find it
    #[arg(long, default_value = "disk0")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway cache`.
#[derive(Debug, Args)]
pub(crate) struct CacheOptions {
    /// File or block device that is served: large and slow
    #[arg(long, value_name = "PATH")]
    pub(crate) origin: PathBuf,

    /// Name of the device, by which clients and commands find it
    #[arg(long, default_value = "cache0")]
    pub(crate) name: String,

    /// Let clients read only
    #[arg(long)]
    pub(crate) read_only: bool,

    #[command(flatten, next_help_heading = "Cache")]
    pub(crate) cache: Declared<write_cache::Config>,

    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `spillway serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Description of the devices, in TOML
    pub(crate) config: PathBuf,

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

    /// Describe the attributes: role, unit, access, range, default, help
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

/// Options of `spillway resize`.
#[derive(Debug, Args)]
pub(crate) struct ResizeOptions {
    /// Name of the device
    pub(crate) device: String,

    /// New size, such as 8G; what the file or device below has where it is left out
    #[arg(value_parser = size::parse)]
    pub(crate) size: Option<u64>,
}

/// Options of `spillway save`.
#[derive(Debug, Args)]
pub(crate) struct SaveOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Image file to write, for its owner only
    pub(crate) file: PathBuf,

    /// Form of the image; qcow2 where the file is named so, raw otherwise
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<ImageFormat>,

    /// Replace a file that exists
    #[arg(long)]
    pub(crate) force: bool,
}

/// Options of `spillway load`.
#[derive(Debug, Args)]
pub(crate) struct LoadOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Image file to read, not larger than the device
    pub(crate) file: PathBuf,

    /// Form of the image; qcow2 where the file is named so, raw otherwise
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<ImageFormat>,

    /// Let other clients use the device at the same time
    #[arg(long)]
    pub(crate) shared: bool,
}

/// Form of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageFormat {
    /// The bytes of the device
    Raw,
    /// That of qemu, read and written by its tools
    Qcow2,
}

impl ImageFormat {
    /// What was asked for, or what the name says. The content says nothing: a client of the device may have written it.
    pub(crate) fn of(asked: Option<Self>, file: &Path) -> Self {
        let named = file.extension().is_some_and(|extension| extension == "qcow2");
        asked.unwrap_or(if named { Self::Qcow2 } else { Self::Raw })
    }
}

/// Options of `spillway attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Folder to mount its file system at
    pub(crate) mountpoint: Option<PathBuf>,

    /// Make a file system of this type first, such as ext4 or xfs; refused where there is something that is recognised
    #[arg(long, value_name = "TYPE", value_parser = file_system)]
    pub(crate) mkfs: Option<String>,

    /// With --mkfs: whatever is there
    #[arg(long, requires = "mkfs")]
    pub(crate) force: bool,

    /// Let other clients use the device at the same time: what they write may destroy the file system
    #[arg(long)]
    pub(crate) shared: bool,
}

/// Options of `spillway loop-device`.
#[derive(Debug, Args)]
pub(crate) struct LoopOptions {
    /// The file that it stands on
    pub(crate) file: PathBuf,

    /// It is set up: have it take the size of the file
    #[arg(long)]
    pub(crate) resize: bool,
}

/// A command about one device.
#[derive(Debug, Args)]
pub(crate) struct DeviceOption {
    /// Name of the device
    pub(crate) device: String,
}

/// The type becomes part of a program's name.
fn file_system(text: &str) -> Result<String, String> {
    let plain =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if plain { Ok(text.to_owned()) } else { Err("give a type as mkfs has it, such as ext4".to_owned()) }
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
            "spillway save ram0 ram0.img --force",
            "spillway load ram0 ram0.img --format qcow2 --shared",
            "spillway resize ram0 8G",
            "spillway resize cache0",
            "spillway attach ram0 --mkfs ext4 --force --shared /mnt/data",
            "spillway attach ram0",
            "spillway detach ram0",
            "spillway stop ram0",
            "spillway completions bash",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn bad_values_are_named_with_what_is_allowed() {
        for (line, part) in [
            ("spillway ram --size 4X", "such as 4G"),
            ("spillway ram --size 0", "a size from 1B to 16T"),
            ("spillway ram --size 17T", "from 1B to 16T"),
            ("spillway ram --streams 0", "from 1 to 256"),
            ("spillway ram --socket a --listen b", "cannot be used with"),
            ("spillway resize ram0 8X", "(4G, 512MiB)"),
            ("spillway disk", "--origin"),
            ("spillway attach ram0 --mkfs ../x", "such as ext4"),
            ("spillway attach ram0 --force", "--mkfs"),
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
