//! Servers of an origin that take each connection, and whose connections come to nothing.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spillway_tests::raw::{command, errno};
use spillway_tests::{Launch, Proxy, Scratch, Upstream, pattern, text, until};

use crate::nbd_outage::{AGAIN, MIB, disk, file, flush, lines};

/// What the log says at the end of the limit.
const GIVEN_UP: &str = "no answer within the origin's timeout: requests fail";

#[test]
fn a_server_that_answers_nothing_is_given_up_as_a_dead_one_is() {
    let upstream = Upstream::nbdkit(&["--filter=delay", "memory", "16M", "rdelay=100000"]);
    let mut server = disk(&upstream.uri()).with("--origin-timeout", "1").start();
    let mut client = server.client();
    client.write(0, &[1; 4096]).expect("writes are answered");
    assert_eq!(client.read(0, 4096), Err(errno::EIO), "{}", server.log());
    server.says(GIVEN_UP);
    assert_eq!(client.read(0, 4096), Err(errno::EIO), "each time: {}", server.log());
    until("it can be written to", || client.write(0, &[2; 4096]).ok());
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
}

/// It refuses each read with the word that it is about to end.
#[test]
fn a_server_that_is_always_about_to_end_is_asked_with_pauses_and_given_up() {
    let folder = Scratch::new();
    let tries = folder.write("tries", "");
    let upstream = Upstream::nbdkit(&[
        "eval",
        "get_size=echo 16M",
        &format!("pread=echo >> {}; echo ESHUTDOWN >&2; exit 1", text(&tries)),
    ]);
    let server = disk(&upstream.uri()).flag("--read-only").with("--origin-timeout", "7").start();
    assert_eq!(server.client().read(0, 4096), Err(errno::EIO), "{}", server.log());
    server.says(GIVEN_UP);
    let tries = fs::read(&tries).expect("it exists").len();
    assert!((3..20).contains(&tries), "asked {tries} times in 7 s");
}

/// It answers all else, so that no connection is without use.
#[test]
fn a_server_that_refuses_one_request_so_is_asked_with_pauses_too() {
    let folder = Scratch::new();
    let tries = folder.write("tries", "");
    let upstream = Upstream::nbdkit(&[
        "-t",
        "1",
        "eval",
        "thread_model=echo parallel",
        "can_multi_conn=exit 0",
        "get_size=echo 16M",
        "pread=head -c $3 /dev/zero",
        "can_write=exit 0",
        &format!("pwrite=cat >/dev/null; sleep 0.02; echo >> {}; echo ESHUTDOWN >&2; exit 1", text(&tries)),
    ]);
    let server = disk(&upstream.uri()).start();
    let (mut writer, mut reader) = (server.client(), server.client());
    let began = Instant::now();
    writer.send(command::WRITE, 0, 4096).expect("it is sent");
    writer.stream.write_all(&[1; 4096]).expect("it is sent");
    while fs::read(&tries).expect("it exists").len() < 7 {
        reader.read(0, 4096).expect("reads are answered");
    }
    // At once, after 50 ms, twice that, and so on. Each try takes longer on a slow machine too.
    assert!(began.elapsed() >= Duration::from_secs(1), "asked 7 times within {:?}", began.elapsed());
}

/// Nothing is asked, so that no connection can be said to have been of no use.
#[test]
fn an_idle_device_whose_connections_are_cut_at_once_makes_the_next_ones_with_pauses() {
    let upstream = Upstream::nbdkit(&["memory", "16M"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let began = Instant::now();
    for count in 1..=7 {
        proxy.cut();
        until("it is connected again", || (lines(&server, AGAIN) >= count).then_some(()));
    }
    // 50 ms, twice that, and so on. Connections that lasted for long on a slow machine take longer too.
    assert!(began.elapsed() >= Duration::from_secs(1), "connected 7 times within {:?}", began.elapsed());
}

/// All else is answered: the server is there, and never comes to this request.
#[test]
fn a_request_that_is_never_answered_fails_whatever_else_is() {
    let folder = Scratch::new();
    let hangs = folder.join("hangs");
    let upstream = Upstream::nbdkit(&[
        "eval",
        "thread_model=echo parallel",
        "get_size=echo 16M",
        "pread=head -c $3 /dev/zero",
        "pwrite=cat >/dev/null",
        "can_write=exit 0",
        "can_flush=exit 0",
        &format!("flush=test ! -e {} || sleep 30", text(&hangs)),
    ]);
    let server = disk(&upstream.uri()).with("--origin-timeout", "1").start();
    fs::write(&hangs, "").expect("a file");
    let (mut writer, mut reader) = (server.client(), server.client());
    writer.write(0, &[1; 4096]).expect("writes are answered");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                reader.read(0, 4096).expect("reads are answered, before and after");
            }
        });
        assert_eq!(writer.ask(command::FLUSH, 0, 0), Err(errno::EIO), "{}", server.log());
        is_over.store(true, Ordering::Relaxed);
    });
}

/// That is no failure of its server.
#[test]
fn a_device_that_ends_while_a_connection_is_made_says_nothing_of_that() {
    let (_folder, file) = file();
    let mut upstream = Upstream::qemu(&file, &[]);
    let mut server = disk(&upstream.uri()).flag("--read-only").start();
    upstream.kill();
    let socket = upstream.socket();
    fs::remove_file(&socket).expect("it is left");
    let listener = UnixListener::bind(&socket).expect("the folder is there");
    let (_silent, _) = listener.accept().expect("a connection");
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
    assert_eq!(lines(&server, "no longer needed"), 0, "{}", server.log());
}

/// All that was flushed is on the cache device: neither a dead server nor a silent one has to answer what is being written back.
#[test]
fn a_write_cache_that_is_writing_back_ends_without_its_server_and_without_a_limit() {
    for is_dead in [true, false] {
        let (folder, file) = file();
        let upstream = Upstream::qemu(&file, &[]);
        let proxy = Proxy::new(&upstream.socket());
        let cache = folder.write("cache.raw", vec![0; 3 * MIB]);
        let launch = Launch::cache(folder, Path::new(&proxy.uri("")), &cache).with("--name", "d");
        let launch = launch.with("--low-watermark", "0").with("--high-watermark", "0");
        let mut server = launch.clone().start();
        // The first flush of a start covers what may have bypassed the cache before.
        flush(&server).expect("a flush");
        match is_dead {
            true => proxy.close(),
            false => proxy.hold(),
        }
        let bytes = pattern::random(1, 0, MIB);
        server.client().write(0, &bytes).expect("a write to the cache");
        flush(&server).expect("a flush of the cache");
        until("write-back", || (server.value("d", "writeback_blocks").as_u64() > Some(0)).then_some(()));
        server.signal(Signal::TERM);
        assert!(server.ends().success(), "{}", server.log());
        proxy.release();
        proxy.cut();
        proxy.open();
        let server = launch.start();
        assert!(server.client().read(0, MIB).as_ref() == Ok(&bytes), "{}", server.log());
        server.spillway(&["drain", "d"]).well();
        assert!(fs::read(&file).expect("it exists")[..MIB] == bytes, "{}", server.log());
    }
}
