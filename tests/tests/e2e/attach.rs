//! `spillway attach` and `detach`: a device as a block device with a file system, here a loop device. As root. What the kernel's NBD client does
//! is checked where the kernel has it: `cargo xtask systemd`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::Client;
use spillway_tests::{Launch, Scratch, Server, pattern, text, tool};

/// Exit codes as documented.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const MISSING: i32 = 3;
const BUSY: i32 = 4;

/// A loop device over a file in a mount of tests is gone, whatever became of the test.
struct Attached<'a>(&'a Server);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.spillway(&["detach", "ram0"]);
        }
    }
}

fn attach(server: &Server, arguments: &[&str]) -> PathBuf {
    let said = server.spillway(&[&["attach", "ram0", "--via", "loop"], arguments].concat()).well();
    said.out.trim().into()
}

#[test]
fn a_device_is_attached_with_a_file_system_and_detached() {
    let server = Launch::ram("512M").mounted().start();
    let _attached = Attached(&server);
    let place = Scratch::new();
    let device = attach(&server, &["--mkfs", "ext4", text(place.path())]);
    assert!(device.starts_with("/dev/"), "{device:?}");
    fs::write(place.join("file"), "kept").expect("a file system");
    server.spillway(&["attach", "ram0", "--via", "loop"]).refused(BUSY, text(&device));
    server.spillway(&["stop", "ram0"]).refused(BUSY, text(&device));
    let mounted = format!("{}, mounted at {} (spillway detach", text(&device), text(place.path()));
    server.spillway(&["stop", "ram0"]).refused(BUSY, &mounted);
    server.spillway(&["save", "ram0", text(&place.join("image"))]).refused(BUSY, "detach it first");
    let other = tool::run("nbdinfo", &[server.uri()]);
    assert_ne!(other.code, Some(0), "another client got in: {other}");
    let open = File::open(place.join("file")).expect("it is there");
    server.spillway(&["detach", "ram0"]).refused(BUSY, &format!("(pid {})", std::process::id()));
    drop(open);
    spillway_tests::until("the file is closed", || {
        server.spillway(&["detach", "ram0"]).code.filter(|code| *code == 0)
    });
    assert!(!place.join("file").exists(), "still mounted");
    tool::run("nbdinfo", &[server.uri()]).well();
    server.spillway(&["attach", "ram0", "--via", "loop", "--mkfs", "xfs"]).refused(FAILED, "holds ext4");
    attach(&server, &[text(place.path())]);
    assert_eq!(fs::read_to_string(place.join("file")).expect("the same file system"), "kept");
    server.spillway(&["detach", "ram0"]).well();
    server.spillway(&["detach", "ram0"]).refused(MISSING, "not attached");
    attach(&server, &["--mkfs", "xfs", "--force"]);
    server.spillway(&["detach", "ram0"]).well();
    server.spillway(&["stop", "ram0"]).well();
}

/// It finds no room once it is written back, long after the programs that wrote it have ended.
#[test]
fn what_could_not_be_written_when_it_is_unmounted_is_said() {
    let server = Launch::ram("256M").mounted().start();
    let _attached = Attached(&server);
    server.spillway(&["set", "ram0", "mem_limit", "24M"]).well();
    let place = Scratch::new();
    attach(&server, &["--mkfs", "ext4", text(place.path())]);
    fs::write(place.join("file"), pattern::random(1, 0, 64 << 20)).expect("the kernel keeps it");
    server.spillway(&["detach", "ram0"]).refused(FAILED, "may be lost");
    server.spillway(&["stop", "ram0"]).well();
}

/// It goes with its mount.
#[test]
fn a_loop_device_that_was_given_up_by_hand_is_detached() {
    let server = Launch::ram("64M").mounted().start();
    let _attached = Attached(&server);
    let place = Scratch::new();
    let device = attach(&server, &["--mkfs", "ext4", text(place.path())]);
    fs::write(place.join("file"), "kept").expect("a file system");
    tool::run("losetup", &["--detach", text(&device)]).well();
    server.spillway(&["detach", "ram0"]).well();
    server.spillway(&["stop", "ram0"]).well();
}

#[test]
fn a_mount_needs_its_folder_before_a_file_system_is_made() {
    let server = Launch::ram("64M").mounted().start();
    let _attached = Attached(&server);
    let place = Scratch::new();
    let missing = place.join("missing");
    server
        .spillway(&["attach", "ram0", "--via", "loop", "--mkfs", "ext4", text(&missing)])
        .refused(USAGE, "no folder");
    attach(&server, &["--mkfs", "ext4", text(place.path())]);
    server.spillway(&["detach", "ram0"]).well();
}

#[test]
fn a_device_with_clients_is_attached_only_to_be_shared() {
    let server = Launch::ram("16M").mounted().start();
    let _attached = Attached(&server);
    let mut client = server.client();
    server.spillway(&["attach", "ram0", "--via", "loop"]).refused(BUSY, "--shared");
    let device = attach(&server, &["--shared"]);
    client.write(0, &[7; 4096]).expect("it stays connected");
    assert!(fs::read(&device).expect("a block device")[..4096] == [7; 4096]);
    drop(Client::open(server.socket(), ""));
    server.spillway(&["detach", "ram0"]).well();
}

/// Its mount is gone, and its folder is anybody's.
#[test]
fn a_file_that_is_not_the_servers_is_not_attached() {
    let server = Launch::ram("64M").mounted().start();
    let _attached = Attached(&server);
    let file = server.file("ram0");
    let folder = file.parent().expect("a folder");
    tool::run("umount", &[folder.parent().expect("a mount")]).well();
    fs::create_dir(folder).expect("a plain folder");
    fs::write(&file, vec![0; 64 << 20]).expect("a plain file");
    // The one client that a device can be given to.
    let _client = server.client();
    server
        .spillway(&["attach", "ram0", "--via", "loop", "--mkfs", "ext4"])
        .refused(FAILED, "is not the file of a server");
    assert!(fs::read(&file).expect("it is there") == vec![0; 64 << 20], "it was written to");
}

/// What cannot be read may hold anything.
#[test]
fn no_file_system_is_made_where_nothing_can_be_read() {
    let config = "[[device]]\nname = \"ram0\"\norigin = { kind = \"memory\", size = \"64M\" }\n\
                  layers = [{ kind = \"fault\", op = \"read\", nth = 1, mode = \"sticky\" }, { kind = \"trace\" }]\n";
    let server = Launch::serve(Arc::default(), config).mounted().start();
    let _attached = Attached(&server);
    server.spillway(&["attach", "ram0", "--via", "loop", "--mkfs", "ext4"]).refused(FAILED, "cannot be read");
    assert_eq!(server.spillway(&["get", "ram0", "trace.writes"]).well().out.trim(), "0");
}

#[test]
fn what_is_no_file_is_not_attached() {
    let server = Launch::ram("16M").start();
    server.spillway(&["attach", "ram0", "--via", "loop"]).refused(FAILED, "--mount DIR");
    server.spillway(&["attach", "other", "--via", "loop"]).refused(MISSING, "no server has a device");
}

/// The kernel connects to nothing else.
#[test]
fn a_device_without_a_unix_socket_is_not_attached_by_nbd() {
    let folder = Arc::new(Scratch::new());
    let control = folder.join("spillway/ram0.ctl");
    let server = Launch::new(&["ram", "--size", "16M", "--listen", "127.0.0.1:0"], folder, control).start();
    for words in [&["--via", "nbd"][..], &[]] {
        let said = server.spillway(&[&["attach", "ram0"], words].concat());
        said.refused(FAILED, "a unix socket without TLS");
    }
    server.spillway(&["attach", "ram0"]).refused(FAILED, "--mount DIR");
    server.spillway(&["attach", "ram0", "--reconnect"]).refused(MISSING, "spillway attach ram0");
    server.spillway(&["detach", "ram0"]).refused(MISSING, "not attached");
    server.spillway(&["detach", "other"]).refused(MISSING, "no server has a device");
}

/// Its page cache would keep it for a day.
#[test]
fn what_was_written_is_durable_once_the_device_is_detached() {
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin.raw", vec![0; 4 << 20]);
    let config = format!(
        "[[device]]\nname = \"ram0\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
         layers = [{{ kind = \"page_cache\", dirty_expire = 86400000 }}]\n"
    );
    let mut server = Launch::serve(folder, config).mounted().start();
    let bytes = pattern::random(1, 0, 1 << 20);
    {
        let _attached = Attached(&server);
        let device = File::options().write(true).open(attach(&server, &[])).expect("a block device");
        device.write_all_at(&bytes, 4096).expect("a write");
        drop(device);
        server.spillway(&["detach", "ram0"]).well();
    }
    server.signal(Signal::KILL);
    server.ends();
    assert!(fs::read(&origin).expect("the origin")[4096..][..1 << 20] == bytes);
}

#[test]
fn a_detach_whose_flush_fails_says_so() {
    let config = "[[device]]\nname = \"ram0\"\norigin = { kind = \"zram\", disksize = \"1M\" }\n\
                  layers = [{ kind = \"fault\", op = \"flush\", nth = 1, mode = \"sticky\" }]\n";
    let server = Launch::serve(Arc::default(), config).mounted().start();
    let _attached = Attached(&server);
    attach(&server, &[]);
    server.spillway(&["detach", "ram0"]).refused(FAILED, "may be lost");
    server.spillway(&["detach", "ram0"]).refused(MISSING, "not attached");
}
