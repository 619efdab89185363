//! Exports of NBD servers as origins: of qemu-nbd, nbdkit and another Spillway. Content is compared in the servers' own files.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::process::Signal;
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, errno, flag};
use spillway_tests::upstream::uri;
use spillway_tests::{
    Launch, LoopDevice, Proxy, Scratch, Server, Upstream, clients, pattern, text, tool, until,
};

const MIB: usize = 1 << 20;

/// Bytes of an origin.
const SIZE: usize = 16 * MIB;

/// Exit codes: a failure, and wrong usage.
const FAILED: i32 = 1;
const USAGE: i32 = 2;

/// A server that has the file of the origin.
enum Origin {
    Foreign(Upstream),
    Ours(Server),
}

impl Origin {
    fn uri(&self) -> String {
        match self {
            Self::Foreign(upstream) => upstream.uri(),
            Self::Ours(server) => server.uri_of("theirs"),
        }
    }
}

/// A server over that file.
type Start = fn(&Path) -> Origin;

/// The first takes one connection at a time.
const ORIGINS: [(&str, Start); 4] = [
    ("qemu-nbd", |file| Origin::Foreign(Upstream::qemu(file, &[]))),
    ("qemu-nbd -e 8", |file| Origin::Foreign(Upstream::qemu(file, &["-e", "8"]))),
    ("nbdkit file", |file| Origin::Foreign(Upstream::nbdkit_file(file))),
    ("spillway", |file| Origin::Ours(ours(file))),
];

fn ours(file: &Path) -> Server {
    Launch::disk(Arc::default(), file).with("--page-cache", "none").with("--name", "theirs").start()
}

/// A device `d` over that origin, with whatever else it needs in that folder.
type Stack = fn(Arc<Scratch>, &str) -> Launch;

const STACKS: [(&str, Stack); 3] = [("disk", plain), ("page cache", paged), ("write cache", cached)];

fn plain(folder: Arc<Scratch>, uri: &str) -> Launch {
    paged(folder, uri).with("--page-cache", "none")
}

fn paged(folder: Arc<Scratch>, uri: &str) -> Launch {
    Launch::disk(folder, Path::new(uri)).with("--name", "d")
}

fn cached(folder: Arc<Scratch>, uri: &str) -> Launch {
    let cache = folder.join("cache.raw");
    if !cache.exists() {
        folder.write("cache.raw", vec![0; 8 * MIB]);
    }
    Launch::cache(folder, Path::new(uri), &cache).with("--name", "d")
}

fn sparse(folder: &Scratch, bytes: usize) -> PathBuf {
    let path = folder.join("origin.raw");
    File::create(&path).and_then(|file| file.set_len(bytes as u64)).expect("the folder is ours");
    path
}

/// Its server announces zeroes at no cost, and refuses them when it is asked.
#[test]
fn zeroes_that_would_be_written_are_not_at_no_cost() {
    let device = LoopDevice::without_discards(SIZE as u64);
    let theirs = ours(device.path());
    let bytes = pattern::random(3, 0, MIB);
    for (name, stack) in STACKS {
        let mut server = stack(Arc::default(), &theirs.uri_of("theirs")).start();
        let mut client = server.client();
        client.write(0, &bytes).expect("a write");
        for len in [4096, MIB as u32] {
            let zeroed = client.ask_with(flag::FAST_ZERO, command::WRITE_ZEROES, 0, len);
            assert_eq!(zeroed, Err(errno::ENOTSUP), "{name}");
        }
        assert!(client.read(0, MIB) == Ok(bytes.clone()), "{name}: zeroes in spite of the refusal");
        server.spillway(&["stop", "d"]).well();
        server.ends();
    }
}

#[test]
fn what_clients_write_is_in_the_file_of_each_server() {
    for (origin_name, start) in ORIGINS {
        for (stack_name, stack) in STACKS {
            let folder = Arc::new(Scratch::new());
            let file = sparse(&folder, SIZE);
            let origin = start(&file);
            let mut server = stack(folder, &origin.uri()).start();
            let mut served = Served::default();
            served.write(&server, 1, 100);
            served.check(&server.content());
            // A discard of blocks that are being written back does nothing.
            if stack_name != "write cache" {
                clients::patterns_verify(&server);
            }
            let content = server.content();
            if stack_name == "write cache" {
                server.spillway(&["drain", "d"]).well();
            }
            server.spillway(&["stop", "d"]).well();
            assert!(server.ends().success(), "{}", server.log());
            let found = fs::read(&file).expect("it exists");
            assert!(found == content, "{stack_name} over {origin_name}: the file differs");
        }
    }
}

#[test]
fn extents_are_those_of_the_server() {
    for (name, start) in ORIGINS {
        let folder = Arc::new(Scratch::new());
        let file = sparse(&folder, SIZE);
        let origin = start(&file);
        let server = plain(folder, &origin.uri()).start();
        eprintln!("over {name}");
        clients::maps_what_is_allocated(&server);
    }
}

/// A server in memory, which is an origin for one device after the other.
#[test]
fn what_a_server_in_memory_was_given_is_there_for_the_next_device() {
    let upstream = Upstream::nbdkit(&["memory", "16M"]);
    let mut served = Served::default();
    for (round, (_, stack)) in (1..).zip([STACKS[0], STACKS[1], STACKS[0]]) {
        let mut server = served.look(stack(Arc::default(), &upstream.uri()));
        served.write(&server, round, 100);
        server.spillway(&["stop", "d"]).well();
        assert!(server.ends().success());
    }
    served.look(plain(Arc::default(), &upstream.uri()));
}

/// The number of connections is what the server allows, what was asked for, and what a server without limit in words takes.
#[test]
fn connections_are_as_many_as_the_server_allows() {
    for (more, asked, takes, wanted) in [
        (&["-e", "8"][..], "4", 8, 4),
        (&["-e", "8"], "2", 8, 2),
        (&["-e", "8"], "4", 1, 1),
        (&["-e", "8"], "4", 3, 3),
        (&[], "4", 8, 1),
        (&["-r"], "4", 8, 1),
        (&["-r", "-e", "8"], "4", 8, 4),
    ] {
        let folder = Arc::new(Scratch::new());
        let file = sparse(&folder, SIZE);
        let upstream = Upstream::qemu(&file, more);
        let proxy = Proxy::new(&upstream.socket());
        proxy.limit(takes);
        let launch = plain(folder, &proxy.uri("")).with("--origin-connections", asked).with("--workers", "4");
        let reads = more.contains(&"-r");
        let server = if reads { launch.flag("--read-only") } else { launch }.start();
        assert_eq!(proxy.connections(), wanted, "{more:?}, {asked} asked for, {takes} taken");
        // A server for one client leaves others waiting, and each of them would have been waited for.
        assert!(proxy.accepted() <= wanted as u64, "{more:?}: {} tries", proxy.accepted());
        let mut served = Served::default();
        if !reads {
            served.write(&server, 1, 50);
        }
        served.check(&server.content());
    }
}

#[test]
fn a_server_is_reached_by_tcp_too() {
    let folder = Arc::new(Scratch::new());
    let file = sparse(&folder, SIZE);
    let control = folder.join("spillway/theirs.ctl");
    let words = ["disk", "--origin", text(&file), "--name", "theirs", "--page-cache", "none"];
    let origin = Launch::new(&words, folder, control).with("--listen", "127.0.0.1:0").start();
    let log = origin.log();
    let uri =
        log.split_whitespace().find(|word| word.starts_with("nbd://")).expect("it says where it listens");
    let server = plain(Arc::default(), uri).start();
    let mut served = Served::default();
    served.write(&server, 1, 50);
    served.check(&fs::read(&file).expect("it exists"));
}

#[test]
fn an_export_for_reading_is_served_for_reading() {
    let folder = Arc::new(Scratch::new());
    let content = pattern::random(1, 0, SIZE);
    let file = folder.write("origin.raw", &content);
    for more in [&["-r"][..], &["-r", "-e", "8"]] {
        let upstream = Upstream::qemu(&file, more);
        plain(folder.clone(), &upstream.uri()).run().refused(FAILED, "read-only: give --read-only");
        for stack in [plain, paged] {
            let server = stack(folder.clone(), &upstream.uri()).flag("--read-only").start();
            assert!(server.content() == content, "{more:?}");
            assert_eq!(server.client().write(0, &[1; 4096]), Err(errno::EPERM));
        }
        cached(folder.clone(), &upstream.uri()).run().refused(FAILED, "read-only");
    }
    let writable = Upstream::qemu(&file, &[]);
    let server = plain(folder, &writable.uri()).flag("--read-only").start();
    assert_eq!(server.client().write(0, &[1; 4096]), Err(errno::EPERM));
}

/// A server in a thread that says those words to everybody and closes the connection.
fn says(folder: &Scratch, words: &'static [u8]) -> PathBuf {
    let socket = folder.join("says.sock");
    let listener = UnixListener::bind(&socket).expect("the folder is ours");
    thread::spawn(move || listener.incoming().flatten().for_each(|mut client| drop(client.write_all(words))));
    socket
}

#[test]
fn a_server_that_is_none_is_named_with_what_is_wrong() {
    let folder = Arc::new(Scratch::new());
    let refused = |uri: &str, code, why: &str| {
        for stack in [plain, paged, cached] {
            let said = stack(folder.clone(), uri).run().refused(code, why);
            assert!(said.err.contains(uri), "no address in: {said}");
        }
    };
    refused(&uri(&folder.join("absent.sock"), ""), FAILED, "No such file");
    let left = folder.join("left.sock");
    drop(UnixListener::bind(&left).expect("the folder is ours"));
    refused(&uri(&left, ""), FAILED, "refused");
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    refused(&format!("nbd://127.0.0.1:{port}/x"), FAILED, "refused");
    refused(
        &uri(&says(&folder, b"220 mail.example ESMTP ready\r\n"), ""),
        FAILED,
        "does not greet as an NBD server",
    );
    fs::remove_file(folder.join("says.sock")).expect("it is there");
    refused(&uri(&says(&folder, b""), ""), FAILED, "closed the connection");
    let file = folder.write("origin.raw", vec![0; MIB]);
    refused(&uri(ours(&file).socket(), "other"), FAILED, "no such export");
    let old = Upstream::nbdkit(&["-o", "memory", "1M"]);
    refused(&old.uri(), FAILED, "old handshake");
    let key = folder.write("keys.psk", "user:0123456789abcdef\n");
    let secret = Upstream::nbdkit(&["--tls=require", &format!("--tls-psk={}", text(&key)), "memory", "1M"]);
    refused(&secret.uri(), FAILED, "wants TLS: use nbds:");
    let empty = Upstream::nbdkit(&["memory", "0"]);
    refused(&empty.uri(), FAILED, "the export has 0 bytes");
}

#[test]
fn an_address_that_is_none_is_refused_with_the_forms_that_are() {
    for (uri, why) in [
        ("nbds://127.0.0.1/x", "give tls_certificates DIR of the origin"),
        ("nbds+unix:///x?socket=/s", "give tls_certificates DIR of the origin"),
        ("nbd+unix:///x", "socket=PATH"),
        ("nbd+unix:///x?socket=s", "path from the root"),
        ("nbd://host:port/x", "give nbd://HOST[:PORT]/EXPORT"),
        ("nbd:host", "give nbd://HOST[:PORT]/EXPORT"),
    ] {
        for stack in [plain, paged, cached] {
            let said = stack(Arc::default(), uri).run();
            assert!(matches!(said.code, Some(FAILED | USAGE)) && said.err.contains(why), "{uri}: {said}");
        }
    }
}

/// Blocks of a write cache belong to the address that they were written for.
#[test]
fn a_write_cache_with_dirty_blocks_is_refused_over_another_export() {
    let config = ["one", "two"].map(|name| {
        format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"memory\", size = \"16M\" }}\n")
    });
    let origins = Launch::serve(Arc::default(), config.concat()).start();
    let folder = Arc::new(Scratch::new());
    let launch =
        |export: &str| cached(folder.clone(), &origins.uri_of(export)).with("--pause-writeback", "0");
    let launch = |export: &str| launch(export).with("--high-watermark", "100").with("--low-watermark", "100");
    let mut server = launch("one").start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = server.client();
    client.write(MIB as u64, &bytes).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    server.signal(Signal::KILL);
    server.ends();
    let before = fs::read(folder.join("cache.raw")).expect("it exists");
    launch("two").run().refused(USAGE, "the cache holds blocks of another origin");
    assert!(
        fs::read(folder.join("cache.raw")).expect("it exists") == before,
        "the refused cache was written"
    );
    let server = launch("one").start();
    assert!(server.client().read(MIB as u64, MIB) == Ok(bytes.clone()), "the dirty blocks are lost");
    server.spillway(&["drain", "d"]).well();
    assert!(Client::open(origins.socket(), "one").read(MIB as u64, MIB) == Ok(bytes));
    assert!(Client::open(origins.socket(), "two").read(MIB as u64, MIB) == Ok(vec![0; MIB]));
}

/// An export that has grown behind a server that was restarted is as large for clients once they ask for it.
#[test]
fn an_export_that_grew_makes_the_device_larger() {
    let folder = Arc::new(Scratch::new());
    let file = sparse(&folder, SIZE);
    let mut upstream = Upstream::nbdkit_file(&file);
    let server = plain(folder, &upstream.uri()).start();
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(0, &bytes).expect("a write");
    upstream.kill();
    File::options().write(true).open(&file).and_then(|file| file.set_len(2 * SIZE as u64)).expect("a file");
    upstream.restart();
    server.says("connected again after");
    server.spillway(&["resize", "d"]).well();
    let mut client = server.client();
    assert_eq!(client.size, 2 * SIZE as u64);
    client.write(2 * (SIZE - MIB) as u64 + MIB as u64, &bytes).expect("a write behind the former end");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    let found = fs::read(&file).expect("it exists");
    assert!(found[..MIB] == bytes && found[2 * SIZE - MIB..] == bytes);
}

/// The server is asked for the size by new connections, which take no request over from the former: a change could land there late,
/// after what the new one has sent.
#[test]
fn a_size_is_asked_for_once_all_requests_are_answered() {
    let folder = Arc::new(Scratch::new());
    let log = folder.join("requests");
    let logfile = format!("logfile={}", text(&log));
    let upstream =
        Upstream::nbdkit(&["--filter=log", "--filter=delay", "memory", "16M", &logfile, "rdelay=2"]);
    let server = plain(folder, &upstream.uri()).start();
    let reads = || fs::read_to_string(&log).unwrap_or_default().matches(" Read id=").count();
    let before = reads();
    thread::scope(|scope| {
        let reader = scope.spawn(|| server.client().read(0, 4096));
        until("the read is at the server", || (reads() > before).then_some(()));
        server.spillway(&["resize", "d"]).well();
        reader.join().expect("no panic").expect("a read");
    });
    assert_eq!(reads(), before + 1, "the read was sent again");
}

/// The device leaves its server politely: one that ends with its last client ends.
#[test]
fn a_device_that_is_stopped_leaves_its_server() {
    let mut upstream = Upstream::nbdkit(&["--filter=exitlast", "memory", "16M"]);
    let mut server = plain(Arc::default(), &upstream.uri()).with("--workers", "4").start();
    server.client().write(0, &[1; 4096]).expect("a write");
    server.spillway(&["stop", "d"]).well();
    assert!(server.ends().success());
    upstream.ends();
}

/// A trim that a server ignores leaves the data, and what clients read is what the server has.
#[test]
fn a_server_that_ignores_discards_keeps_data_and_zeroes_all_the_same() {
    let upstream = Upstream::nbdkit(&["--filter=nozero", "memory", "16M"]);
    let server = plain(Arc::default(), &upstream.uri()).start();
    let mut client = server.client();
    let bytes = pattern::random(1, 0, MIB);
    client.write(0, &bytes).expect("a write");
    client.ask(command::WRITE_ZEROES, 4096, 8192).expect("zeroes");
    let mut wanted = bytes;
    wanted[4096..12288].fill(0);
    assert!(client.read(0, MIB) == Ok(wanted));
    tool::run("nbdinfo", &["--can", "flush", &server.uri()]).well();
    until("the server keeps serving", || client.read(0, 512).ok());
}
