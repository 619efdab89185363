//! A server of the toy protocol on a socket, with its workers.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::toy::{Toy, Watch, workers};
use spillway_core::block_on;
use spillway_io::{ConnectionLimits, DriverChoice, Listener, NewSession, Serving, Workers, serve};

pub(crate) struct House {
    pub(crate) workers: Workers,
    pub(crate) serving: Option<Serving>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) path: PathBuf,
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

impl House {
    /// With two workers.
    pub(crate) fn new(driver: DriverChoice, limits: ConnectionLimits) -> Self {
        Self::of(2, driver, limits)
    }

    /// With so many workers.
    pub(crate) fn of(count: usize, driver: DriverChoice, limits: ConnectionLimits) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spillway-sockets-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let workers = workers(count, driver);
        let watch = Arc::new(Watch::default());
        let listener = Listener::unix(&path, 0o600).unwrap();
        let serving = Some(serve(listener, &workers, sessions(&watch), limits));
        Self { workers, serving, watch, path }
    }

    pub(crate) fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    pub(crate) fn stop(mut self) {
        block_on(self.serving.take().unwrap().stop());
        assert_eq!(self.watch.alive.load(Ordering::SeqCst), 0, "sessions outlive the server");
        assert!(!self.path.exists(), "the socket file stays");
        self.workers.stop();
    }
}

pub(crate) fn sessions(watch: &Arc<Watch>) -> NewSession {
    let watch = watch.clone();
    Arc::new(move || Box::new(Toy::new(&watch)))
}
