//! What `spillway doctor` says of this host, beside what servers do here.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use spillway_tests::tool::Said;
use spillway_tests::{Launch, LoopDevice, Refusal, Scratch, pattern, text, until};

/// A user that has nothing else here.
const USER: u32 = 64_918;

/// The command about paths, with `folder` for sockets.
fn doctor(folder: &Arc<Scratch>, paths: &[&Path]) -> Launch {
    let words: Vec<_> = ["doctor", "--json"].into_iter().chain(paths.iter().map(|path| text(path))).collect();
    Launch::new(&words, folder.clone(), folder.join("none.sock"))
}

/// What it has found.
struct Rows(Vec<Value>);

impl Rows {
    fn of(said: &Said) -> Self {
        Self(serde_json::from_str(&said.out).unwrap_or_else(|why| panic!("{why}: {said}")))
    }

    /// Of the paths.
    fn about(paths: &[&Path]) -> Self {
        Self::of(&doctor(&Arc::default(), paths).run().well())
    }

    /// Status and what was found, by the check.
    #[track_caller]
    fn get(&self, check: &str) -> (&str, &str) {
        let row = self.0.iter().find(|row| row["check"] == check);
        let row = row.unwrap_or_else(|| panic!("no {check} in {:?}", self.0));
        (row["status"].as_str().expect("text"), row["found"].as_str().expect("text"))
    }
}

#[test]
fn each_finding_has_a_remedy_unless_it_is_good() {
    let rows = Rows::about(&[Path::new("/dev/shm")]);
    for row in &rows.0 {
        assert_eq!(row["status"] == "ok", row["remedy"].is_null(), "{row}");
        let known = ["ok", "note", "problem"].contains(&row["status"].as_str().expect("text"));
        assert!(known && row["check"].is_string() && row["found"].is_string(), "{row}");
    }
    let table = Launch::new(&["doctor"], Arc::default(), "none.sock".into()).run().well();
    let host = rows.0.iter().filter(|row| row["path"].is_null());
    for check in host.map(|row| row["check"].as_str().expect("text")) {
        assert!(table.out.lines().any(|line| line.contains(&format!(" {check} "))), "{check}: {table}");
    }
    assert!(table.out.starts_with("STATUS CHECK ") && table.err.is_empty(), "{table}");
}

#[test]
fn the_driver_is_that_of_a_server_where_io_uring_is_allowed_and_where_it_is_refused() {
    let refused = Refusal::of("io_uring_setup", "EPERM");
    for refusal in [None, Some(refused)] {
        let with = |launch: Launch| refusal.map_or(launch.clone(), |refusal| launch.refused(refusal));
        let rows = Rows::of(&with(doctor(&Arc::default(), &[])).run().well());
        let (status, driver) = rows.get("driver");
        let expected =
            if refusal.is_some() { ("note", "poll (io_uring was refused") } else { ("ok", "io_uring") };
        assert!(status == expected.0 && driver.starts_with(expected.1), "{status} {driver}");
        with(Launch::ram("1M")).start().says(&format!(", {driver}; pid "));
    }
}

#[test]
fn memory_is_no_place_for_a_spill_file_and_nothing_is_left_there() {
    let folder = Scratch::on_tmpfs();
    let rows = Rows::about(&[folder.path()]);
    assert_eq!(rows.get("file system"), ("note", "tmpfs"));
    assert_eq!((rows.get("holes").0, rows.get("O_DIRECT").0), ("ok", "ok"));
    let of_folder: Vec<_> = rows.0.iter().filter(|row| row["path"] == text(folder.path())).collect();
    let words = of_folder[0]["remedy"].as_str().expect("a note");
    assert!(words.contains("It is memory"), "{words}");
    assert_eq!(fs::read_dir(folder.path()).expect("it is ours").count(), 0);
}

#[test]
fn an_origin_is_in_use_while_it_is_served_and_the_look_disturbs_nobody() {
    let (launch, origin) = Launch::disk_with(pattern::random(1, 0, 1 << 20));
    let mut server = launch.clone().start();
    let rows = Rows::about(&[&origin]);
    assert_eq!(rows.get("in use"), ("note", format!("spillway (pid {})", server.pid()).as_str()));
    server.client().write(0, &[7; 4096]).expect("a write");
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    // The kernel releases locks some time after the end.
    until("nobody uses the origin", || (Rows::about(&[&origin]).get("in use").0 == "ok").then_some(()));
    let content = fs::read(&origin).expect("it exists");
    assert!(content[..4096] == [7; 4096] && content[4096..] == pattern::random(1, 4096, (1 << 20) - 4096));
    drop(launch.start());
}

#[test]
fn a_block_device_that_cannot_discard_is_told_as_a_server_tells_it() {
    let folder = Arc::new(Scratch::new());
    let file = folder.write("origin", vec![0; 4 << 20]);
    for (device, status) in
        [(LoopDevice::direct(&file), "ok"), (LoopDevice::without_discards(4 << 20), "note")]
    {
        let rows = Rows::about(&[device.path()]);
        assert_eq!(rows.get("discard").0, status, "{:?}", rows.0);
        assert_eq!((rows.get("size"), rows.get("access").0), (("ok", "4M"), "ok"));
        let server = Launch::disk(folder.clone(), device.path()).start();
        assert_eq!(server.log().contains("discards are not offered"), status == "note", "{}", server.log());
    }
}

#[test]
fn a_folder_for_sockets_that_a_server_refuses_is_a_problem() {
    let folder = Arc::new(Scratch::new());
    DirBuilder::new().mode(0o755).create(folder.join("spillway")).expect("the folder is ours");
    let said = doctor(&folder, &[]).run();
    assert_eq!(said.code, Some(1), "{said}");
    let rows = Rows::of(&said);
    let (status, found) = rows.get("runtime folder");
    assert!(status == "problem" && found.contains("chmod 700"), "{found}");
    let socket = folder.join("nbd.sock");
    Launch::new(&["ram", "--size", "1M"], folder, socket).run().refused(1, "chmod 700");
}

#[test]
fn threads_that_a_server_does_not_get_are_a_problem() {
    let folder = Arc::new(Scratch::new());
    let said = doctor(&folder, &[]).limited(USER, 2).run();
    assert_eq!(said.code, Some(1), "{said}");
    let rows = Rows::of(&said);
    let (status, found) = rows.get("threads");
    assert!(status == "problem" && found.contains("could not be started"), "{found}");
    let socket = folder.join("nbd.sock");
    Launch::new(&["ram", "--size", "1M"], folder, socket).limited(USER, 2).run().refused(1, "os error 11");
}

/// As a network file system whose server is gone.
#[test]
fn a_path_that_does_not_answer_is_told_and_freezes_nothing() {
    let server = Launch::ram("1M").mounted().start();
    let (file, shm) = (server.file("ram0"), Path::new("/dev/shm"));
    server.signal(Signal::STOP);
    let rows = Rows::about(&[&file, shm]);
    let (status, found) = rows.get("storage");
    assert!(status == "note" && found.starts_with("no answer within "), "{found}");
    assert_eq!(rows.get("file system").1, "tmpfs", "the others are told");
    server.signal(Signal::CONT);
}

#[test]
fn a_path_where_nothing_is_is_named() {
    let missing = Path::new("/does/not/exist");
    let said = doctor(&Arc::default(), &[Path::new("/dev/shm"), missing]).run();
    said.refused(2, "/does/not/exist: No such file or directory");
}
