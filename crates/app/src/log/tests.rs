//! The queue's bound, the file's bound, and what a panic leaves in the log.

use std::fs;
use std::io::pipe;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;

use spillway_core::sync::Ordering;
use spillway_core::task;
use spillway_io::patient::write_all;
use spillway_io::{Workers, WorkersOptions};

use super::*;
use crate::log::output::{KEPT_BYTES_MAX, older};
use crate::scratch::Scratch;

/// Tells a process of this test what it is, and where its log is.
const CHILD: &str = "SPILLWAY_TEST_LOG_OF_CHILD";

/// Exit by SIGABRT.
const ABORTED: Option<i32> = Some(6);

/// Takes out all lines that wait.
fn taken(queue: &LogQueue, items: &Receiver<Item>) -> String {
    let lines = |item| match item {
        Item::Lines(lines) => String::from_utf8(lines).unwrap(),
        _ => panic!("only lines were let in"),
    };
    let taken: String = items.try_iter().map(lines).collect();
    queue.counts().waiting.fetch_sub(taken.len(), Ordering::Relaxed);
    taken
}

#[test]
fn what_waits_is_bounded_and_what_finds_no_room_is_counted() {
    let (queue, items) = LogQueue::new();
    let refused = || queue.counts().refused.swap(0, Ordering::Relaxed);
    let line = format!("{}\n", "x".repeat(999));
    (0..1000).for_each(|_| queue.push(line.as_bytes(), false));
    queue.push(b"a panic\n", true);
    let lines = taken(&queue, &items);
    let written = lines.matches("x\n").count();
    assert!(written * 1000 <= 256 << 10 && written > 250, "{written}");
    assert_eq!(written as u64 + refused(), 1000, "a panic has room");
    assert!(lines.contains("a panic\n"));
    queue.push(&[b'y'; 1 << 20], true);
    let cut = taken(&queue, &items);
    assert!(cut.len() == 64 << 10 && cut.ends_with("y\n"), "{}", cut.len());
    queue.push(b"after\n", false);
    assert_eq!((&taken(&queue, &items)[..], refused()), ("after\n", 0));
}

#[test]
fn nobody_waits_for_a_log_that_is_stuck() {
    let (queue, _items) = LogQueue::new();
    queue.push(b"never taken\n", false);
    assert!(!queue.wait_until_settled(Duration::from_millis(1)));
}

#[test]
fn a_kept_file_is_its_owners_and_bounded_and_has_the_newest_lines() {
    let scratch = Scratch::new("kept");
    let path = scratch.path().join("x.log");
    let mut output = LogOutput::kept(path.clone()).unwrap();
    for number in 0..20_000 {
        let line = format!("{number:099}\n");
        output.make_room(line.len()).unwrap();
        assert_eq!(output.write(line.as_bytes(), Duration::ZERO).unwrap(), 100);
    }
    let (newer, old) = (fs::read_to_string(&path).unwrap(), fs::read_to_string(older(&path)).unwrap());
    assert!(newer.len() as u64 <= KEPT_BYTES_MAX && old.len() as u64 <= KEPT_BYTES_MAX);
    let numbers: Vec<u64> = (old + &newer).lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.len() as u64 > KEPT_BYTES_MAX / 100 && numbers.ends_with(&[19_998, 19_999]));
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "none is lost in between");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // The next server goes on in it.
    let mut next = LogOutput::kept(path.clone()).unwrap();
    next.make_room(KEPT_BYTES_MAX as usize).unwrap();
    assert!(fs::read_to_string(older(&path)).unwrap() == newer && fs::read(&path).unwrap().is_empty());
}

#[test]
fn a_kept_file_that_was_deleted_is_made_again_at_its_bound() {
    let scratch = Scratch::new("deleted");
    let path = scratch.path().join("x.log");
    let mut output = LogOutput::kept(path.clone()).unwrap();
    output.write(b"x\n", Duration::ZERO).unwrap();
    fs::remove_file(&path).unwrap();
    output.make_room(KEPT_BYTES_MAX as usize).unwrap();
    output.write(b"y\n", Duration::ZERO).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"y\n");
}

/// What runs in a process of its own: a worker panics while more lines wait than have room.
fn panics_on_a_worker(log_file: Option<PathBuf>) -> ! {
    start(&LogOptions { verbose: 0, log_format: LogFormat::Text, log_file }).unwrap();
    let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() }).unwrap();
    (0..10_000).for_each(|number| tracing::warn!("line {number} of many"));
    workers.run_on(0, task(|| async { panic!("on purpose") }));
    loop {
        thread::park();
    }
}

/// Runs the test `name` as the child that panics.
fn child(name: &str, log: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("log::tests::{name}"), "--nocapture"]).env(CHILD, log);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[test]
fn a_panic_is_in_the_log_file_however_full_the_queue_is() {
    if let Some(path) = std::env::var_os(CHILD) {
        panics_on_a_worker(Some(path.into()));
    }
    let scratch = Scratch::new("panic");
    let path = scratch.path().join("x.log");
    let mut child = child("a_panic_is_in_the_log_file_however_full_the_queue_is", path.to_str().unwrap());
    assert_eq!(child.status().unwrap().signal(), ABORTED);
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("thread spillway-0 panicked at") && log.contains("on purpose"), "{log}");
}

#[test]
fn a_panic_ends_a_process_whose_log_nobody_reads() {
    if std::env::var_os(CHILD).is_some() {
        panics_on_a_worker(None);
    }
    let (_reader, writer) = pipe().unwrap();
    write_all(&writer, &[b'\n'; 1 << 20], Duration::from_millis(1)).unwrap_err();
    let mut child = child("a_panic_ends_a_process_whose_log_nobody_reads", "");
    assert_eq!(child.stderr(writer).status().unwrap().signal(), ABORTED);
}
