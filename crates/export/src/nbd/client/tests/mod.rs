//! Tests of the parts. The whole is tested in the simulated world (`tools/sim`) and with real servers (`tests`).

mod access;
mod journal;
mod negotiation;
mod reconnect;
mod rounds;
#[cfg(feature = "shuttle")]
mod threads;
mod transmission;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::Env;
use spillway_core::session::Session;

use super::link::Link;
use super::session::ClientSession;
use super::settings::Settings;
use crate::nbd::wire::{self, flag, handshake_flag, opt};
use negotiation::Server;

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

/// The first connection of the link, whose server has shaken hands and can flush.
fn connected(link: &Arc<Link>) -> ClientSession {
    let Poll::Ready(round) = pin!(link.begin_round()).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("there is nothing to wait for")
    };
    let mut session = ClientSession::new(link.clone(), 0, round);
    shake_hands(&mut session);
    link.open(1);
    session
}

/// Has the server shake hands with the session.
fn shake_hands(session: &mut dyn Session) {
    let server = Server::of(1 << 20, flag::HAS_FLAGS | flag::SEND_FLUSH, [512, 4096, 1 << 20]);
    session.receive(&wire::greeting(handshake_flag::FIXED_NEWSTYLE));
    for option in [opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, opt::GO] {
        session.receive(&server.replies(option));
    }
    assert!(session.established() && !session.finished());
}
