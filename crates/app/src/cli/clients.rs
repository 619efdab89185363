//! Options of the commands about running devices and about the host, and their examples.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint, value_parser};
use spillway_core::size;

pub(super) const LS_EXAMPLES: &str = "\
Examples:
  spillway ls --watch                    redraw the table each second; q or Ctrl-C ends
  spillway ls --watch 10 --json          a list of devices each 10 s, one a line";

pub(super) const TOP_EXAMPLES: &str = "\
Examples:
  spillway top                           all devices
  spillway top --sort write              those with the highest write rate first
  spillway top cache0 --interval 5       the parts of one device, and the flows between them
  spillway top --count 2 | grep '^ram0'  the figures of ram0 at two looks, of which the second has rates";

pub(super) const RESIZE_EXAMPLES: &str = "\
Examples:
  spillway resize ram0 8G
  spillway resize disk0 200G
  lvextend -L 200G vg/slow && spillway resize cache0";

pub(super) const SAVE_EXAMPLES: &str = "\
Examples:
  spillway save ram0 ram0.img && spillway stop ram0
  spillway ram --size 4G --background && spillway load ram0 ram0.img
  spillway save ram0 ram0.qcow2 --force           through qemu-img, in its own format
  spillway save ram0 - | zstd > ram0.zst          and zstd -dc ram0.zst | spillway load ram0 -";

pub(super) const ATTACH_EXAMPLES: &str = "\
Examples:
  spillway ram --size 4G --mount /mnt/spillway --background
  spillway attach ram0 --mkfs ext4 /mnt/data      a file system on the RAM disk
  spillway attach ram0                            a block device alone; its name is printed
  spillway attach ram0 --reconnect                once the server of /dev/nbd0 was started again
  spillway detach ram0";

pub(super) const DOCTOR_EXAMPLES: &str = "\
Examples:
  spillway doctor
  spillway doctor /dev/vdb /var/lib/spillway      a disk, and a folder for a spill file
  sudo -u spillway spillway doctor --json         as the user of a service, for programs";

/// Options of `spillway doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// Files or block devices to serve, and folders for a spill file, a cache or an image
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,

    /// Print JSON: a list of objects with status, check, found, remedy, and path where it is about one
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `spillway ls`.
#[derive(Debug, Default, Args)]
pub(crate) struct LsOptions {
    /// Print JSON: a list of devices with sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,

    /// Print sizes in bytes
    #[arg(long, short)]
    pub(crate) bytes: bool,

    /// Look again every SECONDS (0.1 to 3600; 1 where absent): redraw the table on a terminal, print it again elsewhere; with --json
    /// print a list a line
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    pub(crate) watch: Option<Duration>,
}

/// Options of `spillway top`.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Name of the device to open, or the only one in the table; all devices where absent
    pub(crate) device: Option<String>,

    /// Time between two looks, from 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,

    /// Column to sort by: names from a to z, numbers from the largest
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = SortColumn::Name)]
    pub(crate) sort: SortColumn,

    /// End after so many looks
    #[arg(long, value_name = "LOOKS", value_parser = value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// A column of `spillway top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortColumn {
    /// Name of the device
    Name,
    /// Bytes read a second
    Read,
    /// Bytes written a second
    Write,
    /// Read requests a second
    Reads,
    /// Write requests a second
    Writes,
    /// Connected clients
    Clients,
    /// Compression ratio
    Ratio,
    /// Memory in use
    Memory,
    /// Bytes in the spill file
    Spill,
    /// Bytes that are not written back
    Dirty,
    /// Bytes that a crash would take
    Risk,
    /// What is special: silent, read-only, draining, failed
    State,
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

/// Options of `spillway why`.
#[derive(Debug, Args)]
pub(crate) struct WhyOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Print JSON: for each part of the device its decisions, oldest first
    #[arg(long)]
    pub(crate) json: bool,
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

    /// New size, such as 8G; what there is below by now where it is left out
    #[arg(value_parser = size::parse)]
    pub(crate) size: Option<u64>,
}

/// A device and an image file.
#[derive(Debug, Args)]
pub(crate) struct ImageOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Image file; - is a raw image on standard output or input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// Form of the image; qcow2 where the file is named so, raw otherwise
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<ImageFormat>,

    /// Folder with ca-cert.pem, and client-cert.pem and client-key.pem where the server asks for them; for a server with TLS
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) tls_certificates: Option<PathBuf>,
}

impl ImageOptions {
    /// What was asked for, or what the name says. The content says nothing: a client of the device may have written it.
    pub(crate) fn form(&self) -> ImageFormat {
        let named = self.file.extension().is_some_and(|extension| extension == "qcow2");
        self.format.unwrap_or(if named { ImageFormat::Qcow2 } else { ImageFormat::Raw })
    }

    /// Whether it comes and goes through a pipe.
    pub(crate) fn is_stream(&self) -> bool {
        self.file.as_os_str() == "-"
    }
}

/// Options of `spillway save`.
#[derive(Debug, Args)]
pub(crate) struct SaveOptions {
    #[command(flatten)]
    pub(crate) image: ImageOptions,

    /// Replace a file that exists
    #[arg(long)]
    pub(crate) force: bool,
}

/// Options of `spillway load`.
#[derive(Debug, Args)]
pub(crate) struct LoadOptions {
    #[command(flatten)]
    pub(crate) image: ImageOptions,

    /// Let other clients use the device at the same time
    #[arg(long)]
    pub(crate) shared: bool,
}

/// Form of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageFormat {
    /// The bytes of the device
    Raw,
    /// That of qemu, written by qemu-img; an image that names another file is not read
    Qcow2,
}

/// Options of `spillway attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Folder to mount its file system at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) mountpoint: Option<PathBuf>,

    /// Make a file system of this type first, such as ext4 or xfs; refused where there is something that is recognised
    #[arg(long, value_name = "TYPE", value_parser = file_system, group = "made")]
    pub(crate) mkfs: Option<String>,

    /// Make swap of it, and swap to it; refused where that may hang this host, and where there is something that is recognised
    #[arg(long, group = "made", conflicts_with_all = ["mountpoint", "shared"])]
    pub(crate) swap: bool,

    /// With --mkfs or --swap: whatever is there
    #[arg(long, requires = "made")]
    pub(crate) force: bool,

    /// Let other clients use the device at the same time: what they write may destroy the file system
    #[arg(long)]
    pub(crate) shared: bool,

    /// Kind of the block device; the kernel's NBD client where the kernel has one and the device has a unix socket without TLS, a loop
    /// device otherwise
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) via: Option<Via>,

    /// By NBD: how long requests wait for a server that has ended, from 1 to 86400 seconds; then they fail. 300 unless given, and with
    /// --reconnect as before
    #[arg(long, value_name = "SECONDS", value_parser = outage)]
    pub(crate) timeout: Option<Duration>,

    /// Connect the NBD device to a server that was started again with the content that it had
    #[arg(long, conflicts_with_all = ["mountpoint", "made", "via"])]
    pub(crate) reconnect: bool,
}

/// A kind of block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// A device of the kernel's NBD client, from modprobe nbd on
    Nbd,
    /// A loop device over the file of a server with --mount
    Loop,
}

/// Options of `spillway detach`.
#[derive(Debug, Args)]
pub(crate) struct DetachOptions {
    /// Name of the device
    pub(crate) device: String,

    /// Also where it is not connected to its server, gone or started again: what no server has stored is lost
    #[arg(long)]
    pub(crate) force: bool,
}

/// Options of `spillway stop`.
#[derive(Debug, Args)]
pub(crate) struct StopOptions {
    /// Names of the devices
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,

    /// Stop every device that spillway ls finds
    #[arg(long)]
    pub(crate) all: bool,
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

/// How long a server may be gone.
fn outage(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=86400).contains(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| "give whole seconds from 1 to 86400, such as 300".to_owned())
}

/// A time between two looks.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give seconds from 0.1 to 3600, such as 2 or 0.5".to_owned())
}
