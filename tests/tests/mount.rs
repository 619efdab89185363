//! The devices of a server as files in a FUSE mount. As root: mounting and loop devices need it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, mpsc};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use rustix::process::Signal;
use spillway_tests::{FuseConnection, Launch, LoopDevice, PATIENCE, Scratch, binary, pattern, tool, until};

const MIB: usize = 1 << 20;

/// Exit codes as documented.
const USAGE: i32 = 2;
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
    let stored = || -> u64 {
        let said = server.spillway(&["get", "ram0", "mm_stat"]).well().out;
        said.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a column")
    };
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
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin", vec![7; MIB]);
    let server = Launch::disk(folder, &origin).flag("--read-only").mounted().start();
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
    server.spillway(&["reset", "ram0"]).refused(BUSY, "clients are connected");
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
    until("the server says what it waits for", || server.log().contains("is in use").then_some(()));
    file.write_all_at(&[1; 512], 0).expect("it still works");
    assert!(server.lives());
    drop(file);
    assert!(server.ends().success());
}

#[test]
fn what_a_killed_server_left_is_cleaned_up_by_the_next() {
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin", vec![7; MIB]);
    let launch = Launch::disk(folder, &origin).mounted();
    let mut server = launch.clone().start();
    let device = LoopDevice::direct(&server.file("disk0"));
    server.signal(Signal::KILL);
    server.ends();
    let dead = || (errno(fs::metadata(server.file("disk0"))) == Errno::NOTCONN).then_some(());
    until("the kernel gives the mount up", dead);
    let next = launch.start();
    let log = next.log();
    assert!(
        log.contains("a server that is gone") && log.contains(device.path().to_str().expect("text")),
        "{log}"
    );
    assert!(fs::read(next.file("disk0")).expect("it is mounted again") == vec![7; MIB]);
}

#[test]
fn a_place_that_is_taken_or_holds_the_origin_is_refused() {
    let server = Launch::ram("1M").mounted().start();
    let place = server.file("ram0").ancestors().nth(2).expect("a mount").to_owned();
    let second = Launch::ram("1M").with("--name", "other").with("--mount", &place);
    second.run().refused(BUSY, "running server");
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin", vec![7; MIB]);
    let launch = Launch::disk(folder.clone(), &origin).with("--mount", folder.path());
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

/// One of several devices goes, the others stay; whoever unmounts by hand leaves the server to its other clients.
#[test]
fn devices_of_one_mount_come_and_go_alone() {
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("s");
    let device = |name: &str| {
        format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"memory\", size = \"1M\" }}\n")
    };
    let config = folder.write("c.toml", format!("{}{}", device("a"), device("b")));
    let path = config.to_str().expect("text");
    let launch = Launch::new(&["serve", path], folder, socket.clone()).with("--socket", socket).mounted();
    let server = launch.start();
    let file = both(&server.file("a"));
    server.spillway(&["stop", "a"]).refused(BUSY, "close it first");
    server.spillway(&["stop", "b"]).well();
    assert_eq!(errno(File::open(server.file("b"))), Errno::NOENT);
    file.write_all_at(&[3; 512], 0).expect("the other one stays");
    drop(file);
    let place = server.file("a").ancestors().nth(2).expect("a mount").to_owned();
    until("the kernel lets go of the file", || tool::run("umount", &[&place]).code.filter(|code| *code == 0));
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
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("s");
    let origin = "origin = { kind = \"memory\", size = \"16M\" }";
    let delay = "layers = [{ kind = \"delay\", write_us = 3_600_000_000 }]";
    let config =
        format!("[[device]]\nname = \"hangs\"\n{origin}\n{delay}\n[[device]]\nname = \"other\"\n{origin}\n");
    let config = folder.write("c.toml", config);
    let path = config.to_str().expect("text");
    let launch = Launch::new(&["serve", path], folder, socket.clone()).with("--socket", socket).mounted();
    let mut server = launch.start();
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
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("s");
    let config = "[[device]]\nname = \"a\"\norigin = { kind = \"null\", size = \"64M\" }\nlayers = [{ kind = \"trace\" }]\n";
    let config = folder.write("c.toml", config);
    let launch =
        Launch::new(&["serve", config.to_str().expect("text"), "--memory", "64M"], folder, socket.clone());
    let server = launch.with("--socket", socket).mounted().start();
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

/// The sequence of the kernel's guide to zram, with lz4 for lzo and files of the mount for those of sysfs and the device: algorithm,
/// size, limits, swap and a file system, statistics, compaction, reset; and the errno of each wrong word.
const KERNEL_SESSION: &str = r#"
set -eu
zram=$1/zram disk=$1/disk place=$2
fails() { if (eval "$2") 2> "$place.err"; then echo "$2 succeeded"; exit 1; fi; grep -q "$1" "$place.err" || { cat "$place.err"; exit 1; }; }
test "$(cat $zram/initstate)" = 0
cat $zram/comp_algorithm | grep -q "\[lz4\] zstd "
echo 2 > $zram/max_comp_streams
test "$(cat $zram/max_comp_streams)" = 2
fails "Invalid argument" "echo bogus > $zram/comp_algorithm"
echo zstd > $zram/comp_algorithm
cat $zram/comp_algorithm | grep -q "\[zstd\]"
fails "Invalid argument" "echo 0 > $zram/disksize"
fails "No medium found" "cat $disk"
echo 64M > $zram/disksize
test "$(cat $zram/disksize)" = 67108864
test "$(stat -c %s $disk)" = 67108864
test "$(cat $zram/initstate)" = 1
fails "Device or resource busy" "echo 32M > $zram/disksize"
fails "Device or resource busy" "echo lz4 > $zram/comp_algorithm"
echo 32M > $zram/mem_limit
fails "Permission denied" "cat $zram/reset"
fails "Permission denied" "echo 1 > $zram/mm_stat"
loop=$(losetup --find --show --direct-io=on $disk)
trap 'umount $place 2>/dev/null || :; losetup --detach $loop 2>/dev/null || :' EXIT
fails "Device or resource busy" "echo 1 > $zram/reset"
/usr/sbin/mkswap $loop > /dev/null
/usr/sbin/mkfs.ext4 -q -F $loop
mount $loop $place
head -c 8388608 /dev/zero | tr '\0' x > $place/file
sync $place/file
test "$(wc -w < $zram/mm_stat)" = 9
test "$(wc -w < $zram/io_stat)" = 4
set -- $(cat $zram/mm_stat)
test "$1" -gt 0 && test "$4" = 33554432
grep -q "version: 1" $zram/debug_stat
echo 0 > $zram/mem_used_max
echo 1 > $zram/compact
umount $place
losetup --detach $loop
trap - EXIT
for try in 1 2 3 4 5 6 7 8 9; do echo 1 > $zram/reset 2> $place.err && break; sleep 0.2; done
test "$(cat $zram/disksize)" = 0
cat $zram/comp_algorithm | grep -q "\[lz4\]"
"#;

#[test]
fn a_zram_session_of_the_kernel_runs_unchanged_with_the_path_replaced() {
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("s");
    let launch = Launch::new(&["ram"], folder, socket.clone()).with("--socket", socket).mounted();
    let server = launch.start();
    let place = Scratch::new();
    let device = server.file("ram0").parent().expect("a folder").to_owned();
    let arguments =
        ["-c", KERNEL_SESSION, "sh", device.to_str().expect("text"), place.path().to_str().expect("text")];
    let said = tool::run("bash", &arguments);
    let _ = fs::remove_file(place.path().with_extension("err"));
    said.well();
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

/// What an ordinary user types, in a mount namespace of its own: mount, use, see that it is used, stop.
const UNPRIVILEGED: &str = r#"
set -eu
folder=$1 spillway=$2
trap 'cat "$folder"/log "$folder"/refusal >&2' EXIT
export XDG_RUNTIME_DIR=$folder
"$spillway" ram --size 16M --mount "$folder/mnt" --background > "$folder/log" 2>&1
disk=$folder/mnt/ram0/disk
grep -q "$folder/mnt .*fuse.spillway" /proc/self/mountinfo
head -c 1000001 /dev/urandom > "$folder/data"
dd if="$folder/data" of="$disk" bs=64K conv=notrunc status=none
head -c 1000001 "$disk" | cmp - "$folder/data"
exec 7< "$disk"
if "$spillway" stop ram0 2> "$folder/refusal"; then echo "stopped under an open file"; exit 1; fi
grep -q "is in use" "$folder/refusal"
exec 7<&-
"$spillway" stop ram0
! grep -q "$folder/mnt " /proc/self/mountinfo
"#;

/// Where nobody has set up devices, /dev/fuse is for root alone; everywhere else it is for all.
const NAMESPACE: &str = r#"
set -eu
mknod "$1/fuse" c 10 229
chmod 666 "$1/fuse"
mount --bind "$1/fuse" /dev/fuse
"#;
const USER: &str = r#"exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "$3" sh "$1" "$2""#;
const ROOT: &str = r#"exec sh -c "$3" sh "$1" "$2""#;

/// Root attaches, through sudo, what an ordinary user has mounted, and cannot look into.
const ATTACHED: &str = r#"
set -eu
folder=$1 spillway=$2
trap 'cat "$folder"/log >&2' EXIT
export TMPDIR=$folder
unset XDG_RUNTIME_DIR
user="setpriv --reuid=65534 --regid=65534 --clear-groups"
$user "$spillway" ram --size 16M --mount "$folder/mnt" --background > "$folder/log" 2>&1
if ls "$folder/mnt" 2> "$folder/refusal"; then echo "root looks into the mount"; exit 1; fi
export SUDO_UID=65534
loop=$("$spillway" attach ram0)
if $user cat "$folder/mnt/ram0/disk" 2> "$folder/refusal"; then echo "it is not held"; exit 1; fi
head -c 1000000 /dev/urandom > "$folder/data"
dd if="$folder/data" of="$loop" bs=64K conv=fsync,notrunc status=none
"$spillway" resize ram0 32M
test "$(blockdev --getsize64 "$loop")" = 33554432
"$spillway" detach ram0
test ! -e "/sys/block/${loop#/dev/}/loop/backing_file"
chmod 644 "$folder/data"
$user head -c 1000000 "$folder/mnt/ram0/disk" | cmp - "$folder/data"
unset SUDO_UID
$user "$spillway" stop ram0
"#;

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    as_an_ordinary_user(USER, UNPRIVILEGED);
}

#[test]
fn root_attaches_through_sudo_what_an_ordinary_user_has_mounted() {
    as_an_ordinary_user(ROOT, ATTACHED);
}

/// Runs a script in a mount namespace in which an ordinary user may mount.
fn as_an_ordinary_user(who: &str, script: &str) {
    tool::run("fusermount3", &["--version"]).well();
    let folder = Scratch::new();
    fs::create_dir(folder.join("mnt")).expect("the folder is ours");
    // What this user may not reach is copied to where it may.
    let program = folder.join("program");
    fs::copy(binary::path(), &program).expect("a copy");
    let (place, program) = (folder.path().to_str().expect("text"), program.to_str().expect("text"));
    tool::run("chown", &["-R", "65534:65534", place]).well();
    let namespace = format!("{NAMESPACE}{who}");
    let script = ["sh", "-c", &namespace, "sh", place, program, script];
    tool::run("unshare", &[&["--mount", "--propagation", "slave"], &script[..]].concat()).well();
}
