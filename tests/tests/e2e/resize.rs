//! `spillway resize`: devices that become larger under their clients. As root, for loop devices.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use spillway_tests::raw::{command, errno};
use spillway_tests::{Launch, LoopDevice, Scratch, Server, pattern, tool};

const MIB: usize = 1 << 20;

/// Exit codes as documented.
const USAGE: i32 = 2;
const MISSING: i32 = 3;
const BUSY: i32 = 4;

fn set_len(path: &Path, bytes: usize) {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.and_then(|file| file.set_len(bytes as u64)).expect("a sparse file");
}

fn size_of(server: &Server) -> u64 {
    server.client().size
}

/// Bytes of a block device, as the kernel has it.
fn capacity(device: &Path) -> u64 {
    let name = device.file_name().expect("a device").to_string_lossy();
    let sectors = fs::read_to_string(format!("/sys/block/{name}/size")).expect("a block device");
    sectors.trim().parse::<u64>().expect("a number") * 512
}

#[test]
fn a_ram_disk_grows_under_its_clients_and_shrinks_never() {
    let server = Launch::ram("4M").mounted().start();
    let file = OpenOptions::new().read(true).write(true).open(server.file("ram0")).expect("a file");
    let mut before = server.client();
    let data = pattern::random(1, 0, 4 * MIB);
    before.write(0, &data).expect("a write");
    server.spillway(&["resize", "ram0", "64M"]).well();
    assert_eq!(file.metadata().expect("an open file").len(), 64 << 20, "the file has it at once");
    assert_eq!(before.read(4 << 20, 4096), Ok(vec![0; 4096]), "an open connection has it, too");
    assert_eq!(before.read(64 << 20, 4096), Err(errno::EINVAL), "past the end");
    assert_eq!(before.read(0, 4 * MIB), Ok(data));
    let mut after = server.client();
    assert_eq!(after.size, 64 << 20);
    after.write(63 << 20, &[7; MIB]).expect("a write to what is new");
    let mut seen = [0; 4096];
    file.read_exact_at(&mut seen, 63 << 20).expect("a read");
    assert_eq!(seen, [7; 4096]);
    server.spillway(&["resize", "ram0", "32M"]).refused(USAGE, "cannot shrink");
    server.spillway(&["set", "ram0", "disksize", "32M"]).refused(BUSY, "only grows");
    server.spillway(&["set", "ram0", "disksize", "1G"]).well();
    server.spillway(&["resize", "ram0", "1G"]).well();
    server.spillway(&["resize", "ram0"]).refused(USAGE, "give one");
    server.spillway(&["resize", "ram0", "17T"]).refused(USAGE, "16T");
    server.spillway(&["resize", "other", "1G"]).refused(MISSING, "no server");
    assert_eq!((size_of(&server), file.metadata().expect("a file").len()), (1 << 30, 1 << 30));
}

#[test]
fn a_device_without_a_size_gets_one() {
    let server = Launch::ram("1M").start();
    server.spillway(&["reset", "ram0"]).well();
    server.spillway(&["resize", "ram0", "2M"]).well();
    assert_eq!(size_of(&server), 2 << 20);
}

/// A size that there is no memory for is refused before anything is done for it.
#[test]
fn a_refused_size_leaves_the_spill_file_as_it_was() {
    let folder = Scratch::new();
    let spill = folder.join("pages.spill");
    let server = Launch::ram("1M").with("--memory", "64M").start();
    server.spillway(&["reset", "ram0"]).well();
    server.spillway(&["set", "ram0", "backing_dev", spill.to_str().expect("text")]).well();
    let len = || fs::metadata(&spill).expect("a file").len();
    let made = len();
    let refused = server.spillway(&["set", "ram0", "disksize", "8T"]);
    assert!(refused.code != Some(0) && refused.err.contains("memory"), "{}", refused.err);
    assert_eq!((len(), server.value("ram0", "disksize").as_u64()), (made, Some(0)));
    server.spillway(&["set", "ram0", "disksize", "256M"]).well();
    server.client().write(0, &pattern::random(2, 0, 4 * MIB)).expect("a write");
    server.spillway(&["set", "ram0", "writeback", "page_indexes=0-1023"]).well();
    assert_eq!(server.value("ram0", "bd_stat")["bd_count"].as_u64(), Some(1024));
}

#[test]
fn a_disk_grows_with_its_file() {
    ["none", "writeback"].into_iter().for_each(grows_with_its_file);
}

fn grows_with_its_file(page_cache: &str) {
    let folder = Arc::new(Scratch::new());
    let origin = folder.join("origin");
    set_len(&origin, 4 * MIB);
    let server = Launch::disk(folder, &origin).with("--page-cache", page_cache).start();
    set_len(&origin, 8 * MIB);
    assert_eq!(size_of(&server), 4 << 20, "not before it is asked for");
    server.spillway(&["resize", "disk0", "6M"]).refused(USAGE, "there are 8388608 bytes, not 6291456");
    server.spillway(&["resize", "disk0", "8388609"]).refused(USAGE, "");
    assert_eq!(origin.metadata().expect("a file").len(), 8 << 20, "what is refused changes nothing");
    server.spillway(&["resize", "disk0", "16M"]).well();
    assert_eq!((size_of(&server), origin.metadata().expect("a file").len()), (16 << 20, 16 << 20));
    let mut client = server.client();
    client.write(7 << 20, &[9; 4096]).expect("what is new");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    let mut seen = [0; 4096];
    File::open(&origin).and_then(|file| file.read_exact_at(&mut seen, 7 << 20)).expect("a read");
    assert_eq!(seen, [9; 4096]);
    set_len(&origin, 2 * MIB);
    server.spillway(&["resize", "disk0"]).refused(USAGE, "cut off");
}

/// The page cache has blocks of 4096 bytes, which fitted what the file was when the server started.
#[test]
fn a_disk_grows_to_no_part_of_a_block_of_its_page_cache() {
    for page_cache in ["none", "writeback"] {
        let folder = Arc::new(Scratch::new());
        let origin = folder.join("origin");
        set_len(&origin, 16 * MIB);
        let server = Launch::disk(folder, &origin).with("--page-cache", page_cache).start();
        set_len(&origin, 20_974_080);
        for arguments in [&["resize", "disk0"][..], &["resize", "disk0", "20974080"]] {
            if page_cache == "none" {
                server.spillway(arguments).well();
                assert_eq!(size_of(&server), 20_974_080);
            } else {
                server.spillway(arguments).refused(USAGE, "20975616 bytes long");
                assert_eq!(size_of(&server), 16 << 20, "nothing has grown");
            }
        }
        if page_cache == "writeback" {
            set_len(&origin, 16 * MIB);
            server.spillway(&["resize", "disk0"]).well();
        }
        set_len(&origin, 20_975_616);
        server.spillway(&["resize", "disk0"]).well();
        assert_eq!(size_of(&server), 20_975_616);
    }
}

#[test]
fn a_disk_grows_after_its_block_device() {
    let folder = Arc::new(Scratch::new());
    let image = folder.join("image");
    set_len(&image, 4 * MIB);
    let device = LoopDevice::over(&image);
    let server = Launch::disk(folder.clone(), device.path()).start();
    set_len(&image, 16 * MIB);
    tool::run("losetup", &[Path::new("--set-capacity"), device.path()]).well();
    server.spillway(&["resize", "disk0", "32M"]).refused(USAGE, "there are 16777216 bytes, not 33554432");
    server.spillway(&["resize", "disk0"]).well();
    assert_eq!(size_of(&server), 16 << 20);
    server.client().write(15 << 20, &[1; MIB]).expect("what is new");
}

/// The cache knows its larger origin, whatever becomes of the server.
#[test]
fn a_cache_grows_with_its_origin_and_is_found_again_after_a_kill() {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) = (folder.join("origin"), folder.join("cache"));
    set_len(&origin, 8 * MIB);
    set_len(&cache, 8 * MIB);
    let launch = Launch::cache(folder, &origin, &cache).with("--high-watermark", "100");
    let launch = launch.with("--low-watermark", "100");
    let mut server = launch.clone().start();
    server.client().write(0, &[1; 4096]).expect("a write");
    server.spillway(&["resize", "cache0", "17T"]).refused(USAGE, "an origin of 18691697672192 bytes");
    assert_eq!(origin.metadata().expect("a file").len(), 8 << 20, "no cache could be opened before it");
    server.spillway(&["resize", "cache0", "32M"]).well();
    let mut client = server.client();
    assert_eq!(client.size, 32 << 20);
    client.write((32 << 20) - 4096, &[2; 4096]).expect("what is new");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    server.signal(Signal::KILL);
    server.ends();
    assert_eq!(fs::read(&cache).expect("a cache")[40..48], (32u64 << 20).to_le_bytes(), "in the superblock");
    let server = launch.start();
    let mut client = server.client();
    assert_eq!((client.read(0, 4096), client.size), (Ok(vec![1; 4096]), 32 << 20));
    assert_eq!(client.read((32 << 20) - 4096, 4096), Ok(vec![2; 4096]));
    server.spillway(&["drain", "cache0"]).well();
    assert_eq!(fs::read(&origin).expect("an origin")[(32 << 20) - 1], 2);
}

/// A file system grows while it is mounted.
#[test]
fn an_attached_device_grows_with_the_file_system_on_it() {
    let server = Launch::ram("512M").mounted().start();
    let place = Scratch::new();
    let folder = place.path().to_str().expect("text");
    let attached = server.spillway(&["attach", "ram0", "--via", "loop", "--mkfs", "xfs", folder]);
    let device = PathBuf::from(attached.well().out.trim());
    fs::write(place.join("file"), vec![5; 10 * MIB]).expect("a file");
    server.spillway(&["resize", "ram0", "2G"]).well();
    let grown = capacity(&device);
    let resized = tool::run("/usr/sbin/xfs_growfs", &[folder]);
    let filled = fs::write(place.join("more"), vec![6; 700 * MIB]);
    let kept = fs::read(place.join("file"));
    server.spillway(&["detach", "ram0"]).well();
    resized.well();
    filled.expect("there is room");
    assert!(kept.expect("it is there") == vec![5; 10 * MIB]);
    assert_eq!(grown, 2 << 30);
    let checked = LoopDevice::direct(&server.file("ram0"));
    tool::run("/usr/sbin/xfs_repair", &["-n", checked.path().to_str().expect("text")]).well();
}

/// The kernel drops a size that it asks for while writes end beside that.
#[test]
fn what_is_new_of_a_loop_device_is_read_while_clients_write() {
    let server = Launch::ram("16M").mounted().start();
    let file = server.file("ram0");
    let device = LoopDevice::direct(&file);
    let done = AtomicBool::new(false);
    let write_on = || {
        let file = OpenOptions::new().write(true).open(&file).expect("the file of a device");
        let places = (0..16 * MIB as u64).step_by(4096).cycle();
        for at in places.take_while(|_| !done.load(Ordering::Relaxed)) {
            file.write_all_at(&[7; 4096], at).expect("a write");
        }
    };
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(write_on)));
        let failed = (17..97).filter(|mib| {
            server.spillway(&["resize", "ram0", &format!("{mib}M")]).well();
            let block = mib * MIB / 4096 - 1;
            let input = format!("if={}", device.path().display());
            let read =
                ["bs=4096", "count=1", "iflag=direct", "of=/dev/null", &input, &format!("skip={block}")];
            tool::run("dd", &read).code != Some(0)
        });
        let failed: Vec<_> = failed.collect();
        done.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "the last block cannot be read after growing to {failed:?} MiB");
    });
}
