//! What another program finds in an origin by itself, once a server has let go of it: a whole file system with the files that were put there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::{Launch, Scratch, pattern, tool};

const MIB: usize = 1 << 20;

/// Bytes of an origin.
const SIZE: u64 = 64 << 20;

/// How a server ends once there is a file system in its device.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Stopped,
    /// Killed, started again and drained.
    Killed,
}

fn sparse(folder: &Scratch, name: &str, size: u64) -> PathBuf {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(size)).expect("a sparse file");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// A write cache that is smaller than what is written.
fn cached(folder: &Arc<Scratch>) -> Launch {
    let (origin, cache) = (folder.join("origin"), folder.join("cache"));
    Launch::cache(folder.clone(), &origin, &cache).with("--name", "d")
}

/// With a page cache that holds everything.
fn paged(folder: &Arc<Scratch>) -> Launch {
    let launch = Launch::disk(folder.clone(), &folder.join("origin")).with("--name", "d");
    launch.with("--page-cache", "writeback").with("--page-cache-bytes-max", "128M")
}

fn bare(folder: &Arc<Scratch>) -> Launch {
    Launch::disk(folder.clone(), &folder.join("origin")).with("--name", "d").with("--page-cache", "none")
}

const LAUNCHES: [fn(&Arc<Scratch>) -> Launch; 3] = [bare, paged, cached];

/// Files of many sizes, some in a folder, as they are to be found again.
fn put_files(folder: &Path) {
    fs::create_dir_all(folder.join("deep/er")).expect("a folder");
    for number in 0..60 {
        let place = if number % 3 == 0 { folder.join("deep/er") } else { folder.to_owned() };
        let content = pattern::half_random(number, 0, 1 + (number as usize * 7919) % (MIB / 2));
        fs::write(place.join(format!("file{number}")), content).expect("a file");
    }
}

/// Makes a file system with files in the file of a device, changes it, and flushes.
fn make(device: &Path, files: &Path) {
    let device = text(device);
    tool::run("/usr/sbin/mke2fs", &["-q", "-F", "-t", "ext4", "-d", text(files), device]).well();
    let removed = ["deep/er/file3", "file4"];
    let orders = removed.map(|name| format!("rm {name}")).join("\n") + "\nmkdir late\nwrite ";
    let late = files.join("late");
    fs::create_dir(&late).expect("a folder");
    fs::write(late.join("added"), pattern::half_random(99, 0, 3 * MIB)).expect("a file");
    let orders = format!("{orders}{} late/added\n", text(&late.join("added")));
    removed.iter().for_each(|name| fs::remove_file(files.join(name)).expect("it is there"));
    let commands = Scratch::new();
    let commands = commands.write("commands", orders);
    let said = tool::run("/usr/sbin/debugfs", &["-w", "-f", text(&commands), device]).well();
    assert!(!said.err.contains("error"), "{said}");
    File::open(device).and_then(|file| file.sync_all()).expect("a flush");
}

/// The file system has no fault, and the files are as they were put there.
fn check(origin: &Path, files: &Path) {
    tool::run("/usr/sbin/e2fsck", &["-fn", text(origin)]).well();
    let found = Scratch::new();
    let order = format!("rdump / {}", text(found.path()));
    tool::run("/usr/sbin/debugfs", &["-R", &order, text(origin)]).well();
    let _ = fs::remove_dir(found.join("lost+found"));
    tool::run("diff", &["--recursive", text(files), text(found.path())]).well();
}

/// A file system made by a mounted server, found by itself in the origin and, after a kill, over NBD too.
fn exam(launch: fn(&Arc<Scratch>) -> Launch, end: End) {
    for driver in ["io_uring", "poll"] {
        let (folder, files) = (Arc::new(Scratch::new()), Scratch::new());
        let origin = sparse(&folder, "origin", SIZE);
        sparse(&folder, "cache", SIZE / 4);
        put_files(files.path());
        let launch = || launch(&folder).with("--driver", driver);
        let mut server = launch().mounted().start();
        make(&server.file("d"), files.path());
        if end == End::Killed {
            server.signal(Signal::KILL);
            server.ends();
            drop(server);
            server = launch().start();
            let copy = folder.join("copy");
            tool::run("nbdcopy", &[&server.uri(), text(&copy)]).well();
            check(&copy, files.path());
        }
        let drained = server.spillway(&["drain", "d"]);
        assert!(drained.code == Some(0) || drained.err.contains("drain"), "{drained}");
        server.signal(Signal::TERM);
        assert_eq!(server.ends().code(), Some(0), "{}", server.log());
        check(&origin, files.path());
    }
}

#[test]
fn a_file_system_is_whole_in_the_origin_of_a_stopped_server() {
    LAUNCHES.into_iter().for_each(|launch| exam(launch, End::Stopped));
}

#[test]
fn a_file_system_is_whole_in_the_origin_of_a_killed_server() {
    LAUNCHES.into_iter().for_each(|launch| exam(launch, End::Killed));
}
