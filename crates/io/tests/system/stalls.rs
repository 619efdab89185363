//! Peers that stop in the middle while memory is short.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::toy::{BOTH, ECHO, Toy, Watch, request, until};
use spillway_core::block_on;
use spillway_core::buffer::{self, Buffers};
use spillway_io::{ConnectionLimits, DriverChoice, Listener, Serving, Workers, serve};

/// One worker, with all its buffers for this test.
struct House {
    workers: Workers,
    serving: Serving,
    watch: Arc<Watch>,
    stream: UnixStream,
}

impl House {
    fn new(driver: DriverChoice) -> Self {
        let path = std::env::temp_dir().join(format!("spillway-stalls-{}.sock", std::process::id()));
        let workers = crate::toy::workers(1, driver);
        let watch = Arc::new(Watch::default());
        let sessions = watch.clone();
        let limits = ConnectionLimits { stall: Duration::from_millis(200), ..ConnectionLimits::default() };
        let listener = Listener::unix(&path, 0o600).unwrap();
        let serving = serve(listener, &workers, Arc::new(move || Box::new(Toy::new(&sessions))), limits);
        let stream = UnixStream::connect(&path).unwrap();
        Self { workers, serving, watch, stream }
    }

    /// Waits for memory that only the end of the peer gives back.
    fn gives_way(self) {
        assert_eq!(self.watch.hung_up.load(Ordering::SeqCst), 0, "nobody waits: it may take its time");
        drop(block_on(buffer::room(4 << 20)));
        assert_eq!(self.watch.hung_up.load(Ordering::SeqCst), 1);
        block_on(self.serving.stop());
        self.workers.stop();
    }
}

#[test]
fn slow_peers_give_way_to_who_waits_for_memory() {
    Buffers::new(8 << 20).enter();
    for driver in BOTH {
        a_peer_that_owes_the_rest_of_a_payload(driver);
        a_peer_that_sends_the_rest_byte_by_byte(driver);
        a_peer_that_takes_its_reply_byte_by_byte(driver);
    }
}

fn begin_a_payload(house: &mut House) {
    house.stream.write_all(&[ECHO.to_le_bytes(), (8u32 << 20).to_le_bytes()].concat()).unwrap();
    house.stream.write_all(&[7; 4096]).unwrap();
    until("the buffer", || Buffers::here().bytes_in_use() >= 8 << 20);
}

fn a_peer_that_owes_the_rest_of_a_payload(driver: DriverChoice) {
    let mut house = House::new(driver);
    begin_a_payload(&mut house);
    let mut stream = house.stream.try_clone().unwrap();
    house.gives_way();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "disconnected");
}

fn a_peer_that_sends_the_rest_byte_by_byte(driver: DriverChoice) {
    let mut house = House::new(driver);
    begin_a_payload(&mut house);
    let mut stream = house.stream.try_clone().unwrap();
    let trickle = std::thread::spawn(move || {
        while stream.write_all(&[7]).is_ok() {
            pause()
        }
    });
    house.gives_way();
    trickle.join().unwrap();
}

fn a_peer_that_takes_its_reply_byte_by_byte(driver: DriverChoice) {
    let mut house = House::new(driver);
    request(&mut house.stream, ECHO, &vec![7; 8 << 20]);
    let mut stream = house.stream.try_clone().unwrap();
    let trickle = std::thread::spawn(move || {
        while stream.read(&mut [0; 1]).unwrap_or(0) > 0 {
            pause()
        }
    });
    house.gives_way();
    // What the socket still holds is of no interest.
    drop(trickle);
}

/// Between two bytes: far below any rate that counts.
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}
