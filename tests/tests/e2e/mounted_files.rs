//! What programs and file systems keep in the files of a mount comes back as it was. As root: loop devices need it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::sendfile;
use rustix::io::Errno;
use spillway_tests::exerciser::{Exerciser, Part};
use spillway_tests::{Launch, LoopDevice, Scratch, Server, pattern, text, tool};

const MIB: usize = 1 << 20;

fn ram(size: u64) -> Server {
    Launch::ram(&size.to_string()).mounted().start()
}

fn sparse(folder: &Scratch, name: &str, size: u64) -> PathBuf {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(size)).expect("a sparse file");
    path
}

fn disk(size: u64) -> Server {
    let folder = Arc::new(Scratch::new());
    let origin = sparse(&folder, "origin", size);
    Launch::disk(folder, &origin).with("--page-cache", "none").mounted().start()
}

fn cache(size: u64) -> Server {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) = (sparse(&folder, "origin", size), sparse(&folder, "cache", 64 << 20));
    Launch::cache(folder, &origin, &cache).mounted().start()
}

/// With a page cache that is smaller than what is worked on.
fn paged(launch: Launch) -> Server {
    launch.with("--page-cache", "writeback").with("--page-cache-bytes-max", "8M").mounted().start()
}

fn paged_disk(size: u64) -> Server {
    let folder = Arc::new(Scratch::new());
    let origin = sparse(&folder, "origin", size);
    paged(Launch::disk(folder, &origin))
}

fn paged_cache(size: u64) -> Server {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) = (sparse(&folder, "origin", size), sparse(&folder, "cache", 64 << 20));
    paged(Launch::cache(folder, &origin, &cache))
}

/// Three programs side by side, on parts that meet within a sector.
fn exercise(file: &Path, size: u64, seed: u64) {
    let ends = [0, size / 3 + 100, size / 3 * 2 - 7, size];
    std::thread::scope(|scope| {
        for (number, ends) in ends.windows(2).enumerate() {
            let part = Part::Disk { start: ends[0], len: ends[1] - ends[0] };
            let mut exerciser = Exerciser::new(file, part, seed * 10 + number as u64);
            scope.spawn(move || exerciser.run(600).check_anew());
        }
    });
}

#[test]
fn a_file_of_a_ram_disk_agrees_with_a_model() {
    exercise(&ram(20 << 20).file("ram0"), 20 << 20, 1);
}

#[test]
fn a_file_of_a_disk_agrees_with_a_model() {
    exercise(&disk(20 << 20).file("disk0"), 20 << 20, 2);
}

#[test]
fn a_file_of_a_write_cache_agrees_with_a_model() {
    exercise(&cache(100 << 20).file("cache0"), 100 << 20, 3);
}

#[test]
fn a_file_of_a_page_cache_agrees_with_a_model() {
    exercise(&paged_disk(40 << 20).file("disk0"), 40 << 20, 4);
}

#[test]
fn a_file_of_a_page_cache_over_a_write_cache_agrees_with_a_model() {
    exercise(&paged_cache(100 << 20).file("cache0"), 100 << 20, 5);
}

/// The requests of fio's verification, at several depths, straight on the file: what is read is what was written.
#[test]
fn fio_verifies_a_file() {
    fio_verify(&ram(64 << 20).file("ram0"), "--bsrange=512-256k");
}

fn fio_verify(file: &Path, sizes: &str) {
    let file = format!("--filename={}", file.display());
    let arguments = [
        "--name=verify",
        &file,
        "--rw=randrw",
        "--ioengine=libaio",
        "--iodepth=16",
        "--direct=1",
        "--size=32m",
        "--io_size=64m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        sizes,
        "--randrepeat=1",
    ];
    tool::run("fio", &arguments).well();
}

/// The sources of this program as an archive whose bytes follow from their content, and its checksum.
const PACK: &str = r#"
set -euo pipefail
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --create --directory "$1" . | tee "$2" | sha256sum
"#;

fn pack(folder: &Path, archive: &Path) -> String {
    let (folder, archive) = (folder.to_str().expect("text"), archive.to_str().expect("text"));
    tool::run("bash", &["-c", PACK, "bash", folder, archive]).well().out
}

/// Unpacks an archive, and returns the checksum of what was packed.
fn unpack(place: &Path) -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let archive = place.join("archive");
    let sum = pack(&sources, &archive);
    fs::create_dir(place.join("tree")).expect("a folder");
    let (archive, tree) = (archive.to_str().expect("text").to_owned(), place.join("tree"));
    tool::run("tar", &["-xf", &archive, "-C", tree.to_str().expect("text")]).well();
    sum
}

/// A file system on a loop device over the file: made, filled, read back after a new mount, and found without fault.
fn file_system(server: &Server, device: &str, make: &[&str], check: &[&str]) {
    let device = LoopDevice::direct(&server.file(device));
    let path = device.path().to_str().expect("text");
    tool::run(make[0], &[&make[1..], &[path]].concat()).well();
    let folder = Scratch::new();
    let place = folder.path().to_str().expect("text");
    let data = pattern::half_random(3, 0, 20 * MIB);
    tool::run("mount", &[path, place]).well();
    (0..20).for_each(|part| drop(folder.write(&format!("part{part}"), &data[part * MIB..][..MIB])));
    let sum = unpack(folder.path());
    let mut exerciser = Exerciser::new(&folder.join("exercised"), Part::File(16 << 20), make.len() as u64);
    exerciser.run(600).close();
    fio_verify(&folder.join("fio"), "--bs=4k");
    tool::unmount(place);
    tool::run("mount", &[path, place]).well();
    let back: Vec<u8> =
        (0..20).flat_map(|part| fs::read(folder.join(&format!("part{part}"))).expect("a file")).collect();
    let sums = [pack(&folder.join("tree"), Path::new("/dev/null")), pack_of(&folder.join("archive"))];
    exerciser.check_anew();
    exerciser.close();
    tool::unmount(place);
    assert!(back == data, "files of {make:?} changed");
    assert_eq!(sums, [sum.clone(), sum], "the archive, or its tree, on {make:?} changed");
    tool::run(check[0], &[&check[1..], &[path]].concat()).well();
    device.settles();
}

/// The checksum of an archive.
fn pack_of(archive: &Path) -> String {
    tool::run("bash", &["-c", "sha256sum < \"$1\"", "bash", archive.to_str().expect("text")]).well().out
}

const EXT4: [&[&str]; 2] = [&["/usr/sbin/mkfs.ext4", "-q", "-F"], &["/usr/sbin/e2fsck", "-fn"]];
const XFS: [&[&str]; 2] = [&["/usr/sbin/mkfs.xfs", "-q", "-f"], &["/usr/sbin/xfs_repair", "-n"]];

#[test]
fn file_systems_live_on_a_ram_disk() {
    let server = ram(512 << 20);
    for [make, check] in [EXT4, XFS] {
        file_system(&server, "ram0", make, check);
    }
}

#[test]
fn file_systems_live_on_a_disk() {
    let server = disk(512 << 20);
    for [make, check] in [EXT4, XFS] {
        file_system(&server, "disk0", make, check);
    }
}

#[test]
fn file_systems_live_on_a_write_cache() {
    let server = cache(512 << 20);
    for [make, check] in [EXT4, XFS] {
        file_system(&server, "cache0", make, check);
    }
}

#[test]
fn file_systems_live_on_a_page_cache() {
    let server = paged_disk(512 << 20);
    for [make, check] in [EXT4, XFS] {
        file_system(&server, "disk0", make, check);
    }
}

#[test]
fn file_systems_live_on_a_page_cache_over_a_write_cache() {
    let server = paged_cache(512 << 20);
    for [make, check] in [EXT4, XFS] {
        file_system(&server, "cache0", make, check);
    }
}

/// By sendfile the kernel would fill its page cache, and show that again, also where another client has written.
#[test]
fn no_way_to_read_a_file_shows_what_was_there_before() {
    let server = Launch::ram("64M").mounted().start();
    let both = |path: &Path| OpenOptions::new().read(true).write(true).open(path).expect("it is there");
    let (file, mut client, scratch) = (both(&server.file("ram0")), server.client(), Scratch::new());
    let copy = both(&scratch.write("copy", []));
    for byte in [1, 2] {
        client.write(0, &[byte; 4096]).expect("a write");
        let mut at = 0;
        match sendfile(&copy, &file, Some(&mut at), 4096) {
            Err(errno) => assert_eq!(errno, Errno::INVAL),
            Ok(count) => {
                let mut bytes = vec![0; count];
                let end = copy.metadata().expect("a size").len();
                copy.read_exact_at(&mut bytes, end - count as u64).expect("what was sent");
                assert!(count > 0 && bytes.iter().all(|&found| found == byte), "what was there before");
            }
        }
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0).expect("a read");
        assert_eq!(bytes, [byte; 4096]);
    }
    tool::run("cp", &[text(&server.file("ram0")), text(&scratch.join("whole"))]).well();
    assert_eq!(fs::read(scratch.join("whole")).expect("a copy")[..4096], [2; 4096]);
}
