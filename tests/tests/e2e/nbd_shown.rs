//! What a configuration file and attributes say of an NBD origin, and what its blocks and its size mean.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::{Client, command, flag};
use spillway_tests::{Launch, Upstream, pattern, text};

use crate::nbd_outage::{MIB, SIZE, disk, file};
use crate::rbd::lazy;

/// Exit code: wrong usage.
const USAGE: i32 = 2;

#[test]
fn a_configuration_file_names_an_export() {
    let (folder, file) = file();
    let upstream = Upstream::nbdkit_file(&file);
    let text =
        format!("[[device]]\nname = \"d\"\norigin = {{ kind = \"file\", path = {:?} }}\n", upstream.uri());
    let mut server = Launch::serve(folder, text).start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = Client::open(server.socket(), "d");
    client.write(MIB as u64, &bytes).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    assert!(fs::read(&file).expect("it exists")[MIB..2 * MIB] == bytes, "{}", server.log());
    assert!(client.read(MIB as u64, MIB).as_ref() == Ok(&bytes), "{}", server.log());
    assert_eq!(server.value("d", "connection"), "up");
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
}

/// A write over an older one and a durable write add nothing.
#[test]
fn acknowledged_writes_count_as_unflushed_until_a_flush() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &[]);
    let server = disk(&upstream.uri()).start();
    let shows = |bytes: u64| assert_eq!(server.value("d", "unflushed_bytes"), bytes, "{}", server.log());
    let mut client = server.client();
    shows(0);
    client.write(0, &[1; 8192]).expect("a write");
    shows(8192);
    client.write(MIB as u64, &[2; 4096]).expect("a write");
    client.write(4096, &[3; 4096]).expect("a write over an older one");
    shows(12288);
    client.write_with(flag::FUA, 2 * MIB as u64, &[4; 4096]).expect("a durable write");
    shows(12288);
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    shows(0);
}

/// A server that takes another time for each kind of request. One that is taken for another is too short for one of them.
#[test]
fn latencies_are_those_of_each_kind_of_request() {
    let (_folder, file) = file();
    let times = [("read", 90_000), ("write", 60_000), ("flush", 30_000)];
    let delays = times.map(|(kind, micros)| format!("{kind}_us = {micros}")).join(", ");
    let text = format!(
        "[[device]]\nname = \"theirs\"\norigin = {{ kind = \"file\", path = {file:?} }}\n\
         layers = [{{ kind = \"delay\", {delays} }}]\n"
    );
    let theirs = Launch::serve(Arc::default(), text).start();
    let server = disk(&theirs.uri_of("theirs")).start();
    let mut client = server.client();
    client.write(0, &[1; 4096]).expect("a write");
    client.read(0, 4096).expect("a read");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    for (kind, micros) in times {
        let found = server.value("d", &format!("{kind}_latency"));
        assert!(found.as_u64() >= Some(micros), "{kind}: {found} us of at least {micros}");
    }
}

/// It refuses whatever is no whole block of it, or longer than it says.
#[test]
fn a_server_with_large_blocks_gets_whole_ones() {
    let (folder, file) = file();
    let upstream = Upstream::nbdkit(&[
        "--filter=blocksize-policy",
        "file",
        text(&file),
        "blocksize-minimum=4096",
        "blocksize-preferred=64K",
        "blocksize-maximum=1M",
        "blocksize-error-policy=error",
    ]);
    let server = disk(&upstream.uri()).start();
    let mut client = server.client();
    let mut content = vec![0; SIZE];
    for (seed, at, len) in [(1, 7 * 512, 1024), (2, 4 * MIB - 512, 2 * MIB), (3, SIZE - 512, 512)] {
        let bytes = pattern::random(seed, 0, len);
        client.write(at as u64, &bytes).expect("a write");
        content[at..at + len].copy_from_slice(&bytes);
    }
    client.ask(command::WRITE_ZEROES, 4 * MIB as u64, 512).expect("zeroes");
    content[4 * MIB..4 * MIB + 512].fill(0);
    assert!(server.content() == content, "{}", server.log());
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    assert!(fs::read(&file).expect("it exists") == content, "{}", server.log());
    let cache = folder.write("cache.raw", vec![0; 8 * MIB]);
    let launch = Launch::cache(folder, Path::new(&upstream.uri()), &cache).with("--block-size", "512");
    launch.run().refused(USAGE, "give a power of two from 4096");
}

/// Another server may have the address by now. No block of the cache lies behind either end.
#[test]
fn a_write_cache_with_dirty_blocks_is_refused_over_a_smaller_export_and_follows_a_larger_one() {
    let (folder, file) = file();
    let mut upstream = Upstream::nbdkit_file(&file);
    let cache = folder.write("cache.raw", vec![0; 8 * MIB]);
    let launch = lazy(Launch::cache(folder, Path::new(&upstream.uri()), &cache).with("--name", "d"));
    let bytes = pattern::random(1, 0, MIB);
    let mut server = launch.clone().start();
    server.client().write(0, &bytes).expect("a write");
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
    let mut resize = |bytes: usize| {
        upstream.kill();
        let resized = File::options().write(true).open(&file).and_then(|file| file.set_len(bytes as u64));
        resized.expect("a file");
        upstream.restart();
    };
    resize(SIZE / 2);
    let before = fs::read(&cache).expect("it exists");
    launch.run().refused(USAGE, "the origin has 8388608 bytes, and had 16777216");
    assert!(fs::read(&cache).expect("it exists") == before, "the refused cache was written");
    resize(2 * SIZE);
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.size, 2 * SIZE as u64);
    assert!(client.read(0, MIB).as_ref() == Ok(&bytes), "the dirty blocks are lost");
    server.spillway(&["drain", "d"]).well();
    assert!(fs::read(&file).expect("it exists")[..MIB] == bytes);
}
