//! Connections that never say what they want.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::toy::{BOTH, ECHO, Toy, Watch, answer, echo, hold, request, until};
use spillway_core::block_on;
use spillway_io::{ConnectionLimits, DriverChoice, Listener, Serving, Workers, serve};

struct House {
    workers: Workers,
    serving: Serving,
    watch: Arc<Watch>,
    path: PathBuf,
}

impl House {
    fn new(driver: DriverChoice, limits: ConnectionLimits) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spillway-handshakes-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let workers = crate::toy::workers(2, driver);
        let watch = Arc::new(Watch::default());
        watch.shakes_hands.store(true, Ordering::SeqCst);
        let sessions = watch.clone();
        let listener = Listener::unix(&path, 0o600).unwrap();
        let serving = serve(listener, &workers, Arc::new(move || Box::new(Toy::new(&sessions))), limits);
        Self { workers, serving, watch, path }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn stop(self) {
        block_on(self.serving.stop());
        self.workers.stop();
    }
}

fn is_served(stream: &mut UnixStream) {
    echo(stream, b"here");
}

#[test]
fn a_thousand_that_never_finish_their_handshake_keep_nobody_out() {
    for driver in BOTH {
        let house =
            House::new(driver, ConnectionLimits { connections_max: 512, ..ConnectionLimits::default() });
        let mut before = house.connect();
        is_served(&mut before);
        let silent: Vec<_> = (0..1000).map(|_| house.connect()).collect();
        is_served(&mut house.connect());
        is_served(&mut before);
        assert!(house.serving.connections() <= 512);
        drop(silent);
        house.stop();
    }
}

#[test]
fn a_crowd_that_arrives_together_is_served_whole() {
    for driver in BOTH {
        let house =
            House::new(driver, ConnectionLimits { connections_max: 200, ..ConnectionLimits::default() });
        let mut crowd: Vec<_> = (0..200).map(|_| house.connect()).collect();
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
            House::new(driver, ConnectionLimits { connections_max: 40, ..ConnectionLimits::default() });
        let busy = [0, 1].map(|index| hold(&house.workers, index));
        let mut crowd: Vec<_> = (0..30).map(|_| house.connect()).collect();
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
        let house = House::new(driver, limits);
        let mut client = house.connect();
        is_served(&mut client);
        let mut silent = house.connect();
        assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
        until("the session's end", || house.watch.alive.load(Ordering::SeqCst) == 1);
        is_served(&mut client);
        house.stop();
    }
}
