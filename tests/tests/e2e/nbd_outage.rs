//! Servers of an origin that are killed, lose what was not flushed, or cannot be reached.
//!
//! Devices without a page cache unless a test says otherwise: each write of a client is one to the server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::process::Signal;
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, errno};
use spillway_tests::{Launch, Proxy, Scratch, Server, Upstream, pattern, until};

use crate::origin_timeout::set;

pub(super) const MIB: usize = 1 << 20;

/// Bytes of an origin: what the writers write to, and as much behind it.
pub(super) const SIZE: usize = 16 * MIB;

/// Where the part begins that the writers leave alone.
pub(super) const APART: u64 = 8 << 20;

/// What the log says once an outage is over.
pub(super) const AGAIN: &str = "connected again after";

pub(super) fn disk(uri: &str) -> Launch {
    Launch::disk(Arc::default(), Path::new(uri))
        .with("--name", "d")
        .with("--page-cache", "none")
        .with("--workers", "4")
}

pub(super) fn file() -> (Arc<Scratch>, PathBuf) {
    let folder = Arc::new(Scratch::new());
    let file = folder.write("origin.raw", vec![0; SIZE]);
    (folder, file)
}

pub(super) fn flush(server: &Server) -> Result<(), u32> {
    server.client().ask(command::FLUSH, 0, 0)
}

/// Lines of the log that contain `words`.
pub(super) fn lines(server: &Server, words: &str) -> usize {
    server.log().lines().filter(|line| line.contains(words)).count()
}

/// Waits until so many outages are over.
pub(super) fn is_connected_again(server: &Server, times: usize) {
    until("it is connected again", || (lines(server, AGAIN) >= times).then_some(()));
}

/// What is written is there for clients, and after a flush in the file of the server.
pub(super) fn is_kept(served: &mut Served, server: &Server, file: &Path) {
    served.check(&server.content());
    flush(server).expect("a flush");
    served.check(&fs::read(file).expect("it exists"));
}

#[test]
fn a_server_that_is_killed_in_mid_write_and_started_again_has_every_write() {
    let starts: [fn(&Path) -> Upstream; 3] =
        [|file| Upstream::qemu(file, &[]), |file| Upstream::qemu(file, &["-e", "8"]), Upstream::nbdkit_file];
    for start in starts {
        let (_folder, file) = file();
        let mut upstream = start(&file);
        let proxy = Proxy::new(&upstream.socket());
        let server = disk(&proxy.uri("")).start();
        let mut served = Served::default();
        served.write_during(&server, 1, || {
            for number in 1..=4 {
                proxy.sees_writes(60);
                upstream.kill();
                upstream.restart();
                is_connected_again(&server, number);
            }
            proxy.sees_writes(60);
        });
        is_kept(&mut served, &server, &file);
        assert_eq!(lines(&server, AGAIN), 4, "{}", server.log());
    }
}

/// A Spillway whose device has a volatile write cache over a file: killed, it loses whatever was not flushed.
pub(super) struct Forgetful {
    launch: Launch,
    pub(super) server: Server,
}

impl Forgetful {
    pub(super) fn new(file: &Path) -> Self {
        let text = format!(
            "[[device]]\nname = \"theirs\"\norigin = {{ kind = \"file\", path = {file:?} }}\n\
             layers = [{{ kind = \"volatile\", volatile_bytes_max = \"64M\" }}]\n"
        );
        let launch = Launch::serve(Arc::default(), text).with("--memory", "256M");
        Self { server: launch.clone().start(), launch }
    }

    pub(super) fn kill(&mut self) {
        self.server.signal(Signal::KILL);
        self.server.ends();
    }

    pub(super) fn restart(&mut self) {
        self.server = self.launch.clone().start();
    }
}

/// It is killed, and requests that wait for it fail after a second. Not before: on a busy host what it answers may take as long.
fn is_gone(upstream: &mut Forgetful, server: &Server) {
    upstream.kill();
    set(server, "1");
}

/// Ends what [`is_gone`] began.
fn is_back(upstream: &mut Forgetful, server: &Server) {
    set(server, "none");
    upstream.restart();
}

/// Writes while the server is killed and started again some times, and once more when they have ended: everything acknowledged is there in the
/// end, for clients and in the file of the server, although the server had lost some of it.
fn survives_a_server_that_forgets(launch: impl FnOnce(&str) -> Launch) {
    let (_folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let proxy = Proxy::new(upstream.server.socket());
    let server = launch(&proxy.uri("theirs")).start();
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        for number in 1..=4 {
            proxy.sees_writes(60);
            upstream.kill();
            upstream.restart();
            is_connected_again(&server, number);
        }
        proxy.sees_writes(60);
    });
    let apart = pattern::random(9, 0, 65536);
    flush(&server).expect("a flush");
    server.client().write(APART, &apart).expect("a write");
    proxy.close();
    upstream.kill();
    upstream.restart();
    let left = upstream.server.content();
    assert!(left[APART as usize..][..65536] == [0; 65536], "the server has lost nothing");
    proxy.open();
    is_connected_again(&server, 5);
    assert!(server.client().read(APART, 65536) == Ok(apart.clone()), "an acknowledged write is lost");
    is_kept(&mut served, &server, &file);
    assert!(fs::read(&file).expect("it exists")[APART as usize..][..65536] == apart);
    assert!(lines(&server, "that no flush had covered were written again") > 0, "{}", server.log());
}

#[test]
fn a_server_that_forgets_what_was_not_flushed_has_everything_acknowledged() {
    survives_a_server_that_forgets(disk);
}

#[test]
fn a_small_journal_and_one_connection_are_enough_for_a_server_that_forgets() {
    survives_a_server_that_forgets(|uri| {
        disk(uri).with("--origin-journal", "1M").with("--origin-connections", "1")
    });
}

/// Layers above, whose writes come later than those of clients.
#[test]
fn what_a_cache_above_has_written_back_is_kept_too() {
    for cached in [false, true] {
        let (folder, file) = file();
        let mut upstream = Forgetful::new(&file);
        let proxy = Proxy::new(upstream.server.socket());
        let uri = proxy.uri("theirs");
        let launch = match cached {
            true => {
                Launch::cache(folder.clone(), Path::new(&uri), &folder.write("cache.raw", vec![0; 3 * MIB]))
                    .with("--low-watermark", "0")
                    .with("--high-watermark", "0")
            }
            false => Launch::disk(folder.clone(), Path::new(&uri)).with("--page-cache-bytes-max", "2M"),
        };
        let mut server = launch.with("--name", "d").start();
        let mut served = Served::default();
        served.write_during(&server, 1, || {
            for _ in 0..4 {
                proxy.sees_writes(20);
                upstream.kill();
                upstream.restart();
            }
            proxy.sees_writes(20);
        });
        served.check(&server.content());
        flush(&server).expect("a flush");
        if cached {
            server.spillway(&["drain", "d"]).well();
        }
        server.spillway(&["stop", "d"]).well();
        assert!(server.ends().success(), "{}", server.log());
        served.check(&fs::read(&file).expect("it exists"));
    }
}

#[test]
fn a_dead_server_makes_requests_wait_and_with_a_limit_fail_until_it_is_back() {
    let (_folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let server = disk(&upstream.server.uri_of("theirs")).start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    client.write(0, &bytes).expect("a write");
    is_gone(&mut upstream, &server);
    assert_eq!(client.write(2 * MIB as u64, &bytes), Err(errno::EIO));
    server.says("no answer within the origin's timeout: requests fail");
    assert_eq!(client.read(0, 4096), Err(errno::EIO));
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO), "nothing says that it is durable");
    assert_eq!(client.ask(command::TRIM, 0, 4096), Err(errno::EIO));
    is_back(&mut upstream, &server);
    server.says(AGAIN);
    assert!(client.read(0, MIB) == Ok(bytes.clone()), "what was acknowledged before is lost");
    client.write(2 * MIB as u64, &bytes).expect("a write");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "{}", server.log());
    let found = fs::read(&file).expect("it exists");
    assert!(found[..MIB] == bytes && found[2 * MIB..3 * MIB] == bytes);
    assert_eq!(lines(&server, "requests fail"), 1, "once, not for each request: {}", server.log());
}

/// Nothing is lost by an outage: a flush fails in it, and the next one after it covers all.
#[test]
fn a_page_cache_above_a_dead_server_goes_on_once_it_is_there_again() {
    let (folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let launch = Launch::disk(folder, Path::new(&upstream.server.uri_of("theirs"))).with("--name", "d");
    let server = launch.start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    is_gone(&mut upstream, &server);
    client.write(0, &bytes).expect("a write to the cache");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO));
    is_back(&mut upstream, &server);
    server.says(AGAIN);
    client.write(MIB as u64, &bytes).expect("a write to the cache");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "{}", server.log());
    let found = fs::read(&file).expect("it exists");
    assert!(found[..MIB] == bytes && found[MIB..2 * MIB] == bytes, "{}", server.log());
    assert_eq!(server.spillway(&["get", "d", "page_cache.error"]).well().out.trim(), "none");
}

/// What fits is taken and made durable on the cache device, and what finds no room fails after the limit; all of that until the server is
/// there again.
#[test]
fn a_write_cache_above_a_dead_server_takes_what_fits_and_goes_on_once_it_is_there_again() {
    let (folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let cache = folder.write("cache.raw", vec![0; 8 * MIB]);
    let launch = Launch::cache(folder, Path::new(&upstream.server.uri_of("theirs")), &cache)
        .with("--name", "d")
        .with("--pause-writeback", "0");
    let mut server = launch.clone().start();
    let bytes = pattern::random(1, 0, SIZE);
    let mut client = server.client();
    // The first flush of a start covers what may have bypassed the cache before.
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    is_gone(&mut upstream, &server);
    let write = |client: &mut Client, at: usize| client.write((at * MIB) as u64, &bytes[at * MIB..][..MIB]);
    let taken = (0..16).take_while(|&at| write(&mut client, at).is_ok()).count();
    assert!((4..9).contains(&taken), "{taken} MiB fit 8");
    assert_eq!(write(&mut client, taken), Err(errno::EIO), "it waits for room that does not come");
    client.ask(command::FLUSH, 0, 0).expect("a flush of the cache");
    assert_ne!(server.spillway(&["drain", "d"]).code, Some(0), "{}", server.log());
    assert!(client.read(0, taken * MIB) == Ok(bytes[..taken * MIB].to_vec()), "{}", server.log());
    is_back(&mut upstream, &server);
    server.says(AGAIN);
    (taken..taken + 2).for_each(|at| write(&mut client, at).expect("there is room"));
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    server.spillway(&["drain", "d"]).well();
    let end = (taken + 2) * MIB;
    assert!(fs::read(&file).expect("it exists")[..end] == bytes[..end]);
    server.spillway(&["set", "d", "cleaner", "0"]).well();
    // And what is dirty outlives both.
    is_gone(&mut upstream, &server);
    write(&mut client, 0).expect("a write to the cache");
    drop(client);
    server.signal(Signal::TERM);
    server.ends();
    assert_eq!(lines(&server, "d: write cache: 256 dirty blocks of 4096 bytes"), 1, "{}", server.log());
    upstream.restart();
    let server = launch.start();
    assert!(server.client().read(0, MIB).is_ok_and(|read| read == bytes[..MIB]), "{}", server.log());
    server.spillway(&["drain", "d"]).well();
}

/// A flush that nobody asked for fails with the others, and the journal still has what it was to cover.
#[test]
fn a_journal_that_is_half_full_in_an_outage_is_flushed_after_it() {
    let (_folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let proxy = Proxy::new(upstream.server.socket());
    let launch = disk(&proxy.uri("theirs")).with("--origin-journal", "1M");
    let server = launch.start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    // The flush that makes room finds no server any more. The one at the start does.
    let before = proxy.flushes();
    proxy.hold();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let pieces = bytes.chunks(64 << 10).enumerate();
            pieces.take_while(|(at, piece)| client.write(*at as u64 * (64 << 10), piece).is_ok()).count()
        });
        until("the journal is flushed", || {
            proxy.release();
            let flushes = proxy.flushes() > before;
            proxy.hold();
            flushes.then_some(())
        });
        proxy.close();
        is_gone(&mut upstream, &server);
        server.says("requests fail");
        let written = writer.join().expect("it ends");
        assert!(written < 16, "the server was cut off");
        is_back(&mut upstream, &server);
        proxy.release();
        proxy.open();
        server.says(AGAIN);
        let mut client = server.client();
        let found = client.read(0, written * (64 << 10));
        let found = found.unwrap_or_else(|errno| panic!("errno {errno}: {}", server.log()));
        assert!(found == bytes[..written * (64 << 10)], "{}", server.log());
        assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "{}", server.log());
        let found = fs::read(&file).expect("it exists");
        assert!(found[..written * (64 << 10)] == bytes[..written * (64 << 10)]);
    });
}

/// A server that has ended is no reason for a device with a limit not to end.
#[test]
fn a_device_with_a_limit_ends_without_its_server() {
    for (page_cache, words) in [
        ("none", "the last flush of device d failed: acknowledged writes may be lost"),
        ("writeback", "4096 bytes of the page cache (1 blocks) cannot be written back (EIO): they are lost"),
    ] {
        let (_folder, file) = file();
        let mut upstream = Upstream::qemu(&file, &[]);
        let launch = Launch::disk(Arc::default(), Path::new(&upstream.uri())).with("--name", "d");
        let mut server = launch.with("--page-cache", page_cache).with("--origin-timeout", "1").start();
        server.client().write(0, &[1; 4096]).expect("a write");
        upstream.kill();
        server.signal(Signal::TERM);
        let ended = server.ends();
        assert_eq!(ended.code(), Some(1), "{page_cache}: {}", server.log());
        assert!(server.log().contains(words), "{page_cache}: {}", server.log());
    }
}

/// Without a limit it waits for its server, until a second signal.
#[test]
fn a_device_without_a_limit_waits_for_its_server_until_a_second_signal() {
    for page_cache in ["none", "writeback"] {
        for comes_back in [true, false] {
            let (_folder, file) = file();
            let mut upstream = Upstream::qemu(&file, &[]);
            let launch = Launch::disk(Arc::default(), Path::new(&upstream.uri())).with("--name", "d");
            let mut server = launch.with("--page-cache", page_cache).flag("-v").start();
            let bytes = pattern::random(1, 0, MIB);
            server.client().write(0, &bytes).expect("a write");
            upstream.kill();
            server.says("requests wait while it is connected again");
            server.signal(Signal::TERM);
            server.says("at once from now on");
            assert!(server.lives(), "{page_cache}: it did not wait: {}", server.log());
            if comes_back {
                upstream.restart();
                assert!(server.ends().success(), "{}", server.log());
                assert!(fs::read(&file).expect("it exists")[..MIB] == bytes, "{page_cache}: a write is lost");
            } else {
                until("it ends", || {
                    server.signal(Signal::TERM);
                    (!server.lives()).then_some(())
                });
                assert_eq!(server.ends().code(), Some(143), "{}", server.log());
            }
        }
    }
}
