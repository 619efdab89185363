//! Peers that stop in the middle while memory is short.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::house::House;
use crate::toy::{BOTH, ECHO, request, until};
use spillway_core::block_on;
use spillway_core::buffer::{self, Buffers};
use spillway_io::{ConnectionLimits, DriverChoice};

/// One worker, with all its buffers for this test, and a client.
fn visited(driver: DriverChoice) -> (House, UnixStream) {
    let limits = ConnectionLimits { stall: Duration::from_millis(200), ..ConnectionLimits::default() };
    let house = House::of(1, driver, limits);
    let stream = house.connect();
    (house, stream)
}

/// Waits for memory that only the end of the peer gives back.
fn gives_way(house: House) {
    assert_eq!(house.watch.hung_up.load(Ordering::SeqCst), 0, "nobody waits: it may take its time");
    drop(block_on(buffer::room(4 << 20)));
    assert_eq!(house.watch.hung_up.load(Ordering::SeqCst), 1);
    house.stop();
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

/// The client has sent the beginning of a payload.
fn begin_a_payload(driver: DriverChoice) -> (House, UnixStream) {
    let (house, mut stream) = visited(driver);
    stream.write_all(&[ECHO.to_le_bytes(), (8u32 << 20).to_le_bytes()].concat()).unwrap();
    stream.write_all(&[7; 4096]).unwrap();
    until("the buffer", || Buffers::here().bytes_in_use() >= 8 << 20);
    (house, stream)
}

fn a_peer_that_owes_the_rest_of_a_payload(driver: DriverChoice) {
    let (house, mut stream) = begin_a_payload(driver);
    gives_way(house);
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "disconnected");
}

fn a_peer_that_sends_the_rest_byte_by_byte(driver: DriverChoice) {
    let (house, mut stream) = begin_a_payload(driver);
    let trickle = std::thread::spawn(move || {
        while stream.write_all(&[7]).is_ok() {
            pause()
        }
    });
    gives_way(house);
    trickle.join().unwrap();
}

fn a_peer_that_takes_its_reply_byte_by_byte(driver: DriverChoice) {
    let (house, mut stream) = visited(driver);
    request(&mut stream, ECHO, &vec![7; 8 << 20]);
    let trickle = std::thread::spawn(move || {
        while stream.read(&mut [0; 1]).unwrap_or(0) > 0 {
            pause()
        }
    });
    gives_way(house);
    // What the socket still holds is of no interest.
    drop(trickle);
}

/// Between two bytes: far below any rate that counts.
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}
