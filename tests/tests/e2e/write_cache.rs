//! The write cache with real clients: killed at any moment, drained, refused, taken over.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::killed::{ROUNDS, Served};
use spillway_tests::raw::Client;
use spillway_tests::tool::run;
use spillway_tests::{Launch, LoopDevice, Scratch, Server, clients, pattern, until};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;

/// Exit codes: wrong usage, no such thing, and in use.
const USAGE: i32 = 2;
const MISSING: i32 = 3;
const BUSY: i32 = 4;

fn disks(origin: usize, cache: usize) -> (Arc<Scratch>, std::path::PathBuf, std::path::PathBuf) {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) =
        (folder.write("origin.raw", vec![0; origin]), folder.write("cache.raw", vec![0; cache]));
    (folder, origin, cache)
}

fn survives_kills(options: &[(&str, &str)]) {
    let (folder, origin, cache) = disks(8 * MIB, 3 * MIB);
    survives_kills_on(folder, &origin, &cache, options);
}

fn survives_kills_on(folder: Arc<Scratch>, origin: &Path, cache: &Path, options: &[(&str, &str)]) {
    let mut written = Served::default();
    for round in 0..ROUNDS {
        written.kill(launch(folder.clone(), origin, cache, options), round);
    }
}

fn launch(folder: Arc<Scratch>, origin: &Path, cache: &Path, options: &[(&str, &str)]) -> Launch {
    let launch = Launch::cache(folder, origin, cache);
    options.iter().fold(launch, |launch, (option, value)| launch.with(option, value))
}

#[test]
fn what_was_flushed_survives_a_kill() {
    survives_kills(&[("--pause-writeback", "0")]);
}

#[test]
fn what_was_flushed_survives_a_kill_under_a_page_cache() {
    survives_kills(&[("--page-cache", "writeback"), ("--page-cache-bytes-max", "2M")]);
}

#[test]
fn what_was_flushed_survives_a_kill_while_nothing_stays() {
    survives_kills(&[("--high-watermark", "0"), ("--low-watermark", "0"), ("--autocommit-time", "5")]);
}

#[test]
fn what_was_flushed_survives_a_kill_in_a_mapping() {
    survives_kills(&[("--mode", "p")]);
}

/// A kill leaves dirty pages to the kernel, which writes them later: here they are dropped, as by a power cut. Each server
/// starts on a copy of what had reached the file below the cache's device.
#[test]
fn what_was_flushed_survives_the_loss_of_a_mapping_s_dirty_pages() {
    let (folder, origin, mut cache) = disks(8 * MIB, 3 * MIB);
    let mut written = Served::default();
    for round in 0..ROUNDS {
        let device = LoopDevice::over(&cache);
        let options = [("--mode", "p"), ("--low-watermark", "10")];
        written.kill(launch(folder.clone(), &origin, device.path(), &options), round);
        device.settles();
        let copy = folder.join(&format!("cache-{round}.raw"));
        fs::copy(&cache, &copy).expect("there is room for it");
        cache = copy;
    }
}

#[test]
fn what_was_flushed_survives_a_kill_in_a_mapping_of_tmpfs() {
    let (folder, origin, _) = disks(8 * MIB, MIB);
    let cache = std::path::PathBuf::from(format!("/dev/shm/spillway-test-{}", std::process::id()));
    fs::write(&cache, vec![0; 3 * MIB]).expect("tmpfs takes a file");
    survives_kills_on(folder, &origin, &cache, &[("--mode", "p"), ("--low-watermark", "10")]);
    fs::remove_file(&cache).expect("it is there");
}

/// What was acknowledged before the drain, while it ran and after it is on the origin, without a flush of the clients.
#[test]
fn a_drain_completes_the_origin_while_clients_write() {
    let (folder, origin, cache) = disks(8 * MIB, 12 * MIB);
    let mut server = Launch::cache(folder, &origin, &cache).with("--name", "c").start();
    let mut served = Served::default();
    for round in 1..=4 {
        served.write(&server, 2 * round, 200);
        let written = served.write_during(&server, 2 * round + 1, || {
            let said = server.spillway(&["drain", "c"]).well();
            assert!(said.out.contains("origin is complete, the cache may be removed"), "{said}");
        });
        assert!(written.iter().all(|&steps| steps > 0), "a writer wrote nothing meanwhile: {written:?}");
        assert_eq!(dirty_entries(&cache), 0);
        served.check(&fs::read(&origin).expect("the origin exists"));
        server.spillway(&["set", "c", "cleaner", "0"]).well();
    }
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
}

/// What was acknowledged lies in memory alone when the drain begins.
#[test]
fn a_drain_begins_with_the_page_cache() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let paged = Launch::cache(folder, &origin, &cache).with("--page-cache", "writeback");
    let mut server = paged.with("--page-cache-bytes-max", "16M").with("--name", "c").start();
    let mut client = server.client();
    let bytes = pattern::random(5, 0, 2 * MIB);
    client.write(MIB as u64, &bytes).expect("a write");
    assert!(server.value("c", "dirty_bytes").as_u64() > Some(0), "nothing is in memory alone");
    server.spillway(&["drain", "c"]).well();
    server.signal(Signal::KILL);
    server.ends();
    let found = fs::read(&origin).expect("the origin exists");
    assert!(found[MIB..3 * MIB] == bytes, "the origin is not complete");
}

/// Entries in use, as the documented format has them.
fn dirty_entries(cache: &Path) -> usize {
    let bytes = fs::read(cache).expect("the cache exists");
    assert_eq!(bytes[..8], [0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0]);
    let n_blocks = u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes")) as usize;
    bytes[64..].chunks_exact(16).take(n_blocks).filter(|entry| entry[8..] != [0xff; 8]).count()
}

#[test]
fn a_device_without_a_cache_has_nothing_to_drain() {
    let server = Launch::ram("16M").with("--name", "r").start();
    server.spillway(&["drain", "r"]).refused(MISSING, "has no write cache");
    server.spillway(&["drain", "x"]).refused(MISSING, "no server has a device");
}

#[test]
fn what_was_committed_waits_in_the_cache_for_the_next_server() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let launch = Launch::cache(folder, &origin, &cache);
    let bytes = pattern::random(6, 0, MIB);
    let mut server = launch.clone().start();
    server.client().write(0, &bytes).expect("a write");
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    assert_eq!(dirty_entries(&cache), MIB / BLOCK);
    assert!(fs::read(&origin).expect("the origin exists").iter().all(|byte| *byte == 0));
    let server = launch.start();
    server.says("256 of them dirty");
    assert!(server.client().read(0, MIB).expect("a read") == bytes);
}

#[test]
fn real_clients_verify_through_a_cache_that_is_too_small() {
    let (folder, origin, cache) = disks(64 * MIB, 4 * MIB);
    let server = Launch::cache(folder, &origin, &cache).with("--pause-writeback", "0").start();
    clients::images_round_trip(&server);
    clients::mixed_writes_verify_also_after_a_reconnect(&server);
    clients::copies_round_trip(&server);
    clients::trims_verify(&server);
}

#[test]
fn overlapping_writes_are_whole() {
    let (folder, origin, cache) = disks(MIB, MIB / 8);
    let launch = Launch::cache(folder, &origin, &cache).with("--pause-writeback", "0");
    clients::overlapping_writes_are_whole(&launch.start());
}

fn capabilities(server: &Server) -> String {
    run("nbdinfo", &["--json", &server.uri()]).well().out
}

#[test]
fn a_cache_that_commits_each_write_advertises_no_volatile_cache() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let launch = Launch::cache(folder, &origin, &cache);
    let server = launch.clone().start();
    assert!(capabilities(&server).contains("\"can_flush\": true"));
    drop(server);
    let mut server = launch.with("--ack", "committed").start();
    assert!(capabilities(&server).contains("\"can_flush\": false"));
    server.client().write(0, &[7; BLOCK]).expect("a write");
    server.signal(Signal::KILL);
    server.ends();
    assert_eq!(dirty_entries(&cache), 1);
}

#[test]
fn a_cache_is_refused_in_words() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let launch = Launch::cache(folder.clone(), &origin, &cache);
    let first = launch.clone().start();
    let second = Launch::cache(Arc::new(Scratch::new()), &folder.write("other.raw", vec![0; MIB]), &cache);
    second.with("--name", "other").run().refused(BUSY, &format!("in use (spillway (pid {}))", first.pid()));
    drop(first);
    launch.clone().with("--block-size", "512").run().refused(USAGE, "--block-size 4096");
    launch.clone().with("--low-watermark", "60").run().refused(USAGE, "low_watermark 60 is above");
    let foreign = folder.write("foreign.raw", pattern::random(1, 0, MIB));
    Launch::cache(folder.clone(), &origin, &foreign).run().refused(USAGE, "--create");
    assert!(fs::read(&foreign).expect("it exists") == pattern::random(1, 0, MIB), "it was touched");
    let tiny = folder.write("tiny.raw", vec![0; BLOCK]);
    Launch::cache(folder.clone(), &origin, &tiny).run().refused(1, "has no room for a block");
    Launch::cache(folder.clone(), &origin, &folder.join("none")).run().refused(1, "none");
}

#[test]
fn another_origin_is_refused_while_the_cache_holds_something() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let other = folder.write("other.raw", vec![0; 16 * MIB]);
    let mut server = Launch::cache(folder.clone(), &origin, &cache).start();
    server.client().write(0, &[1; BLOCK]).expect("a write");
    server.signal(Signal::TERM);
    server.ends();
    let wrong = Launch::cache(folder.clone(), &other, &cache);
    wrong.run().refused(USAGE, "blocks of another origin");
    let server = Launch::cache(folder.clone(), &origin, &cache).with("--name", "c").start();
    server.spillway(&["drain", "c"]).well();
    drop(server);
    let mut server = wrong.clone().start();
    server.client().write(0, &[2; BLOCK]).expect("a write");
    server.signal(Signal::TERM);
    server.ends();
    let moved = Launch::cache(folder, &origin, &cache);
    moved.run().refused(USAGE, "--recover");
    let server = moved.flag("--recover").start();
    assert_eq!(server.client().read(0, BLOCK).expect("a read"), [2; BLOCK]);
}

#[test]
fn an_origin_that_shrank_is_refused() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let launch = Launch::cache(folder, &origin, &cache);
    let mut server = launch.clone().start();
    server.client().write(15 * MIB as u64, &[1; BLOCK]).expect("a write");
    server.signal(Signal::TERM);
    server.ends();
    let file = fs::OpenOptions::new().write(true).open(&origin).expect("it exists");
    file.set_len(8 * MIB as u64).expect("it can shrink");
    launch.run().refused(USAGE, "which has only 2048");
    assert_eq!(dirty_entries(&cache), 1);
}

/// None of its blocks lies behind the new end.
#[test]
fn an_origin_that_shrank_behind_what_a_cache_holds_is_refused_until_it_is_as_large_again() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let launch = Launch::cache(folder, &origin, &cache);
    let mut server = launch.clone().start();
    server.client().write(0, &[1; BLOCK]).expect("a write");
    server.signal(Signal::TERM);
    server.ends();
    let file = fs::OpenOptions::new().write(true).open(&origin).expect("it exists");
    file.set_len(8 * MIB as u64).expect("it can shrink");
    launch.run().refused(USAGE, "the origin has 8388608 bytes, and had 16777216");
    assert_eq!(dirty_entries(&cache), 1);
    file.set_len(24 * MIB as u64).expect("it can grow");
    let server = launch.start();
    let mut client = server.client();
    assert_eq!((client.size, client.read(0, BLOCK)), (24 * MIB as u64, Ok(vec![1; BLOCK])));
}

#[test]
fn the_kernels_options_and_messages_are_attributes() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let server =
        Launch::cache(folder, &origin, &cache).with("--name", "c").with("--max-age", "60000").start();
    let shows = |name: &str| server.spillway(&["get", "c", name]).well().out.trim().to_owned();
    assert_eq!((shows("high_watermark"), shows("max_age")), ("50".into(), "60000".into()));
    server.spillway(&["set", "c", "high_watermark", "101"]).refused(USAGE, "0 to 100");
    server.spillway(&["set", "c", "message", "nonsense"]).refused(USAGE, "clear_stats");
    server.client().write(0, &[1; BLOCK]).expect("a write");
    assert_eq!(shows("status").split(' ').count(), 14);
    server.spillway(&["set", "c", "message", "flush"]).well();
    until("the copy", || (shows("dirty_blocks") == "0").then_some(()));
    assert_eq!(shows("cleaner"), "0");
    server.spillway(&["set", "c", "message", "clear_stats"]).well();
    assert_eq!(shows("writes"), "0");
    assert!(shows("status").starts_with("0 "));
}

/// The upper of two caches holds nothing, the lower one's origin is slow: nothing of it is dirty once the drain has ended.
#[test]
fn a_drain_ends_with_the_last_of_two_caches() {
    let (folder, origin, lower) = disks(8 * MIB, 8 * MIB);
    let upper = folder.write("upper.raw", vec![0; 8 * MIB]);
    let config = format!(
        "[[device]]\nname = \"c\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
         layers = [{{ kind = \"rate\", bytes_per_second = 2097152 }}, {{ kind = \"write_cache\", path = {lower:?} }}, \
         {{ kind = \"write_cache\", path = {upper:?}, cleaner = true }}]\n"
    );
    let mut server = Launch::serve(folder, config).start();
    let bytes = pattern::random(6, 0, 3 * MIB);
    Client::open(server.socket(), "c").write(0, &bytes).expect("a write");
    let dirty = |part: &str| server.value("c", &format!("{part}.dirty_blocks")).as_u64();
    assert_eq!((dirty("write_cache"), dirty("write_cache2")), (Some(0), Some(768)));
    server.spillway(&["drain", "c"]).well();
    assert_eq!((dirty("write_cache"), dirty("write_cache2")), (Some(0), Some(0)));
    server.signal(Signal::KILL);
    server.ends();
    assert!(fs::read(&origin).expect("the origin exists")[..3 * MIB] == bytes, "the origin is not complete");
}

/// It is being written back to a slow origin: another server has its files at once.
#[test]
fn the_files_of_a_device_that_is_stopped_are_free_while_its_server_goes_on() {
    let (folder, origin, cache) = disks(16 * MIB, 16 * MIB);
    let config = format!(
        "[[device]]\nname = \"c\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
         layers = [{{ kind = \"rate\", bytes_per_second = 1048576 }}, {{ kind = \"write_cache\", path = {cache:?} }}]\n\
         [[device]]\nname = \"r\"\norigin = {{ kind = \"zram\", disksize = \"8M\" }}\n"
    );
    let server = Launch::serve(folder.clone(), config).start();
    let bytes = pattern::random(7, 0, 6 * MIB);
    Client::open(server.socket(), "c").write(0, &bytes).expect("a write");
    server.spillway(&["set", "c", "cleaner", "1"]).well();
    until("write-back", || (server.value("c", "writeback_blocks").as_u64() > Some(0)).then_some(()));
    server.spillway(&["stop", "c"]).well();
    let other = Launch::cache(folder, &origin, &cache).with("--name", "c").start();
    assert!(other.client().read(0, 6 * MIB) == Ok(bytes), "something is lost");
}
