//! What keeps a device busy is named: clients, programs below a mount, loop devices with their mounts. As root, for mounts.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::{Launch, Scratch, Server, binary, tool, until};

/// Exit code as documented.
const BUSY: i32 = 4;

/// A program that stays until this is dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self(child.expect("qemu-utils and coreutils are there"))
    }

    /// A client of a server, once it is connected.
    fn connected(server: &Server, uri: &str, clients: u64) -> Self {
        let client = Self::start(Command::new("qemu-io").args(["-f", "raw", uri]));
        until("the client is connected", || {
            let listed = server.spillway(&["ls", "--json"]).well().out;
            listed.contains(&format!("\"clients\": {clients}")).then_some(())
        });
        client
    }

    fn named(&self, name: &str) -> String {
        format!("{name} (pid {})", self.0.id())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn clients_are_named_by_their_programs() {
    let server = Launch::ram("16M").mounted().start();
    let one = Program::connected(&server, &server.uri(), 1);
    let other = Program::connected(&server, &server.uri(), 2);
    let both = format!("2 clients are connected ({}, {});", one.named("qemu-io"), other.named("qemu-io"));
    server.spillway(&["reset", "ram0"]).refused(BUSY, &both);
    server.spillway(&["attach", "ram0", "--via", "loop"]).refused(BUSY, &other.named("qemu-io"));
    drop(other);
    until("the first one alone is named", || {
        let said = server.spillway(&["reset", "ram0"]);
        said.err.contains(&format!("a client is connected ({});", one.named("qemu-io"))).then_some(())
    });
    drop(one);
    until("nobody is in the way", || (server.spillway(&["reset", "ram0"]).code == Some(0)).then_some(()));
}

#[test]
fn a_client_of_the_network_is_named_by_its_address() {
    let folder = Arc::new(Scratch::new());
    let control = folder.join("spillway/ram0.ctl");
    let server = Launch::new(&["ram", "--size", "16M", "--listen", "127.0.0.1:0"], folder, control).start();
    let log = server.log();
    let uri =
        log.split_whitespace().find(|word| word.starts_with("nbd://")).expect("it says where it listens");
    let _client = Program::connected(&server, uri, 1);
    server.spillway(&["reset", "ram0"]).refused(BUSY, "a client is connected (127.0.0.1:");
}

#[test]
fn a_program_that_works_in_a_mount_is_named() {
    let server = Launch::ram("16M").mounted().start();
    let folder = server.file("ram0").parent().expect("a folder").to_owned();
    let program = Program::start(Command::new("sleep").arg("1000").current_dir(folder));
    server.spillway(&["stop", "ram0"]).refused(BUSY, &program.named("sleep"));
    drop(program);
    server.spillway(&["stop", "ram0"]).well();
}

/// It closes a file at its exec, and waits for the file's server; who asks for its links would wait with it.
#[test]
fn a_program_that_hangs_keeps_nobody_from_an_answer() {
    let (stopped, server) = (Launch::ram("16M").mounted().start(), Launch::ram("16M").mounted().start());
    let file = stopped.file("ram0");
    let script = "import os, sys; file = open(sys.argv[1]); print(flush=True); input(); os.execvp('sleep', ['sleep', '1000'])";
    let mut hanging = Program::start(Command::new("/usr/bin/python3").args(["-c", script]).arg(file));
    hanging.0.stdout.take().expect("it is piped").read_exact(&mut [0]).expect("it has the file open");
    stopped.signal(Signal::STOP);
    hanging.0.stdin.take().expect("it is piped").write_all(b"\n").expect("it reads");
    let link = format!("/proc/{}/cwd", hanging.0.id());
    until("it hangs", || (tool::run("timeout", &["1", "readlink", &link]).code == Some(124)).then_some(()));
    let folder = server.file("ram0").parent().expect("a folder").to_owned();
    let program = Program::start(Command::new("sleep").arg("1000").current_dir(folder));
    let said = tool::finish(
        Command::new("timeout")
            .arg("50")
            .arg(binary::path())
            .args(["stop", "ram0"])
            .env("SPILLWAY_RUNTIME_DIR", server.folder().path()),
    );
    stopped.signal(Signal::CONT);
    said.refused(BUSY, &program.named("sleep"));
}

#[test]
fn a_program_on_an_attached_file_system_is_named() {
    let server = Launch::ram("512M").mounted().start();
    let place = Scratch::new();
    let path = place.path().to_str().expect("paths of tests are text");
    server.spillway(&["attach", "ram0", "--via", "loop", "--mkfs", "ext4", path]).well();
    let program = Program::start(Command::new("sleep").arg("1000").current_dir(place.path()));
    let refused = server.spillway(&["detach", "ram0"]);
    let stopped = server.spillway(&["stop", "ram0"]);
    let reset = server.spillway(&["reset", "ram0"]);
    let named = program.named("sleep");
    drop(program);
    until("nothing is in the way", || (server.spillway(&["detach", "ram0"]).code == Some(0)).then_some(()));
    refused.refused(BUSY, &named);
    [stopped, reset].into_iter().for_each(|said| drop(said.refused(BUSY, &format!("mounted at {path}"))));
    tool::run("nbdinfo", &[server.uri()]).well();
}
