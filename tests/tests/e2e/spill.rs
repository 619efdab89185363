//! Pages that leave memory for a file, with real clients on a real file.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_tests::hostile::Chance;
use spillway_tests::{Launch, LoopDevice, Scratch, Server, pattern, raw, text, tool, until};

fn ram(size: &str, folder: &Arc<Scratch>) -> Launch {
    ram_on(size, folder, &spill_file(folder))
}

fn ram_on(size: &str, folder: &Arc<Scratch>, spill: &Path) -> Launch {
    let socket = folder.join("nbd.sock");
    let launch = Launch::new(&["ram", "--size", size], folder.clone(), socket.clone());
    launch.with("--socket", socket).with("--spill", spill)
}

fn spill_file(folder: &Scratch) -> PathBuf {
    folder.join("pages.spill")
}

fn set(server: &Server, name: &str, value: &str) {
    server.spillway(&["set", "ram0", name, value]).well();
}

fn number(server: &Server, name: &str, column: &str) -> u64 {
    server.value("ram0", name)[column].as_u64().expect("a number")
}

/// Pages in the spill file.
fn away(server: &Server) -> u64 {
    number(server, "bd_stat", "bd_count")
}

fn fio(server: &Server, job: &[&str]) {
    let uri = format!("--uri={}", server.uri());
    let common =
        ["--name=job", "--ioengine=nbd", "--thread", "--refill_buffers", "--verify_state_save=0", &uri];
    tool::run("fio", &[&common, job].concat()).well();
}

#[test]
fn a_spill_file_grows_as_it_fills_up_to_the_size_that_is_asked_for_and_shrinks_to_none() {
    let folder = Arc::new(Scratch::new());
    let len = || fs::metadata(spill_file(&folder)).expect("a file").len();
    let sized = |size: &str| ram("64M", &folder).with("--spill-size", size);
    let size = |server: &Server| server.value("ram0", "spill_size").as_u64();
    let server = sized("1G").start();
    assert_eq!((size(&server), len()), (Some(1 << 30), 32 << 20), "as short as it may be");
    fio(&server, &["--rw=write", "--bs=64k", "--size=8M"]);
    set(&server, "writeback", "page_indexes=0-2047");
    assert_eq!(away(&server), 2048);
    until("it is longer than what was written", || (len() == 256 << 20).then_some(()));
    server.spillway(&["stop", "ram0"]).well();
    let smaller = sized("100M").run();
    assert!(smaller.err.contains("does not shrink") && smaller.err.contains("256M"), "{}", smaller.err);
    let server = sized("300M").start();
    assert_eq!((size(&server), len()), (Some(300 << 20), 256 << 20));
    server.spillway(&["stop", "ram0"]).well();
    fs::write(spill_file(&folder), "a diary".repeat(10_000)).expect("a file");
    let foreign = sized("64M").run();
    assert!(foreign.err.contains("--force") && len() == 70_000, "{}", foreign.err);
}

#[test]
fn room_that_comes_free_goes_back_to_the_host() {
    let folder = Arc::new(Scratch::new());
    let server = ram("64M", &folder).start();
    let taken = || fs::metadata(spill_file(&folder)).expect("a file").blocks() * 512;
    fio(&server, &["--rw=write", "--bs=64k", "--size=24M"]);
    set(&server, "writeback", "page_indexes=0-6143");
    assert!(taken() >= 24 << 20, "{} bytes", taken());
    until("a reset is accepted", || (server.spillway(&["reset", "ram0"]).code == Some(0)).then_some(()));
    // But for the segment that was written to last.
    until("what is free is punched", || (taken() < 5 << 20).then_some(()));
}

/// It is counted, where users look for it, and what is in memory stays; what comes free there is used again.
#[test]
fn a_full_file_system_is_a_full_spill_file() {
    let (folder, place) = (Arc::new(Scratch::new()), Scratch::new());
    tool::run("mount", &["-t", "tmpfs", "-o", "size=16M", "none", text(place.path())]).well();
    let server = ram_on("64M", &folder, &place.join("pages")).mounted().start();
    tool::run("umount", &["--lazy", text(place.path())]).well();
    let verified = ["--rw=write", "--bs=64k", "--size=24M", "--verify=crc32c"];
    fio(&server, &[&verified[..], &["--do_verify=0"]].concat());
    let refused = server.spillway(&["set", "ram0", "writeback", "page_indexes=0-6143"]);
    assert!(refused.err.contains("ENOSPC") && refused.err.contains("full"), "{}", refused.err);
    let counts = ["spill_full", "spill_write_errors"].map(|name| server.value("ram0", name));
    assert!(counts[0].as_u64() > Some(0) && counts[1] == 0, "{counts:?}");
    let shown = fs::read_to_string(server.file("ram0").with_file_name("zram").join("spill_full"));
    assert_eq!(shown.expect("a control file").trim(), counts[0].to_string());
    fio(&server, &[&verified[..], &["--verify_only=1"]].concat());
    let held = away(&server);
    assert!((1000..4096).contains(&held), "{held} pages are away");
    server.client().ask(raw::command::TRIM, 0, 8 << 20).expect("it is discarded");
    until("what came free is used again", || {
        (server.spillway(&["set", "ram0", "writeback", "page_indexes=5000-5100"]).code == Some(0))
            .then_some(())
    });
}

/// E1's second flow, over NBD and through the mount: a limit of 1002 pages, 10 MiB written, all of it idle, and 1002 pages are written back.
#[test]
fn the_limit_of_pages_that_are_written_back_is_kept_to_the_page() {
    for mounted in [false, true] {
        let folder = Arc::new(Scratch::new());
        let launch = ram("4G", &folder);
        let server = if mounted { launch.mounted().start() } else { launch.start() };
        let job = |verify: &str| {
            let common = ["--rw=write", "--bs=4k", "--size=10M", "--verify=crc32c", verify];
            if !mounted {
                return fio(&server, &common);
            }
            let file = format!("--filename={}", text(&server.file("ram0")));
            let through =
                ["--name=job", "--ioengine=psync", "--refill_buffers", "--verify_state_save=0", &file];
            tool::run("fio", &[&through[..], &common].concat()).well();
        };
        set(&server, "writeback_limit_enable", "1");
        set(&server, "writeback_limit", "1002");
        job("--do_verify=0");
        set(&server, "idle", "all");
        let refused = server.spillway(&["set", "ram0", "writeback", "idle"]);
        assert!(refused.err.contains("EIO") && refused.err.contains("writeback_limit"), "{}", refused.err);
        let counts = ["bd_count", "bd_reads", "bd_writes"].map(|column| number(&server, "bd_stat", column));
        assert_eq!(counts, [1002, 0, 1002], "mounted: {mounted}");
        job("--verify_only=1");
        assert_eq!(number(&server, "bd_stat", "bd_reads"), 1002);
    }
}

/// What a program is made of, packed: what is written is hardly more than the objects.
#[test]
fn pages_take_no_more_room_in_the_file_than_they_compress_to() {
    const PIECE: usize = 8 << 20;
    let folder = Arc::new(Scratch::new());
    let server = ram("64M", &folder).start();
    let program = fs::read(spillway_tests::binary::path()).expect("it was built");
    let mut client = server.client();
    for piece in 0..8 {
        let bytes: Vec<u8> =
            program.iter().cycle().skip(piece * PIECE % program.len()).take(PIECE).copied().collect();
        client.write((piece * PIECE) as u64, &bytes).expect("it is written");
    }
    set(&server, "writeback", "page_indexes=0-16383");
    let [held, written] = ["spill_bytes", "spill_written_bytes"].map(|name| server.value("ram0", name));
    let (held, written) = (held.as_u64().expect("bytes"), written.as_u64().expect("bytes"));
    assert!(held > 10 << 20 && held < 60 << 20, "{held} bytes of objects");
    assert!(written * 100 <= held * 102, "{written} bytes are written for {held}");
}

#[test]
fn a_block_device_is_a_spill_file_too() {
    let folder = Arc::new(Scratch::new());
    let device = LoopDevice::direct(&folder.write("disk", vec![0; 48 << 20]));
    let launch = ram_on("64M", &folder, device.path());
    for _ in 0..2 {
        let mut server = launch.clone().start();
        assert_eq!(server.value("ram0", "spill_size").as_u64(), Some(48 << 20));
        let job = ["--rw=write", "--bs=64k", "--size=24M", "--verify=crc32c"];
        fio(&server, &[&job[..], &["--do_verify=0"]].concat());
        set(&server, "writeback", "page_indexes=0-6143");
        assert_eq!(away(&server), 6144);
        fio(&server, &[&job[..], &["--verify_only=1"]].concat());
        server.spillway(&["stop", "ram0"]).well();
        assert!(server.ends().success());
    }
    let other = launch.with("--name", "other").run();
    assert!(other.err.contains("ram0") && other.err.contains("--force"), "{}", other.err);
}

/// E1's first flow: an archive on ext4, written back before, between and after, is the same at the end.
#[test]
fn a_file_system_survives_that_its_pages_are_written_back_at_every_stage() {
    let folder = Arc::new(Scratch::new());
    let server = ram("512M", &folder).mounted().start();
    let device = LoopDevice::direct(&server.file("ram0"));
    let path = device.path().to_str().expect("text");
    let back = || {
        set(&server, "idle", "all");
        set(&server, "writeback", "idle");
        assert!(away(&server) > 0, "some pages are away");
    };
    tool::run("/usr/sbin/mkfs.ext4", &["-q", "-F", path]).well();
    back();
    let (place, archive) = (Scratch::new(), folder.join("archive"));
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates");
    tool::run("tar", &["-cf", text(&archive), "-C", text(&sources), "."]).well();
    tool::run("mount", &[path, text(place.path())]).well();
    tool::run("cp", &[text(&archive), text(&place.join("copy"))]).well();
    back();
    tool::run("cp", &[text(&place.join("copy")), text(&place.join("second"))]).well();
    tool::unmount(place.path());
    back();
    tool::run("mount", &[path, text(place.path())]).well();
    let copies = ["copy", "second"].map(|name| fs::read(place.join(name)).expect("a file"));
    tool::unmount(place.path());
    let original = fs::read(&archive).expect("a file");
    assert!(copies.iter().all(|copy| *copy == original), "a copy of the archive changed");
    tool::run("/usr/sbin/e2fsck", &["-fn", path]).well();
    device.settles();
}

/// The same over NBD, with copies of the whole device between the stages.
#[test]
fn a_file_system_survives_it_over_nbd() {
    let folder = Arc::new(Scratch::new());
    let server = ram("96M", &folder).start();
    let place = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let (image, archive, read, copy) = (place("image"), place("archive"), place("read"), place("copy"));
    let uri = server.uri();
    let copied = |from: &str, to: &str| {
        tool::run("nbdcopy", &[from, to]).well();
        set(&server, "idle", "all");
        set(&server, "writeback", "idle");
        assert!(away(&server) > 0, "some pages are away");
    };
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates/layers/src");
    tool::run("tar", &["-cf", &archive, "-C", text(&sources), "."]).well();
    fs::File::create(&image).and_then(|file| file.set_len(96 << 20)).expect("a file");
    tool::run("/usr/sbin/mkfs.ext4", &["-q", "-F", &image]).well();
    copied(&image, &uri);
    tool::run("/usr/sbin/debugfs", &["-w", "-R", &format!("write {archive} copy"), &image]).well();
    copied(&image, &uri);
    for _ in 0..2 {
        copied(&uri, &read);
        tool::run("/usr/sbin/e2fsck", &["-fn", &read]).well();
        tool::run("/usr/sbin/debugfs", &["-R", &format!("dump copy {copy}"), &read]).well();
        assert!(fs::read(&copy).expect("a file") == fs::read(&archive).expect("a file"), "it changed");
    }
}

/// Four times as much as the memory, that does not compress, written at random by two jobs, and all of it twice: every request is
/// answered, all of it is there, and the budget holds.
#[test]
fn a_working_set_larger_than_memory_is_kept_within_the_budget() {
    const MEMORY: u64 = 128 << 20;
    let folder = Arc::new(Scratch::new());
    let launch = ram("512M", &folder).with("--memory", MEMORY.to_string()).with("--spill-size", "768M");
    let server = launch.start();
    let jobs = [
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
        "--numjobs=2",
        "--size=256M",
        "--offset_increment=256M",
    ];
    let verify = ["--verify=crc32c", "--verify_fatal=1", "--group_reporting"];
    let write = [&jobs[..], &verify, &["--do_verify=1", "--loops=2"]].concat();
    fio(&server, &write);
    let resident = server.vitals().resident_max;
    assert!(resident <= MEMORY + (64 << 20), "{resident} bytes resident");
    let pages = away(&server);
    assert!(pages > 80_000, "{pages} of 131072 pages are away");
    let bytes = server.value("ram0", "spill_bytes").as_u64();
    assert!(bytes > Some(80_000 << 12), "{bytes:?} bytes: what is away takes room there");
    let policy = server.spillway(&["get", "ram0", "policy"]).well().out;
    assert!(policy.contains("of --memory is held"), "{policy}");
    let failed = ["failed_reads", "failed_writes"].map(|column| number(&server, "io_stat", column));
    assert_eq!(failed, [0, 0], "no request has failed");
}

/// Writers find memory and file full again and again while the file has no room for what they push out: each is answered.
#[test]
fn a_full_spill_file_answers_every_write() {
    let folder = Arc::new(Scratch::new());
    let mut server = ram("4G", &folder).with("--memory", "64M").with("--spill-size", "40M").start();
    let mut client = raw::Client::open(&folder.join("nbd.sock"), "ram0");
    let (mut chance, mut full, mut at) = (Chance::new(1), 0, 0);
    while full < 150 {
        match client.write(at, &pattern::random(1, at, 4096)) {
            Ok(()) => at += 4096,
            Err(error) => {
                assert_eq!(error, raw::errno::ENOSPC);
                full += 1;
                let room = chance.below(at >> 23) << 23;
                client.ask(raw::command::TRIM, room, 8 << 20).expect("a discard needs no room");
            }
        }
    }
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.ends().success());
}

#[test]
fn a_spill_file_is_made_for_its_owner_alone_and_taken_again_only_after_a_stop() {
    let folder = Arc::new(Scratch::new());
    let mut server = ram("64M", &folder).start();
    let meta = fs::metadata(spill_file(&folder)).expect("it was made");
    assert_eq!((meta.mode() & 0o777, meta.blocks() < 1 << 11), (0o600, true), "{meta:?}");
    server.says("O_DIRECT");
    assert_eq!(meta.len(), 32 << 20);
    // 64 MiB and a tenth of it, in whole segments of 4 MiB, and four more.
    let size = server.value("ram0", "spill_size");
    assert_eq!(size.as_u64(), Some(88 << 20));
    let second = ram("64M", &folder).with("--name", "other").run();
    assert!(second.err.contains("spill"), "{}", second.err);
    fio(&server, &["--rw=write", "--bs=4k", "--size=1M"]);
    set(&server, "writeback", "page_indexes=0-255");
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.ends().success());
    let other = ram("64M", &folder).with("--name", "other").run();
    assert!(other.err.contains("ram0") && other.err.contains("--force"), "{}", other.err);
    let again = ram("64M", &folder).start();
    again.says("gone");
    drop(again);
    let killed = ram("64M", &folder).run();
    assert!(killed.err.contains("--force"), "{}", killed.err);
    let forced = ram("64M", &folder).flag("--force").start();
    forced.says("by force");
    assert!(!forced.log().contains("--force"), "{}", forced.log());
    let listed = forced.spillway(&["ls", "--json", "--bytes"]).well().out;
    let rows: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((&rows[0]["spilled"], &rows[0]["spill_size"]), (&0.into(), &size), "{listed}");
    drop(forced);
    fs::write(spill_file(&folder), "a diary".repeat(10_000)).expect("a file");
    let foreign = ram("64M", &folder).run();
    assert!(foreign.err.contains("spill"), "{}", foreign.err);
    assert_eq!(fs::read(spill_file(&folder)).expect("a file").len(), 70_000, "it is as it was");
}

/// A page of `version`, half of which compresses; every seventh does not at all.
fn page(slot: u32, version: u64) -> Vec<u8> {
    let (seed, at) = (version << 32 | u64::from(slot), u64::from(slot) * 4096);
    if slot.is_multiple_of(7) {
        pattern::random(seed, at, 4096)
    } else {
        pattern::half_random(seed, at, 4096)
    }
}

/// Pages as they are away: what a client has written, and where it lies.
#[derive(Default)]
struct Away(BTreeMap<u32, Vec<u8>>);

impl Away {
    fn write(&mut self, server: &Server, slots: std::ops::Range<u32>, version: u64) {
        let mut client = server.client();
        for slot in slots {
            client.write(u64::from(slot) * 4096, &page(slot, version)).expect("it is written");
            self.0.remove(&slot);
        }
    }

    fn write_back(&mut self, server: &Server, slots: std::ops::RangeInclusive<u32>, version: u64) {
        set(server, "writeback", &format!("page_indexes={}-{}", slots.start(), slots.end()));
        self.0.extend(slots.map(|slot| (slot, page(slot, version))));
    }
}

/// A reader that knows the format alone finds every page that was away when a device was stopped, and nothing that was replaced
/// since, whatever was cleaned meanwhile.
#[test]
fn the_file_of_a_stopped_device_holds_what_was_away_and_nothing_else() {
    for compressed in ["1", "0"] {
        let folder = Arc::new(Scratch::new());
        let mut server = ram("64M", &folder).with("--spill-size", "36M").start();
        set(&server, "reset", "1");
        set(&server, "compressed_writeback", compressed);
        set(&server, "disksize", "64M");
        set(&server, "bring_back", "never");
        let mut away = Away::default();
        // A file of 32 MiB, written twice over: segments come free and are cleaned.
        for version in 1..=6 {
            away.write(&server, 0..2600, version);
            away.write_back(&server, 0..=2599, version);
        }
        away.write(&server, 100..150, 7);
        away.write(&server, 1000..1900, 7);
        away.write_back(&server, 1200..=1299, 7);
        // Away, and read: it stays there. Discarded and zeroed: it does not.
        assert!(server.client().read(5 * 4096, 4096).expect("it is read") == page(5, 6));
        server.client().ask(raw::command::TRIM, 300 * 4096, 20 * 4096).expect("it is discarded");
        (300..320).for_each(|slot| _ = away.0.remove(&slot));
        // Never written back.
        away.write(&server, 5000..5100, 8);
        assert_eq!(number(&server, "bd_stat", "bd_count"), away.0.len() as u64);
        server.spillway(&["stop", "ram0"]).well();
        assert!(server.ends().success());
        let found = crate::spill_reader::pages(&fs::read(spill_file(&folder)).expect("a file"));
        assert!(found.keys().eq(away.0.keys()), "{} pages found, {} away", found.len(), away.0.len());
        assert!(found == away.0, "a page is not as it was written");
    }
}
