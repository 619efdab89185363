//! The conversation with one control client, without the socket.
//!
//! States: *reading* a line; *waiting* for a change that the catalog completes later, with no further input taken;
//! *closing*, once the server stops or a line was too long: what is in progress is answered, nothing more is read.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::session::{Intake, Output, Peer, Session};
use spillway_core::{Answer, Error, Kind, work};

use super::catalog::Catalog;
use super::message::{ControlReply, LINE_BYTES_MAX, Operation, encode_reply};
use super::operations::carry_out;
use super::reported::Reported;

/// Unsent bytes of replies above which no further request is read.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// Units of work for a line: an attribute may sum over a whole device.
const LINE_UNITS: u32 = work::TURN / 4;

/// A control client's session.
pub struct ControlSession {
    catalog: Arc<dyn Catalog>,
    peer: Peer,
    line: Vec<u8>,
    waiting: Option<Answer<Result<ControlReply, Error>>>,
    /// Long work that the client does.
    reported: Option<Reported>,
    output: Output,
    closing: bool,
}

impl ControlSession {
    /// A session that answers from `catalog`.
    pub fn new(catalog: Arc<dyn Catalog>) -> Self {
        Self {
            catalog,
            peer: Peer::Unknown,
            line: Vec::new(),
            waiting: None,
            reported: None,
            output: Output::default(),
            closing: false,
        }
    }

    fn pauses(&self) -> bool {
        self.closing || self.waiting.is_some() || self.output.len() > UNSENT_BYTES_MAX
    }

    /// Takes the bytes up to the end of the line, or all of them, and returns how many.
    fn take_line(&mut self, bytes: &[u8]) -> usize {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if self.line.len() + part.len() > LINE_BYTES_MAX {
            self.refuse_long_line();
            return bytes.len();
        }
        self.line.extend_from_slice(part);
        if end.is_none() {
            return part.len();
        }
        let line = std::mem::take(&mut self.line);
        if !line.trim_ascii().is_empty() {
            self.carry_out(&line);
        }
        part.len() + 1
    }

    fn refuse_long_line(&mut self) {
        let message = format!("the line is longer than {LINE_BYTES_MAX} bytes: the connection is closed");
        self.answer(Err(Error::new(Kind::TooLong, message)));
        self.line = Vec::new();
        self.closing = true;
    }

    fn carry_out(&mut self, line: &[u8]) {
        work::spend(LINE_UNITS);
        assert!(self.waiting.is_none(), "an operation begins before the last one is answered");
        let operation = match Operation::decode(line) {
            Ok(operation) => operation,
            Err(error) => return self.answer(Err(error)),
        };
        let operation = match operation {
            Operation::Report { device, kind, done, total } => {
                let reply = self.report(device, kind, done, total);
                return self.answer(reply);
            }
            Operation::Keep { device, shared } => {
                let kept = self.catalog.keep(&device, self.peer, !shared);
                return self.answer(kept.map(|()| ControlReply::Done));
            }
            other => other,
        };
        match carry_out(&*self.catalog, operation) {
            Answer::Done(reply) => self.answer(reply),
            pending => self.waiting = Some(pending),
        }
    }

    /// Notes how far work of the client is.
    fn report(
        &mut self,
        device: String,
        kind: String,
        done: u64,
        total: Option<u64>,
    ) -> Result<ControlReply, Error> {
        if self.reported.as_ref().is_none_or(|work| !work.is(&device, &kind, total)) {
            self.reported = None;
            self.reported = Some(Reported::begin(&*self.catalog, device, kind, total)?);
        }
        Ok(ControlReply::Work(self.reported.iter().filter_map(|work| work.reach(done)).collect()))
    }

    fn answer(&mut self, reply: Result<ControlReply, Error>) {
        let line = match reply {
            Ok(reply) => encode_reply(Ok(reply)),
            Err(error) => encode_reply(Err(&error)),
        };
        self.output.push(line.as_bytes());
    }
}

impl Session for ControlSession {
    fn introduce(&mut self, peer: Peer) {
        self.peer = peer;
    }

    fn intake(&mut self) -> Intake {
        if self.pauses() { Intake::Pause } else { Intake::Bytes }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && !self.pauses() && !work::spent() {
            used += self.take_line(&bytes[used..]);
        }
        used
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        let Some(waiting) = &mut self.waiting else { return };
        if let Poll::Ready(result) = Pin::new(waiting).poll(context) {
            self.waiting = None;
            self.answer(result);
        }
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finished(&self) -> bool {
        self.closing && self.waiting.is_none()
    }

    /// A change that has begun completes without this client.
    fn hang_up(&mut self) {
        (self.waiting, self.reported) = (None, None);
        self.closing = true;
    }

    fn wind_down(&mut self) {
        self.closing = true;
    }

    fn pending(&self) -> usize {
        usize::from(self.waiting.is_some())
    }

    fn ends(&self) -> bool {
        self.closing
    }
}

#[cfg(test)]
mod tests;
