//! The system refuses calls of a running server, one kind after the other: it goes on or ends in order, and nothing is lost that was acknowledged.
//!
//! `SPILLWAY_REFUSALS=100` draws so many single refusals for each row of a table, besides the one that refuses all calls.

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::command;
use spillway_tests::refused::{Rows, Stack, examine, outlives};
use spillway_tests::{Acknowledged, Launch, Refusal, Refusing, Scratch, Server, Way, binary, tool};

use crate::refused_stacks::sparse;

const BLOCK: usize = 4096;

/// A server over a file.
const PLAIN: Stack = Stack { launch: plain, mounted: false, beside: &[], durable: true };

/// The file.
const ORIGIN: &str = "origin.raw";

fn plain(folder: Arc<Scratch>) -> Launch {
    let origin = sparse(&folder, ORIGIN);
    Launch::disk(folder, &origin)
}

/// Calls that either driver makes while it serves, with what the system may answer.
const BOTH: Rows = &[
    ("recvfrom", &["ENOMEM", "EINTR"]),
    ("sendmsg", &["ENOBUFS", "EINTR"]),
    ("accept4", &["EMFILE", "ENOMEM", "ECONNABORTED", "EPERM"]),
    ("fcntl", &["ENOMEM"]),
    ("setsockopt,shutdown", &["ENOMEM"]),
    ("mmap,munmap,mprotect,madvise", &["ENOMEM"]),
    ("sched_yield", &["EINVAL"]),
];

const IO_URING: Rows = &[("io_uring_enter", &["ENOMEM", "EAGAIN", "EBUSY", "EINTR"])];

const POLL: Rows = &[
    ("epoll_pwait", &["EINTR", "ENOMEM"]),
    ("timerfd_settime", &["ENOMEM"]),
    ("pwritev2", &["EINTR", "EAGAIN"]),
    ("fdatasync", &["EINTR"]),
    ("clone3", &["EAGAIN"]),
];

#[test]
fn with_io_uring_a_server_outlives_what_the_system_refuses() {
    examine(&PLAIN, "io_uring", &[BOTH, IO_URING], outlives);
}

#[test]
fn with_polling_a_server_outlives_what_the_system_refuses() {
    examine(&PLAIN, "poll", &[BOTH, POLL], outlives);
}

/// A server over a file, with something written.
fn serve(driver: &str, refusal: &Refusal) -> (Server, Acknowledged, PathBuf) {
    println!("{driver}: {refusal:?}");
    let folder = Arc::new(Scratch::new());
    let server = (PLAIN.launch)(folder.clone()).with("--driver", driver).start();
    let mut written = Acknowledged::new(0);
    written.write_some(&mut Way::Socket(server.client())).expect("nothing is refused yet");
    (server, written, folder.join(ORIGIN))
}

#[test]
fn a_server_ends_in_order_where_the_system_has_neither_threads_nor_memory_for_it() {
    for driver in ["io_uring", "poll"] {
        for (call, errno) in [("clone3", "EAGAIN"), ("mmap", "ENOMEM"), ("mmap,mprotect,madvise", "ENOMEM")] {
            for by_command in [false, true] {
                ends_in_order(driver, Refusal::of(call, errno), by_command);
            }
            (1..=4).for_each(|first| {
                ends_in_order(driver, Refusal { first, last: Some(first), ..Refusal::of(call, errno) }, true)
            });
        }
    }
}

/// By a signal, or by a command: that may be refused, but then nothing has changed.
fn ends_in_order(driver: &str, refusal: Refusal, by_command: bool) {
    let (mut server, written, origin) = serve(driver, &refusal);
    let refusing = Refusing::begin(server.pid(), &refusal, &server.folder());
    let stopped = by_command && server.spillway(&["stop", "disk0"]).code == Some(0);
    if !stopped {
        assert!(server.lives(), "{refusal:?}: {}", server.log());
        written.check(&mut Way::Socket(server.client()));
        server.signal(Signal::TERM);
    }
    assert_eq!(server.ends().code(), Some(0), "{refusal:?}: {}", server.log());
    written.check_file(&origin);
    drop(refusing);
}

#[test]
fn a_driver_that_goes_on_failing_ends_the_server_in_order() {
    for (driver, call) in [("io_uring", "io_uring_enter"), ("poll", "epoll_pwait")] {
        let refusal = Refusal::of(call, "EINVAL");
        let (mut server, written, origin) = serve(driver, &refusal);
        let refusing = Refusing::begin(server.pid(), &refusal, &server.folder());
        server.says(": stopping");
        drop(refusing);
        assert_eq!(server.ends().code(), Some(1), "{}", server.log());
        assert!(server.log().contains("driver of a worker fails: Invalid argument"), "{}", server.log());
        written.check_file(&origin);
    }
}

/// Clients may wait for ever for what a refused change of a watch has cost. One that was refused elsewhere is asked for again.
#[test]
fn a_polling_driver_that_loses_events_ends_the_server_in_order() {
    let mut ended = 0;
    for first in 1..=6 {
        let refusal = Refusal { first, last: Some(first), ..Refusal::of("epoll_ctl", "ENOSPC") };
        let (mut server, written, origin) = serve("poll", &refusal);
        let refusing = Refusing::begin(server.pid(), &refusal, &server.folder());
        let mut other = Acknowledged::new(1);
        // It hangs up as soon as it is going to stop.
        let _ = Way::by_socket(server.socket()).and_then(|mut way| other.write_some(&mut way));
        drop(refusing);
        let told = || server.log().contains("driver of a worker fails");
        if !told() {
            server.signal(Signal::TERM);
        }
        let code = server.ends().code();
        let lost = server.log().contains("driver of a worker fails");
        assert_eq!(code, Some(i32::from(lost)), "{refusal:?}: {}", server.log());
        ended += usize::from(lost);
        [written, other].iter().for_each(|written| written.check_file(&origin));
    }
    assert!(ended > 0, "no event is lost");
}

/// What a start needs, and calls of one kind are refused from one of these on.
const START: &[(&str, &str)] = &[
    ("clone3", "EAGAIN"),
    ("eventfd2", "EMFILE"),
    ("epoll_create1", "EMFILE"),
    ("timerfd_create", "EMFILE"),
    ("io_uring_setup", "ENOMEM"),
    ("socket,socketpair", "EMFILE"),
];
const REFUSED_FROM: &[u32] = &[1, 2, 3, 5, 8, 13];

#[test]
fn a_start_that_lacks_something_makes_do_or_says_what() {
    let mut refused = 0;
    for driver in ["auto", "poll"] {
        for &(call, errno) in START {
            for &first in REFUSED_FROM {
                refused += usize::from(starts_or_says_why_not(
                    driver,
                    Refusal { first, ..Refusal::of(call, errno) },
                ));
            }
        }
    }
    assert!(0 < refused && refused < 2 * START.len() * REFUSED_FROM.len(), "{refused}");
}

/// True if it says why not.
fn starts_or_says_why_not(driver: &str, refusal: Refusal) -> bool {
    let (mut server, ended) = Launch::ram("16M").with("--driver", driver).refused(refusal).attempt();
    if let Some(ended) = ended {
        assert_eq!(ended.code(), Some(1), "{driver}: {refusal:?}: {}", server.log());
        assert!(server.log().contains("os error"), "{driver}: {refusal:?}: {}", server.log());
        return true;
    }
    server.client().write(0, &[1; BLOCK]).expect("a write");
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{driver}: {refusal:?}: {}", server.log());
    false
}

/// A user that has nothing else here.
const USER: u32 = 64_917;

#[test]
fn a_server_with_few_processes_left_makes_do_with_them() {
    let launch = || Launch::ram("16M").with("--driver", "poll");
    let threads = |server: &Server| {
        fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server is running").count()
    };
    let wanted = threads(&launch().start());
    let mut server = launch().limited(USER, wanted - 50).start();
    assert!(threads(&server) < wanted - 50, "some are left to others");
    server.says("of 64 are made");
    server.client().write(0, &[1; BLOCK]).expect("a write");
    let user = ["--reuid", "--regid"].map(|id| format!("{id}={USER}"));
    let mut stop = Command::new("setpriv");
    stop.args(user).arg("--clear-groups").arg(binary::path()).args(["stop", "ram0"]);
    tool::finish(stop.env("SPILLWAY_RUNTIME_DIR", server.folder().path())).well();
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
}

/// What the kernel has its own threads for, by io_uring, one of ours does.
#[test]
fn a_flush_for_which_the_kernel_has_no_thread_is_made_all_the_same() {
    let launch = plain(Arc::new(Scratch::new())).with("--driver", "io_uring").with("--page-cache", "none");
    // Another one than that of the test beside this, whose processes are counted.
    const OTHER: u32 = 64_919;
    chown(launch.folder().join(ORIGIN), Some(OTHER), Some(OTHER)).expect("tests run as root");
    let server = launch.with("--workers", "1").limited(OTHER, 4096).start();
    let mut client = server.client();
    let (user, id) = (OTHER.to_string(), server.pid().to_string());
    let limit = |processes: u32| {
        let limit = format!("--nproc={processes}:4096");
        let user = ["--reuid", &user, "--regid", &user, "--clear-groups"];
        tool::run("setpriv", &[&user[..], &["prlimit", "--pid", &id, &limit]].concat());
    };
    limit(1);
    client.write(0, &[1; BLOCK]).expect("a write");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "{}", server.log());
    limit(4096);
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "{}", server.log());
}
