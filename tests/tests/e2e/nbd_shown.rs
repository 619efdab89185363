//! What a configuration file and attributes say of an NBD origin.

use std::fs;

use rustix::process::Signal;
use spillway_tests::raw::{Client, command, flag};
use spillway_tests::{Launch, Upstream, pattern};

use crate::nbd_outage::{MIB, disk, file};

#[test]
fn a_configuration_file_names_an_export() {
    let (folder, file) = file();
    let upstream = Upstream::nbdkit_file(&file);
    let text =
        format!("[[device]]\nname = \"d\"\norigin = {{ kind = \"file\", path = {:?} }}\n", upstream.uri());
    let mut server = Launch::serve(folder, text).start();
    let bytes = pattern::random(1, 0, MIB);
    let mut client = Client::open(server.socket(), "d");
    client.write(MIB as u64, &bytes).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    assert!(fs::read(&file).expect("it exists")[MIB..2 * MIB] == bytes, "{}", server.log());
    assert!(client.read(MIB as u64, MIB).as_ref() == Ok(&bytes), "{}", server.log());
    assert_eq!(server.value("d", "connection"), "up");
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
}

/// A write over an older one and a durable write add nothing.
#[test]
fn acknowledged_writes_count_as_unflushed_until_a_flush() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &[]);
    let server = disk(&upstream.uri()).start();
    let shows = |bytes: u64| assert_eq!(server.value("d", "unflushed_bytes"), bytes, "{}", server.log());
    let mut client = server.client();
    shows(0);
    client.write(0, &[1; 8192]).expect("a write");
    shows(8192);
    client.write(MIB as u64, &[2; 4096]).expect("a write");
    client.write(4096, &[3; 4096]).expect("a write over an older one");
    shows(12288);
    client.write_with(flag::FUA, 2 * MIB as u64, &[4; 4096]).expect("a durable write");
    shows(12288);
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    shows(0);
}
