//! Tests of the parts. The whole is tested in the simulated world (`tools/sim`) and with real servers (`tests`).

mod access;
mod journal;
mod negotiation;
mod reconnect;
mod rounds;
#[cfg(feature = "shuttle")]
mod threads;
mod transmission;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spillway_core::{Env, LocalFuture, Place, Task};

use super::link::Link;
use super::settings::Settings;

fn link(env: Arc<dyn Env>, timeout: Option<Duration>, journal_bytes: usize) -> Arc<Link> {
    let settings = Settings {
        address: "nbd://host".to_owned(),
        export: String::new(),
        read_only: false,
        timeout,
        connections: 2,
        tls: None,
        journal_bytes,
    };
    Arc::new(Link::new(env, settings))
}

/// A world in which a sleep is over when it is looked at again.
struct Restless;

impl Env for Restless {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        let mut has_slept = false;
        Box::pin(poll_fn(move |_| match std::mem::replace(&mut has_slept, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }))
    }

    fn spawn(&self, _: Place, _: Task) {
        unreachable!("nothing is spawned")
    }

    fn spawn_here(&self, _: LocalFuture<()>) {
        unreachable!("nothing is spawned")
    }

    fn random(&self) -> u64 {
        0
    }
}
