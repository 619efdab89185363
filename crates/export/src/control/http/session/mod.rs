//! The conversation with one HTTP client, without the socket.
//!
//! States: *reading* a head, then its body; *waiting* for an operation that the catalog completes later, or *gathering* metrics, with no
//! further input taken; *closing*, once the client asked for it, sent what is no request, or the server stops: what is in progress is answered.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::session::{Intake, Output, Session};
use spillway_core::{Answer, Error, work};

use super::super::catalog::Catalog;
use super::super::message::{ControlReply, Operation};
use super::super::operations::carry_out;
use super::head::{BODY_BYTES_MAX, BadHead, HEAD_BYTES_MAX, RequestHead};
use super::metrics::Scrape;
use super::response::{ContentType, Response};
use super::rights::Rights;
use super::routes::{self, Wanted};

/// Unsent bytes of answers above which no further request is read.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// Units of work for a request, or for the metrics of a device: an attribute may sum over a whole device.
const REQUEST_UNITS: u32 = work::TURN / 4;

/// What is under way.
enum Doing {
    Nothing,
    Waiting(Option<Operation>, Answer<Result<ControlReply, Error>>),
    Gathering(Box<Scrape>),
}

/// An HTTP client's session.
pub struct HttpSession {
    catalog: Arc<dyn Catalog>,
    rights: Arc<Rights>,
    /// The bytes of a request that is not complete.
    bytes: Vec<u8>,
    /// Its head, once that is.
    head: Option<RequestHead>,
    doing: Doing,
    /// The answer to what is under way has a head only.
    head_only: bool,
    output: Output,
    /// A request was understood.
    established: bool,
    closing: bool,
}

impl HttpSession {
    /// A session that answers from `catalog` what `rights` allow.
    pub fn new(catalog: Arc<dyn Catalog>, rights: Arc<Rights>) -> Self {
        Self {
            catalog,
            rights,
            bytes: Vec::new(),
            head: None,
            doing: Doing::Nothing,
            head_only: false,
            output: Output::default(),
            established: false,
            closing: false,
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.doing, Doing::Nothing)
    }

    fn pauses(&self) -> bool {
        self.closing || !self.is_idle() || self.output.len() > UNSENT_BYTES_MAX
    }

    /// Carries out the request whose bytes are there, if all are; whether it was one.
    fn take_request(&mut self) -> bool {
        if self.head.is_none() {
            match RequestHead::parse(&self.bytes) {
                Ok(None) => return false,
                Ok(Some((head, len))) => {
                    self.bytes.drain(..len);
                    if head.expects && head.body_len > self.bytes.len() {
                        self.output.push(b"HTTP/1.1 100 Continue\r\n\r\n");
                    }
                    self.head = Some(head);
                }
                Err(BadHead { status, error }) => {
                    // Where the next request begins cannot be known.
                    (self.closing, self.head_only) = (true, false);
                    self.bytes = Vec::new();
                    self.answer(&Response::error(status, &error));
                    return true;
                }
            }
        }
        let Some(head) = self.head.take_if(|head| self.bytes.len() >= head.body_len) else { return false };
        let body: Vec<u8> = self.bytes.drain(..head.body_len).collect();
        self.established = true;
        work::spend(REQUEST_UNITS);
        self.closing |= head.close;
        self.head_only = head.method == "HEAD";
        self.begin(&head, &body);
        true
    }

    fn begin(&mut self, head: &RequestHead, body: &[u8]) {
        assert!(self.is_idle(), "a request is carried out before the last one is answered");
        // Who may not look is told nothing of what there is.
        let wanted = self.rights.check(head, false).and_then(|()| routes::wanted(head, body));
        let allowed = wanted.and_then(|wanted| self.rights.check(head, wanted.changes()).map(|()| wanted));
        match allowed {
            Err(refused) => self.answer(&refused),
            Ok(Wanted::Asset(content, text)) => self.answer(&Response::new(content, text)),
            Ok(Wanted::Metrics) => self.doing = Doing::Gathering(Box::new(Scrape::new(&*self.catalog))),
            Ok(Wanted::Operation(operation)) => {
                let set = matches!(operation, Operation::Set { .. }).then(|| operation.clone());
                self.doing = Doing::Waiting(set, carry_out(&*self.catalog, operation));
            }
        }
    }

    fn answer(&mut self, response: &Response) {
        response.send(self.closing, self.head_only, &mut self.output);
    }
}

impl Session for HttpSession {
    fn intake(&mut self) -> Intake {
        if self.pauses() { Intake::Pause } else { Intake::Bytes }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        if self.pauses() || work::spent() {
            return 0;
        }
        self.bytes.extend_from_slice(bytes);
        if !self.take_request() {
            assert!(
                self.bytes.len() <= HEAD_BYTES_MAX.max(BODY_BYTES_MAX),
                "a part of a request is too long"
            );
            return bytes.len();
        }
        // What is behind the request is offered again once that is answered.
        let left = self.bytes.len();
        assert!(left < bytes.len(), "{left} bytes are left of {} that a request ended in", bytes.len());
        self.bytes.clear();
        bytes.len() - left
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        let response = match &mut self.doing {
            Doing::Nothing => return,
            Doing::Waiting(operation, answer) => match Pin::new(answer).poll(context) {
                Poll::Pending => return,
                Poll::Ready(Ok(reply)) => routes::render(reply, self.rights.changes()),
                Poll::Ready(Err(error)) => routes::failure(&*self.catalog, operation, &error),
            },
            Doing::Gathering(scrape) => loop {
                if work::spent() {
                    return;
                }
                work::spend(REQUEST_UNITS);
                if let Some(text) = scrape.step(&*self.catalog) {
                    break Response::new(ContentType::Metrics, text);
                }
            },
        };
        self.doing = Doing::Nothing;
        self.answer(&response);
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finished(&self) -> bool {
        self.closing && self.is_idle()
    }

    /// A change that has begun completes without this client.
    fn hang_up(&mut self) {
        self.doing = Doing::Nothing;
        self.closing = true;
    }

    fn wind_down(&mut self) {
        self.closing = true;
    }

    fn pending(&self) -> usize {
        usize::from(!self.is_idle())
    }

    fn established(&self) -> bool {
        self.established
    }

    fn owed(&self) -> bool {
        self.head.is_some() || !self.bytes.is_empty()
    }

    fn ends(&self) -> bool {
        self.closing
    }
}

#[cfg(test)]
mod tests;
