//! The commands beside a running server, and the other kinds of server.

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::{Client, errno};
use spillway_tests::{Launch, Scratch, Server, pattern, tool, until};

/// Exit codes as documented.
const MISSING: i32 = 3;
const BUSY: i32 = 4;

fn attribute(server: &Server, name: &str) -> String {
    server.spillway(&["get", "ram0", name]).well().out.trim().to_string()
}

#[test]
fn a_device_is_listed_read_changed_and_stopped() {
    let mut server = Launch::ram("64M").start();
    server.client().write(0, &pattern::half_random(1, 0, 1 << 20)).expect("a write");
    let listed = server.spillway(&["ls"]).well().out;
    for part in ["NAME", "ram0", "lz4", "64M"] {
        assert!(listed.contains(part), "{part} is not in {listed}");
    }
    assert_eq!(attribute(&server, "disksize"), (64 << 20).to_string());
    assert_eq!(attribute(&server, "mm_stat").split_whitespace().count(), 9, "the kernel's columns");
    let statistics = server.value("ram0", "mm_stat");
    assert_eq!(statistics["orig_data_size"], 1 << 20, "{statistics}");
    assert!(statistics["compr_data_size"].as_u64().is_some_and(|bytes| bytes < 1 << 20), "{statistics}");
    let described = server.spillway(&["get", "ram0", "--describe"]).well().out;
    assert!(
        described.contains("max_comp_streams (knob; read, write; a whole number from 1 to 256;"),
        "{described}"
    );
    server.spillway(&["set", "ram0", "max_comp_streams", "3"]).well();
    assert_eq!(attribute(&server, "max_comp_streams"), "3");
    assert!(server.spillway(&["get", "ram0"]).well().out.contains("mm_stat"));
    server.spillway(&["get", "ram0", "mood"]).refused(MISSING, "mood");
    server.spillway(&["get", "ram7", "mm_stat"]).refused(MISSING, "ram7");
    server.spillway(&["stop", "ram0"]).well();
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    assert!(!server.socket().exists());
}

/// One of them cannot be, as a command has it.
#[test]
fn devices_are_stopped_together_and_all_at_once() {
    let folder = Arc::new(Scratch::new());
    let launch = |name: &str| {
        let socket = folder.join(&format!("{name}.nbd"));
        let launch = Launch::new(&["ram", "--size", "1M"], folder.clone(), socket.clone());
        launch.with("--name", name).with("--socket", socket)
    };
    let [mut one, mut two, mut three] = ["one", "two", "three"].map(|name| launch(name).start());
    let mut kept = launch("kept").with("--", "sh").with("-c", "echo pid $PPID; exec sleep 1000").start();
    let said = kept.spillway(&["stop", "one", "none", "kept", "two"]);
    assert!(said.code == Some(MISSING) && said.err.contains("kept") && said.err.contains("none"), "{said}");
    assert!(one.ends().success() && two.ends().success() && three.lives() && kept.lives());
    kept.spillway(&["stop", "--all"]).refused(BUSY, "sh (pid ");
    assert!(three.ends().success());
    kept.signal(Signal::TERM);
    kept.ends();
    three.spillway(&["stop", "--all"]).well();
}

#[test]
fn a_limit_set_at_run_time_is_kept() {
    let server = Launch::ram("64M").start();
    server.spillway(&["set", "ram0", "mem_limit", "4M"]).well();
    let mut client = server.client();
    let noise = |n: u64| pattern::random(2, n << 20, 1 << 20);
    let full = (0..64).find(|n| client.write(n << 20, &noise(*n)) == Err(errno::ENOSPC));
    let full = full.expect("4 MiB do not hold 64 MiB of noise");
    assert!((2..=4).contains(&full), "full after {full} MiB");
    for n in 0..full {
        assert!(client.read(n << 20, 1 << 20) == Ok(noise(n)), "MiB {n} is lost");
    }
}

#[test]
fn reset_is_refused_while_a_client_is_connected() {
    let server = Launch::ram("64M").start();
    let mut client = server.client();
    client.write(0, &[1; 4096]).expect("a write");
    let said = server.spillway(&["reset", "ram0"]).refused(BUSY, "device ram0: a client is connected (e2e-");
    assert!(said.err.contains(&format!("(pid {})", std::process::id())), "{said}");
    assert!(client.read(0, 4096) == Ok(vec![1; 4096]), "a refused reset forgets nothing");
    drop(client);
    until("reset is accepted", || (server.spillway(&["reset", "ram0"]).code == Some(0)).then_some(()));
    assert_eq!(attribute(&server, "disksize"), "0");
    assert!(Client::try_open(server.socket(), "ram0").is_err(), "a device without size is not exported");
    server.spillway(&["set", "ram0", "disksize", "32M"]).well();
    let mut client = Client::open(server.socket(), "ram0");
    assert_eq!(client.size, 32 << 20);
    assert!(client.read(0, 4096) == Ok(vec![0; 4096]), "reset forgets everything");
}

#[test]
fn a_spill_file_is_taken_again_after_a_stop_whether_its_device_has_a_size_or_not() {
    let launch = Launch::ram("64M");
    let spill = launch.socket().with_file_name("spill");
    let launch = launch.with("--spill", &spill);
    for (round, reset) in [true, false, true].into_iter().enumerate() {
        let mut server = launch.clone().start();
        assert_eq!(attribute(&server, "backing_dev"), spill.display().to_string());
        if reset {
            server.spillway(&["reset", "ram0"]).well();
        }
        server.spillway(&["stop", "ram0"]).well();
        assert_eq!(server.ends().code(), Some(0), "{}", server.log());
        assert_eq!(server.log().contains("was created"), round == 0, "{}", server.log());
    }
}

#[test]
fn a_file_is_served_and_locked() {
    let (launch, origin) = Launch::disk_with(pattern::random(3, 0, 8 << 20));
    let folder = launch.folder();
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.size, 8 << 20);
    assert!(client.read(1 << 20, 65536) == Ok(pattern::random(3, 1 << 20, 65536)), "the file's bytes differ");
    client.write(512, &[9; 1536]).expect("a write");
    client.ask(spillway_tests::raw::command::FLUSH, 0, 0).expect("a flush");
    assert_eq!(fs::read(&origin).expect("the origin exists")[512..2048], [9; 1536]);
    let second = Launch::new(&["disk", "--name", "second"], folder.clone(), folder.join("second.sock"));
    second.with("--origin", &origin).run().refused(BUSY, "origin.raw");
}

#[test]
fn a_read_only_file_refuses_writes() {
    let server = Launch::disk_with(vec![5; 1 << 20]).0.flag("--read-only").start();
    tool::run("nbdinfo", &["--is", "read-only", &server.uri()]).well();
    let mut client = server.client();
    assert_eq!(client.write(0, &[1; 512]), Err(errno::EPERM));
    assert!(client.read(0, 512) == Ok(vec![5; 512]));
}

#[test]
fn two_devices_of_a_configuration_are_served() {
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("all.sock");
    let text = format!(
        "memory = \"128M\"\nsocket = {socket:?}\n\
         [[device]]\nname = \"swift\"\norigin = {{ kind = \"memory\", size = \"8M\" }}\n\
         [[device]]\nname = \"packed\"\norigin = {{ kind = \"zram\", disksize = \"64M\", comp_algorithm = \"zstd\" }}\n"
    );
    let config = folder.write("two.toml", text);
    let server = Launch::new(&["serve", &config.to_string_lossy()], folder, socket).start();
    let (mut swift, mut packed) =
        (Client::open(server.socket(), "swift"), Client::open(server.socket(), "packed"));
    assert_eq!((swift.size, packed.size), (8 << 20, 64 << 20));
    swift.write(0, &[1; 4096]).expect("a write");
    packed.write(0, &[2; 4096]).expect("a write");
    assert!(swift.read(0, 4096) == Ok(vec![1; 4096]), "each device has its own bytes");
    let list = tool::run("nbdinfo", &["--list", "--json", &server.uri()]).well().out;
    assert!(list.contains("swift") && list.contains("packed"), "{list}");
    let listed = server.spillway(&["ls"]).well().out;
    assert!(listed.contains("swift") && listed.contains("packed") && listed.contains("zstd"), "{listed}");
    server.spillway(&["stop", "swift"]).well();
    assert!(packed.read(0, 4096) == Ok(vec![2; 4096]), "the other device goes on");
}

#[test]
fn a_mistake_in_the_configuration_is_named() {
    let config = "[[device]]\nname = \"a\"\norigin = { kind = \"floppy\" }\n";
    Launch::serve(Arc::default(), config).run().refused(2, "floppy");
}

/// The last flush of one device takes an hour. The other one is changed, listed and stopped meanwhile.
#[test]
fn a_device_that_takes_long_to_stop_keeps_nobody_waiting() {
    let config = "[[device]]\nname = \"slow\"\norigin = { kind = \"zram\", disksize = \"1M\" }\n\
                  layers = [ { kind = \"delay\", flush_us = 3600000000 } ]\n\
                  [[device]]\nname = \"quick\"\norigin = { kind = \"zram\", disksize = \"1M\" }\n";
    let mut server = Launch::serve(Arc::default(), config).start();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.spillway(&["stop", "slow"]));
        until("the slow device is gone", || {
            (!server.spillway(&["ls"]).well().out.contains("slow")).then_some(())
        });
        server.spillway(&["set", "quick", "max_comp_streams", "3"]).well();
        server.spillway(&["set", "quick", "compact", "1"]).well();
        server.spillway(&["reset", "quick"]).well();
        assert!(!stopping.is_finished(), "an hour has not gone by");
        server.signal(Signal::KILL);
        assert!(stopping.join().expect("it ends").code != Some(0));
    });
    server.ends();
}

/// The server ends with its last device, whose last flush takes an hour.
#[test]
fn a_server_that_a_command_stops_ends_at_once_by_a_second_signal() {
    let config = "[[device]]\nname = \"slow\"\norigin = { kind = \"zram\", disksize = \"1M\" }\n\
                  layers = [ { kind = \"delay\", flush_us = 3600000000 } ]\n";
    let mut server = Launch::serve(Arc::default(), config).start();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.spillway(&["stop", "slow"]));
        until("the device is gone", || UnixStream::connect(server.socket()).is_err().then_some(()));
        until("it ends", || {
            server.signal(Signal::TERM);
            stopping.is_finished().then_some(())
        });
        assert!(stopping.join().expect("it ends").code != Some(0));
    });
    assert_eq!(server.ends().code(), Some(143), "{}", server.log());
}
