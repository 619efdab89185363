//! The front thread: accepting, and the coarse clock, while background threads do not come back from a task.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use crate::toy::{BOTH, Toy, Watch, echo, task, until, workers};
use spillway_core::{Place, block_on};
use spillway_io::{ConnectionLimits, Listener, serve};

#[test]
fn clients_connect_and_the_clock_moves_while_the_background_thread_is_busy() {
    for driver in BOTH {
        let path = std::env::temp_dir().join(format!("spillway-front-{}.sock", std::process::id()));
        let workers = workers(1, driver);
        let watch = Arc::new(Watch::default());
        let listener = Listener::unix(&path, 0o600).unwrap();
        let new_session =
            Arc::new(move || -> Box<dyn spillway_core::session::Session> { Box::new(Toy::new(&watch)) });
        let serving = serve(listener, &workers, new_session, ConnectionLimits::default());
        let (blocked, is_blocked) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let long = task(move || async move {
            blocked.send(()).unwrap();
            released.recv().unwrap();
        });
        workers.env().spawn(Place::Background, long);
        is_blocked.recv().unwrap();
        let env = workers.env();
        for _ in 0..2 {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
            echo(&mut stream, b"served");
            let before = env.coarse_now();
            until("the coarse clock", || env.coarse_now() > before);
        }
        block_on(serving.stop());
        release.send(()).unwrap();
        workers.stop();
    }
}
