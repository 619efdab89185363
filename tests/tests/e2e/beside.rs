//! `spillway ram -- COMMAND`: a program beside a server, and devices whose names are found.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::{Launch, Scratch, Server, text, tool, until};

use crate::signals::stuck_at;

/// Exit codes as documented.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const BUSY: i32 = 4;

/// What begins a script: the words by which the tests know that a server is ready.
const READY: &str = "echo pid $PPID";

/// Has the server run a shell beside it.
fn beside(launch: Launch, script: &str) -> Launch {
    launch.with("--", "sh").with("-c", script)
}

/// A disk that holds zeroes, and the first byte of its file.
fn disk() -> (Launch, impl Fn() -> u8) {
    let (launch, origin) = Launch::disk_with(vec![0; 1 << 20]);
    let folder = launch.folder();
    let first_byte = move || {
        let _stays = &folder;
        fs::read(&origin).expect("the origin is there")[0]
    };
    (launch, first_byte)
}

const WRITE: &str = "qemu-io -f raw -c 'write -P 7 0 4096' \"$SPILLWAY_URI\"";

#[test]
fn a_command_has_the_device_and_its_end_and_code_are_the_server_s() {
    let (launch, first_byte) = disk();
    let said = beside(launch, &format!("{WRITE} && echo $SPILLWAY_NAME && exit 7")).run();
    assert_eq!(said.code, Some(7), "{said}");
    assert!(said.out.ends_with("\ndisk0\n") && !said.out.contains("spillway:"), "{said}");
    assert_eq!(first_byte(), 7, "what it wrote is flushed");
}

#[test]
fn a_command_finds_the_device_s_file() {
    let launch = Launch::ram("1M").mounted();
    let script =
        "test $(stat -c %s \"$SPILLWAY_FILE\") = 1048576 && echo x | dd of=\"$SPILLWAY_FILE\" conv=notrunc";
    beside(launch, script).run().well();
}

/// The server takes all open files, ignores SIGTTOU and is no program for which the kernel writes to file systems. None of that is for others.
#[test]
fn a_command_has_its_limits_and_signals_as_the_server_found_them() {
    // Signals from 32 on are the C library's own.
    const SHOW: &str = "ulimit -Sn; ignored=$(sed -n 's/SigIgn:.//p' /proc/self/status); echo $((0x$ignored & 0x7fffffff)); \
                        flags=$(cut -d ' ' -f 9 /proc/self/stat); echo $((flags & 0x80000))";
    let alone = tool::finish(Command::new("sh").args(["-c", SHOW])).well().out;
    assert!(alone.ends_with("\n0\n"), "{alone}");
    assert_eq!(beside(Launch::ram("1M"), SHOW).run().well().out, alone);
}

/// It is told, and the device is served until it has ended.
#[test]
fn a_signal_is_passed_on_and_the_device_stays_until_the_command_has_ended() {
    let (launch, first_byte) = disk();
    let script =
        format!("last() {{ {WRITE}; exit 3; }}; trap last TERM; {READY}; while :; do sleep 0.1; done");
    let mut server = beside(launch, &script).start();
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(3), "{}", server.log());
    assert_eq!(first_byte(), 7);
}

fn waits() -> Server {
    beside(Launch::ram("1M"), &format!("{READY}; exec sleep 1000")).start()
}

#[test]
fn a_device_is_its_command_s_until_that_has_ended() {
    let mut server = waits();
    server.spillway(&["stop", "ram0"]).refused(BUSY, "sh (pid ");
    server.client().write(0, &[7; 4096]).expect("it is served");
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(128 + 15));
}

#[test]
fn a_command_removes_the_devices_that_it_adds_and_not_its_own() {
    let script = "class=$(dirname \"$SPILLWAY_FILE\")/../zram-control; added=$(cat $class/hot_add) && \
                  ! echo 0 > $class/hot_remove && echo $added > $class/hot_remove";
    let launch = Launch::ram("1M").with("--name", "ram0").mounted();
    beside(launch, script).run().well();
}

/// A terminal sends them to both. What the server alone gets is for the command, unless that is in another group and gets it from nobody.
#[test]
fn an_interrupt_is_for_the_command() {
    let mut server = waits();
    (0..3).for_each(|_| server.signal(Signal::INT));
    server.signal(Signal::QUIT);
    server.client().write(0, &[7; 4096]).expect("it is served");
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(128 + 15));
    let launch = Launch::ram("1M").with("--", "setsid").with("sh", "-c");
    let mut apart = launch.flag("trap 'exit 5' INT; echo pid $PPID; while :; do sleep 0.1; done").start();
    apart.signal(Signal::INT);
    assert_eq!(apart.ends().code(), Some(5));
}

/// Its command has ended, and a client keeps it from its own end.
#[test]
fn an_interrupt_is_for_the_server_once_its_command_has_ended() {
    for first in [Signal::INT, Signal::QUIT, Signal::TERM] {
        let launch = Launch::ram("64M");
        let ended = launch.folder().join("ended");
        let until_told = format!("while ! test -e {}; do sleep 0.05; done", text(&ended));
        let script = format!("trap '' INT QUIT TERM; {READY}; {until_told}");
        let mut server = beside(launch, &script).start();
        let _stuck = stuck_at(&server);
        server.signal(first);
        fs::write(&ended, "").expect("a file");
        until("the server stops to accept", || UnixStream::connect(server.socket()).is_err().then_some(()));
        until("it ends", || {
            server.signal(Signal::INT);
            (!server.lives()).then_some(())
        });
        assert_eq!(server.ends().code(), Some(130), "{}", server.log());
    }
}

/// There was no first signal, which a second one would follow.
#[test]
fn a_server_that_waits_after_its_command_says_how_many_signals_end_it() {
    let launch = Launch::ram("1M").mounted();
    let ended = launch.folder().join("ended");
    let until_told = format!("while ! test -e {}; do sleep 0.05; done", text(&ended));
    let mut server = beside(launch, &format!("{READY}; {until_told}")).start();
    let open = fs::File::open(server.file("ram0")).expect("it is shown");
    fs::write(&ended, "").expect("a file");
    server.says("or at once by two signals");
    drop(open);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
}

/// Log files are rotated while a server starts.
#[test]
fn a_signal_that_ends_nothing_keeps_no_command_from_running() {
    let script = "kill -USR1 $$; exec \"$0\" \"$@\"";
    let launch = Launch::ram("1M").through(["env", "--block-signal=USR1", "sh", "-c", script]);
    let said = beside(launch, "exit 7").run();
    assert_eq!(said.code, Some(7), "{said}");
}

#[test]
fn a_server_that_is_killed_takes_its_command_along() {
    let mut server = waits();
    let children = format!("/proc/{0}/task/{0}/children", server.pid());
    let child = fs::read_to_string(children).expect("the server lives");
    let child = format!("/proc/{}", child.trim());
    assert!(fs::exists(&child).expect("it can be looked for"));
    server.signal(Signal::KILL);
    server.ends();
    until("the command is gone", || (!fs::exists(&child).expect("it can be looked for")).then_some(()));
}

#[test]
fn a_command_that_cannot_be_run_is_named_and_the_background_has_none() {
    Launch::ram("1M").with("--", "/no/such/program").run().refused(FAILED, "/no/such/program");
    beside(Launch::ram("1M").flag("--background"), "true").run().refused(USAGE, "--background");
}

#[test]
fn servers_take_names_that_are_free() {
    let folder = Arc::new(Scratch::new());
    let launch = |socket: &str| {
        let socket = folder.join(socket);
        Launch::new(&["ram", "--size", "1M"], folder.clone(), socket.clone()).with("--socket", socket)
    };
    let start = |name: &str, socket: &str| launch(socket).with("--name", name).start();
    let servers = [start("ram0", "a"), start("ram%", "b"), start("ci-%", "c"), start("ci-%", "d")];
    for (server, name) in servers.iter().zip(["ram0", "ram1", "ci-0", "ci-1"]) {
        assert!(server.log().contains(&format!("spillway: {name} 1M")), "{}", server.log());
        server.spillway(&["get", name, "disksize"]).well();
    }
    launch("e").run().refused(BUSY, "device ram0 is taken");
    let said = beside(launch("f"), "echo $SPILLWAY_NAME").run().well();
    assert_eq!(said.out, "ram2\n", "a command learns its name");
    let [first, ..] = servers;
    first.spillway(&["stop", "ram0"]).well();
    assert!(start("ram%", "g").log().contains("spillway: ram0 1M"), "a name that is free again is taken");
    for name in ["%%", "a/%", &format!("{}%", "a".repeat(62))] {
        launch("h").with("--name", name).run().refused(USAGE, "one % may stand for a number");
    }
}
