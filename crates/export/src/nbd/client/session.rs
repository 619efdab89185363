//! The conversation with one server on one connection.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use spillway_core::session::{Intake, Output, Session};
use spillway_core::work;

use super::channel::ChannelWork;
use super::link::{DEADLINE, Link};
use super::negotiation::{Negotiation, NegotiationStep, request};
use super::transmission::Transmission;
use crate::nbd::wire::cmd;
use crate::tls::StartTls;

/// Bytes that are not sent, above which no request is taken: the rest waits where other connections may take it after a loss.
const UNSENT_MAX: usize = 4 << 20;

/// Requests of one connection that are not answered: below what servers put up with.
const PENDING_MAX: usize = 256;

enum Stage {
    Negotiating(Negotiation),
    Transmitting(Transmission),
    Over,
}

/// A connection of an [`NbdOrigin`](super::NbdOrigin). Its requests go back to the link when it is dropped.
pub(super) struct ClientSession {
    link: Arc<Link>,
    channel: usize,
    round: u64,
    stage: Stage,
    output: Output,
    /// Why it is over.
    reason: String,
    is_abandoned: bool,
    /// The server has agreed to TLS.
    starts_tls: bool,
}

impl ClientSession {
    /// The session of that channel of the link, in that round of connections.
    pub(super) fn new(link: Arc<Link>, channel: usize, round: u64) -> Self {
        link.session_begins(channel, round);
        let stage = Stage::Negotiating(Negotiation::new(&link.settings.export, link.settings.tls.is_some()));
        Self {
            link,
            channel,
            round,
            stage,
            output: Output::default(),
            reason: String::new(),
            is_abandoned: false,
            starts_tls: false,
        }
    }

    /// The rest of the output goes nowhere.
    fn end(&mut self, reason: &str) {
        if let Stage::Over = self.stage {
            return;
        }
        reason.clone_into(&mut self.reason);
        self.output.clear();
        self.is_abandoned = true;
        let calls: Vec<_> = match &mut self.stage {
            Stage::Transmitting(transmission) => transmission.take_all().collect(),
            _ => Vec::new(),
        };
        self.stage = Stage::Over;
        self.link.put_back(self.channel, calls);
    }

    fn negotiate(&mut self, bytes: &[u8]) -> usize {
        let Stage::Negotiating(negotiation) = &mut self.stage else { return 0 };
        work::spend(work::REQUEST);
        let (used, step) = negotiation.receive(bytes, &mut self.output);
        match step {
            NegotiationStep::More => {}
            NegotiationStep::StartTls => self.starts_tls = true,
            NegotiationStep::Refused(why) => self.end(&why),
            NegotiationStep::Done(described) => {
                self.stage = Stage::Transmitting(Transmission::new(described));
                self.link.session_established(self.channel, self.round, described);
            }
        }
        used
    }

    /// Sends what waits in the channel.
    fn take_calls(&mut self) {
        let Stage::Transmitting(transmission) = &mut self.stage else { return };
        let now = self.link.env.coarse_now();
        while self.output.len() < UNSENT_MAX && transmission.pending() < PENDING_MAX && !work::spent() {
            match self.link.take(self.channel, self.round) {
                ChannelWork::Call(call) => {
                    work::spend(work::REQUEST);
                    transmission.send(call, now, &mut self.output);
                }
                ChannelWork::Nothing => return,
                ChannelWork::Leave if transmission.pending() == 0 => {
                    self.output.push(&request(cmd::DISC, 0, 0, 0, 0));
                    self.stage = Stage::Over;
                    return;
                }
                ChannelWork::Leave => return,
                ChannelWork::Close => return self.end("another connection was lost"),
            }
        }
    }

    fn is_late(&self, deadline: Duration) -> bool {
        let Stage::Transmitting(transmission) = &self.stage else { return false };
        transmission.oldest().is_some_and(|oldest| self.link.env.coarse_now() > oldest + deadline)
    }
}

impl StartTls for ClientSession {
    fn starts_tls(&mut self) -> bool {
        std::mem::take(&mut self.starts_tls)
    }

    fn fail(&mut self, why: &str) {
        self.end(&format!("TLS: {why}"));
    }

    fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }
}

impl Session for ClientSession {
    fn intake(&mut self) -> Intake {
        if self.finished() { Intake::Pause } else { Intake::Bytes }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut at = self.negotiate(bytes);
        let Stage::Transmitting(transmission) = &mut self.stage else { return at };
        let (used, result) = transmission.receive(&bytes[at..], &self.output, &self.link.journal);
        at += used;
        if transmission.takes_answer() {
            self.link.answered();
        }
        if let Err(why) = result {
            self.end(why);
        }
        at
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        if !self.link.watch(self.channel, self.round, context.waker()) {
            return self.end("another connection was lost");
        }
        if self.link.is_leaving() && !self.established() {
            return self.end("it is no longer needed");
        }
        self.take_calls();
        if self.is_late(DEADLINE) {
            self.link.note_slow();
        }
        if self.is_late(self.link.deadline()) {
            self.link.extend_deadline();
            self.end("a request was not answered for too long");
        }
        if work::spent() {
            context.waker().wake_by_ref();
        }
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finished(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    fn hang_up(&mut self) {
        self.end("the server closed the connection");
    }

    fn wind_down(&mut self) {
        self.end("it is no longer needed");
    }

    fn pending(&self) -> usize {
        match &self.stage {
            Stage::Transmitting(transmission) => transmission.pending(),
            _ => 0,
        }
    }

    fn established(&self) -> bool {
        !matches!(self.stage, Stage::Negotiating(_))
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.end("the connection was lost");
        self.link.session_ends(self.channel, self.round, std::mem::take(&mut self.reason));
    }
}
