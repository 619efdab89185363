//! The devices of a server as files in a FUSE mount. As root: mounting and loop devices need it.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use rustix::process::Signal;
use spillway_tests::{FuseConnection, Launch, LoopDevice, PATIENCE, Scratch, Server, pattern, tool, until};

const MIB: usize = 1 << 20;

/// Exit codes as documented.
const USAGE: i32 = 2;
const MISSING: i32 = 3;
const BUSY: i32 = 4;

fn both(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap_or_else(|why| panic!("{path:?}: {why}"))
}

fn errno<T>(outcome: std::io::Result<T>) -> Errno {
    let error = outcome.err().expect("an error");
    Errno::from_io_error(&error).expect("an errno")
}

/// What one export writes the other reads at once, whatever the bytes: no cache of the kernel's lies between.
#[test]
fn a_file_and_nbd_show_the_same_bytes() {
    let server = Launch::ram("64M").mounted().start();
    let file = both(&server.file("ram0"));
    let mut client = server.client();
    assert_eq!(file.metadata().expect("a size").len(), 64 << 20);
    let data = pattern::half_random(1, 0, 3 * MIB);
    for (round, (offset, len)) in
        [(0, MIB), (4096, 4096), (1000, 3001), (511, 2), (70_001, 2 * MIB), (5, 0)].into_iter().enumerate()
    {
        let bytes = &data[round..round + len];
        file.write_all_at(bytes, offset as u64).expect("a write");
        let start = offset / 512 * 512;
        let whole = (offset + len).next_multiple_of(512) - start;
        let seen = client.read(start as u64, whole).expect("a read");
        assert!(seen[offset - start..][..len] == *bytes, "round {round}: NBD sees something else");
        client.write(start as u64, &data[..whole]).expect("a write");
        let mut seen = vec![0; len];
        file.read_exact_at(&mut seen, offset as u64).expect("a read");
        assert!(seen == data[offset - start..][..len], "round {round}: the file shows something else");
    }
    file.sync_all().expect("a flush");
}

#[test]
fn a_disk_file_has_the_size_of_its_device_and_no_other() {
    let server = Launch::ram("1M").mounted().start();
    let path = server.file("ram0");
    let file = both(&path);
    assert_eq!(errno(File::create(&path)), Errno::PERM, "cut by O_TRUNC");
    assert_eq!(errno(file.set_len(0)), Errno::PERM);
    assert_eq!(errno(file.set_len(2 << 20)), Errno::PERM);
    assert_eq!(errno(fs::remove_file(&path)), Errno::PERM);
    assert_eq!(errno(File::create(path.with_file_name("other"))), Errno::PERM);
    assert_eq!(errno(file.write_at(&[1], MIB as u64)), Errno::NOSPC);
    assert_eq!(file.write_at(&[1; 100], MIB as u64 - 10).expect("what fits"), 10);
    assert_eq!(file.read_at(&mut [0; 100], MIB as u64 - 10).expect("what is there"), 10);
    assert_eq!(file.read_at(&mut [0; 100], MIB as u64).expect("the end"), 0);
}

#[test]
fn holes_are_punched_found_and_free_memory() {
    let server = Launch::ram("64M").mounted().start();
    let file = both(&server.file("ram0"));
    let data = pattern::random(1, 0, 8 * MIB);
    file.write_all_at(&data, 0).expect("a write");
    let stored = || server.value("ram0", "mm_stat")["orig_data_size"].as_u64().expect("a number");
    assert_eq!(stored(), 8 << 20);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 1 << 20, 4 << 20).expect("a hole");
    assert_eq!(stored(), 4 << 20);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 6 << 20, 100).expect("zeroes");
    let mut wanted = data;
    wanted[MIB..5 * MIB].fill(0);
    wanted[6 * MIB..6 * MIB + 100].fill(0);
    let mut seen = vec![1; 8 * MIB];
    file.read_exact_at(&mut seen, 0).expect("a read");
    assert!(seen == wanted, "a hole is not zero, or more than a hole");
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(1 << 20));
    assert_eq!(seek(&file, SeekFrom::Data(1 << 20)), Ok(5 << 20));
    assert_eq!(seek(&file, SeekFrom::Data(8 << 20)), Err(Errno::NXIO));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 4096), Err(Errno::OPNOTSUPP));
}

#[test]
fn a_read_only_device_is_a_read_only_file() {
    let server = Launch::disk_with(vec![7; MIB]).0.flag("--read-only").mounted().start();
    let path = server.file("disk0");
    assert_eq!(errno(OpenOptions::new().write(true).open(&path)), Errno::ROFS);
    assert!(fs::read(&path).expect("it may be read") == vec![7; MIB]);
}

/// While a file is open nothing takes the device away: a stop, a reset and an unmount are refused, and say who has it.
#[test]
fn an_open_file_holds_its_device() {
    let mut server = Launch::ram("1M").mounted().start();
    let file = both(&server.file("ram0"));
    let me = format!("(pid {})", std::process::id());
    server.spillway(&["stop", "ram0"]).refused(BUSY, &me);
    server.spillway(&["reset", "ram0"]).refused(BUSY, &me);
    let place = server.file("ram0").ancestors().nth(2).expect("a mount").to_owned();
    assert_ne!(tool::run("umount", &[&place]).code, Some(0));
    file.write_all_at(&[5; 512], 0).expect("it still works");
    drop(file);
    // A program that another test is about to start may have it for a moment.
    until("the file is closed", || server.spillway(&["stop", "ram0"]).code.filter(|code| *code == 0));
    assert!(server.ends().success());
    assert_eq!(fs::read_dir(place).expect("the folder is free again").count(), 0);
}

#[test]
fn a_file_cannot_be_opened_while_the_device_has_no_size() {
    let server = Launch::ram("1M").mounted().start();
    drop(both(&server.file("ram0")));
    until("the kernel lets go of the file", || {
        server.spillway(&["reset", "ram0"]).code.filter(|code| *code == 0)
    });
    assert_eq!(errno(File::open(server.file("ram0"))), Errno::NOMEDIUM);
    server.spillway(&["set", "ram0", "disksize", "2M"]).well();
    assert_eq!(both(&server.file("ram0")).metadata().expect("a size").len(), 2 << 20);
}

#[test]
fn a_signal_ends_the_server_once_the_file_is_closed() {
    let mut server = Launch::ram("1M").mounted().start();
    let file = both(&server.file("ram0"));
    server.signal(Signal::TERM);
    server.says("is in use");
    file.write_all_at(&[1; 512], 0).expect("it still works");
    assert!(server.lives());
    drop(file);
    assert!(server.ends().success());
}

#[test]
fn what_a_killed_server_left_is_cleaned_up_by_the_next() {
    let launch = Launch::disk_with(vec![7; MIB]).0.mounted();
    let mut server = launch.clone().start();
    let device = LoopDevice::direct(&server.file("disk0"));
    server.signal(Signal::KILL);
    server.ends();
    let dead = || (errno(fs::metadata(server.file("disk0"))) == Errno::NOTCONN).then_some(());
    until("the kernel gives the mount up", dead);
    let next = launch.start();
    next.says("a server that is gone");
    next.says(device.path().to_str().expect("text"));
    assert!(fs::read(next.file("disk0")).expect("it is mounted again") == vec![7; MIB]);
}

#[test]
fn a_place_that_is_taken_or_holds_the_origin_is_refused() {
    let server = Launch::ram("1M").mounted().start();
    let place = server.file("ram0").ancestors().nth(2).expect("a mount").to_owned();
    let second = Launch::ram("1M").with("--name", "other").with("--mount", &place);
    second.run().refused(BUSY, "running server");
    let (launch, origin) = Launch::disk_with(vec![7; MIB]);
    let folder = launch.folder();
    let launch = launch.with("--mount", folder.path());
    launch.run().refused(USAGE, "lies below");
    Launch::ram("1M").with("--mount", folder.join("none")).run().refused(1, "create the folder");
    let sockets = folder.join("sockets");
    fs::create_dir(&sockets).expect("the folder is ours");
    let ram = ["ram", "--size", "1M"];
    let launch = Launch::new(&ram, folder.clone(), sockets.join("s")).with("--socket", sockets.join("s"));
    launch.with("--mount", &sockets).run().refused(USAGE, "lies below");
    let launch = Launch::new(&ram, folder.clone(), folder.join("s"));
    launch.with("--mount", folder.path()).run().refused(USAGE, "lies below");
    assert_ne!(Launch::ram("1M").with("--mount", &origin).run().code, Some(0), "it is no folder");
}

/// One of several devices goes, the others stay; unmounting by hand leaves the server to its other clients.
#[test]
fn devices_of_one_mount_come_and_go_alone() {
    let device = |name: &str| {
        format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"memory\", size = \"1M\" }}\n")
    };
    let config = format!("{}{}", device("a"), device("b"));
    let server = Launch::serve(Arc::default(), config).mounted().start();
    let file = both(&server.file("a"));
    server.spillway(&["stop", "a"]).refused(BUSY, "close it first");
    server.spillway(&["stop", "b"]).well();
    assert_eq!(errno(File::open(server.file("b"))), Errno::NOENT);
    file.write_all_at(&[3; 512], 0).expect("the other one stays");
    drop(file);
    let place = server.file("a").ancestors().nth(2).expect("a mount").to_owned();
    tool::unmount(&place);
    let mut client = spillway_tests::raw::Client::open(server.socket(), "a");
    assert!(client.read(0, 512) == Ok(vec![3; 512]), "NBD goes on");
    server.spillway(&["stop", "a"]).well();
}

/// CAP_SYS_RESOURCE in the sets of `/proc`, and in `/proc/PID/stat` PF_MEMALLOC_NOIO, which PR_SET_IO_FLUSHER sets.
const SYS_RESOURCE: u64 = 1 << 24;
const NO_IO_FOR_MEMORY: u64 = 0x0008_0000;

/// Every thread of a server says that it may be below a file system, where the system allows it.
#[test]
fn memory_for_a_server_waits_for_no_file_system_on_it() {
    let server = Launch::ram("1M").mounted().start();
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let sets = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities");
    let may = u64::from_str_radix(sets.trim(), 16).expect("a number") & SYS_RESOURCE != 0;
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads");
    for task in tasks {
        let stat = fs::read_to_string(task.expect("a thread").path().join("stat")).expect("a thread");
        let fields: Vec<&str> = stat.rsplit(") ").next().expect("a name before").split(' ').collect();
        let flags: u64 = fields[6].parse().expect("flags");
        assert_eq!(flags & NO_IO_FOR_MEMORY != 0, may, "{stat}");
    }
}

/// More writes than readers have buffers wait for a device that never answers; another one of the same mount answers at once.
#[test]
fn a_device_that_hangs_leaves_the_others_alone() {
    const WRITERS: usize = 40;
    let origin = "origin = { kind = \"memory\", size = \"16M\" }";
    let delay = "layers = [{ kind = \"delay\", write_us = 3_600_000_000 }]";
    let config =
        format!("[[device]]\nname = \"hangs\"\n{origin}\n{delay}\n[[device]]\nname = \"other\"\n{origin}\n");
    let mut server = Launch::serve(Arc::default(), config).mounted().start();
    let connection = FuseConnection::of(&server.file("hangs"));
    let (hangs, other) = (both(&server.file("hangs")), both(&server.file("other")));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS as u64 {
            let hangs = &hangs;
            // They fail once the server is killed.
            scope.spawn(move || hangs.write_all_at(&[1; 64 << 10], writer << 16).expect_err("no answer"));
        }
        until("all writes are asked for", || (connection.waiting() >= WRITERS).then_some(()));
        let (answered, answer) = mpsc::channel();
        scope.spawn(move || answered.send(other.write_all_at(&[7; 1 << 20], 0).is_ok()));
        let answer = answer.recv_timeout(PATIENCE);
        server.signal(Signal::KILL);
        server.ends();
        assert_eq!(answer, Ok(true), "it waits for another device");
    });
}

/// However much is written at once, the server keeps its budget; what finds no room is refused, and what was written is read back.
#[test]
fn a_mount_keeps_the_budget() {
    let server = Launch::ram("1G").with("--memory", "64M").mounted().start();
    let file = both(&server.file("ram0"));
    let data = pattern::random(9, 0, MIB);
    file.write_all_at(&data, 1 << 29).expect("there is room");
    let write = |writer: u64| {
        let full = (0..64).map(|at| file.write_all_at(&data, (writer * 64 + at) << 20)).find_map(Result::err);
        assert_eq!(full.map(|error| Errno::from_io_error(&error)), Some(Some(Errno::NOSPC)));
    };
    std::thread::scope(|scope| (0..8).for_each(|writer| drop(scope.spawn(move || write(writer)))));
    let peak = server.vitals().resident_max;
    assert!(peak <= 128 << 20, "{peak} bytes with a budget of 64 MiB");
    let mut first = vec![0; MIB];
    file.read_exact_at(&mut first, 1 << 29).expect("what was acknowledged is readable");
    assert!(first == data);
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1 << 30).expect("room");
    file.write_all_at(&data, 0).expect("there is room again");
}

/// More texts than all buffers may take are shown to programs that do not read on.
#[test]
fn open_control_files_leave_memory_to_requests() {
    const IDLE: usize = 900;
    let config = "[[device]]\nname = \"a\"\norigin = { kind = \"null\", size = \"64M\" }\nlayers = [{ kind = \"trace\" }]\n";
    let server = Launch::serve(Arc::default(), config).with("--memory", "64M").mounted().start();
    let disk = both(&server.file("a"));
    (0..1024).for_each(|at| disk.read_exact_at(&mut [0; 512], at << 9).expect("a disk"));
    let records = server.file("a").with_file_name("trace").join("records");
    let whole = fs::read(&records).expect("an attribute");
    assert!(whole.len() * IDLE > 20 << 20, "{} bytes", whole.len());
    let idle: Vec<File> = (0..IDLE).map(|_| File::open(&records).expect("an attribute")).collect();
    for file in &idle {
        file.read_exact_at(&mut [0], 0).expect("it is shown");
    }
    disk.read_exact_at(&mut vec![0; MIB], 0).expect("there is memory");
    let stale = idle[0].read_at(&mut [0], 1).expect_err("it made room");
    assert_eq!(Errno::from_io_error(&stale), Some(Errno::STALE));
    let mut shown = vec![0; whole.len()];
    idle[IDLE - 1].read_exact_at(&mut shown[1..], 1).expect("the latest is kept");
}

/// Every attribute that can be read is a file with the text that `get` shows.
#[test]
fn every_attribute_of_every_part_is_a_file() {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) = (folder.join("origin"), folder.join("cache"));
    for path in [&origin, &cache] {
        File::create(path).and_then(|file| file.set_len(16 << 20)).expect("a sparse file");
    }
    let server = Launch::cache(folder, &origin, &cache).mounted().start();
    let device = server.file("cache0").parent().expect("a folder").to_owned();
    for (part, known) in [("write_cache", "status"), ("file", "path")] {
        let names: Vec<_> = fs::read_dir(device.join(part))
            .expect("a part")
            .map(|entry| entry.expect("a file").file_name())
            .collect();
        assert!(names.iter().any(|name| name == known), "{names:?}");
        let text = fs::read_to_string(device.join(part).join(known)).expect("it can be read");
        let got = server.spillway(&["get", "cache0", &format!("{part}.{known}")]).well().out;
        assert_eq!(text.trim_end(), got.trim_end());
    }
    fs::write(device.join("write_cache/high_watermark"), "70\n").expect("it can be set");
    let got = server.spillway(&["get", "cache0", "high_watermark"]).well().out;
    assert_eq!(got.trim(), "70");
}

/// More text than a mount keeps.
#[test]
fn the_state_of_every_page_is_read_by_files_and_commands() {
    let server = Launch::ram("1G").mounted().start();
    let (disk, zram) = (both(&server.file("ram0")), server.file("ram0").with_file_name("zram"));
    let state = || fs::read_to_string(zram.join("block_state")).expect("it has a size");
    assert_eq!(state(), "");
    let far = 200_000;
    (0..160).for_each(|mebibyte| disk.write_all_at(&[7; 1 << 20], mebibyte << 20).expect("there is room"));
    disk.write_all_at(&[7; 4096], far * 4096).expect("there is room");
    let text = state();
    let numbers = text.lines().map(|line| line[..12].trim_start().parse::<u64>().expect("a number"));
    assert!(numbers.eq((0..160 * 256).chain([far])), "{} lines", text.lines().count());
    assert!(
        text.lines().all(|line| line.len() == 39 && line.ends_with(".000000 s.....")),
        "{}",
        &text[..400]
    );
    assert!(server.spillway(&["get", "ram0", "block_state"]).well().out == text);
    let all = server.spillway(&["get", "ram0"]).well().out;
    assert!(all.contains("mm_stat") && !all.contains("block_state"), "{all}");
}

/// The kernel says that a file was closed when the program has gone on.
#[test]
fn a_device_is_reset_right_after_its_file_was_closed() {
    let server = Launch::ram("1M").mounted().start();
    let zram = server.file("ram0").with_file_name("zram");
    for round in 0..200 {
        both(&server.file("ram0")).write_all_at(&[1; 4096], 0).expect("there is room");
        fs::write(zram.join("reset"), "1").unwrap_or_else(|why| panic!("round {round}: {why}"));
        fs::write(zram.join("disksize"), "1M").expect("it has none");
    }
    let _open = both(&server.file("ram0"));
    assert_eq!(errno(fs::write(zram.join("reset"), "1")), Errno::BUSY);
}

/// The same, for devices that are stopped, the last one of a mount among them: each file is open when the server is asked, and closed then.
#[test]
fn a_device_is_stopped_once_its_file_was_closed_a_moment_ago() {
    let folder = Arc::new(Scratch::new());
    let names = ["a", "b"];
    let device =
        |name| format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"null\", size = \"1M\" }}\n");
    let launch = Launch::serve(folder, names.map(device).concat()).flag("-v");
    let mut server = launch.mounted().start();
    for name in names {
        until("it is stopped while its file is closed", || stopped_while_closed(&server, name).then_some(()));
        let gone = |code: &i32| [0, MISSING].contains(code);
        until("it is stopped", || server.spillway(&["stop", name]).code.filter(gone));
    }
    assert!(server.ends().success());
}

/// Whether a device was stopped whose file was open when the server was asked. A server that refuses has waited for 200 ms.
fn stopped_while_closed(server: &Server, name: &str) -> bool {
    let control = server.folder().join(&format!("spillway/{name}.ctl"));
    let control = UnixStream::connect(control).expect("it listens");
    let file = both(&server.file(name));
    let seen = || server.log().matches(&format!("Stop {{ device: \"{name}\" }}")).count();
    let (before, asked) = (seen(), Instant::now());
    writeln!(&control, r#"{{"v":2,"op":"stop","device":"{name}"}}"#).expect("it listens");
    until("the server is asked", || (seen() > before).then_some(()));
    drop(file);
    let mut reply = String::new();
    BufReader::new(control).read_line(&mut reply).expect("an answer");
    let done = reply.contains("done");
    let waited = asked.elapsed();
    assert!(done || waited >= Duration::from_millis(200), "{name}: {reply} after {waited:?}");
    done
}
