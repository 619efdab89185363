//! Peers that stop in the middle while memory is short. A file of its own: the limit of buffers is the whole process's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod toy;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spillway_core::buffer;
use spillway_core::contract::block_on;
use spillway_io::{Limits, Listener, serve};
use toy::{BOTH, ECHO, Toy, Watch, until, workers};

#[test]
fn a_peer_that_owes_the_rest_of_a_payload_gives_way_to_who_waits_for_memory() {
    buffer::set_limit(8 << 20);
    for driver in BOTH {
        let path = std::env::temp_dir().join(format!("spillway-stalls-{}.sock", std::process::id()));
        let workers = workers(1, driver);
        let watch = Arc::new(Watch::default());
        let sessions = watch.clone();
        let limits = Limits { stall: Duration::from_millis(100), ..Limits::default() };
        let listener = Listener::unix(&path, 0o600).unwrap();
        let serving = serve(listener, &workers, Arc::new(move || Box::new(Toy::new(&sessions))), limits);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(&[ECHO.to_le_bytes(), (8u32 << 20).to_le_bytes()].concat()).unwrap();
        stream.write_all(&[7; 4096]).unwrap();
        until("the buffer", || buffer::bytes_in_use() >= 8 << 20);
        assert_eq!(watch.hung_up.load(Ordering::SeqCst), 0, "nobody waits: it may take its time");
        drop(block_on(buffer::room(4 << 20)));
        assert_eq!(watch.hung_up.load(Ordering::SeqCst), 1);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "disconnected");
        serving.stop();
        workers.stop();
    }
}
