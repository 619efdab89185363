//! Commands whose words nobody takes.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::process::{Output, Stdio};

use spillway_tests::logging::{closed_pipe, full_device};
use spillway_tests::{Launch, Server};

const COMMANDS: [&[&str]; 10] = [
    &["--help"],
    &["--version"],
    &["ls"],
    &["ls", "--json"],
    &["get", "ram0"],
    &["get", "ram0", "mm_stat"],
    &["get", "ram0", "--describe"],
    &["doctor"],
    &["doctor", "/dev/shm", "--json"],
    &["completions", "bash"],
];

fn run(server: &Server, arguments: &[&str], stdout: OwnedFd, stderr: impl Into<Stdio>) -> Output {
    let mut command = server.command(arguments);
    let child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().expect("it was built");
    child.wait_with_output().expect("it is our child")
}

#[test]
fn a_command_whose_output_nobody_reads_ends_quietly() {
    let server = Launch::ram("16M").start();
    for arguments in COMMANDS {
        let output = run(&server, arguments, closed_pipe().0, Stdio::piped());
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &words[..]), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_command_whose_output_finds_no_room_fails() {
    let server = Launch::ram("16M").start();
    for arguments in COMMANDS {
        let output = run(&server, arguments, full_device().0, Stdio::piped());
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {words}");
        assert!(
            words.contains("standard output") && words.contains("No space left"),
            "{arguments:?}: {words}"
        );
    }
}

#[test]
fn a_failure_that_nobody_is_told_of_has_its_exit_code() {
    let server = Launch::ram("16M").start();
    let null = || OpenOptions::new().write(true).open("/dev/null").expect("every system has it").into();
    for stderr in [|| closed_pipe().0, || full_device().0] {
        assert_eq!(run(&server, &["get", "ram7"], null(), stderr()).status.code(), Some(3));
        assert_eq!(run(&server, &["get"], null(), stderr()).status.code(), Some(2));
    }
}
