//! One request to a server, and where its reply goes.

use std::time::Duration;

use spillway_core::sync::Mutex;
use spillway_core::{ByteRange, Extent, IoBuf, Job, Kind, Report};

use super::journal::{Content, ReplayJournal};
use super::payload::Payload;
use crate::nbd::wire::{cmd, cmd_flag};

/// What a request carries.
#[derive(Default)]
pub(super) enum Body {
    #[default]
    Nothing,
    /// The payload of a write.
    Write(Payload),
    /// Where a read goes: `len` bytes from `start` of the window.
    Read { buf: IoBuf, start: usize },
    /// The extents found so far, at most so many.
    Status { extents: Vec<Extent>, count_max: usize },
}

/// What an acknowledged request changes in the journal.
pub(super) enum JournalEffect {
    Nothing,
    /// Its range is as durable as it can be: nothing of it is sent again.
    Durable,
    /// Its range has that content, until a flush covers it.
    Unflushed(Content),
}

/// A request that is not answered yet. Dropped it is answered with [`Kind::ShuttingDown`].
pub(super) struct PendingCall {
    /// See [`cmd`].
    pub(super) command: u16,
    /// See [`cmd_flag`].
    pub(super) flags: u16,
    pub(super) range: ByteRange,
    pub(super) body: Body,
    pub(super) effect: JournalEffect,
    /// From the journal: it ends with its connection, and is not sent again.
    pub(super) replayed: bool,
    /// When a connection took it, the first that did.
    pub(super) first_sent: Option<Duration>,
    /// It was the oldest of all when connections were lost.
    pub(super) left: bool,
    /// Until it is answered.
    report: Option<Report<Answered>>,
}

/// The answer to a call, with what it carried.
pub(super) struct Answered {
    pub(super) result: Result<(), Kind>,
    /// The server has said it. Otherwise it was not asked, or its answer was lost.
    pub(super) told: bool,
    pub(super) body: Body,
}

impl PendingCall {
    /// A call, and its answer to come.
    pub(super) fn new(
        command: u16,
        flags: u16,
        range: ByteRange,
        body: Body,
        effect: JournalEffect,
    ) -> (Self, Job<Answered>) {
        let (answering, report) = Job::new();
        let report = Some(report);
        let (replayed, first_sent, left) = (false, None, false);
        (Self { command, flags, range, body, effect, replayed, first_sent, left, report }, answering)
    }

    /// Whether it is a change that makes nothing durable. A failure of one that does may cost what was acknowledged before.
    pub(super) fn only_changes(&self) -> bool {
        let changes = [cmd::WRITE, cmd::WRITE_ZEROES, cmd::TRIM].contains(&self.command);
        changes && self.flags & cmd_flag::FUA == 0
    }

    /// Answers it as the server does. The journal has what it changed before anything else happens: a connection that is lost next finds it
    /// there. What was read or is stored is what the journal has of it. A payload is released before its caller is woken.
    pub(super) fn answer(mut self, result: Result<(), Kind>, journal: &Mutex<ReplayJournal>) {
        match (result, &mut self.body) {
            (Ok(()), Body::Read { buf, start }) => {
                journal.lock().overlay(self.range, &mut buf[*start..][..self.range.len as usize]);
            }
            (Ok(()), Body::Status { extents, .. }) => {
                journal.lock().overlay_extents(self.range.offset, extents)
            }
            _ => {}
        }
        let effect = std::mem::replace(&mut self.effect, JournalEffect::Nothing);
        let dropped = match (result, effect) {
            (Err(_), _) | (Ok(()), JournalEffect::Nothing) => Vec::new(),
            (Ok(()), JournalEffect::Durable) => journal.lock().record(self.range, None),
            (Ok(()), JournalEffect::Unflushed(content)) => journal.lock().record(self.range, Some(content)),
        };
        drop(dropped);
        self.finish(result, true);
    }

    /// Answers it in place of a server that does not say what is stored: all of it.
    pub(super) fn answer_stored(mut self) {
        let Body::Status { extents, .. } = &mut self.body else { unreachable!("the call asks for extents") };
        *extents = vec![Extent::stored(self.range.len)];
        self.finish(Ok(()), false);
    }

    /// Fails it without an answer of the server.
    pub(super) fn give_up(mut self, kind: Kind) {
        self.finish(Err(kind), false);
    }

    fn finish(&mut self, result: Result<(), Kind>, told: bool) {
        let mut body = std::mem::take(&mut self.body);
        if matches!(body, Body::Write(_)) {
            body = Body::Nothing;
        }
        if let Some(report) = self.report.take() {
            report.done(Answered { result, told, body });
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.finish(Err(Kind::ShuttingDown), false);
    }
}
