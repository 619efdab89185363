//! Places for a log that take nothing, and servers that are made to log.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, ErrorKind, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::fs::{OFlags, fcntl_setfl};

use crate::{Launch, PATIENCE, Server};

/// A server over an origin of 4 MiB that logs much.
pub fn talkative(format: &str) -> (Launch, PathBuf) {
    let (launch, origin) = Launch::disk_with(vec![0; 4 << 20]);
    (launch.flag("-v").with("--log-format", format), origin)
}

/// Lines that are more than the log lets wait.
pub const MANY: usize = 1500;

/// Standard error that takes nothing, and what must stay open for that.
pub type Deaf = (OwnedFd, Option<PipeReader>);

/// A device that has no room.
pub fn full_device() -> Deaf {
    (OpenOptions::new().write(true).open("/dev/full").expect("every system has it").into(), None)
}

/// A pipe whose reader has gone.
pub fn closed_pipe() -> Deaf {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    (writer.into(), None)
}

/// A pipe without room whose reader does not read.
pub fn pipe_that_nobody_reads() -> Deaf {
    let (reader, writer) = pipe().expect("a pipe");
    fill(&writer);
    (writer.into(), Some(reader))
}

/// Writes newlines until there is no more room.
fn fill(mut pipe: &PipeWriter) {
    fcntl_setfl(pipe, OFlags::NONBLOCK).expect("it is ours");
    let full = loop {
        if let Err(why) = pipe.write(&[b'\n'; 64]) {
            break why;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    fcntl_setfl(pipe, OFlags::empty()).expect("it is ours");
}

/// Has the server log that a control client asks for something, so many times, each with a mark, a number and `bytes` more.
pub fn have_logged(server: &Server, device: &str, count: usize, bytes: usize) {
    let socket = server.folder().join(&format!("spillway/{device}.ctl"));
    let mut stream = BufReader::new(UnixStream::connect(socket).expect("it answers"));
    stream.get_ref().set_read_timeout(Some(PATIENCE)).expect("a time");
    for number in 0..count {
        let value = format!("mark-{number:05}-{}", "x".repeat(bytes));
        let line =
            format!(r#"{{"v":2,"op":"set","device":"{device}","attribute":"none","value":"{value}"}}"#)
                + "\n";
        stream.get_mut().write_all(line.as_bytes()).expect("it listens");
        let mut reply = String::new();
        stream.read_line(&mut reply).expect("it answers while it logs");
        assert!(reply.contains("none"), "{reply}");
    }
}

/// The sum of N in all lines "log: lines not written: N".
pub fn said_to_be_lost(log: &str) -> usize {
    let numbers =
        log.lines().filter_map(|line| line.split_once("log: lines not written: ")?.1.split(' ').next());
    numbers.map(|number| number.parse::<usize>().expect("a number")).sum()
}

/// Each line of a log is one of its form.
pub fn are_whole(log: &str, format: &str) {
    for line in log.lines().filter(|line| !line.is_empty()) {
        match format {
            "json" => drop(serde_json::from_str::<serde_json::Value>(line).expect(line)),
            _ => assert!(line.starts_with("20") && line.contains("Z "), "{line}"),
        }
    }
}
