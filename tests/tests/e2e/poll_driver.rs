//! The core of the client tests once more on the driver that takes over where io_uring is refused.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::exerciser::{Exerciser, Part};
use spillway_tests::raw::{Client, command};
use spillway_tests::{FuseConnection, Launch, Scratch, Server, clients, pattern, until};

fn ram(size: &str) -> Server {
    polling(Launch::ram(size))
}

fn polling(launch: Launch) -> Server {
    let server = launch.with("--driver", "poll").start();
    server.says(", poll");
    server
}

#[test]
fn the_other_tests_run_on_io_uring() {
    let server = Launch::ram("1M").start();
    server.says(", io_uring");
}

#[test]
fn qemu_images_round_trip() {
    clients::images_round_trip(&ram("32M"));
}

#[test]
fn qemu_patterns_verify() {
    clients::patterns_verify(&ram("8M"));
}

#[test]
fn nbdcopy_round_trips() {
    clients::copies_round_trip(&ram("32M"));
}

#[test]
fn fio_verifies() {
    clients::mixed_writes_verify_also_after_a_reconnect(&ram("64M"));
}

#[test]
fn overlapping_writes_are_whole() {
    clients::overlapping_writes_are_whole(&ram("1M"));
}

#[test]
fn a_file_is_served() {
    let (disk, _) = Launch::disk_with(pattern::random(9, 0, 32 << 20));
    let server = polling(disk.with("--page-cache", "none"));
    assert!(
        server.client().read(4096, 8192) == Ok(pattern::random(9, 4096, 8192)),
        "the file's bytes differ"
    );
    clients::copies_round_trip(&server);
}

/// Two programs on files of one mount.
#[test]
fn a_mount_agrees_with_a_model() {
    let server = polling(Launch::ram("16M").mounted());
    let file = server.file("ram0");
    std::thread::scope(|scope| {
        for number in 0..2 {
            let part = Part::Disk { start: number * (8 << 20), len: 8 << 20 };
            let mut exerciser = Exerciser::new(&file, part, 7 + number);
            scope.spawn(move || exerciser.run(500).check_anew());
        }
    });
    until("the files are closed", || server.spillway(&["stop", "ram0"]).code.filter(|code| *code == 0));
}

/// Another server has the file of one device in its mount, and stands still.
#[test]
fn a_file_that_hangs_leaves_threads_to_the_others() {
    let below = Launch::ram("64M").mounted().start();
    let folder = Arc::new(Scratch::new());
    let whole = folder.write("whole", vec![7; 1 << 20]);
    let device = |name: &str, file: &Path| {
        format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"file\", path = {file:?} }}\n")
    };
    let config = device("hangs", &below.file("ram0")) + &device("whole", &whole);
    let server = polling(Launch::serve(folder, config));
    let [mut hangs, mut other] = ["hangs", "whole"].map(|name| Client::open(server.socket(), name));
    let connection = FuseConnection::of(&below.file("ram0"));
    below.signal(Signal::STOP);
    hangs.send_all((0..100).map(|block| (command::READ, block << 12, 4096))).expect("they are taken");
    until("they wait", || (connection.waiting() >= 32).then_some(()));
    assert_eq!(other.read(0, 4096), Ok(vec![7; 4096]));
    below.signal(Signal::CONT);
    (0..100).for_each(|_| {
        assert_eq!(hangs.reply().expect("a reply").0, 0);
        hangs.stream.read_exact(&mut [0; 4096]).expect("its bytes");
    });
}
