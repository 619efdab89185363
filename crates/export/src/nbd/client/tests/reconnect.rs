//! What may have changed of an export when its server is there again, and how soon it is asked again.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use spillway_core::session::Session;
use spillway_core::sync::Mutex;
use spillway_core::test_clock::Clock;
use spillway_core::{ByteRange, Error, Job, LocalFuture};

use super::super::call::{Answered, Body, JournalEffect, PendingCall};
use super::super::link::Link;
use super::super::negotiation::Described;
use super::super::reconnect::{check, keep};
use super::super::settings::{Dial, NewSession};
use super::{connected, shake_hands};
use crate::nbd::wire::{self, cmd, flag};

const SIZE: u64 = 1 << 20;

fn export(flags: u16) -> Described {
    let (flags, allocation) = (flag::HAS_FLAGS | flags, Some(3));
    Described { size: SIZE, flags, allocation, structured: true, ..Described::NOTHING }
}

/// What the check says of an export that had `first` flags and has others now.
fn changed(first: u16, now: u16) -> Result<(), String> {
    check(&export(first), SIZE, false, &export(now))
}

#[test]
fn an_export_may_become_larger_and_able_to_do_more() {
    let mut larger = export(flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_TRIM);
    larger.size *= 2;
    assert_eq!(check(&export(flag::SEND_FLUSH), SIZE, false, &larger), Ok(()));
    let unused = flag::READ_ONLY | flag::CAN_MULTI_CONN | flag::SEND_DF | flag::SEND_CACHE | flag::ROTATIONAL;
    assert_eq!(changed(unused, 0), Ok(()), "nothing of that is used by itself");
    assert!(check(&larger, 2 * SIZE, false, &export(larger.flags)).unwrap_err().contains("it had 2097152"));
}

#[test]
fn a_volatile_cache_that_is_new_matters_to_who_writes() {
    let result = |read_only| check(&export(0), SIZE, read_only, &export(flag::SEND_FLUSH));
    assert!(result(false).unwrap_err().contains("a volatile cache now"));
    assert_eq!(result(true), Ok(()), "there is nothing to lose");
}

#[test]
fn an_export_that_can_do_less_is_not_used() {
    let narrowed = |change: fn(&mut Described)| {
        let mut now = export(0);
        change(&mut now);
        check(&export(0), SIZE, false, &now)
    };
    for (what, result) in [
        ("no flush", changed(flag::SEND_FLUSH, 0)),
        ("no FUA", changed(flag::SEND_FLUSH | flag::SEND_FUA, flag::SEND_FLUSH)),
        ("no discards", changed(flag::SEND_TRIM, 0)),
        ("no zeroes", changed(flag::SEND_WRITE_ZEROES, 0)),
        ("read-only", changed(0, flag::READ_ONLY)),
        ("larger blocks", narrowed(|now| now.block *= 2)),
        ("shorter payloads", narrowed(|now| now.payload_len_max /= 2)),
    ] {
        assert!(result.expect_err(what).contains("less"), "{what}");
    }
}

/// What was acknowledged without a journal is lost with such a cache.
#[test]
fn an_export_that_has_a_cache_now_is_not_used() {
    for now in [flag::SEND_FLUSH, flag::SEND_FLUSH | flag::SEND_FUA] {
        assert!(changed(0, now).expect_err("it would be used").contains("volatile cache"));
    }
}

/// Has tests make the sessions of connections.
#[derive(Default)]
struct Dialed(Mutex<Option<NewSession>>);

impl Dial for Dialed {
    fn dial(&self, _: usize, session: NewSession) -> LocalFuture<Result<(), Error>> {
        *self.0.lock() = Some(session);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Requests are told apart also within a tick of the clock.
const APART: [Duration; 2] = [Duration::from_millis(1), Duration::ZERO];

fn ask(link: &Link) -> Job<Answered> {
    let (call, answering) =
        PendingCall::new(cmd::FLUSH, 0, ByteRange::new(0, 0), Body::Nothing, JournalEffect::Nothing);
    link.channels[0].lock().calls.push_back(call);
    answering
}

/// The pauses where eight connections are lost, so long after each other, each with one of its two requests answered: that of the number.
/// The first is what the connection before has left unanswered.
fn pauses(answered: u64, apart: Duration) -> Vec<Duration> {
    let (world, dial) = (Arc::<Clock>::default(), Arc::<Dialed>::default());
    let (link, mut context) = (super::link(world.clone(), None, 0), Context::from_waker(Waker::noop()));
    let mut session: Box<dyn Session> = Box::new(connected(&link));
    let first = link.outcome(0, 1).and_then(Result::ok).expect("it is connected");
    let mut kept = pin!(keep(link.clone(), dial.clone(), first));
    let mut calls = vec![ask(&link)];
    for _ in 0..8 {
        world.pass(apart);
        calls.push(ask(&link));
        session.poll(&mut context);
        session.output().clear();
        session.receive(&wire::simple_reply(0, answered));
        drop(session);
        session = loop {
            assert!(kept.as_mut().poll(&mut context).is_pending());
            let dialed = dial.0.lock().take();
            if let Some(new) = dialed {
                break new();
            }
        };
        shake_hands(session.as_mut());
        assert!(kept.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(calls.iter().filter(|call| call.is_done()).count(), 8);
    world.slept()
}

/// Such a server answers all else, so that no connection is without use.
#[test]
fn a_server_that_breaks_each_connection_at_one_request_is_asked_with_growing_pauses() {
    for apart in APART {
        assert_eq!(pauses(2, apart), [50, 100, 200, 400, 800, 1000, 1000].map(Duration::from_millis));
    }
}

#[test]
fn connections_that_break_after_the_request_that_the_last_one_left_are_made_again_at_once() {
    for apart in APART {
        assert_eq!(pauses(1, apart), [Duration::ZERO; 0], "{apart:?} apart");
    }
}
