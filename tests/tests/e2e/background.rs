//! Servers in the background: where their log is, and what they leave behind in the terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use spillway_tests::logging::{closed_pipe, full_device, pipe_that_nobody_reads};
use spillway_tests::raw::Client;
use spillway_tests::{Launch, pattern, text, tool, until};

const MIB: usize = 1 << 20;

/// A server that has left its terminal; killed when the test ends.
struct Background(Pid);

impl Background {
    /// Starts one, and waits for all that is written to the terminal: nobody else holds that after the start.
    fn start(launch: Launch) -> (Self, String) {
        let said = launch.flag("--background").run().well();
        (Self::of(&said.out), said.out)
    }

    /// The one of a start text.
    fn of(text: &str) -> Self {
        let pid = text.split_once("pid ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        Self(Pid::from_raw(pid.expect(text)).expect("an id is not 0"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).expect("it lives");
    }

    fn is_gone(&self) -> bool {
        // Who takes children over may not be quick to ask for their end.
        let status = fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero()));
        status.is_ok_and(|text| text.contains(") Z ")) || kill_process(self.0, Signal::CONT).is_err()
    }

    fn ends(&self) {
        until("it ends", || self.is_gone().then_some(()));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// A lock that its starter holds, or a pipe whose end its starter waits for, is not its own.
#[test]
fn it_keeps_nothing_that_its_starter_had_open() {
    let launch = Launch::ram("1M");
    let held = fs::canonicalize(launch.folder().write("held", "")).expect("it exists");
    let words = ["sh", "-c", "exec 9<\"$0\"; exec \"$@\"", text(&held)];
    let (server, _) = Background::start(launch.through(words));
    let open = fs::read_dir(format!("/proc/{}/fd", server.0.as_raw_nonzero())).expect("it lives");
    let open: Vec<_> = open.map(|entry| fs::read_link(entry.expect("an entry").path())).collect();
    assert!(open.len() > 3 && !open.iter().flatten().any(|path| *path == held), "{open:?}");
    server.signal(Signal::TERM);
    server.ends();
}

fn has(path: &Path, words: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.contains(words))
}

/// One client more than a server of little memory takes.
fn one_too_many(socket: &Path) {
    let clients: Vec<_> = (0..32).map(|_| Client::open(socket, "")).collect();
    Client::try_open(socket, "").err().expect("one client too many");
    drop(clients);
}

#[test]
fn warnings_go_to_a_file_beside_the_socket() {
    let launch = Launch::ram("16M").with("--memory", "32M");
    let log = launch.folder().join("spillway/ram0.log");
    for round in 1..=2 {
        let (server, text) = Background::start(launch.clone());
        assert!(text.contains(&format!("log: {}", log.display())), "{text}");
        one_too_many(launch.socket());
        let warnings =
            || fs::read_to_string(&log).expect("it is there").matches("the limit: a new one").count();
        until("the warning is in it, after those of the server before", || {
            (warnings() == round).then_some(())
        });
        assert_eq!(fs::metadata(&log).expect("it is there").permissions().mode() & 0o777, 0o600);
        server.signal(Signal::TERM);
        server.ends();
    }
}

#[test]
fn warnings_of_the_start_go_to_the_terminal() {
    let launch = Launch::ram("16M").with("--memory", "15T").flag("--background");
    let said = launch.clone().run().well();
    let server = Background::of(&said.out);
    assert!(said.err.contains("the memory budget of 15T"), "{said}");
    let log = launch.folder().join("spillway/ram0.log");
    assert_eq!(fs::read(log).expect("it is there"), b"");
    server.signal(Signal::TERM);
    server.ends();
}

#[test]
fn a_log_file_below_the_folder_of_the_start_is_opened_again_there() {
    let launch = Launch::ram("16M");
    let folder = launch.folder();
    let mut command = launch.program();
    command.args(["ram", "--size", "16M", "--background", "-v", "--log-file", "the.log", "--socket"]);
    let said = tool::finish(command.arg(launch.socket()).current_dir(folder.path())).well();
    let server = Background::of(&said.out);
    let (log, moved) = (folder.join("the.log"), folder.join("moved.log"));
    assert!(said.out.contains(&format!("log: {}", log.display())), "{said}");
    fs::rename(&log, &moved).expect("it is written to by name");
    server.signal(Signal::USR1);
    until("there is a new one", || has(&log, "opened").then_some(()));
    server.signal(Signal::TERM);
    server.ends();
    assert!(has(&log, "stopping"), "what is logged last is flushed");
    assert!(!folder.join("spillway/ram0.log").exists());
}

#[test]
fn a_hangup_ends_it_in_order() {
    let (launch, origin) = Launch::disk_with(vec![0; MIB]);
    let (server, _) = Background::start(launch.clone());
    let bytes = pattern::random(1, 0, 4096);
    Client::open(launch.socket(), "").write(0, &bytes).expect("a write");
    server.signal(Signal::HUP);
    server.ends();
    assert!(fs::read(&origin).expect("it exists")[..4096] == bytes, "an acknowledged write is lost");
}

/// The server runs; that its words find no reader is no reason to say otherwise.
#[test]
fn a_start_text_that_nobody_takes_is_no_failed_start() {
    for deaf in [full_device, closed_pipe] {
        let launch = Launch::ram("16M");
        let mut command = launch.program();
        command.args(["ram", "--size", "16M", "--background", "--socket"]).arg(launch.socket());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        assert_eq!(command.stdout(deaf().0).status().expect("it was built").code(), Some(0));
        Client::open(launch.socket(), "").write(0, &[1; 512]).expect("it serves");
        tool::finish(launch.program().args(["stop", "ram0"])).well();
    }
}

/// The log of its start waits in a pipe that nobody reads, and the server leaves it there.
#[test]
fn a_terminal_that_takes_nothing_keeps_no_server() {
    let (stderr, _reader) = pipe_that_nobody_reads();
    let launch = Launch::ram("16M");
    let mut command = launch.program();
    command.args(["ram", "--size", "16M", "--background", "-v", "--memory", "15T", "--socket"]);
    command.arg(launch.socket()).stdin(Stdio::null()).stderr(stderr);
    let output = command.output().expect("it was built");
    assert_eq!(output.status.code(), Some(0));
    let server = Background::of(&String::from_utf8_lossy(&output.stdout));
    server.signal(Signal::TERM);
    server.ends();
    assert!(UnixStream::connect(launch.socket()).is_err());
    assert!(has(&launch.folder().join("spillway/ram0.log"), "stopping"));
}

/// The process that started it was killed before it could say that the server runs; a client was quicker.
#[test]
fn a_server_whose_starter_is_gone_ends_in_order() {
    let (launch, origin) = Launch::disk_with(vec![0; MIB]);
    let launch = launch.mounted();
    let (stdout, starter) = pipe_that_nobody_reads();
    let mut command = launch.program();
    command.args(["disk", "--background", "--socket"]).arg(launch.socket()).arg("--origin").arg(&origin);
    command.arg("--mount").arg(launch.mount());
    command.env("SPILLWAY_BACKGROUND_CHILD", "1");
    let mut child =
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).spawn().expect("it was built");
    // The end of a pipe that the command has would keep it open.
    drop(command);
    let _killed = Background(Pid::from_child(&child));
    until("it listens", || UnixStream::connect(launch.socket()).ok());
    let bytes = pattern::random(1, 0, 4096);
    Client::open(launch.socket(), "").write(0, &bytes).expect("a write");
    let file = launch.mount().join("disk0/disk");
    until("the device is a file", || file.exists().then_some(()));
    drop(starter);
    let status = until("it ends", || child.try_wait().expect("it is our child"));
    assert_eq!(status.code(), Some(1));
    assert!(fs::read(&origin).expect("it exists")[..4096] == bytes, "an acknowledged write is lost");
    assert!(!file.exists(), "the mount is left behind");
}
