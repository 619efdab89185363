//! The front thread: accepting, and the coarse clock, while background threads do not come back from a task.

use std::sync::mpsc;

use crate::house::House;
use crate::toy::{BOTH, echo, until};
use spillway_core::{Place, block_on, task};
use spillway_io::ConnectionLimits;

#[test]
fn clients_connect_and_the_clock_moves_while_the_background_thread_is_busy() {
    for driver in BOTH {
        let mut house = House::of(1, driver, ConnectionLimits::default());
        let (blocked, is_blocked) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let long = task(move || async move {
            blocked.send(()).unwrap();
            released.recv().unwrap();
        });
        let env = house.workers.env();
        env.spawn(Place::Background, long);
        is_blocked.recv().unwrap();
        for _ in 0..2 {
            let mut stream = house.connect();
            stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
            echo(&mut stream, b"served");
            let before = env.coarse_now();
            until("the coarse clock", || env.coarse_now() > before);
        }
        block_on(house.serving.take().unwrap().stop());
        release.send(()).unwrap();
        house.workers.stop();
    }
}
