//! Servers of an origin that are killed, lose what was not flushed, cannot be reached, fail, or break the protocol.
//!
//! Devices without a page cache unless a test says otherwise: each write of a client is one to the server.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::process::Signal;
use spillway_tests::hostile::Chance;
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, errno};
use spillway_tests::{Fault, Launch, Proxy, Scratch, Server, Upstream, pattern, text, until};

const MIB: usize = 1 << 20;

/// Bytes of an origin: what the writers write to, and as much behind it.
const SIZE: usize = 16 * MIB;

/// Where the part begins that the writers leave alone.
const APART: u64 = 8 << 20;

/// What the log says once an outage is over.
const AGAIN: &str = "connected again after";

fn disk(uri: &str) -> Launch {
    Launch::disk(Arc::default(), Path::new(uri))
        .with("--name", "d")
        .with("--page-cache", "none")
        .with("--workers", "4")
}

fn file() -> (Arc<Scratch>, PathBuf) {
    let folder = Arc::new(Scratch::new());
    let file = folder.write("origin.raw", vec![0; SIZE]);
    (folder, file)
}

fn flush(server: &Server) -> Result<(), u32> {
    server.client().ask(command::FLUSH, 0, 0)
}

/// Lines of the log that contain `words`.
fn lines(server: &Server, words: &str) -> usize {
    server.log().lines().filter(|line| line.contains(words)).count()
}

/// Waits until so many outages are over.
fn is_connected_again(server: &Server, times: usize) {
    until("it is connected again", || (lines(server, AGAIN) >= times).then_some(()));
}

/// What is written is there for clients, and after a flush in the file of the server.
fn is_kept(served: &mut Served, server: &Server, file: &Path) {
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
struct Forgetful {
    launch: Launch,
    server: Server,
}

impl Forgetful {
    fn new(file: &Path) -> Self {
        let text = format!(
            "[[device]]\nname = \"theirs\"\norigin = {{ kind = \"file\", path = {file:?} }}\n\
             layers = [{{ kind = \"volatile\", volatile_bytes_max = \"64M\" }}]\n"
        );
        let launch = Launch::serve(Arc::default(), text).with("--memory", "256M");
        Self { server: launch.clone().start(), launch }
    }

    fn kill(&mut self) {
        self.server.signal(Signal::KILL);
        self.server.ends();
    }

    fn restart(&mut self) {
        self.server = self.launch.clone().start();
    }
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

/// Reads a part that nobody writes to until `over`, and compares it.
fn reads(server: &Server, wanted: &[u8], over: &std::sync::atomic::AtomicBool) {
    let mut client = server.client();
    let mut at = 0;
    while !over.load(std::sync::atomic::Ordering::Relaxed) {
        let found = client.read(APART + at as u64, 64 << 10).expect("a read");
        assert!(found == wanted[at..at + (64 << 10)], "wrong bytes at {at}");
        at = (at + (64 << 10)) % wanted.len();
    }
}

/// Has each fault happen to writes and reads that are checked.
fn survives(socket: &Path, export: &str, file: &Path, faults: &[Fault]) {
    let proxy = Proxy::new(socket);
    let server = disk(&proxy.uri(export)).start();
    let apart = pattern::random(9, 0, MIB);
    server.client().write(APART, &apart).expect("a write");
    let (mut served, over) = (Served::default(), std::sync::atomic::AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| reads(&server, &apart, &over));
        served.write_during(&server, 1, || {
            for (number, fault) in (1..).zip(faults) {
                proxy.sees_writes(10);
                proxy.break_next(*fault);
                is_connected_again(&server, number);
            }
            proxy.sees_writes(10);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
    is_kept(&mut served, &server, file);
    assert_eq!(lines(&server, "requests wait while it is connected again"), faults.len(), "{}", server.log());
    assert!(fs::read(file).expect("it exists")[APART as usize..][..MIB] == apart);
}

/// In the header, at its end, in the payload, and behind all of it; answers twice, to nothing and of nothing.
const FAULTS: [Fault; 12] = [
    Fault::CutRequest(0),
    Fault::CutRequest(13),
    Fault::CutRequest(28),
    Fault::CutRequest(28 + 1000),
    Fault::CutRequest(28 + 4096),
    Fault::CutReply(0),
    Fault::CutReply(7),
    Fault::CutReply(16),
    Fault::CutReply(20 + 8 + 1000),
    Fault::Twice,
    Fault::WrongCookie,
    Fault::WrongMagic,
];

#[test]
fn connections_that_are_cut_and_replies_that_are_wrong_cost_nothing() {
    for upstream in
        [|file: &Path| Upstream::qemu(file, &["-e", "8"]), |file: &Path| Upstream::nbdkit_file(file)]
    {
        let (_folder, file) = file();
        let upstream = upstream(&file);
        survives(&upstream.socket(), "", &file, &FAULTS);
    }
    let (_folder, file) = file();
    let upstream = Forgetful::new(&file);
    survives(upstream.server.socket(), "theirs", &file, &FAULTS);
}

#[test]
fn connections_that_are_cut_anywhere_cost_nothing() {
    let mut chance = Chance::new(7);
    let faults: Vec<Fault> = (0..30)
        .map(|_| match chance.one_in(2) {
            true => Fault::CutRequest(chance.below(28 + 4096) as usize),
            false => Fault::CutReply(chance.below(28 + 4096) as usize),
        })
        .collect();
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    survives(&upstream.socket(), "", &file, &faults);
}

/// All connections at once, many times, also in the middle of connecting again.
#[test]
fn connections_that_are_cut_while_they_are_made_cost_nothing() {
    let (_folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let proxy = Proxy::new(upstream.server.socket());
    let server = disk(&proxy.uri("theirs")).start();
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        for round in 0..10 {
            let before = proxy.accepted();
            proxy.sees_writes(10);
            proxy.cut();
            // From before the first to behind the last of four.
            until("it connects", || (proxy.accepted() >= before + round % 5).then_some(()));
            proxy.cut();
            if round % 4 == 3 {
                upstream.kill();
                upstream.restart();
            }
        }
        proxy.sees_writes(60);
    });
    is_kept(&mut served, &server, &file);
}

#[test]
fn a_smaller_export_is_not_taken_for_the_same() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        proxy.sees_writes(10);
        proxy.announce(Some(SIZE as u64 / 2));
        proxy.cut();
        server.says(&format!("the export has {} bytes now, it had {SIZE}", SIZE / 2));
        proxy.announce(None);
        proxy.sees_writes(10);
    });
    is_kept(&mut served, &server, &file);
}

/// Fewer connections than before are enough to go on with.
#[test]
fn a_server_that_takes_fewer_connections_than_before_is_used_with_those() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    assert_eq!(proxy.connections(), 4);
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        for most in [1, 4, 2, 3] {
            proxy.sees_writes(10);
            proxy.limit(most);
            proxy.cut();
            proxy.sees_writes(60);
            assert!((1..=most).contains(&proxy.connections()), "{} of {most}", proxy.connections());
        }
    });
    is_kept(&mut served, &server, &file);
}

/// A write whose answer is late: what overlaps it is sent only after that, anything else at once.
#[test]
fn writes_that_overlap_are_sent_one_after_the_other() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &[]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    proxy.hold();
    let mut begin = |number: usize, at: u64, byte: u8| {
        let client = &mut clients[number];
        client.send(command::WRITE, at, 8192).expect("a request");
        io::Write::write_all(&mut client.stream, &[byte; 8192]).expect("a payload");
    };
    begin(0, 0, 1);
    proxy.holds(1);
    begin(1, 4096, 2);
    begin(1, 65536, 3);
    until("the write apart is sent", || (proxy.writes() >= 2).then_some(()));
    assert_eq!(proxy.writes(), 2, "the write that overlaps another was sent");
    proxy.release();
    for (number, answers) in [(0, 1), (1, 2)] {
        (0..answers).for_each(|_| assert_eq!(clients[number].reply().expect("an answer").0, 0));
    }
    assert_eq!(proxy.writes(), 3);
    let found = clients[2].read(0, 12288).expect("a read");
    assert!(found[..4096] == [1; 4096] && found[4096..] == [2; 8192]);
}

/// Replies that are lost: the server has carried out the writes, and carries them out once more.
#[test]
fn writes_whose_replies_are_lost_are_sent_again_and_answered_once() {
    let (_folder, file) = file();
    let upstream = Upstream::nbdkit(&["--filter=delay", "file", text(&file), "wdelay=20ms"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        for number in 1..=5 {
            proxy.sees_writes(8);
            proxy.hold();
            proxy.holds(1);
            proxy.cut();
            proxy.release();
            is_connected_again(&server, number);
        }
        proxy.sees_writes(8);
    });
    is_kept(&mut served, &server, &file);
    assert_eq!(lines(&server, ": \n"), 0, "a line of the log says nothing: {}", server.log());
}

#[test]
fn a_dead_server_makes_requests_wait_and_with_a_limit_fail_until_it_is_back() {
    let (_folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let server = disk(&upstream.server.uri_of("theirs")).with("--origin-timeout", "1").start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    client.write(0, &bytes).expect("a write");
    upstream.kill();
    assert_eq!(client.write(2 * MIB as u64, &bytes), Err(errno::EIO));
    server.says("no connection within --origin-timeout: requests fail");
    assert_eq!(client.read(0, 4096), Err(errno::EIO));
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO), "nothing says that it is durable");
    assert_eq!(client.ask(command::TRIM, 0, 4096), Err(errno::EIO));
    upstream.restart();
    server.says(AGAIN);
    assert!(client.read(0, MIB) == Ok(bytes.clone()), "what was acknowledged before is lost");
    client.write(2 * MIB as u64, &bytes).expect("a write");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "{}", server.log());
    let found = fs::read(&file).expect("it exists");
    assert!(found[..MIB] == bytes && found[2 * MIB..3 * MIB] == bytes);
    assert_eq!(lines(&server, "requests fail"), 1, "once, not for each request: {}", server.log());
}

/// The first error of its write-back sticks to a page cache: flushes fail, and what is dirty is written when it ends.
#[test]
fn a_page_cache_above_a_dead_server_keeps_its_pages_until_it_is_there_again() {
    let (folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let launch = Launch::disk(folder, Path::new(&upstream.server.uri_of("theirs"))).with("--name", "d");
    let mut server = launch.with("--origin-timeout", "1").start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    upstream.kill();
    client.write(0, &bytes).expect("a write to the cache");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO));
    upstream.restart();
    server.says(AGAIN);
    client.write(MIB as u64, &bytes).expect("a write to the cache");
    assert!(client.read(0, MIB) == Ok(bytes.clone()), "{}", server.log());
    drop(client);
    server.signal(Signal::TERM);
    server.ends();
    let found = fs::read(&file).expect("it exists");
    assert!(found[..MIB] == bytes && found[MIB..2 * MIB] == bytes, "{}", server.log());
}

/// The first error of its origin sticks to a write cache, which has what is dirty when it is opened again.
#[test]
fn a_write_cache_above_a_dead_server_keeps_its_blocks_until_it_is_there_again() {
    let (folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let cache = folder.write("cache.raw", vec![0; 8 * MIB]);
    let launch = Launch::cache(folder, Path::new(&upstream.server.uri_of("theirs")), &cache)
        .with("--name", "d")
        .with("--pause-writeback", "0")
        .with("--origin-timeout", "1");
    let mut server = launch.clone().start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    // The first flush of a start covers what may have bypassed the cache before.
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    upstream.kill();
    client.write(0, &bytes).expect("a write to the cache");
    client.ask(command::FLUSH, 0, 0).expect("a flush of the cache");
    assert_ne!(server.spillway(&["drain", "d"]).code, Some(0), "{}", server.log());
    assert!(client.read(0, MIB) == Ok(bytes.clone()), "{}", server.log());
    drop(client);
    server.signal(Signal::TERM);
    server.ends();
    upstream.restart();
    let server = launch.start();
    assert!(server.client().read(0, MIB) == Ok(bytes.clone()), "{}", server.log());
    server.spillway(&["drain", "d"]).well();
    assert!(fs::read(&file).expect("it exists")[..MIB] == bytes);
}

/// A flush that nobody asked for fails with the others, and the journal still has what it was to cover.
#[test]
fn a_journal_that_is_half_full_in_an_outage_is_flushed_after_it() {
    let (_folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let proxy = Proxy::new(upstream.server.socket());
    let launch = disk(&proxy.uri("theirs")).with("--origin-timeout", "1").with("--origin-journal", "1M");
    let server = launch.start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    // The flush that makes room finds no server any more.
    proxy.hold();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let pieces = bytes.chunks(64 << 10).enumerate();
            pieces.take_while(|(at, piece)| client.write(*at as u64 * (64 << 10), piece).is_ok()).count()
        });
        until("the journal is flushed", || {
            proxy.release();
            let flushes = proxy.flushes() > 0;
            proxy.hold();
            flushes.then_some(())
        });
        proxy.close();
        upstream.kill();
        server.says("requests fail");
        let written = writer.join().expect("it ends");
        assert!(written < 16, "the server was cut off");
        upstream.restart();
        proxy.release();
        proxy.open();
        server.says(AGAIN);
        let mut client = server.client();
        assert!(client.read(0, written * (64 << 10)) == Ok(bytes[..written * (64 << 10)].to_vec()));
        assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "{}", server.log());
        let found = fs::read(&file).expect("it exists");
        assert!(found[..written * (64 << 10)] == bytes[..written * (64 << 10)]);
    });
}

#[test]
fn a_write_that_the_server_refuses_is_an_error_of_that_write_alone() {
    let (folder, file) = file();
    let trigger = folder.join("fails");
    let upstream = Upstream::nbdkit(&[
        "--filter=error",
        "file",
        text(&file),
        "error-pwrite=EIO",
        "error-pwrite-rate=100%",
        &format!("error-pwrite-file={}", trigger.display()),
    ]);
    let server = disk(&upstream.uri()).start();
    let (old, new) = (pattern::random(1, 0, MIB), pattern::random(2, 0, MIB));
    let mut client = server.client();
    client.write(0, &old).expect("a write");
    folder.write("fails", "");
    assert_eq!(client.write(0, &new), Err(errno::EIO));
    assert!(client.read(0, MIB) == Ok(old.clone()), "a write that failed changed something");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "what was acknowledged is durable");
    fs::remove_file(&trigger).expect("it is there");
    client.write(MIB as u64, &new).expect("a write");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()));
    let found = fs::read(&file).expect("it exists");
    assert!(found[..MIB] == old && found[MIB..2 * MIB] == new);
    assert_eq!(lines(&server, "requests wait"), 0, "an error is no loss of the connection: {}", server.log());
}

/// One write of three fails, for a while.
#[test]
fn random_errors_of_a_server_reach_only_the_writes_that_they_are_of() {
    let (_folder, file) = file();
    let upstream = Upstream::nbdkit(&[
        "--filter=error",
        "--filter=delay",
        "file",
        text(&file),
        "error-pwrite=ENOSPC",
        "error-pwrite-rate=33%",
        "delay-write=1ms",
    ]);
    let server = disk(&upstream.uri()).start();
    let mut client = server.client();
    let mut expected = vec![0; 2 * MIB];
    let (mut failed, mut written) = (0, 0);
    for number in 0..200u64 {
        let at = (number * 37 % 512) as usize * 4096;
        let bytes = pattern::random(number, 0, 4096);
        match client.write(at as u64, &bytes) {
            Ok(()) => {
                expected[at..at + 4096].copy_from_slice(&bytes);
                written += 1;
            }
            Err(error) => {
                assert_eq!(error, errno::ENOSPC);
                failed += 1;
            }
        }
    }
    assert!(failed > 10 && written > 10, "{failed} failed, {written} written");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()));
    assert!(fs::read(&file).expect("it exists")[..2 * MIB] == expected);
}

/// A plugin of a few lines of shell, whose flush fails while there is a file. What it was to cover may be lost, as it is after a failed
/// fsync, whatever later flushes say.
#[test]
fn after_a_flush_that_the_server_refuses_all_others_fail() {
    let (folder, file) = file();
    let fails = folder.join("fails");
    let (file_word, fails_word) = (text(&file), text(&fails));
    let upstream = Upstream::nbdkit(&[
        "eval",
        &format!("get_size=stat -Lc %s {file_word}"),
        &format!("pread=dd if={file_word} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"),
        &format!("pwrite=dd of={file_word} conv=notrunc seek=$4 oflag=seek_bytes status=none"),
        "can_write=exit 0",
        "can_flush=exit 0",
        &format!("flush=if [ -e {fails_word} ]; then echo EIO no disk >&2; exit 1; fi"),
    ]);
    let server = disk(&upstream.uri()).start();
    let bytes = pattern::random(1, 0, 65536);
    let mut client = server.client();
    client.write(0, &bytes).expect("a write");
    folder.write("fails", "");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO));
    fs::remove_file(&fails).expect("it is there");
    client.write(65536, &bytes).expect("a write");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO));
    assert_eq!(lines(&server, "flushes fail"), 1, "{}", server.log());
    assert!(client.read(65536, 65536) == Ok(bytes), "reads and writes go on");
}

/// A server that has ended is no reason for a device with a limit not to end.
#[test]
fn a_device_with_a_limit_ends_without_its_server() {
    for page_cache in ["none", "writeback"] {
        let (_folder, file) = file();
        let mut upstream = Upstream::qemu(&file, &[]);
        let launch = Launch::disk(Arc::default(), Path::new(&upstream.uri())).with("--name", "d");
        let mut server = launch.with("--page-cache", page_cache).with("--origin-timeout", "1").start();
        server.client().write(0, &[1; 4096]).expect("a write");
        upstream.kill();
        server.signal(Signal::TERM);
        let ended = server.ends();
        assert_eq!(ended.code(), Some(1), "{page_cache}: {}", server.log());
        assert!(
            server.log().contains("acknowledged writes may be lost") || server.log().contains("lost"),
            "{}",
            server.log()
        );
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
