//! The requests of one conversation, whatever its protocol: admission, back-pressure, and the answers that are pending.
//!
//! ```text
//!   parsed request -> `equip`: a buffer, or parked until there is one -> `submit` to the device -> `submitted` -> known at once, or pending -> rendered answer
//!   a wake -> `collect` -> `next_answer` ... -> `poll_parked`
//! ```
//!
//! A protocol parses requests `R`, keeps a ticket `T` of each, and renders the answer that comes back with it. What it waits for besides
//! the device, it gives to `begin` as a future of its own outcome `X`.
//!
//! No further request is admitted while unsent replies and pending requests together hold more than [`PipelineLimits::held_bytes_max`], or
//! [`PipelineLimits::requests_max`] are pending, or memory is short and the conversation holds more than [`ASSURED_BYTES`], or one is
//! parked. A request that needs a buffer is parked until the conversation's own limit has room for it, and then until [`buffer::room`] has
//! it; a conversation that holds nothing gets a small buffer at once, however short memory is, so that every client proceeds.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use spillway_core::{
    Aligned, Answer, IoBuf, LocalFuture, Reply, Request, Sampler, Submission, buffer, mutant, work,
};

use crate::export::Export;
use crate::pending::{PENDING_MAX, Pending};

/// Bytes of a buffer, or of unsent replies, that a conversation gets in any case.
pub(crate) const ASSURED_BYTES: usize = 16 << 10;

/// Limits of one conversation.
#[derive(Clone, Copy)]
pub(crate) struct PipelineLimits {
    /// Bytes of unsent replies and of pending requests from which on no further request is admitted.
    pub(crate) held_bytes_max: usize,
    /// Pending requests, 1 to [`PENDING_MAX`].
    pub(crate) requests_max: usize,
}

/// A request that waits for a buffer.
struct Parked<R> {
    request: R,
    len: usize,
    /// Absent until the conversation may hold the buffer.
    room: Option<LocalFuture<IoBuf>>,
}

/// What is answered: by the device, or by what the protocol waited for itself.
pub(crate) enum Outcome<X> {
    Io(Reply),
    Own(X),
}

/// An answer that is still to come.
enum PendingAnswer<X> {
    Io(LocalFuture<Reply>),
    Own(LocalFuture<X>),
}

impl<X> Future for PendingAnswer<X> {
    type Output = Outcome<X>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<X>> {
        match &mut *self {
            PendingAnswer::Io(future) => future.as_mut().poll(context).map(Outcome::Io),
            PendingAnswer::Own(future) => future.as_mut().poll(context).map(Outcome::Own),
        }
    }
}

/// Requests `R` on their way, each pending one with its ticket `T`. What is unsent is given in bytes of memory, 0 if there is nothing to send.
pub(crate) struct Pipeline<R, T, X> {
    limits: PipelineLimits,
    /// A request that is parked is none of them.
    pending: Pending<T, PendingAnswer<X>>,
    parked: Option<Parked<R>>,
    sampler: Sampler,
}

impl<R, T, X> Pipeline<R, T, X> {
    pub(crate) fn new(limits: PipelineLimits) -> Self {
        let most = limits.requests_max;
        assert!((1..=PENDING_MAX).contains(&most), "{most} pending requests, 1 to {PENDING_MAX} may be");
        Self { limits, pending: Pending::default(), parked: None, sampler: Sampler::default() }
    }

    /// Requests that wait for their answer.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The request that waits for a buffer.
    pub(crate) fn parked(&self) -> Option<&R> {
        self.parked.as_ref().map(|parked| &parked.request)
    }

    /// Gives up the request that waits for a buffer.
    pub(crate) fn take_parked(&mut self) -> Option<R> {
        self.parked.take().map(|parked| parked.request)
    }

    fn held(&self, unsent: usize) -> usize {
        unsent + self.pending.bytes() as usize
    }

    /// Whether another request is admitted. Sending or an answer makes it so.
    pub(crate) fn admits(&mut self, unsent: usize) -> bool {
        let held = self.held(unsent);
        self.parked.is_none()
            && held <= self.limits.held_bytes_max
            && self.pending.len() < self.limits.requests_max
            && !(held > ASSURED_BYTES && buffer::is_short())
            && self.pending.has_room()
    }

    /// Whether the conversation may hold another buffer of `len` bytes.
    fn affords(&self, len: usize, unsent: usize) -> bool {
        self.holds_nothing(unsent) || self.held(unsent) + buffer::bytes_for(len) <= self.limits.held_bytes_max
    }

    fn holds_nothing(&self, unsent: usize) -> bool {
        self.pending.is_empty() && unsent == 0
    }

    /// A buffer of `len` bytes that is due however short memory is.
    fn assured(&self, len: usize, unsent: usize) -> Option<IoBuf> {
        (len <= ASSURED_BYTES && self.holds_nothing(unsent)).then(|| IoBuf::new(len))
    }

    /// A request with its buffer of `len` bytes, if that can be had at once; otherwise it is parked.
    pub(crate) fn equip(&mut self, request: R, len: usize, unsent: usize) -> Option<(R, IoBuf)> {
        assert!(self.parked.is_none(), "a request was admitted behind one that is parked");
        let affords = self.affords(len, unsent);
        let buf = affords.then(|| IoBuf::try_new(len).or_else(|| self.assured(len, unsent))).flatten();
        if let Some(buf) = buf {
            return Some((request, buf));
        }
        let room = affords.then(|| Box::pin(buffer::room(len)) as LocalFuture<IoBuf>);
        self.parked = Some(Parked { request, len, room });
        None
    }

    /// The parked request with its buffer, once it has one: an answer, or what was sent since, may have made it due.
    pub(crate) fn poll_parked(&mut self, context: &mut Context<'_>, unsent: usize) -> Option<(R, IoBuf)> {
        let mut parked = self.parked.take()?;
        if parked.room.is_none()
            && self.affords(parked.len, unsent)
            && !mutant::on("pipeline: ask once for the room of a parked request")
        {
            parked.room = Some(Box::pin(buffer::room(parked.len)));
        }
        let buf = match parked.room.as_mut().map(|room| room.as_mut().poll(context)) {
            Some(Poll::Ready(buf)) => Some(buf),
            _ => self.assured(parked.len, unsent),
        };
        let Some(buf) = buf else {
            self.parked = Some(parked);
            return None;
        };
        assert_eq!(buf.len(), parked.len, "a parked request gets a buffer of another length");
        Some((parked.request, buf))
    }

    /// Submits a request to the device of `export` by `submit`. What that says is for [`Pipeline::submitted`].
    #[inline]
    pub(crate) fn submit(
        &mut self,
        export: &Export,
        request: Request,
        submit: fn(&Aligned, Request) -> Submission,
    ) -> Submission {
        self.sampler.submit(export.timer(), request.op, || submit(export.device(), request))
    }

    /// Takes what a device says of a request that holds `bytes`. An answer that is known is returned; others come by [`Pipeline::next_answer`].
    #[inline]
    pub(crate) fn submitted(
        &mut self,
        ticket: T,
        bytes: usize,
        submission: Submission,
    ) -> Option<(T, Outcome<X>)> {
        match submission {
            Answer::Done(reply) => {
                work::spend_bytes(reply.buf.len(), work::BYTES_STORED);
                Some((ticket, Outcome::Io(reply)))
            }
            Answer::Pending(future) => self.pending.begin(ticket, bytes as u64, PendingAnswer::Io(future)),
        }
    }

    /// Waits for something of the protocol's own, which holds `bytes`; returns as [`Pipeline::submitted`] does.
    pub(crate) fn begin(&mut self, ticket: T, bytes: u64, answer: LocalFuture<X>) -> Option<(T, Outcome<X>)> {
        self.pending.begin(ticket, bytes, PendingAnswer::Own(answer))
    }

    /// From now on answers wake this task; [`Pipeline::next_answer`] looks at those so far.
    pub(crate) fn collect(&mut self, context: &Context<'_>) {
        if !self.pending.is_empty() || self.parked.is_some() {
            self.pending.collect(context);
        }
    }

    /// The next answer that has come.
    pub(crate) fn next_answer(&mut self) -> Option<(T, Outcome<X>)> {
        self.pending.next_done()
    }
}
