//! Connections of one worker share it by work, not by requests.

use std::io::Write;

use crate::house::House;
use crate::toy::{BOTH, ECHO, WORK, WORK_UNITS, answer, echo, hold, request};
use spillway_core::work;
use spillway_io::ConnectionLimits;

/// Requests that each client sends at once: they fit into one large receive.
const GREED: usize = 4000;

/// Requests that are a turn's work, with the one that spends it.
const IN_A_TURN: usize = (work::TURN / WORK_UNITS) as usize + 1;

/// Turns of one client in a row: until the other one's bytes are received, at the start.
const TURNS: usize = 6;

#[test]
fn clients_with_much_work_in_one_receive_take_turns() {
    for driver in BOTH {
        let house = House::of(1, driver, ConnectionLimits::default());
        let mut clients = [(); 2].map(|()| house.connect());
        for client in &mut clients {
            echo(client, b"here");
        }
        let release = hold(&house.workers, 0);
        let mut many = Vec::new();
        (0..GREED).for_each(|_| request(&mut many, WORK, b""));
        request(&mut many, ECHO, b"done");
        clients.iter_mut().for_each(|client| client.write_all(&many).unwrap());
        release.send(()).unwrap();
        clients.iter_mut().for_each(|client| assert_eq!(answer(client).1, b"done"));
        let order = house.watch.worked.lock().clone();
        assert_eq!(order.len(), 2 * GREED);
        let longest = order.chunk_by(|a, b| a == b).map(<[usize]>::len).max().unwrap();
        assert!(longest <= TURNS * IN_A_TURN, "{longest} requests of one client in a row");
        house.stop();
    }
}
