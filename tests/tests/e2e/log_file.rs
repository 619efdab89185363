//! The file of a log: full, moved, deleted, shared, or none at all.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use spillway_tests::logging::{are_whole, have_logged, said_to_be_lost, talkative};
use spillway_tests::{Launch, Scratch, Server, until};

fn limit_file_sizes(server: &Server, bytes: Option<u64>) {
    let pid = Pid::from_raw(server.pid() as i32);
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(pid, Resource::Fsize, limit).expect("it is ours");
}

/// The limit stands for a full disk: it cuts a line in its middle as one does.
#[test]
fn a_log_file_that_cannot_grow_loses_lines_and_says_so_when_it_can() {
    for format in ["text", "json"] {
        let (launch, _) = talkative(format);
        let log = launch.folder().join("the.log");
        let server = launch.with("--log-file", &log).start();
        let read = || fs::read_to_string(&log).expect("text");
        have_logged(&server, "disk0", 1, 0);
        until("a line is written", || read().contains("mark-00000").then_some(()));
        let limit = read().len() + 20;
        limit_file_sizes(&server, Some(limit as u64));
        have_logged(&server, "disk0", 10, 0);
        until("a line is torn", || (read().len() == limit).then_some(()));
        server.client().write(0, &[1; 512]).expect("a server goes on");
        limit_file_sizes(&server, None);
        have_logged(&server, "disk0", 1, 0);
        until("all lines are accounted for", || {
            (read().matches("mark-").count() + said_to_be_lost(&read()) == 12).then_some(())
        });
        let log = read();
        let whole: String = log.split_inclusive('\n').filter(|line| line.len() > 21).collect();
        are_whole(&whole, format);
        assert!(said_to_be_lost(&log) > 0, "{log}");
    }
}

#[test]
fn a_log_file_is_opened_again_by_a_signal() {
    let (launch, _) = talkative("text");
    let (log, moved) = (launch.folder().join("the.log"), launch.folder().join("moved.log"));
    let mut server = launch.with("--log-file", &log).start();
    let has = |path: &Path, words: &str| fs::read_to_string(path).is_ok_and(|text| text.contains(words));
    have_logged(&server, "disk0", 1, 0);
    until("it is written to", || has(&log, "mark-").then_some(()));
    fs::rename(&log, &moved).expect("it is ours");
    server.signal(Signal::USR1);
    until("there is a new one", || has(&log, "opened").then_some(()));
    have_logged(&server, "disk0", 1, 0);
    until("the new one is written to", || has(&log, "mark-").then_some(()));
    assert!(!has(&moved, "opened"));
    // Something else in its place: the old one stays.
    fs::rename(&log, &moved).expect("it is ours");
    fs::create_dir(&log).expect("a folder");
    server.signal(Signal::USR1);
    until("it says so in the old one", || has(&moved, "cannot open").then_some(()));
    have_logged(&server, "disk0", 2, 0);
    until("the old one is written to", || has(&moved, "mark-00001").then_some(()));
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
}

#[test]
fn a_server_without_a_log_file_goes_on_when_told_to_open_it_again() {
    let mut server = Launch::ram("16M").flag("-v").start();
    server.signal(Signal::USR1);
    server.says("standard error");
    server.client().write(0, &[1; 512]).expect("a write");
    assert!(server.lives());
}

#[test]
fn a_log_file_that_is_a_fifo_without_a_reader_is_refused_at_once() {
    let launch = Launch::ram("16M");
    let fifo = launch.folder().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("it is ours");
    launch.clone().with("--log-file", &fifo).run().refused(1, "fifo");
    let reader = OpenOptions::new().read(true).write(true).open(&fifo).expect("it is ours");
    let mut server = launch.flag("-v").with("--log-file", &fifo).start();
    have_logged(&server, "ram0", 1, 0);
    let mut lines = BufReader::new(reader).lines();
    assert!(lines.any(|line| line.expect("text").contains("mark-00000")));
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
}

#[test]
fn two_servers_with_one_log_file_cut_none_of_each_others_lines() {
    let folder = Arc::new(Scratch::new());
    let log = folder.join("the.log");
    let server = |name: &str| {
        let socket = folder.join(&format!("{name}.sock"));
        let launch = Launch::new(
            &["ram", "--size", "16M", "-v", "--log-format", "json"],
            folder.clone(),
            socket.clone(),
        );
        launch.with("--name", name).with("--socket", socket).with("--log-file", &log).start()
    };
    let servers = [server("a"), server("b")];
    std::thread::scope(|scope| {
        scope.spawn(|| have_logged(&servers[0], "a", 200, 100));
        scope.spawn(|| have_logged(&servers[1], "b", 200, 100));
    });
    until("all lines are written", || {
        (fs::read_to_string(&log).expect("text").matches("mark-").count() == 400).then_some(())
    });
    are_whole(&fs::read_to_string(&log).expect("text"), "json");
}
