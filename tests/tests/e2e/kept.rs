//! RAM disks that come back: stops and starts of the real program, with real clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::{Launch, Scratch, Server, pattern, text, tool};

fn kept(folder: &Arc<Scratch>, size: &str, option: &str) -> Launch {
    let socket = folder.join("nbd.sock");
    let launch = Launch::new(&["ram", "--size", size], folder.clone(), socket.clone());
    launch.with("--socket", socket).with("--spill", file(folder)).flag("-v").flag(option)
}

fn file(folder: &Scratch) -> PathBuf {
    folder.join("pages.spill")
}

/// Stops as an init system does.
fn stop(mut server: Server) {
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
    server.says("keeps what it stores");
}

fn copy(from: &str, to: &str) {
    tool::run("nbdcopy", &[from, to]).well();
}

/// A file system that gets a file more before each stop.
#[test]
fn a_file_system_is_whole_after_each_of_a_hundred_restarts() {
    let folder = Arc::new(Scratch::new());
    let (image, back) = (folder.join("image"), folder.join("back"));
    fs::File::create(&image).and_then(|image| image.set_len(8 << 20)).expect("a file");
    tool::run("/usr/sbin/mkfs.ext4", &["-q", "-F", text(&image)]).well();
    let server = kept(&folder, "8M", "--keep").start();
    copy(text(&image), &server.uri());
    stop(server);
    for round in 0..100 {
        let server = kept(&folder, "8M", "--require-kept").start();
        server.says("pages that it stored");
        copy(&server.uri(), text(&back));
        assert!(fs::read(&back).expect("a file") == fs::read(&image).expect("a file"), "restart {round}");
        if round % 10 == 0 {
            tool::run("/usr/sbin/e2fsck", &["-fn", text(&back)]).well();
            let some = folder.write("some", pattern::half_random(round, 0, 100_000));
            let write = format!("write {} file{round}", text(&some));
            tool::run("/usr/sbin/debugfs", &["-w", "-R", &write, text(&image)]).well();
            copy(text(&image), &server.uri());
        } else {
            let bytes = pattern::half_random(round, 0, 4096);
            write_at(&image, (7 << 20) + round % 256 * 4096, &bytes);
            server.client().write((7 << 20) + round % 256 * 4096, &bytes).expect("it is written");
        }
        stop(server);
    }
}

/// In the file system's free space.
fn write_at(image: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let image = fs::File::options().write(true).open(image).expect("a file");
    image.write_all_at(bytes, at).expect("it is written");
}

#[test]
fn after_a_kill_a_device_begins_empty_and_says_so_or_does_not_begin() {
    let folder = Arc::new(Scratch::new());
    let bytes = pattern::half_random(1, 0, 4 << 20);
    let absent = kept(&folder, "16M", "--require-kept").run();
    assert!(absent.code != Some(0) && !file(&folder).exists(), "{absent}");
    let server = kept(&folder, "16M", "--keep").start();
    server.client().write(0, &bytes).expect("it is written");
    stop(server);
    let mut server = kept(&folder, "16M", "--keep").start();
    let mut client = server.client();
    assert!(client.read(0, 4 << 20).expect("it is read") == bytes);
    client.write(0, &[7; 4096]).expect("it is written");
    server.signal(Signal::KILL);
    server.ends();
    let left = fs::read(file(&folder)).expect("a file");
    let refused = kept(&folder, "16M", "--require-kept").run();
    assert!(refused.err.contains("killed is gone") && refused.err.contains("--require-kept"), "{refused}");
    assert!(fs::read(file(&folder)).expect("a file") == left, "a refusal changes nothing");
    let server = kept(&folder, "16M", "--keep").start();
    server.says("killed is gone");
    assert!(server.client().read(0, 4 << 20).expect("it is read").iter().all(|byte| *byte == 0));
}

#[test]
fn a_file_that_keeps_something_is_refused_to_others_and_a_full_one_fails_the_stop() {
    let folder = Arc::new(Scratch::new());
    let server = kept(&folder, "16M", "--keep").start();
    server.client().write(0, &pattern::random(1, 0, 1 << 20)).expect("it is written");
    stop(server);
    let socket = folder.join("nbd.sock");
    let plain = Launch::new(&["ram", "--size", "16M"], folder.clone(), socket.clone());
    let plain = plain.with("--socket", &socket).with("--spill", file(&folder)).run();
    assert!(plain.err.contains("--keep") && plain.err.contains("--force"), "{plain}");
    let larger = kept(&folder, "32M", "--keep").run();
    assert!(larger.err.contains("same size"), "{larger}");
    let other = kept(&folder, "16M", "--keep").with("--name", "other").run();
    assert!(other.err.contains("belongs to 'ram0'"), "{other}");
    let server = kept(&folder, "16M", "--require-kept").start();
    assert!(server.client().read(0, 1 << 20).expect("it is read") == pattern::random(1, 0, 1 << 20));
    server.spillway(&["resize", "ram0", "64M"]).well();
    let mut client = server.client();
    for at in (0..48 << 20).step_by(16 << 20) {
        client.write(at, &pattern::random(2, at, 16 << 20)).expect("it is written");
    }
    drop(client);
    let said = server.spillway(&["stop", "ram0"]);
    assert!(said.code != Some(0) && said.err.contains("is lost"), "{said}");
}

/// What the device stores has no other place: the stop waits for room, and says so.
#[test]
fn a_stop_on_a_full_file_system_waits_for_room() {
    let (folder, place) = (Arc::new(Scratch::new()), Scratch::new());
    tool::run("mount", &["-t", "tmpfs", "-o", "size=16M", "none", text(place.path())]).well();
    let (socket, spill) = (folder.join("nbd.sock"), place.join("pages"));
    let launch = || {
        let launch = Launch::new(&["ram", "--size", "32M"], folder.clone(), socket.clone());
        launch.with("--socket", &socket).with("--spill", &spill).flag("-v").flag("--keep")
    };
    let mut server = launch().start();
    let bytes = pattern::random(5, 0, 10 << 20);
    server.client().write(0, &bytes).expect("it is written");
    let other = place.write("other", vec![1; 10 << 20]);
    server.signal(Signal::TERM);
    server.says("make room");
    fs::remove_file(other).expect("it was there");
    assert!(server.ends().success(), "{}", server.log());
    server.says("keeps what it stores");
    let mut server = launch().start();
    assert!(server.client().read(0, 10 << 20).expect("it is read") == bytes);
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
    tool::run("umount", &[text(place.path())]).well();
}

/// One device of a server that goes on, and one that is added to it.
#[test]
fn a_device_that_leaves_a_server_is_kept_and_comes_back_to_another() {
    let folder = Arc::new(Scratch::new());
    let device = |name: &str, keys: &str| {
        format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"zram\", disksize = \"16M\"{keys} }}\n")
    };
    let keys = format!(", spill = {:?}, keep = true", file(&folder));
    let text = device("cold", &keys) + &device("other", "");
    let server = Launch::serve(folder.clone(), &text).flag("-v").start();
    let bytes = pattern::half_random(3, 0, 2 << 20);
    spillway_tests::raw::Client::open(server.socket(), "cold").write(0, &bytes).expect("it is written");
    server.spillway(&["stop", "cold"]).well();
    server.says("keeps what it stores");
    let alone = device("cold", &keys);
    let second_folder = Arc::new(Scratch::new());
    let second = Launch::serve(second_folder, alone).start();
    let read = spillway_tests::raw::Client::open(second.socket(), "cold").read(0, 2 << 20);
    assert!(read.expect("it is read") == bytes);
}

/// Another device is refused, and the server does not start: that is no crash of the first.
#[test]
fn a_start_that_fails_takes_nothing_from_a_device_that_was_opened() {
    let folder = Arc::new(Scratch::new());
    let device = |name: &str, spill: PathBuf, keep: &str| {
        format!(
            "[[device]]\nname = {name:?}\norigin = {{ kind = \"zram\", disksize = \"16M\", spill = {spill:?}, {keep} = true }}\n"
        )
    };
    let first = device("first", file(&folder), "keep");
    let launch = |text: &str| Launch::serve(folder.clone(), text).flag("-v");
    let server = launch(&first).start();
    let bytes = pattern::half_random(3, 0, 2 << 20);
    let open = |server: &Server| spillway_tests::raw::Client::open(server.socket(), "first");
    open(&server).write(0, &bytes).expect("it is written");
    stop(server);
    let refused = launch(&(first.clone() + &device("second", folder.join("absent"), "require_kept"))).run();
    assert!(refused.code != Some(0) && refused.err.contains("second"), "{refused}");
    let server = launch(&first).start();
    assert!(open(&server).read(0, 2 << 20).expect("it is read") == bytes);
}
