//! Options that every server has, on the command line or in the file of `serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, ValueHint, value_parser};
use spillway_core::buffer::Buffers;
use spillway_core::{Preset, Type, Unit};
use spillway_io::{DriverChoice, SocketAccess, WORKERS_MAX, WorkersOptions, group_id, passed_count};
use spillway_layers::{choices, options};

use crate::cli::declared::Declared;
use crate::exit::Failure;
use crate::memory::{BUDGET_BYTES_MIN, ServerMemory};

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

choices! {
    /// Whether NBD clients speak TLS.
    pub(crate) enum Tls {
        Off = "off",
        Optional = "optional",
        Required = "required",
    }
}

/// Longest idle limit: a year.
const IDLE_TIMEOUT_S_MAX: u64 = 365 * 86400;

/// Connections that a server has at most, and a peer.
const PEER_CONNECTIONS_MAX: u64 = 2048;

options! {
    /// What is asked of a server.
    pub(crate) struct ServerConfig;

    Start memory: Option<u64> = Type::Number(BUDGET_BYTES_MIN, u64::MAX), "Memory that the server may use in all"
        .unit(Unit::Bytes) .preset(Preset::Words("half of the smaller of RAM and cgroup limit")) .option("memory");
    Start lock_memory: bool = Type::Switch,
        "Lock the server's memory into RAM, each page from its first use, so that none of it is swapped out. Swap on a device needs it. Takes LimitMEMLOCK=infinity, \
         or CAP_IPC_LOCK, and Linux 5.18"
        .preset(Preset::Switch(false)).option("lock-memory");
    Start driver: Driver = Type::Choice(Driver::NAMES), "How system calls are made: auto takes io_uring where the system allows it"
        .preset(Preset::Choice("auto")) .option("driver");
    Start workers: Option<u64> = Type::Number(1, WORKERS_MAX as u64), "Threads that serve clients"
        .preset(Preset::Words("number of cores")) .option("workers");
    Start poll_us: u64 = Type::Number(0, 1000),
        "Let a worker poll for at most this long before it sleeps, if its last waits were short: faster answers to clients with few \
         requests in flight, for more processor time; 0 never polls"
        .unit(Unit::Microseconds) .preset(Preset::Number(100)) .option("poll-us");
    Start socket: Option<PathBuf> = Type::Path, "Unix socket for NBD, one for all devices; excludes listen"
        .preset(Preset::Words("NAME.sock in spillway's runtime folder")) .option("socket");
    Start socket_mode: Option<String> = Type::Text,
        "Access mode of the sockets that --socket and --vhost-user name, in octal: to connect takes the right to write, as 0660 gives it to the group"
        .preset(Preset::Words("0600: its owner only")) .option("socket-mode");
    Start socket_group: Option<String> = Type::Text, "Group of the sockets that --socket and --vhost-user name, by name or number"
        .option("socket-group");
    Start listen: Option<String> = Type::Text,
        "Serve NBD over TCP instead. A port that other machines reach needs tls_certificates, or insecure"
        .option("listen");
    Start insecure: bool = Type::Switch,
        "Listen where other machines can connect without encryption or password: who can connect can read and write everything"
        .preset(Preset::Switch(false)) .option("insecure");
    Start allow: Option<String> = Type::Text,
        "Close connections to the ports of listen and http from hosts of other networks than these, such as 192.0.2.0/24 or \
         2001:db8::/32, separated by commas"
        .preset(Preset::Words("every host")).option("allow");
    Start tls_certificates: Option<PathBuf> = Type::Path,
        "Speak TLS with NBD clients, with server-cert.pem and server-key.pem of this folder, and ca-cert.pem where clients have to say who they are"
        .preset(Preset::Words("none")).option("tls-certificates");
    Start tls: Option<Tls> = Type::Choice(Tls::NAMES),
        "Whether NBD clients may or must ask for TLS; optional leaves that to them, and to an attacker between them and the server"
        .preset(Preset::Words("required with tls_certificates, off without")).option("tls");
    Start tls_verify_peer: bool = Type::Switch, "Accept only NBD clients with a certificate signed by ca-cert.pem"
        .preset(Preset::Switch(false)).option("tls-verify-peer");
    Start tls_allow: Option<String> = Type::Text,
        "Like tls_verify_peer, and the certificate must have one of these DNS names, separated by commas"
        .preset(Preset::Words("any name")).option("tls-allow");
    Start http: Option<String> = Type::Text,
        "Serve metrics for Prometheus, a page and control over HTTP, at unix:PATH for this user or at HOST:PORT; at a port nothing can be changed \
         without http_token_file"
        .preset(Preset::Words("none")).option("http");
    Start http_token_file: Option<PathBuf> = Type::Path,
        "Accept only HTTP clients that present the first line of this file as their token, and let them change everything. A port that \
         other machines reach needs it"
        .preset(Preset::Words("none")).option("http-token-file");
    Start idle_timeout: Option<u64> = Type::Number(1, IDLE_TIMEOUT_S_MAX),
        "Disconnect an NBD client that sent no request and awaits no reply for so long, unless it has its device alone, as after \
         attach without --shared. A file system that is mounted otherwise may be idle for days"
        .unit(Unit::Seconds).preset(Preset::Words("none")).option("idle-timeout");
    Start peer_connections_max: Option<u64> = Type::Number(1, PEER_CONNECTIONS_MAX),
        "NBD connections that each peer may have at a time, at all sockets of the server together: each host over TCP, each user over unix sockets. \
         Further ones of that peer are closed"
        .preset(Preset::Words("none")).option("peer-connections-max");
    Start mount: Option<PathBuf> = Type::Path,
        "Also show the devices as files below this folder: DIR/NAME/disk, for losetup, mount, dd and every other program"
        .option("mount");
    Start allow_other: bool = Type::Switch,
        "Let all users who can reach the mount's folder read and write the devices' files, and root look into it; to all but root /etc/fuse.conf has to allow this by user_allow_other"
        .preset(Preset::Switch(false)) .option("allow-other");
    Once background: bool = Type::Switch, "Detach from the terminal once clients can connect, without the descriptors of the program that starts it, unless the command line names one below /dev/fd. From then on the log goes to --log-file, or without one to NAME.log beside the socket"
        .preset(Preset::Switch(false)) .option("background");
}

impl ServerConfig {
    /// The workers that are asked for, with the buffers that `memory` has for them.
    pub(crate) fn workers_options(&self, memory: &ServerMemory) -> WorkersOptions {
        let default = WorkersOptions::default();
        let count = self.workers.map_or(default.count, |count| count as usize);
        let bulk = memory.bulk(count);
        let (large, all) = (bulk.bytes() as u64, memory.buffers);
        assert!(large < all, "large receives take {large} of {all} bytes of buffers");
        WorkersOptions {
            count,
            driver: self.driver.choice(),
            look: Duration::from_micros(self.poll_us),
            buffers: Buffers::new(all - large),
            bulk: Some(bulk),
            ..default
        }
    }
}

/// Modes that a socket may have: its owner can always connect.
const MODE_MIN: u32 = 0o600;
const MODE_MAX: u32 = 0o777;

impl ServerConfig {
    /// Who may connect to the sockets that are asked for, one of NBD or `guests`. Refuses a mode that is none, a group that there is not, and
    /// rights to a socket that no place was asked for: others cannot reach into the runtime folder.
    pub(crate) fn socket_access(&self, guests: bool) -> Result<SocketAccess> {
        let given = [("socket_mode", &self.socket_mode), ("socket_group", &self.socket_group)];
        let asked_for = guests || self.socket.is_some() || passed_count().is_ok_and(|count| count > 0);
        if let (false, Some((key, _))) = (asked_for, given.iter().find(|(_, text)| text.is_some())) {
            let words = "is for a socket outside of the runtime folder, which is closed to others: give socket PATH or vhost_user PATH too";
            bail!(Failure::usage(format!("{key} {words}")));
        }
        let mode =
            self.socket_mode.as_deref().map(mode_of).transpose()?.unwrap_or(SocketAccess::OWNER_ONLY.mode);
        let group = self.socket_group.as_deref().map(group_of).transpose()?;
        Ok(SocketAccess { mode, group })
    }
}

fn mode_of(text: &str) -> Result<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    let sound = mode.filter(|mode| mode & MODE_MIN == MODE_MIN && mode & !MODE_MAX == 0);
    sound.ok_or_else(|| {
        let allowed =
            "give an octal mode from 0600 to 0777 in which the owner may read and write, such as 0660";
        Failure::usage(format!("socket_mode cannot be {text:?}: {allowed}")).into()
    })
}

fn group_of(name: &str) -> Result<u32> {
    let found =
        group_id(name).with_context(|| format!("socket_group: the group {name:?} cannot be looked up"))?;
    found.ok_or_else(|| {
        let text = format!(
            "socket_group: there is no group {name:?}; give one of the list that 'getent group' shows"
        );
        Failure::usage(text).into()
    })
}

/// What the command line asks of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions {
    declared: Declared<ServerConfig>,
    command: Vec<OsString>,
}

/// How a server runs.
pub(crate) struct RunMode {
    /// It leaves the terminal.
    pub(crate) background: bool,
    /// The program that runs beside it, whose end is its own; empty for none.
    pub(crate) command: Vec<OsString>,
}

/// The program beside a server, on the command line.
const COMMAND: &str = "command";

impl ServerOptions {
    /// What is asked for where no file says anything.
    pub(crate) fn config(self) -> ServerConfig {
        self.declared.config()
    }

    /// What is asked for over what a `file` says; either of socket and listen overrides both. Where the file has `guests`, its mode and group are
    /// for their sockets too.
    pub(crate) fn over(self, mut file: ServerConfig, guests: bool) -> ServerConfig {
        if self.declared.gives("socket") || self.declared.gives("listen") {
            (file.socket, file.listen) = (None, None);
            if !guests {
                // They are for a socket of the file's.
                (file.socket_mode, file.socket_group) = (None, None);
            }
        }
        self.declared.over(file)
    }

    /// The name that was given to its device, or else the first of its `kind`: with a command, which learns it, the first that is free.
    pub(crate) fn named(&self, given: Option<String>, kind: &str) -> String {
        let number = if self.command.is_empty() { "0" } else { "%" };
        given.unwrap_or_else(|| format!("{kind}{number}"))
    }

    fn take_command(&mut self, matches: &ArgMatches) {
        if let Some(words) = matches.get_many(COMMAND) {
            self.command = words.cloned().collect();
        }
    }

    /// How the server runs.
    pub(crate) fn run_mode(&self) -> RunMode {
        RunMode { background: self.declared.gives("background"), command: self.command.clone() }
    }
}

impl Args for ServerOptions {
    fn augment_args(command: Command) -> Command {
        let command = Declared::<ServerConfig>::augment_args(command.next_help_heading("Server"));
        let command = [
            "socket",
            "socket-mode",
            "socket-group",
            "listen",
            "insecure",
            "tls-certificates",
            "tls",
            "tls-verify-peer",
            "tls-allow",
            "http",
            "http-token-file",
            "idle-timeout",
            "peer-connections-max",
            "mount",
            "allow-other",
        ]
        .into_iter()
        .fold(command, |command, option| command.mut_arg(option, |option| option.help_heading("Clients")));
        command
            .mut_arg("listen", |option| option.value_name("HOST:PORT").conflicts_with("socket"))
            .mut_arg("tls-certificates", |option| option.value_name("DIR").value_hint(ValueHint::DirPath))
            .mut_arg("tls-allow", |option| option.value_name("NAME,..."))
            .mut_arg("http", |option| option.value_name("unix:PATH|HOST:PORT"))
            .mut_arg("http-token-file", |option| option.value_name("FILE").value_hint(ValueHint::FilePath))
            .mut_arg("socket-mode", |option| option.value_name("MODE"))
            .mut_arg("socket-group", |option| option.value_name("GROUP"))
            .mut_arg("mount", |option| option.value_name("DIR").value_hint(ValueHint::DirPath))
            .arg(
                Arg::new(COMMAND)
                    .last(true)
                    .num_args(1..)
                    .value_parser(value_parser!(OsString))
                    .value_name("COMMAND")
                    .value_hint(ValueHint::CommandWithArguments)
                    .conflicts_with("background")
                    .help("Run this beside the server, with SPILLWAY_URI, SPILLWAY_NAME and, with --mount, SPILLWAY_FILE in its environment; stop when it ends, with its exit code"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServerOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let declared = Declared::from_arg_matches(matches)?;
        let mut options = Self { declared, command: Vec::new() };
        options.take_command(matches);
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.take_command(matches);
        self.declared.update_from_arg_matches(matches)
    }
}
