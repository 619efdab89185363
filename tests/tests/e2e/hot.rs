//! Devices that are added and removed while their server runs, by the files of a mount. As root: mounting needs it.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::Signal;
use spillway_tests::raw::Client;
use spillway_tests::{Launch, Scratch, Server, until};

/// Exit codes as documented.
const USAGE: i32 = 2;
const MISSING: i32 = 3;

/// Devices of a server from which on none is added, as documented.
const DEVICES_MAX: usize = 64;

/// A server whose devices have sockets of their own.
fn server(memory: &str) -> Server {
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("spillway/ram0.sock");
    Launch::new(&["ram", "--size", "1M", "--memory", memory], folder, socket).mounted().start()
}

fn control(server: &Server, file: &str) -> PathBuf {
    server.file("").parent().expect("a mount").join("zram-control").join(file)
}

/// Adds a device; its number.
fn add(server: &Server) -> Result<u32, Errno> {
    match fs::read_to_string(control(server, "hot_add")) {
        Ok(text) => Ok(text.strip_suffix('\n').expect("a line").parse().expect("a number")),
        Err(why) => Err(Errno::from_io_error(&why).expect("an errno")),
    }
}

fn remove(server: &Server, number: u32) -> Result<(), Errno> {
    let written = fs::write(control(server, "hot_remove"), format!("{number}\n"));
    written.map_err(|why| Errno::from_io_error(&why).expect("an errno"))
}

fn sockets(server: &Server) -> usize {
    fs::read_dir(server.folder().join("spillway")).expect("the runtime folder").count()
}

#[test]
fn a_device_that_is_added_is_like_any_other() {
    let server = server("64M");
    assert_eq!(add(&server), Ok(1));
    assert!(server.spillway(&["ls"]).well().out.contains("ram1"));
    assert_eq!(server.spillway(&["get", "ram1", "initstate"]).well().out.trim(), "0");
    server.spillway(&["set", "ram1", "comp_algorithm", "zstd"]).well();
    fs::write(server.file("ram1").with_file_name("zram").join("disksize"), "8M\n").expect("it has none");
    let mut client = Client::open(&server.folder().join("spillway/ram1.sock"), "ram1");
    client.write(4096, &[7; 4096]).expect("there is room");
    assert_eq!(remove(&server, 1), Err(Errno::BUSY), "it has a client");
    let file = OpenOptions::new().read(true).write(true).open(server.file("ram1")).expect("a disk");
    let mut seen = [0; 4096];
    file.read_exact_at(&mut seen, 4096).expect("a read");
    assert!(seen == [7; 4096], "the file shows something else");
    drop(client);
    assert_eq!(remove(&server, 1), Err(Errno::BUSY), "its file is open");
    server.spillway(&["resize", "ram1", "16M"]).well();
    drop(file);
    until("the client is gone", || remove(&server, 1).ok());
    assert!(!server.file("ram1").exists());
    server.spillway(&["get", "ram1", "initstate"]).refused(MISSING, "no server has a device");
    assert_eq!(sockets(&server), 2, "those of ram0");
    assert_eq!(add(&server), Ok(1), "its number is free again");
    assert_eq!(server.spillway(&["get", "ram1", "disksize"]).well().out.trim(), "0", "it is another device");
    server.spillway(&["stop", "ram1"]).well();
    assert_eq!(remove(&server, 1), Err(Errno::NODEV));
    assert_eq!(remove(&server, 0), Err(Errno::BUSY), "the last one");
    server.spillway(&["stop", "ram0"]).well();
}

/// Where one socket serves all devices, it serves those that are added too.
#[test]
fn a_device_that_is_added_is_found_at_the_socket_of_all() {
    let mut server = Launch::ram("1M").mounted().start();
    assert_eq!(add(&server), Ok(1));
    server.spillway(&["set", "ram1", "disksize", "1M"]).well();
    let mut client = Client::open(server.socket(), "ram1");
    client.write(0, &[3; 512]).expect("there is room");
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.lives(), "it has a device");
    assert!(client.read(0, 512) == Ok(vec![3; 512]), "the other one goes on");
    server.signal(Signal::TERM);
    assert!(server.ends().success());
}

/// Names that another server has are left to it.
#[test]
fn numbers_are_free_for_the_user() {
    let folder = Arc::new(Scratch::new());
    let launch = |name: &str| {
        let socket = folder.join(&format!("spillway/{name}.sock"));
        Launch::new(&["ram", "--name", name, "--size", "1M"], folder.clone(), socket)
    };
    let _others = ["ram0", "ram2"].map(|name| launch(name).start());
    let server = launch("mine").mounted().start();
    assert_eq!((add(&server), add(&server)), (Ok(1), Ok(3)));
    assert_eq!(remove(&server, 2), Err(Errno::NODEV), "it is not this server's");
    assert_eq!(remove(&server, 1), Ok(()));
    assert_eq!(add(&server), Ok(1));
}

#[test]
fn so_many_devices_are_added_and_no_more() {
    let server = server("1G");
    let numbers: Vec<_> = (1..DEVICES_MAX).map(|_| add(&server)).collect();
    assert_eq!(numbers, (1..DEVICES_MAX).map(|number| Ok(number as u32)).collect::<Vec<_>>());
    let before = sockets(&server);
    assert_eq!(add(&server), Err(Errno::NOSPC));
    assert_eq!(remove(&server, 7), Ok(()));
    assert_eq!(add(&server), Ok(7));
    assert_eq!(add(&server), Err(Errno::NOSPC));
    assert_eq!(sockets(&server), before);
}

/// Without memory there is no device, and nothing is left of the attempt; what goes gives its memory back.
#[test]
fn devices_are_added_within_the_budget() {
    let server = server("32M");
    let (number, full) =
        (1..).map(|number| (number, add(&server))).find(|(_, added)| added.is_err()).expect("a limit");
    assert!(number < DEVICES_MAX as u32, "{number} devices in 32 MiB");
    assert_eq!(full, Err(Errno::NOMEM));
    assert_eq!(sockets(&server), 2 * number as usize, "something is left of a device");
    for _ in 0..20 {
        assert_eq!(remove(&server, 1), Ok(()));
        assert_eq!(add(&server), Ok(1), "its memory is there again");
    }
    assert_eq!(add(&server), Err(Errno::NOMEM));
}

/// A name looks free once its sockets are removed.
#[test]
fn a_device_keeps_its_name_without_its_sockets() {
    let mut server = server("64M");
    for socket in ["ram0.sock", "ram0.ctl"] {
        fs::remove_file(server.folder().join("spillway").join(socket)).expect("it is there");
    }
    assert_eq!(add(&server), Err(Errno::BUSY));
    assert_eq!(sockets(&server), 0, "something is left of the attempt");
    fs::read(server.file("ram0")).expect("the device goes on");
    server.signal(Signal::TERM);
    assert!(server.ends().success());
}

/// Programs that add and remove side by side get a device each.
#[test]
fn of_many_that_add_at_once_each_has_its_own_device() {
    const PROGRAMS: usize = 8;
    let server = server("1G");
    let round = || {
        let number = add(&server).expect("there is room");
        fs::write(server.file(&format!("ram{number}")).with_file_name("zram").join("disksize"), "1M")
            .expect("it is new");
        number
    };
    for _ in 0..20 {
        let numbers: Vec<u32> = std::thread::scope(|scope| {
            let programs: Vec<_> = (0..PROGRAMS).map(|_| scope.spawn(round)).collect();
            programs.into_iter().map(|program| program.join().expect("a number")).collect()
        });
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), PROGRAMS, "{numbers:?}");
        std::thread::scope(|scope| {
            let server = &server;
            let remove = |number| scope.spawn(move || remove(server, number));
            let gone: Vec<_> = numbers.into_iter().map(remove).collect();
            gone.into_iter().for_each(|gone| assert_eq!(gone.join().expect("an answer"), Ok(())));
        });
    }
    assert_eq!(sockets(&server), 2);
}

/// The folder comes with RAM disks, and no device has its name.
#[test]
fn a_server_without_ram_disks_adds_none() {
    let folder = Arc::new(Scratch::new());
    let config = "[[device]]\nname = \"a\"\norigin = { kind = \"null\", size = \"1M\" }\n";
    let server = Launch::serve(folder, config).mounted().start();
    assert_eq!(add(&server), Err(Errno::NOENT));
    Launch::ram("1M").with("--name", "zram-control").run().refused(USAGE, "not allowed");
    server.spillway(&["stop", "zram-control"]).refused(USAGE, "not allowed");
}
