//! Connections that never say what they want.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::house::House;
use crate::toy::{BOTH, ECHO, answer, echo, hold, request, until};
use spillway_io::{ConnectionLimits, DriverChoice};

/// Its sessions are established by their first request only.
fn shy_house(driver: DriverChoice, limits: ConnectionLimits) -> House {
    let house = House::new(driver, limits);
    house.watch.shakes_hands.store(true, Ordering::SeqCst);
    house
}

/// A server that says nothing is a failure, and no test without an end.
fn connect(house: &House) -> UnixStream {
    let stream = house.connect();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn is_served(stream: &mut UnixStream) {
    echo(stream, b"here");
}

#[test]
fn a_thousand_that_never_finish_their_handshake_keep_nobody_out() {
    for driver in BOTH {
        let house =
            shy_house(driver, ConnectionLimits { connections_max: 512, ..ConnectionLimits::default() });
        let mut before = connect(&house);
        is_served(&mut before);
        let silent: Vec<_> = (0..1000).map(|_| connect(&house)).collect();
        is_served(&mut connect(&house));
        is_served(&mut before);
        assert!(house.serving.as_ref().unwrap().connections() <= 512);
        drop(silent);
        house.stop();
    }
}

#[test]
fn a_crowd_that_arrives_together_is_served_whole() {
    for driver in BOTH {
        let house =
            shy_house(driver, ConnectionLimits { connections_max: 200, ..ConnectionLimits::default() });
        let mut crowd: Vec<_> = (0..200).map(|_| connect(&house)).collect();
        crowd.iter_mut().for_each(|stream| request(stream, ECHO, b"all"));
        crowd.iter_mut().for_each(|stream| assert_eq!(answer(stream).1, b"all"));
        assert_eq!(house.watch.hung_up.load(Ordering::SeqCst), 0);
        house.stop();
    }
}

/// What has come while the server was busy counts, and so does that it has not answered: nobody has been silent.
#[test]
fn who_spoke_while_the_server_was_busy_keeps_its_place() {
    for driver in BOTH {
        let house =
            shy_house(driver, ConnectionLimits { connections_max: 40, ..ConnectionLimits::default() });
        let busy = [0, 1].map(|index| hold(&house.workers, index));
        let mut crowd: Vec<_> = (0..30).map(|_| connect(&house)).collect();
        crowd.iter_mut().for_each(|stream| request(stream, ECHO, b"all"));
        let env = house.workers.env();
        let begin = env.now();
        until("each has had its time", || env.now() - begin > Duration::from_millis(1500));
        drop(busy);
        crowd.iter_mut().for_each(|stream| assert_eq!(answer(stream).1, b"all"));
        assert_eq!(house.watch.hung_up.load(Ordering::SeqCst), 0);
        house.stop();
    }
}

#[test]
fn a_handshake_that_lasts_too_long_ends_and_others_stay() {
    for driver in BOTH {
        let limits =
            ConnectionLimits { handshake: Duration::from_millis(200), ..ConnectionLimits::default() };
        let house = shy_house(driver, limits);
        let mut client = connect(&house);
        is_served(&mut client);
        let mut silent = connect(&house);
        assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
        until("the session's end", || house.watch.alive.load(Ordering::SeqCst) == 1);
        is_served(&mut client);
        house.stop();
    }
}
