//! The whole conversation with one client.

use std::sync::Arc;
use std::task::Context;

use spillway_core::IoBuf;
use spillway_core::session::{Intake, Output, Peer, Session};

use super::config::Config;
use super::handshake::{Handshake, Transition};
use super::transmission::Transmission;
use crate::exports::Exports;
use crate::tls::StartTls;

enum Stage {
    Handshake(Box<Handshake>),
    Transmission(Box<Transmission>),
    Over,
}

/// A conversation with one NBD client. See [the module](super) for what it promises.
pub struct NbdSession {
    stage: Stage,
    config: Config,
    output: Output,
    /// Whether the export knows this session's task.
    watching: bool,
    /// The client was told to begin TLS.
    starts_tls: bool,
}

impl NbdSession {
    /// A conversation with a client that has just connected; its first output is the greeting.
    pub fn new(exports: Arc<Exports>, config: Config) -> Self {
        let config = config.in_range();
        let mut output = Output::default();
        let handshake = Handshake::new(exports, config, &mut output);
        Self {
            stage: Stage::Handshake(Box::new(handshake)),
            config,
            output,
            watching: false,
            starts_tls: false,
        }
    }

    fn transmission(&self) -> Option<&Transmission> {
        match &self.stage {
            Stage::Transmission(transmission) => Some(transmission),
            Stage::Handshake(_) | Stage::Over => None,
        }
    }

    fn enter(&mut self, transition: Transition) {
        match transition {
            Transition::More => {}
            Transition::StartTls => self.starts_tls = true,
            Transition::Close => self.stage = Stage::Over,
            Transition::Transmit(connected, rules) => {
                let transmission = Transmission::new(connected, rules, self.config);
                self.stage = Stage::Transmission(Box::new(transmission));
            }
        }
    }
}

impl StartTls for NbdSession {
    fn starts_tls(&mut self) -> bool {
        std::mem::take(&mut self.starts_tls)
    }

    fn fail(&mut self, _why: &str) {
        self.hang_up();
    }
}

impl Session for NbdSession {
    fn introduce(&mut self, peer: Peer) {
        if let Stage::Handshake(handshake) = &mut self.stage {
            handshake.peer = peer;
        }
    }

    fn intake(&mut self) -> Intake {
        match &mut self.stage {
            Stage::Handshake(handshake) if handshake.paused(&self.output) => Intake::Pause,
            Stage::Handshake(_) => Intake::Bytes,
            Stage::Transmission(transmission) => transmission.intake(&self.output),
            Stage::Over => Intake::Pause,
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        assert!(!self.starts_tls, "a client was told to begin TLS, and nobody speaks it");
        let mut at = 0;
        if let Stage::Handshake(handshake) = &mut self.stage {
            let (used, transition) = handshake.receive(bytes, &mut self.output);
            at = used;
            self.enter(transition);
        }
        match &mut self.stage {
            Stage::Handshake(_) => at,
            Stage::Transmission(transmission) => at + transmission.receive(&bytes[at..], &mut self.output),
            Stage::Over => bytes.len(),
        }
    }

    fn returned(&mut self, buf: IoBuf, filled: usize) {
        if let Stage::Transmission(transmission) = &mut self.stage {
            transmission.returned(buf, filled, &mut self.output);
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        let Stage::Transmission(transmission) = &mut self.stage else { return };
        if !std::mem::replace(&mut self.watching, true) {
            transmission.connected().watch(context.waker());
        }
        if transmission.connected().export().is_closed() {
            transmission.wind_down(&mut self.output);
        }
        transmission.poll(context, &mut self.output);
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finished(&self) -> bool {
        match &self.stage {
            Stage::Handshake(_) => false,
            Stage::Transmission(transmission) => transmission.over(),
            Stage::Over => true,
        }
    }

    fn hang_up(&mut self) {
        self.stage = Stage::Over;
        self.output.clear();
    }

    fn wind_down(&mut self) {
        match &mut self.stage {
            Stage::Handshake(_) => self.stage = Stage::Over,
            Stage::Transmission(transmission) => transmission.wind_down(&mut self.output),
            Stage::Over => {}
        }
    }

    fn pending(&self) -> usize {
        self.transmission().map_or(0, Transmission::pending)
    }

    fn established(&self) -> bool {
        !matches!(self.stage, Stage::Handshake(_))
    }

    fn owed(&self) -> bool {
        self.transmission().is_some_and(Transmission::owed)
    }

    fn stays(&self) -> bool {
        self.transmission().is_some_and(|transmission| transmission.connected().export().is_held())
    }

    fn ends(&self) -> bool {
        match &self.stage {
            Stage::Handshake(_) => false,
            Stage::Transmission(transmission) => transmission.ends(),
            Stage::Over => true,
        }
    }
}
