//! Options that every server has, on the command line or in the file of `serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, ValueHint};
use spillway_core::buffer::Buffers;
use spillway_core::{Preset, Type, Unit};
use spillway_io::{DriverChoice, WORKERS_MAX, WorkersOptions};
use spillway_layers::{choices, options};

use crate::declared::Declared;
use crate::memory::{BUDGET_BYTES_MIN, Memory};

choices! {
    /// How system calls are made.
    pub(crate) enum Driver {
        Auto = "auto",
        IoUring = "io_uring",
        Poll = "poll",
    }
}

impl Driver {
    /// The driver as the io crate calls it.
    pub(crate) fn choice(self) -> DriverChoice {
        match self {
            Driver::Auto => DriverChoice::Auto,
            Driver::IoUring => DriverChoice::IoUring,
            Driver::Poll => DriverChoice::Poll,
        }
    }
}

/// Longest idle limit: a year.
const IDLE_TIMEOUT_S_MAX: u64 = 365 * 86400;

options! {
    /// What is asked of a server.
    pub(crate) struct ServerConfig;

    Start memory: Option<u64> = Type::Number(BUDGET_BYTES_MIN, u64::MAX), "Memory that the server may use in all"
        .unit(Unit::Bytes) .preset(Preset::Words("half of the smaller of RAM and cgroup limit")) .option("memory");
    Start driver: Driver = Type::Choice(Driver::NAMES), "How system calls are made: auto takes io_uring where the system allows it"
        .preset(Preset::Choice("auto")) .option("driver");
    Start workers: Option<u64> = Type::Number(1, WORKERS_MAX as u64), "Threads that serve clients"
        .preset(Preset::Words("number of cores")) .option("workers");
    Start poll_us: u64 = Type::Number(0, 1000),
        "Let a worker that has served a client look for news this long before it sleeps: shorter waits for clients with few requests in \
         flight, at the price of a busy processor for each worker in use; where processors are not to spare, longer ones"
        .unit(Unit::Microseconds) .preset(Preset::Number(0)) .option("poll-us");
    Start socket: Option<PathBuf> = Type::Path, "Unix socket for NBD, one for all devices; excludes listen"
        .preset(Preset::Words("NAME.sock in spillway's runtime folder")) .option("socket");
    Start listen: Option<String> = Type::Text,
        "Serve NBD over TCP instead, without encryption or password: anybody who can connect can read and write"
        .option("listen");
    Start idle_timeout: Option<u64> = Type::Number(1, IDLE_TIMEOUT_S_MAX),
        "Disconnect an NBD client that has nothing asked, and nothing due, for so long. A mounted file system may be idle for days"
        .unit(Unit::Seconds).preset(Preset::Words("none")).option("idle-timeout");
    Start mount: Option<PathBuf> = Type::Path,
        "Also show the devices as files below this folder: DIR/NAME/disk, for losetup, mount, dd and every other program"
        .option("mount");
    Once background: bool = Type::Switch, "Detach from the terminal once clients can connect. From then on the log goes to --log-file, or without one to NAME.log beside the socket"
        .preset(Preset::Switch(false)) .option("background");
}

impl ServerConfig {
    /// The workers that are asked for, with the buffers that `memory` has for them.
    pub(crate) fn workers_options(&self, memory: &Memory) -> WorkersOptions {
        let default = WorkersOptions::default();
        let count = self.workers.map_or(default.count, |count| count as usize);
        let bulk = memory.bulk(count);
        WorkersOptions {
            count,
            driver: self.driver.choice(),
            look: Duration::from_micros(self.poll_us),
            buffers: Buffers::new(memory.buffers - bulk.bytes() as u64),
            bulk: Some(bulk),
            ..default
        }
    }
}

/// What the command line asks of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions(Declared<ServerConfig>);

impl ServerOptions {
    /// What is asked for where no file says anything.
    pub(crate) fn config(self) -> ServerConfig {
        self.0.config()
    }

    /// What is asked for over what a `file` says; either of socket and listen overrides both.
    pub(crate) fn over(self, mut file: ServerConfig) -> ServerConfig {
        if self.0.gives("socket") || self.0.gives("listen") {
            (file.socket, file.listen) = (None, None);
        }
        self.0.over(file)
    }

    /// Whether the server leaves the terminal.
    pub(crate) fn background(&self) -> bool {
        self.0.gives("background")
    }
}

impl Args for ServerOptions {
    fn augment_args(command: Command) -> Command {
        let command = Declared::<ServerConfig>::augment_args(command.next_help_heading("Server"));
        let command =
            ["socket", "listen", "idle-timeout", "mount"].into_iter().fold(command, |command, option| {
                command.mut_arg(option, |option| option.help_heading("Clients"))
            });
        command
            .mut_arg("listen", |option| option.value_name("HOST:PORT").conflicts_with("socket"))
            .mut_arg("mount", |option| option.value_name("DIR").value_hint(ValueHint::DirPath))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServerOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Declared::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
