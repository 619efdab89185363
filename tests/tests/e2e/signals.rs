//! How a server ends, and who may stand in its place.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use spillway_tests::logging::pipe_that_nobody_reads;
use spillway_tests::raw::{Client, command, header};
use spillway_tests::{Launch, Scratch, Server, binary, pattern, until};

const MIB: usize = 1 << 20;

/// Exit code for a name or socket that is taken.
const BUSY: i32 = 4;

/// Signals that ask a server to stop.
const ASKING: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::QUIT, Signal::HUP, Signal::POWER, Signal::XCPU];

/// A server with a write that only its memory has.
fn with_a_dirty_page(launch: impl FnOnce(Launch) -> Launch) -> (Server, PathBuf, Vec<u8>) {
    let (disk, origin) = Launch::disk_with(vec![0; MIB]);
    let server = launch(disk.flag("-v")).start();
    let bytes = pattern::random(1, 0, 4096);
    server.client().write(0, &bytes).expect("a write");
    (server, origin, bytes)
}

fn is_on(origin: &Path, bytes: &[u8]) -> bool {
    fs::read(origin).expect("the origin exists")[..bytes.len()] == *bytes
}

#[test]
fn each_signal_that_asks_for_it_ends_a_server_in_order() {
    for signal in ASKING {
        let (mut server, origin, bytes) = with_a_dirty_page(|launch| launch);
        let idle = server.client();
        server.signal(signal);
        assert_eq!(server.ends().code(), Some(0), "{signal:?}: {}", server.log());
        assert!(is_on(&origin, &bytes), "{signal:?}: an acknowledged write is lost");
        assert!(!server.socket().exists(), "{signal:?}: the socket is left behind");
        drop(idle);
    }
}

/// As `timeout` does, which signals its command and then its group.
#[test]
fn signals_of_one_moment_are_one_request() {
    let (mut server, origin, bytes) = with_a_dirty_page(|launch| launch);
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM]
        .into_iter()
        .for_each(|signal| server.signal(signal));
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    assert!(is_on(&origin, &bytes), "an acknowledged write is lost");
}

/// The terminal's end is told twice: by the kernel, and by the shell.
#[test]
fn a_terminal_that_hangs_up_loses_no_write() {
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin.raw", vec![0; MIB]);
    let socket = folder.join("disk.sock");
    let line = format!("{:?} disk --origin {origin:?} --socket {socket:?}\n", binary::path());
    let mut terminal = Command::new("/usr/bin/python3")
        .args(["-c", TERMINAL, &line])
        .env("SPILLWAY_RUNTIME_DIR", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("it is installed");
    let mut client =
        until("the server listens", || UnixStream::connect(&socket).ok().map(|_| Client::open(&socket, "")));
    let bytes = pattern::random(1, 0, 4096);
    client.write(0, &bytes).expect("a write");
    drop(terminal.stdin.take());
    terminal.wait().expect("it ends with its input");
    until("the server is gone", || (!socket.exists()).then_some(()));
    until("the write is there", || is_on(&origin, &bytes).then_some(()));
}

/// A shell on a terminal that hangs up once the standard input ends.
const TERMINAL: &str = "
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp('bash', ['bash', '--norc', '-i'])
os.write(terminal, sys.argv[1].encode())
sys.stdin.read()
os.close(terminal)
";

#[test]
fn an_ignored_hangup_stays_ignored() {
    let (mut server, origin, bytes) = with_a_dirty_page(|launch| launch.through(["nohup"]));
    server.signal(Signal::HUP);
    has_seen_signals(&server);
    server.client().write(0, &bytes).expect("it serves");
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    assert!(is_on(&origin, &bytes));
}

/// A blocked signal waits for ever, and a program starts with what the one that started it has blocked.
#[test]
fn a_blocked_signal_is_heard_all_the_same() {
    for signal in ASKING {
        let (mut server, origin, bytes) =
            with_a_dirty_page(|launch| launch.through(["env", "--block-signal"]));
        has_seen_signals(&server);
        server.signal(signal);
        assert_eq!(server.ends().code(), Some(0), "{signal:?}: {}", server.log());
        assert!(is_on(&origin, &bytes), "{signal:?}: an acknowledged write is lost");
    }
    let launch = Launch::ram("64M").through(["env", "--block-signal"]);
    let (mut server, _stuck) = kept_from_stopping(launch, Signal::TERM);
    until("it ends", || {
        server.signal(Signal::TERM);
        (!server.lives()).then_some(())
    });
    assert_eq!(server.ends().code(), Some(143), "{}", server.log());
}

/// Waits until signals that were sent before have acted.
fn has_seen_signals(server: &Server) {
    let said = || server.log().matches("no file to open again").count();
    let before = said();
    server.signal(Signal::USR1);
    until("the signal is seen", || (said() > before).then_some(()));
}

/// Two drivers and clients that work: a signal that means nothing interrupts system calls all the same.
#[test]
fn signals_that_mean_nothing_do_nothing() {
    for driver in ["io_uring", "poll"] {
        let (mut server, origin, _) = with_a_dirty_page(|launch| launch.with("--driver", driver));
        let mut client = server.client();
        for round in 0..200u64 {
            for signal in
                [Signal::USR2, Signal::ALARM, Signal::VTALARM, Signal::PROF, Signal::IO, Signal::TTOU]
            {
                server.signal(signal);
            }
            let bytes = pattern::random(round, 0, MIB / 2);
            client.write(0, &bytes).expect("a write");
            client.ask(command::FLUSH, 0, 0).expect("a flush");
            assert!(client.read(0, MIB / 2) == Ok(bytes), "round {round}");
        }
        has_seen_signals(&server);
        server.signal(Signal::TERM);
        assert_eq!(server.ends().code(), Some(0), "{driver}: {}", server.log());
        assert!(is_on(&origin, &pattern::random(199, 0, MIB / 2)));
    }
}

#[test]
fn a_server_that_was_stopped_by_job_control_goes_on() {
    let (mut server, origin, bytes) = with_a_dirty_page(|launch| launch);
    let state = || {
        let status = fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("it lives");
        status.rsplit_once(") ").expect("a name ends").1.chars().next()
    };
    server.signal(Signal::STOP);
    until("it is stopped", || (state() == Some('T')).then_some(()));
    server.signal(Signal::CONT);
    assert!(server.client().read(0, 4096) == Ok(bytes.clone()));
    server.signal(Signal::HUP);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    assert!(is_on(&origin, &bytes));
}

#[test]
fn what_was_acknowledged_before_the_end_is_in_the_file() {
    ["none", "writeback"].into_iter().for_each(what_was_acknowledged_is_in_the_file);
}

fn what_was_acknowledged_is_in_the_file(page_cache: &str) {
    let (disk, origin) = Launch::disk_with(vec![0; 64 * MIB]);
    let mut server = disk.with("--page-cache", page_cache).start();
    let mut client = server.client();
    let stream = client.stream.try_clone().expect("a descriptor");
    let sender = std::thread::spawn(move || send_until_closed(stream));
    let mut answered = Vec::new();
    while let Ok((error, cookie)) = client.reply() {
        if error == 0 {
            answered.push(cookie);
            if answered.len() == 8 {
                server.signal(Signal::TERM);
            }
        }
    }
    sender.join().expect("the sender ends when the connection is closed");
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    let file = fs::read(&origin).expect("the origin exists");
    assert!(answered.len() >= 8, "the connection ended before the signal");
    for cookie in answered {
        let at = cookie as usize % 64 * MIB;
        assert!(
            file[at..at + MIB] == pattern::random(cookie, 0, MIB),
            "acknowledged write {cookie} is missing"
        );
    }
}

/// Writes a MiB after the other, each in its own place, until the server takes no more; at most the whole file once.
fn send_until_closed(mut stream: UnixStream) {
    for cookie in 0..64u64 {
        let mut words = header(command::WRITE, cookie, cookie * MIB as u64, MIB as u32);
        words.extend(pattern::random(cookie, 0, MIB));
        if stream.write_all(&words).is_err() {
            return;
        }
    }
}

/// With the strongest codec, compressing all of it again would take a minute.
#[test]
fn a_command_under_way_ends_with_its_server() {
    let config = "[[device]]\nname = \"packed\"\n[device.origin]\nkind = \"zram\"\ndisksize = \"64M\"\n\
                  recomp_algorithm = \"algo=zstd\"\nalgorithm_params = \"algo=zstd level=22\"\n";
    for by_signal in [true, false] {
        let mut server = Launch::serve(Arc::default(), config).start();
        let mut client = Client::open(server.socket(), "packed");
        (0..64).for_each(|at| {
            // Only an entropy coder makes it smaller.
            let digits: Vec<u8> = pattern::random(at, 0, MIB).iter().map(|byte| byte >> 4 | 0x30).collect();
            client.write(at * MIB as u64, &digits).expect("a write");
        });
        drop(client);
        std::thread::scope(|scope| {
            let command = scope.spawn(|| server.spillway(&["set", "packed", "recompress", ""]));
            until("recompression has begun", || {
                (server.value("packed", "recompressed_pages") != 0).then_some(())
            });
            if by_signal {
                server.signal(Signal::TERM);
            } else {
                server.spillway(&["stop", "packed"]).well();
            }
            command.join().expect("it ends").refused(1, "the device ends");
        });
        assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    }
}

/// The last flush of the first device takes an hour.
#[test]
fn a_device_that_ends_slowly_keeps_no_other_from_being_flushed() {
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin.raw", vec![0; MIB]);
    let config = format!(
        "[[device]]\nname = \"slow\"\norigin = {{ kind = \"zram\", disksize = \"1M\" }}\n\
         layers = [{{ kind = \"delay\", flush_us = 3600000000 }}]\n\
         [[device]]\nname = \"quick\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
         layers = [{{ kind = \"page_cache\", dirty_expire = 86400000 }}]\n"
    );
    let server = Launch::serve(folder, config).start();
    let bytes = pattern::random(1, 0, 4096);
    Client::open(server.socket(), "quick").write(4096, &bytes).expect("a write");
    server.signal(Signal::TERM);
    until("the other device is flushed", || {
        (fs::read(&origin).expect("the origin exists")[4096..8192] == bytes).then_some(())
    });
    server.signal(Signal::KILL);
}

/// By a signal, as the last device, and as one of two.
#[test]
fn a_device_that_cannot_be_flushed_is_a_failure_of_its_server() {
    let device = |name: &str, layers: &str| {
        format!(
            "[[device]]\nname = {name:?}\norigin = {{ kind = \"zram\", disksize = \"1M\" }}\nlayers = [{layers}]\n"
        )
    };
    let bad = device("bad", "{ kind = \"fault\", op = \"flush\", nth = 1, mode = \"sticky\" }");
    let failed = "last flush of device bad failed";
    for (config, stopped) in
        [(bad.clone(), &[][..]), (bad.clone(), &["bad"]), (bad + &device("good", ""), &["bad", "good"])]
    {
        let mut server = Launch::serve(Arc::default(), config).start();
        for name in stopped {
            let said = server.spillway(&["stop", name]);
            if *name == "bad" {
                said.refused(1, failed);
                server.says(failed);
            } else {
                said.well();
            }
        }
        if stopped.is_empty() {
            server.signal(Signal::TERM);
        }
        assert_eq!(server.ends().code(), Some(1), "{stopped:?}: {}", server.log());
        assert!(server.log().contains(failed), "{}", server.log());
    }
}

/// A client that does not take what it has asked for.
pub(super) fn stuck_at(server: &Server) -> Client {
    let mut stuck = server.client();
    stuck.write(0, &pattern::random(1, 0, MIB)).expect("a write");
    stuck.send_all((0..200).map(|_| (command::READ, 0, MIB as u32))).expect("headers fit in the socket");
    // What the server has not received yet it need not finish; the first byte of a reply says that it has.
    stuck.stream.read_exact(&mut [0]).expect("a reply begins");
    stuck
}

/// A server that stops, and cannot for a client that does not read.
fn kept_from_stopping(launch: Launch, first: Signal) -> (Server, Client) {
    let mut server = launch.flag("-v").start();
    let stuck = stuck_at(&server);
    server.signal(first);
    until("the server stops to accept", || UnixStream::connect(server.socket()).is_err().then_some(()));
    assert!(server.lives(), "the server ended without waiting for its client: {}", server.log());
    (server, stuck)
}

/// Also where the log is stuck.
#[test]
fn a_second_signal_ends_the_server_at_once() {
    for (first, second, code) in
        [(Signal::TERM, Signal::TERM, 143), (Signal::HUP, Signal::INT, 130), (Signal::INT, Signal::QUIT, 131)]
    {
        let (stderr, _reader) = pipe_that_nobody_reads();
        let (mut server, _stuck) = kept_from_stopping(Launch::ram("64M").stderr(stderr), first);
        until("it ends", || {
            server.signal(second);
            (!server.lives()).then_some(())
        });
        assert_eq!(server.ends().code(), Some(code), "{}", server.log());
    }
}

/// `systemctl stop` may send SIGHUP after SIGTERM, a terminal's end is told twice, and SIGXCPU comes each second.
#[test]
fn a_hangup_ends_no_server_at_once() {
    let (mut server, _stuck) = kept_from_stopping(Launch::ram("64M"), Signal::TERM);
    server.says("at once from now on");
    [Signal::HUP, Signal::POWER, Signal::XCPU, Signal::HUP]
        .into_iter()
        .for_each(|signal| server.signal(signal));
    has_seen_signals(&server);
    assert!(server.lives(), "{}", server.log());
}

/// The limit of file sizes (ulimit -f) answers by a signal that ends a process by default.
#[test]
fn a_write_past_the_limit_of_file_sizes_is_an_error_and_not_the_end() {
    for driver in ["io_uring", "poll"] {
        let (disk, _) = Launch::disk_with(vec![0; 8 * MIB]);
        let mut server = disk.with("--driver", driver).with("--page-cache", "none").start();
        let limit = Some(4 * MIB as u64);
        let pid = Pid::from_raw(server.pid() as i32);
        prlimit(pid, Resource::Fsize, Rlimit { current: limit, maximum: limit }).expect("it is ours");
        let mut client = server.client();
        client.write(6 * MIB as u64, &[1; 4096]).expect_err("the limit is passed");
        client.write(2 * MIB as u64, &[2; 4096]).expect("the limit is kept");
        assert!(server.lives(), "{driver}: {}", server.log());
        assert!(client.read(2 * MIB as u64, 4096).expect("a read") == [2; 4096]);
    }
}

#[test]
fn a_second_server_on_the_same_socket_is_refused() {
    let launch = Launch::ram("16M");
    let server = launch.clone().start();
    let socket = server.socket().to_string_lossy().into_owned();
    launch.clone().with("--name", "other").run().refused(BUSY, &socket);
    launch.run().refused(BUSY, "ram0");
    server.client().write(0, &[1; 512]).expect("the first one still serves");
}

#[test]
fn the_socket_of_a_dead_server_is_replaced() {
    let launch = Launch::ram("16M");
    let mut dead = launch.clone().start();
    dead.signal(Signal::KILL);
    dead.ends();
    assert!(dead.socket().exists(), "a killed server leaves its socket");
    launch.start().client().write(0, &[1; 512]).expect("a write");
}

#[test]
fn something_else_in_the_socket_s_place_is_left_alone() {
    let launch = Launch::ram("16M");
    fs::write(launch.socket(), "precious").expect("the folder is ours");
    let said = launch.run();
    assert_ne!(said.code, Some(0), "{said}");
    assert_eq!(fs::read(launch.socket()).expect("it is still there"), b"precious");
}

#[test]
fn sockets_are_for_their_owner_only() {
    let server = Launch::ram("16M").start();
    let folder = server.folder().join("spillway");
    assert_eq!(mode(server.socket()), 0o600);
    assert_eq!(mode(&folder.join("ram0.ctl")), 0o600);
    assert_eq!(mode(&folder), 0o700);
}

fn mode(path: &Path) -> u32 {
    let found = fs::metadata(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    found.permissions().mode() & 0o777
}

#[test]
fn without_a_socket_option_the_server_is_found_in_the_runtime_folder() {
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("spillway/ram0.sock");
    let server = Launch::new(&["ram", "--size", "16M"], folder, socket.clone()).start();
    let uri = format!("nbd+unix:///ram0?socket={}", socket.display());
    server.says(&uri);
    Client::open(&socket, "ram0").write(0, &[1; 512]).expect("a write");
}
