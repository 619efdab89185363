//! libnbd's tools as clients.

use std::process::Command;

use spillway_tests::{Launch, clients};

#[test]
fn nbdcopy_round_trips() {
    clients::copies_round_trip(&Launch::ram("32M").start());
}

#[test]
fn nbdinfo_describes_the_export() {
    clients::describes_itself(&Launch::ram("100M").start(), "ram0", 100 << 20);
}

#[test]
fn nbdinfo_maps_what_is_allocated() {
    clients::maps_what_is_allocated(&Launch::ram("64M").start());
}

/// libnbd takes a reply to what it still sends for the end of the connection.
#[test]
fn a_refused_write_leaves_the_connection_as_it_was() {
    let server = Launch::ram("64M").with("--memory", "64M").start();
    let script = "import nbd, sys\nh = nbd.NBD()\nh.set_strict_mode(0)\nh.connect_uri(sys.argv[1])\n\
                  for size, at in ((8 << 20, 0), (4 << 20, 64 << 20)):\n \
                    try: h.pwrite(bytes(size), at); sys.exit('it was not refused')\n \
                    except nbd.Error as error: print(error.errno)\n\
                  h.pwrite(b'7' * 512, 0); assert h.pread(512, 0) == b'7' * 512\n";
    let said = Command::new("/usr/bin/python3").args(["-c", script, &server.uri()]).output();
    let said = said.expect("python is there");
    let words = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert_eq!(words, "EINVAL\nENOSPC\n");
}

#[test]
fn overlapping_writes_over_several_connections_are_whole() {
    clients::overlapping_writes_are_whole(&Launch::ram("1M").start());
}
