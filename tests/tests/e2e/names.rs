//! A device under two names, and names that are not listed, with the clients that people use.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value as Json;
use spillway_front_end::{FrontEnd, Request, Without};
use spillway_tests::raw::{Client, command, errno};
use spillway_tests::tool::{python, run};
use spillway_tests::{Launch, PATIENCE, Scratch, Server, pattern, text, until};

const USAGE: i32 = 2;
const MISSING: i32 = 3;
const BUSY: i32 = 4;

const MIB: usize = 1 << 20;

/// A RAM disk `ram0` that is also `copy`, for reading.
fn twins() -> Launch {
    Launch::ram("16M").with("--read-only-name", "copy")
}

/// The one device of a listing.
fn row(server: &Server) -> Json {
    let said = server.spillway(&["ls", "--json"]).well();
    let mut rows: Vec<Json> = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(rows.len(), 1, "{said}");
    rows.remove(0)
}

/// What nbdinfo says of an export.
fn described(server: &Server, export: &str) -> Json {
    let said = run("nbdinfo", &["--json", &server.uri_of(export)]).well();
    serde_json::from_str::<Json>(&said.out).expect("JSON")["exports"][0].clone()
}

/// The names that nbdinfo lists at a socket.
fn listed(socket: &Path) -> Vec<String> {
    let uri = format!("nbd+unix:///?socket={}", text(socket));
    let said = run("nbdinfo", &["--list", "--json", &uri]).well();
    let all: Json = serde_json::from_str(&said.out).expect("JSON");
    let exports = all["exports"].as_array().expect("a list").iter();
    exports.map(|export| export["export-name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn real_clients_read_by_the_second_name_and_cannot_write() {
    let server = twins().start();
    assert_eq!(listed(server.socket()), ["ram0", "copy"]);
    let (own, twin) = (described(&server, "ram0"), described(&server, "copy"));
    assert_eq!((&twin["is_read_only"], &own["is_read_only"]), (&Json::Bool(true), &Json::Bool(false)));
    for same in ["can_multi_conn", "can_flush", "export-size", "can_df", "can_cache"] {
        assert_eq!(twin[same], own[same], "{same}");
    }
    assert_eq!(twin["can_multi_conn"], true);
    assert_eq!((&twin["can_trim"], &twin["can_zero"]), (&Json::Bool(false), &Json::Bool(false)));
    run("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 64k", &server.uri()]).well();
    let uri = server.uri_of("copy");
    let read = run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 7 1M 64k", &uri]).well();
    assert!(!read.out.contains("verification failed"), "{read}");
    assert_ne!(run("qemu-io", &["-f", "raw", "-c", "write 0 64k", &uri]).code, Some(0));
    let copy = server.folder().join("copy.raw");
    run("nbdcopy", &[&uri, text(&copy)]).well();
    assert!(fs::read(copy).expect("a copy") == server.content());
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, &server.uri()]).well();
    let image = server.folder().write("image.raw", vec![1; MIB]);
    assert_ne!(run("nbdcopy", &[text(&image), &uri]).code, Some(0), "it takes no image");
    assert_eq!(run("nbdinfo", &["--size", "--", &server.uri_of("")]).well().out.trim(), "16777216");
}

/// libnbd without its own checks, so that the server's answers show.
#[test]
fn a_reader_sees_at_once_what_was_acknowledged_and_changes_are_refused() {
    let server = twins().start();
    let script = "import nbd, sys\n\
        reader, writer = nbd.NBD(), nbd.NBD()\n\
        reader.set_strict_mode(0)\n\
        writer.connect_uri(sys.argv[1]); reader.connect_uri(sys.argv[2])\n\
        for change in (lambda: reader.pwrite(b'x' * 512, 0), lambda: reader.trim(4096, 0), lambda: reader.zero(4096, 0)):\n \
          try: change(); sys.exit('it was not refused')\n \
          except nbd.Error as error: print(error.errno)\n\
        for round in range(300):\n \
          block = bytes([round % 255 + 1]) * 4096\n \
          writer.pwrite(block, round % 7 * 4096)\n \
          assert reader.pread(4096, round % 7 * 4096) == block, round\n\
        writer.trim(4096, 0)\n\
        assert reader.pread(4096, 0) == bytes(4096)\n\
        reader.flush()\n";
    let said = python(script, &[&server.uri(), &server.uri_of("copy")]).well();
    assert_eq!(said.out, "EPERM\nEPERM\nEPERM\n");
    server.spillway(&["resize", "ram0", "32M"]).well();
    for name in ["copy", "ram0"] {
        assert_eq!(described(&server, name)["export-size"], 32 << 20, "{name}");
    }
}

#[test]
fn two_names_are_one_device_in_listings_metrics_and_changes() {
    let launch = twins();
    let http = launch.folder().join("http");
    let server = launch.with("--http", format!("unix:{}", text(&http))).start();
    let mut writer = server.client();
    writer.write(0, &[1; 4096]).expect("a write");
    let mut reader = Client::open(server.socket(), "copy");
    (0..3).for_each(|_| assert!(reader.read(0, 4096) == Ok(vec![1; 4096])));
    assert_eq!(reader.write(0, &[2; 512]), Err(errno::EPERM));
    drop(writer);
    // A session publishes what it counted when it ends.
    drop(reader);
    let row = until("both have left", || Some(row(&server)).filter(|row| row["clients"] == 0));
    assert_eq!((&row["requests"]["reads"], &row["requests"]["writes"]), (&Json::from(3), &Json::from(1)));
    assert!(row["name"] == "ram0" && row["read_only_name"] == "copy" && row["read_only"] == false, "{row}");
    let exports = row["exports"].as_array().expect("a list");
    assert!(exports.len() == 2 && exports[1].as_str().expect("text").contains(":///copy?"), "{exports:?}");
    let metrics = run("curl", &["--silent", "--unix-socket", text(&http), "http://localhost/metrics"]).well();
    assert!(metrics.out.contains("spillway_device_size_bytes{device=\"ram0\"} 16777216"), "{metrics}");
    assert!(!metrics.out.contains("copy"), "{metrics}");
    let words = "copy is the read-only name of device ram0";
    let image = server.folder().write("image.raw", vec![1; MIB]);
    for arguments in [
        &["stop", "copy"][..],
        &["reset", "copy"],
        &["get", "copy"],
        &["save", "copy", "out.raw"],
        &["load", "copy", text(&image)],
    ] {
        server.spillway(arguments).refused(MISSING, words);
    }
    let there = run("curl", &["--silent", "--unix-socket", text(&http), "http://localhost/api/devices/copy"]);
    assert!(there.out.contains(words) && there.out.contains("ENOENT"), "{there}");
    server.spillway(&["load", "ram0", text(&image)]).well();
    assert!(Client::open(server.socket(), "copy").read(0, MIB) == Ok(vec![1; MIB]));
}

#[test]
fn a_reader_keeps_its_device_and_leaves_with_it() {
    let mut server = twins().mounted().start();
    let mut reader = Client::open(server.socket(), "copy");
    server.spillway(&["reset", "ram0"]).refused(BUSY, "a client is connected");
    let image = server.folder().write("image.raw", vec![1; MIB]);
    server.spillway(&["load", "ram0", text(&image)]).refused(BUSY, "2 clients are connected");
    let file = OpenOptions::new().read(true).write(true).open(server.file("ram0")).expect("a disk");
    file.write_all_at(&[5; 4096], 8192).expect("a write");
    assert!(reader.read(8192, 4096) == Ok(vec![5; 4096]), "what is written by the mount");
    assert!(!server.file("copy").exists(), "a mount shows a device once");
    drop(file);
    until("the file is closed", || {
        Some(server.spillway(&["stop", "ram0"])).filter(|said| said.code == Some(0))
    });
    assert_eq!(reader.stream.read(&mut [0]).expect("the end, in order"), 0);
    assert!(server.ends().success(), "{}", server.log());
}

#[test]
fn all_devices_stop_while_their_second_names_are_in_use() {
    let folder = Arc::new(Scratch::new());
    let device = |name: &str| {
        let origin = "origin = { kind = \"zram\", disksize = \"16M\" }";
        format!("[[device]]\nname = \"{name}\"\nread_only_name = \"{name}-copy\"\n{origin}\n")
    };
    let mut server = Launch::serve(folder, device("a") + &device("b")).start();
    let mut readers = ["a-copy", "b-copy"].map(|name| Client::open(server.socket(), name));
    readers.iter_mut().for_each(|reader| assert!(reader.read(0, 512) == Ok(vec![0; 512])));
    server.spillway(&["stop", "--all"]).well();
    assert!(server.ends().success(), "{}", server.log());
}

/// By a mount that adds and removes devices. As root: mounting needs it.
#[test]
fn a_device_is_added_beside_the_second_name_of_another_and_removed_only_unused() {
    for shared in [true, false] {
        let folder = Arc::new(Scratch::new());
        let socket = folder.join("spillway/ram0.sock");
        let own = Launch::new(&["ram", "--size", "16M"], folder, socket);
        let launch = if shared { Launch::ram("16M") } else { own };
        let mut server = launch.with("--read-only-name", "ram1").mounted().start();
        let control = |file: &str| server.file("").parent().expect("a mount").join("zram-control").join(file);
        assert_eq!(fs::read_to_string(control("hot_add")).expect("it is added"), "2\n", "ram1 is taken");
        let mut reader = Client::open(server.socket(), "ram1");
        let remove = || fs::write(control("hot_remove"), "0\n");
        let refused = remove().expect_err("it has a client");
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::BUSY.raw_os_error()));
        assert!(reader.read(0, 512) == Ok(vec![0; 512]), "the reader goes on");
        drop(reader);
        until("the reader is gone", || remove().ok());
        assert!(Client::try_open(server.socket(), "ram1").is_err(), "it went with its device");
        server.signal(Signal::TERM);
        assert!(server.ends().success(), "{}", server.log());
    }
}

#[test]
fn a_second_name_has_the_number_of_its_device_and_is_nobody_elses() {
    let folder = Arc::new(Scratch::new());
    let launch = |socket: &str| {
        let launch =
            Launch::new(&["ram", "--size", "1M", "--name", "r%"], folder.clone(), folder.join(socket));
        launch.with("--read-only-name", "r%-copy").with("--socket", folder.join(socket))
    };
    let [first, second] = ["a", "b"].map(|socket| launch(socket).start());
    assert_eq!(listed(first.socket()), ["r0", "r0-copy"]);
    assert_eq!(listed(second.socket()), ["r1", "r1-copy"]);
    let refused = |name: &str| Launch::ram("1M").with("--read-only-name", name).run();
    refused("ram0").refused(USAGE, "the device is named ram0");
    refused("a/b").refused(USAGE, "is not allowed");
    refused("ram%").refused(USAGE, "is not allowed");
    let origin = "origin = { kind = \"zram\", disksize = \"1M\" }";
    let text = format!(
        "[[device]]\nname = \"a\"\nread_only_name = \"b\"\n{origin}\n[[device]]\nname = \"b\"\n{origin}\n"
    );
    Launch::serve(Arc::default(), text).run().refused(USAGE, "two devices are named \"b\"");
}

#[test]
fn a_device_is_handed_over_and_its_reader_leaves() {
    let folder = Arc::new(Scratch::new());
    let [origin, cache] = ["origin", "cache"].map(|name| folder.write(name, vec![0; 16 * MIB]));
    let launch = Launch::cache(folder, &origin, &cache).with("--read-only-name", "copy");
    let mut server = launch.start();
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(MIB as u64, &bytes).expect("a write");
    let mut reader = Client::open(server.socket(), "copy");
    assert!(reader.read(MIB as u64, MIB) == Ok(bytes.clone()), "it is in the cache alone");
    server.spillway(&["hand-over", "cache0"]).well();
    assert!(server.ends().success(), "{}", server.log());
    assert!(fs::read(origin).expect("the origin")[MIB..2 * MIB] == bytes);
    assert_eq!(reader.stream.read(&mut [0]).expect("the end, in order"), 0);
}

/// A virtual machine has the device by vhost-user.
#[test]
fn what_a_guest_writes_is_read_by_the_second_name() {
    let launch = twins();
    let socket = launch.folder().join("guest.sock");
    let server = launch.with("--vhost-user", &socket).start();
    let mut reader = Client::open(server.socket(), "copy");
    let mut guest =
        FrontEnd::connect(&socket, 1, 128, MIB, Without::default()).expect("the device is served");
    let bytes = pattern::random(1, 0, 4096);
    guest.memory()[..4096].copy_from_slice(&bytes);
    assert_eq!(guest.ask(0, Request::Write(0, 0..4096), PATIENCE).expect("an answer"), 0);
    assert!(reader.read(0, 4096) == Ok(bytes));
    assert_eq!(reader.ask(command::WRITE_ZEROES, 0, 4096), Err(errno::EPERM));
}

#[test]
fn hidden_names_are_not_listed_and_open_by_name() {
    let folder = Arc::new(Scratch::new());
    let origin = "origin = { kind = \"zram\", disksize = \"16M\" }";
    let config = format!(
        "[[device]]\nname = \"secret\"\nhidden = true\nread_only_name = \"public\"\n{origin}\n\
         [[device]]\nname = \"other\"\nread_only_name = \"veiled\"\nread_only_name_hidden = true\n{origin}\n"
    );
    let server = Launch::serve(folder, config).start();
    assert_eq!(listed(server.socket()), ["public", "other"]);
    for name in ["secret", "public", "other", "veiled"] {
        assert_eq!(described(&server, name)["export-size"], 16 << 20, "{name}");
    }
    Client::open(server.socket(), "secret").write(0, &[3; 4096]).expect("it is writable");
    assert!(Client::open(server.socket(), "public").read(0, 4096) == Ok(vec![3; 4096]));
    let said = |name: &str| {
        let uri = server.uri_of(name);
        let said = run("nbdinfo", &[&uri]);
        assert_ne!(said.code, Some(0), "{said}");
        said.err.replace(&format!("export: {name}\n"), "export: NAME\n")
    };
    let wrong = said("nothing");
    assert!(wrong.contains("No such file or directory for export: NAME\n"), "{wrong}");
    for name in ["secre", "secret2", "veiled2", "x"] {
        assert_eq!(said(name), wrong, "{name}");
    }
    let ls = server.spillway(&["ls"]).well();
    assert!(ls.out.contains("///secret?") && ls.out.contains("///veiled?"), "its owner sees all: {ls}");
}

#[test]
fn a_hidden_device_alone_is_no_default() {
    let server = Launch::ram("16M").flag("--hidden").start();
    assert!(listed(server.socket()).is_empty());
    assert!(Client::try_open(server.socket(), "").is_err(), "nobody is led to what is hidden");
    let mut client = Client::open(server.socket(), "ram0");
    client.write(0, &[1; 512]).expect("who knows the name writes");
    let save = server.folder().join("saved.raw");
    server.spillway(&["save", "ram0", text(&save)]).well();
    assert!(fs::read(save).expect("an image")[..512] == [1; 512], "its owner's commands know it");
    let server = twins().flag("--hidden").flag("--read-only-name-hidden").start();
    assert!(listed(server.socket()).is_empty());
    assert_eq!(described(&server, "copy")["is_read_only"], true);
    let served = twins().flag("--hidden").start();
    assert_eq!(described(&served, "")["is_read_only"], true, "the one name that is listed");
    Launch::ram("1M").flag("--read-only-name-hidden").run().refused(USAGE, "--read-only-name");
}
