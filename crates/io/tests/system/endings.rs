//! Conversations that end by themselves, and those that nothing comes of.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use spillway_io::{ConnectionLimits, DriverChoice};

use crate::sockets::{House, both, noise};
use crate::toy::{BOTH, BYE, ECHO, GATED, answer, echo, request, until};

#[test]
fn a_conversation_that_ends_waits_for_its_answers_and_for_no_peer_that_does_not_read() {
    both(|driver| {
        let limits =
            ConnectionLimits { stop_grace: Duration::from_millis(100), ..ConnectionLimits::default() };
        let house = House::new(driver, limits);
        let (mut waits, mut reads_not) = (house.connect(), house.connect());
        request(&mut waits, GATED, b"");
        request(&mut reads_not, ECHO, &noise(1, 3 << 20));
        [&mut waits, &mut reads_not].into_iter().for_each(|stream| request(stream, BYE, b""));
        until("the hang-up", || house.watch.hung_up.load(Ordering::SeqCst) == 1);
        house.watch.open_gate();
        assert_eq!(answer(&mut waits).0, GATED);
        house.stop();
    });
}

/// More than a unix socket keeps, and so much of it that it has room again.
const REPLY_LEN: usize = 3 << 20;
const SLOWLY: usize = 26;
const PIECE: usize = 64 << 10;

/// It takes several times of what is asked of it, but nothing is sent to it for longer than it may be behind.
fn a_slow_peer_gets_all_of_its_last_reply(driver: DriverChoice) {
    let limits = ConnectionLimits { stop_grace: Duration::from_secs(3), ..ConnectionLimits::default() };
    let house = House::new(driver, limits);
    let (mut slow, sent) = (house.connect(), noise(1, REPLY_LEN));
    request(&mut slow, ECHO, &sent);
    request(&mut slow, BYE, b"");
    let mut taken = vec![0; 8 + REPLY_LEN];
    let (slowly, rest) = taken.split_at_mut(SLOWLY * PIECE);
    for piece in slowly.chunks_mut(PIECE) {
        slow.read_exact(piece).expect("it takes enough to go on");
        std::thread::sleep(Duration::from_millis(200));
    }
    slow.read_exact(rest).expect("it takes enough to go on");
    assert!(taken[8..] == sent);
    house.stop();
}

#[test]
fn a_conversation_that_ends_waits_for_a_peer_that_is_slow() {
    let peers = BOTH.map(|driver| std::thread::spawn(move || a_slow_peer_gets_all_of_its_last_reply(driver)));
    peers.into_iter().for_each(|peer| peer.join().unwrap());
}

#[test]
fn who_asks_for_nothing_or_does_not_send_the_rest_is_idle() {
    both(|driver| {
        let idle = Some(Duration::from_millis(200));
        let house = House::new(driver, ConnectionLimits { idle, ..ConnectionLimits::default() });
        let [mut silent, mut half, mut waits] = [(); 3].map(|()| house.connect());
        echo(&mut silent, b"hi");
        half.write_all(&[ECHO.to_le_bytes(), 100u32.to_le_bytes(), [7; 4]].concat()).unwrap();
        request(&mut waits, GATED, b"");
        until("two hang-ups", || house.watch.hung_up.load(Ordering::SeqCst) == 2);
        [silent, half].iter_mut().for_each(|stream| assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0));
        house.watch.open_gate();
        assert_eq!(answer(&mut waits).0, GATED);
        house.stop();
    });
}
