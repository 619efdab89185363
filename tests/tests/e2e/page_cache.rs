//! Page caches with real clients: killed at any moment, below a file system with a database. As root: loop devices need it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Signal;
use spillway_tests::killed::{ROUNDS, Served};
use spillway_tests::{Launch, LoopDevice, Scratch, pattern, tool, until};

const MIB: u64 = 1 << 20;

fn sparse(folder: &Scratch, name: &str, size: u64) -> PathBuf {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(size)).expect("a sparse file");
    path
}

/// With a page cache of so many bytes.
fn paged(launch: Launch, bytes: &str) -> Launch {
    launch.with("--page-cache", "writeback").with("--page-cache-bytes-max", bytes)
}

fn disk(size: u64, bytes: &str) -> Launch {
    let folder = Arc::new(Scratch::new());
    let origin = sparse(&folder, "origin", size);
    paged(Launch::disk(folder, &origin), bytes)
}

#[test]
fn what_was_flushed_survives_a_kill() {
    let (launch, mut written) = (disk(8 * MIB, "2M"), Served::default());
    (0..ROUNDS).for_each(|round| written.kill(launch.clone(), round));
}

/// What a file system on a loop device acknowledged before its server was killed.
#[derive(Default)]
struct Acknowledged {
    /// Files that were synced, and rows that were committed.
    files: AtomicU64,
    rows: AtomicU64,
}

fn file_content(number: u64) -> Vec<u8> {
    pattern::half_random(number, 0, 1000 + 4099 * number as usize % 100_000)
}

impl Acknowledged {
    /// Makes files and syncs each of them, until that fails.
    fn sync_files(&self, place: &Path) -> io::Result<()> {
        for number in 0.. {
            let path = place.join(format!("file{number}"));
            fs::write(&path, file_content(number))?;
            File::open(&path)?.sync_all()?;
            File::open(place)?.sync_all()?;
            self.files.store(number + 1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Commits rows one by one, until that fails. With `full` the unlinked journal of the last one, which commits it, may come back.
    fn commit_rows(&self, database: &Path) {
        let insert = |row: u64| {
            let words =
                format!("pragma synchronous = extra; insert into rows values ({row}, hex(zeroblob(2000)));");
            sqlite(database, &words).code
        };
        for row in 0.. {
            if insert(row) != Some(0) {
                return;
            }
            self.rows.store(row + 1, Ordering::SeqCst);
        }
    }

    fn check(&self, place: &Path, database: &Path) {
        for number in 0..self.files.load(Ordering::SeqCst) {
            let found = fs::read(place.join(format!("file{number}"))).expect("a file that was synced");
            assert!(found == file_content(number), "file{number} was synced and is another");
        }
        assert_eq!(sqlite(database, "pragma integrity_check;").well().out, "ok\n");
        let rows: u64 =
            sqlite(database, "select count(*) from rows;").well().out.trim().parse().expect("rows");
        let committed = self.rows.load(Ordering::SeqCst);
        assert!(
            (committed..=committed + 1).contains(&rows),
            "{rows} rows of which {committed} were committed"
        );
    }
}

fn sqlite(database: &Path, words: &str) -> tool::Said {
    tool::run("sqlite3", &["-bail", database.to_str().expect("text"), words])
}

/// Kills the server of a file system in use, and looks at the file system with the next one.
fn a_kill_loses_nothing_that_was_synced(launch: Launch, device: &str) {
    let launch = launch.mounted();
    let mut server = launch.clone().start();
    let folder = Scratch::new();
    let (place, database) = (folder.path().to_str().expect("text"), folder.join("rows.db"));
    let lower = LoopDevice::direct(&server.file(device));
    let path = lower.path().to_str().expect("text");
    tool::run("/usr/sbin/mkfs.ext4", &["-q", "-F", path]).well();
    tool::run("mount", &[path, place]).well();
    sqlite(&database, "create table rows (number integer, content text);").well();
    let acknowledged = Acknowledged::default();
    std::thread::scope(|scope| {
        scope.spawn(|| acknowledged.sync_files(folder.path()).expect_err("its disk goes"));
        scope.spawn(|| acknowledged.commit_rows(&database));
        let enough = || {
            let [files, rows] =
                [&acknowledged.files, &acknowledged.rows].map(|count| count.load(Ordering::SeqCst));
            (files >= 25 && rows >= 25).then_some(())
        };
        until("files and rows are there", enough);
        server.signal(Signal::KILL);
    });
    server.ends();
    // Its disk is gone: what it says about that is no matter.
    tool::run("umount", &["--lazy", place]);
    drop(lower);
    let server = launch.start();
    let lower = LoopDevice::direct(&server.file(device));
    let path = lower.path().to_str().expect("text");
    tool::run("mount", &[path, place]).well();
    acknowledged.check(folder.path(), &database);
    tool::unmount(place);
    tool::run("/usr/sbin/e2fsck", &["-fn", path]).well();
    lower.settles();
}

#[test]
fn a_file_system_on_a_page_cache_keeps_what_was_synced_when_its_server_is_killed() {
    a_kill_loses_nothing_that_was_synced(disk(256 * MIB, "16M"), "disk0");
}

#[test]
fn a_file_system_on_a_page_cache_over_a_write_cache_keeps_it_too() {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) = (sparse(&folder, "origin", 256 * MIB), sparse(&folder, "cache", 32 * MIB));
    a_kill_loses_nothing_that_was_synced(paged(Launch::cache(folder, &origin, &cache), "16M"), "cache0");
}

/// Bytes of the origin that are not what was written there.
fn missing(origin: &Path, data: &[u8]) -> usize {
    let found = fs::read(origin).expect("the origin is there");
    let blocks = data.chunks(4096).zip(found.chunks(4096));
    blocks.filter(|(written, found)| written != found).count() * 4096
}

#[test]
fn a_kill_takes_no_more_than_what_may_be_at_risk() {
    const MAX: usize = 1 << 20;
    let folder = Arc::new(Scratch::new());
    let origin = sparse(&folder, "origin", 64 * MIB);
    let launch = paged(Launch::disk(folder, &origin), "32M").with("--at-risk-bytes-max", MAX.to_string());
    let mut server = launch.start();
    let mut client = server.client();
    let data = pattern::random(3, 0, 24 * MIB as usize);
    for (piece, bytes) in (0..).zip(data.chunks(96 << 10)) {
        client.write(piece * (96 << 10), bytes).expect("a write");
        let said = server.spillway(&["get", "disk0", "at_risk_bytes"]).well().out;
        assert!(said.trim().parse::<usize>().expect("a number") <= MAX, "{said} bytes are at risk");
    }
    server.signal(Signal::KILL);
    server.ends();
    let lost = missing(&origin, &data);
    assert!(lost <= MAX, "{lost} bytes are lost");
}

#[test]
fn what_is_in_memory_only_has_no_limit_of_what_is_at_risk() {
    const USAGE: i32 = 2;
    let server = Launch::ram("16M").start();
    let limit = |name: &str| server.spillway(&["set", "ram0", name, "4096"]).refused(USAGE, "in memory only");
    let _ = ["at_risk_bytes_max", "at_risk_seconds_max"].map(limit);
}
