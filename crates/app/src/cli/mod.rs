//! The command line: commands, their help and their checks.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Error;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::exit::{self, Exit};
use crate::words;

mod clients;
pub(crate) mod config;
pub(crate) mod declared;
pub(crate) mod distinct;
pub(crate) mod naming;
mod paths;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod server_options;
mod servers;

use clients::{ATTACH_EXAMPLES, DOCTOR_EXAMPLES, LS_EXAMPLES, RESIZE_EXAMPLES, SAVE_EXAMPLES, TOP_EXAMPLES};
use servers::{CACHE_EXAMPLES, DISK_EXAMPLES, RAM_EXAMPLES};

pub(crate) use clients::{
    AttachOptions, DetachOptions, DeviceOption, DoctorOptions, GetOptions, ImageFormat, ImageOptions,
    LoadOptions, LsOptions, ResizeOptions, SaveOptions, SetOptions, SortColumn, StopOptions, TopOptions, Via,
    WhyOptions,
};
pub(crate) use servers::{
    CacheOptions, DiskOptions, PageCacheMode, PageCacheOptions, RamOptions, ReachOptions, ServeOptions,
};

const EXAMPLES: &str = "\
Examples:
  spillway ram --size 4G                          a compressed RAM disk of 4 GiB
  qemu-img info 'nbd+unix:///ram0?socket=...'     use it; the server prints the URI
  spillway ls                                     what is served, and how well it compresses
  spillway top                                    what clients do, and what the devices hold, as it changes
  spillway get ram0 mm_stat                       one attribute, as zram shows it
  spillway set ram0 mem_limit 1G                  change an attribute of a running device
  spillway stop ram0                              flush, disconnect clients, end";

const ENVIRONMENT: &str = "\
Environment:
  SPILLWAY_RUNTIME_DIR   the only folder in which servers are made and looked for, in place of /run/user/UID and /tmp/spillway-UID;
                         root may name that of another user, such as a service, to find servers there";

/// A userspace block storage engine: compressed RAM disks and disks, served over NBD, without root and without a kernel
/// module.
#[derive(Debug, Parser)]
#[command(name = "spillway", version, max_term_width = 110, arg_required_else_help = true)]
#[command(after_long_help = [EXAMPLES, "\n\n", ENVIRONMENT, "\n\n", exit::TABLE, "\n\n", exit::SIGNALS].concat())]
#[command(after_help = "Try --help for examples, exit codes and signals.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogOptions,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Prints the help that was asked for, or what is wrong with the command line, and returns the exit code.
pub(crate) fn answer(error: &clap::Error) -> u8 {
    let exit = if error.use_stderr() { Exit::Usage } else { Exit::Success };
    match error.print() {
        Err(why) if exit == Exit::Success && why.kind() != ErrorKind::BrokenPipe => {
            words::complain(&Error::new(why).context("cannot write to standard output"), true);
            Exit::Failed as u8
        }
        _ => exit as u8,
    }
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

    /// Append the log to a file instead of standard error; SIGUSR1 has a server open it again
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, global = true)]
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
    /// Serve a file or block device, with a page cache in memory
    #[command(after_long_help = DISK_EXAMPLES)]
    Disk(DiskOptions),
    /// Serve a slow disk with a crash-safe write cache on a fast one
    #[command(after_long_help = CACHE_EXAMPLES)]
    Cache(CacheOptions),
    /// Serve any devices, described in a file
    #[command(after_long_help = crate::cli::config::help())]
    Serve(ServeOptions),
    /// List the devices of all your servers
    #[command(after_long_help = LS_EXAMPLES)]
    Ls(LsOptions),
    /// Watch the devices of all your servers: rates, memory, spill files, dirty data and data at risk
    ///
    /// On a terminal, the arrows select a device, Enter opens it, ? shows all keys, and q ends. Elsewhere, a table is printed at each look.
    /// Rates are means since the look before; the first look has none.
    #[command(after_long_help = TOP_EXAMPLES)]
    Top(TopOptions),
    /// Show the attributes of a device, or one of them
    Get(GetOptions),
    /// Show the last decisions that a device made by itself, and why
    ///
    /// What was written back, spilled, slowed down, held or refused, by which rule and at which figures; the latest last. Each layer keeps
    /// its last 32 decisions in memory. The attribute is decisions: spillway get DEVICE decisions
    Why(WhyOptions),
    /// Change an attribute of a running device
    Set(SetOptions),
    /// Forget everything a device holds and take its size away
    ///
    /// Refused while clients are connected. Afterwards the device is not exported until it gets a size again:
    /// spillway set DEVICE disksize 4G
    Reset(DeviceOption),
    /// Make a device larger while it is in use
    ///
    /// A RAM disk takes SIZE. A disk, and a cache, make their file or RBD image that large; without SIZE they take what that, or the block
    /// device or export below, has by then. Programs with the device's file see the new size at once, and attached block devices when
    /// this is run as root; NBD clients when they connect again. A file system on it is made larger by its own tools, such as resize2fs
    /// or xfs_growfs.
    #[command(after_long_help = RESIZE_EXAMPLES)]
    Resize(ResizeOptions),
    /// Write back everything in a write cache, and keep the cache empty
    ///
    /// Clients may continue; their writes go to the origin. Ends when the origin is complete. To use the cache again:
    /// spillway set DEVICE cleaner 0
    Drain(DeviceOption),
    /// Write back a write cache, flush and stop a device, so that another host can open its origin
    ///
    /// The origin is complete then, and the lock of an RBD image is released. Clients are disconnected at the end. If writing back fails,
    /// the device continues, and its cache keeps the dirty blocks.
    HandOver(DeviceOption),
    /// Make a block device of a device, as root; with a file system and mounted where that is asked for
    ///
    /// A device of the kernel's NBD client where the kernel has that (modprobe nbd); otherwise a loop device over the file of a server that was
    /// started with --mount. Servers are those of root and of the user who calls sudo. Other clients are refused until spillway detach.
    #[command(after_long_help = ATTACH_EXAMPLES)]
    Attach(AttachOptions),
    /// Undo spillway attach: unmount or swap off, write everything back, and end the block device
    Detach(DetachOptions),
    /// Write a device to an image file
    ///
    /// The file is for its owner only, and what reads as zero becomes holes. The image is complete and durable when the command says so;
    /// until then the old one stays. Clients that write meanwhile are in the image or not: unmount first.
    #[command(after_long_help = SAVE_EXAMPLES)]
    Save(SaveOptions),
    /// Fill a device from an image file, not larger than the device
    ///
    /// What lies behind the end of the image becomes zero. Other clients are refused meanwhile. If it fails, the device holds a part of the
    /// image.
    #[command(after_long_help = SAVE_EXAMPLES)]
    Load(LoadOptions),
    /// Flush devices, disconnect their clients and end each server with its last device
    ///
    /// All at once: none waits for another one's flush, and one that cannot be stopped keeps no other from it. One that is being stopped
    /// already is waited for. If the server of an origin does not answer, spillway set DEVICE timeout SECONDS limits the wait.
    Stop(StopOptions),
    /// Show what of this host helps or hinders a server, with remedies
    ///
    /// Starts no server and changes nothing. A file or block device is only read; a folder gets a file without a name for a moment. The exit
    /// code is 1 if no server can start; notes do not count.
    #[command(after_long_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorOptions),
    /// Print a completion script for a shell
    Completions {
        /// For which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
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
            "spillway ram --socket /tmp/s --socket-mode 0660 --socket-group disk --mount /mnt --allow-other",
            "spillway cache --origin o --cache c --create --block-size 4K --max-age 1000 --cleaner --ack committed",
            "spillway drain cache0",
            "spillway hand-over cache0",
            "spillway serve config.toml --log-format json -vv",
            "spillway ls --json",
            "spillway ls --watch",
            "spillway ls --watch 0.5 --json",
            "spillway top",
            "spillway top ram0 --interval 2 --sort write --count 3",
            "spillway get ram0",
            "spillway get ram0 mm_stat",
            "spillway set ram0 compact -1",
            "spillway reset ram0",
            "spillway save ram0 ram0.img --force",
            "spillway load ram0 ram0.img --format qcow2 --shared",
            "spillway resize ram0 8G",
            "spillway resize disk0 200G",
            "spillway resize cache0",
            "spillway attach ram0 --mkfs ext4 --force --shared /mnt/data",
            "spillway attach ram0",
            "spillway attach ram0 --via nbd --timeout 60",
            "spillway attach ram0 --reconnect",
            "spillway attach ram0 --swap --force",
            "spillway detach ram0",
            "spillway detach ram0 --force",
            "spillway stop ram0",
            "spillway stop ram0 cache0",
            "spillway stop --all",
            "spillway doctor",
            "spillway doctor /srv /dev/vdb --json",
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
            ("spillway attach ram0 --timeout 0", "from 1 to 86400"),
            ("spillway attach ram0 --reconnect /mnt", "cannot be used with"),
            ("spillway attach ram0 --swap --mkfs ext4", "cannot be used with"),
            ("spillway attach ram0 --swap /mnt", "cannot be used with"),
            ("spillway attach ram0 --via usb", "[possible values: nbd, loop]"),
            ("spillway ls --watch 0", "from 0.1 to 3600"),
            ("spillway top --interval x", "from 0.1 to 3600"),
            ("spillway top --interval 3601", "from 0.1 to 3600"),
            ("spillway top --count 0", "1.."),
            ("spillway top --sort colour", "[possible values: name, read,"),
            ("spillway stop", "<DEVICE>"),
            ("spillway stop ram0 --all", "cannot be used with"),
            ("spillway cache --origin o", "--cache"),
            ("spillway ram --driver kqueue", "io_uring"),
            ("spillway ram --poll-us 1001", "1000"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn a_shell_completes_paths_where_paths_are_taken() {
        let command = Cli::command();
        let hint = |name: &str, argument: &str| {
            let sub = command.find_subcommand(name).expect("a command");
            sub.get_arguments().find(|option| option.get_id() == argument).expect(argument).get_value_hint()
        };
        let paths = [
            ("ram", "spill"),
            ("cache", "cache"),
            ("cache", "origin"),
            ("disk", "origin"),
            ("ram", "socket"),
        ];
        assert!(paths.iter().all(|(name, option)| hint(name, option) == ValueHint::AnyPath));
        assert_eq!(
            (hint("ram", "mount"), hint("attach", "mountpoint")),
            (ValueHint::DirPath, ValueHint::DirPath)
        );
        assert_eq!((hint("serve", "config"), hint("ram", "size")), (ValueHint::FilePath, ValueHint::Other));
    }

    #[test]
    fn help_shows_examples_and_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("spillway ram --size 4G") && help.contains("130"), "{help}");
    }
}
