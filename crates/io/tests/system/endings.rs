//! Conversations that end by themselves, and those that nothing comes of.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;

use spillway_io::ConnectionLimits;

use crate::house::House;
use crate::sockets::noise;
use crate::toy::{BOTH, BYE, ECHO, GATED, answer, echo, request, until};

#[test]
fn a_conversation_that_ends_waits_for_its_answers_and_for_no_peer_that_does_not_read() {
    for driver in BOTH {
        let limits = ConnectionLimits {
            stop_grace: std::time::Duration::from_millis(100),
            ..ConnectionLimits::default()
        };
        let house = House::new(driver, limits);
        let (mut waits, mut reads_not) = (house.connect(), house.connect());
        request(&mut waits, GATED, b"");
        request(&mut reads_not, ECHO, &noise(1, 3 << 20));
        [&mut waits, &mut reads_not].into_iter().for_each(|stream| request(stream, BYE, b""));
        until("the hang-up", || house.watch.hung_up.load(Ordering::SeqCst) == 1);
        house.watch.open_gate();
        assert_eq!(answer(&mut waits).0, GATED);
        house.stop();
    }
}

#[test]
fn who_asks_for_nothing_or_does_not_send_the_rest_is_idle() {
    for driver in BOTH {
        let idle = Some(std::time::Duration::from_millis(200));
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
    }
}
