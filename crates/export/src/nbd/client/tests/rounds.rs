//! Rounds of connections, in an order in which their sessions hardly ever begin and end.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::session::Session;
use spillway_core::test_clock::Clock;
use spillway_core::{ByteRange, Kind};

use super::super::call::{Body, JournalEffect, PendingCall};
use super::super::link::Link;
use super::super::session::ClientSession;
use super::connected;
use crate::nbd::wire::cmd;

fn link(timeout: Option<Duration>) -> Arc<Link> {
    link_by(Arc::default(), timeout)
}

/// The same by that clock.
fn link_by(clock: Arc<Clock>, timeout: Option<Duration>) -> Arc<Link> {
    super::link(clock, timeout, 0)
}

/// A thread that comes to it late makes the session of a connection that nobody waits for any more.
#[test]
fn a_session_that_begins_while_its_round_is_ended_ends_with_it() {
    let (link, mut context) = (link(None), Context::from_waker(Waker::noop()));
    let Poll::Ready(round) = pin!(link.begin_round()).poll(&mut context) else {
        panic!("there is nothing to wait for")
    };
    let first = ClientSession::new(link.clone(), 0, round);
    let mut next = pin!(link.begin_round());
    assert!(next.as_mut().poll(&mut context).is_pending(), "a session of the round is there");
    let mut late = ClientSession::new(link.clone(), 1, round);
    drop(first);
    assert!(next.as_mut().poll(&mut context).is_pending(), "another has come");
    late.poll(&mut context);
    assert!(late.finished(), "it would keep the next round from beginning");
    drop(late);
    assert!(next.as_mut().poll(&mut context).is_ready());
    let mut of_the_next = ClientSession::new(link.clone(), 1, round + 1);
    of_the_next.poll(&mut context);
    assert!(!of_the_next.finished());
}

/// While calls failed, what was sent again could take as long as it did.
#[test]
fn a_request_has_eight_times_the_limit_once_there_is_a_connection_again() {
    let second = Duration::from_secs(1);
    let link = link(Some(second));
    link.fail();
    (0..20).for_each(|_| link.extend_deadline());
    assert_eq!(link.deadline(), (1 << 20) * second);
    link.open(1);
    assert_eq!(link.deadline(), 8 * second);
}

/// A server that hangs for hours has its requests wait for hours: later ones need not.
#[test]
fn a_deadline_without_a_limit_begins_anew_once_no_request_was_slow_for_as_long_as_it_is() {
    let (clock, minute) = (Arc::<Clock>::default(), Duration::from_secs(60));
    let link = link_by(clock.clone(), None);
    let passed = |minutes: u32| {
        clock.pass(minutes * minute);
        link.restore_deadline();
        link.deadline()
    };
    (0..3).for_each(|_| link.extend_deadline());
    clock.pass(60 * minute);
    link.open(1);
    assert_eq!(passed(16), 16 * minute, "what is sent again may take as long");
    link.note_slow();
    assert_eq!([passed(10), passed(6)], [16 * minute; 2], "one was slow");
    assert_eq!(passed(1), 2 * minute);
}

/// Also where calls fail.
#[test]
fn a_limit_that_is_set_counts_from_then_on() {
    let (second, clock) = (Duration::from_secs(1), Arc::<Clock>::default());
    let link = link_by(clock.clone(), None);
    clock.pass(100 * second);
    assert_eq!((link.remaining(), link.deadline()), (None, 120 * second));
    for seconds in [3u32, 200, 1] {
        let limit = seconds * second;
        link.set_timeout(Some(limit));
        assert_eq!((link.remaining(), link.deadline()), (Some(limit), limit.min(120 * second)));
        clock.pass(limit - Duration::from_millis(1));
        assert!(!link.fail_in_time() && !link.is_failing(), "they wait for {seconds} s");
        clock.pass(Duration::from_millis(1));
        assert!(link.fail_in_time() && link.is_failing(), "they fail after {seconds} s");
    }
    link.set_timeout(None);
    clock.pass(1000 * second);
    assert!(!link.fail_in_time() && !link.is_failing(), "they wait without a limit");
    assert_eq!((link.remaining(), link.deadline()), (None, 120 * second));
}

/// Nobody has limited it before.
#[test]
fn a_call_that_was_sent_long_ago_has_the_time_of_a_limit_that_is_set() {
    let (second, clock) = (Duration::from_secs(1), Arc::<Clock>::default());
    let link = link_by(clock.clone(), None);
    let (mut call, answering) =
        PendingCall::new(cmd::FLUSH, 0, ByteRange::new(0, 0), Body::Nothing, JournalEffect::Nothing);
    call.first_sent = Some(Duration::ZERO);
    link.channels[0].lock().calls.push_back(call);
    clock.pass(100 * second);
    link.set_timeout(Some(second));
    let fails_after = |passed: Duration| {
        clock.pass(passed);
        link.wait_from_loss();
        answering.is_done()
    };
    assert_eq!([Duration::ZERO, 8 * second, second].map(fails_after), [false, false, true]);
}

#[test]
fn a_link_with_a_call_that_no_connection_has_sent_is_not_idle() {
    let link = link(None);
    assert!(link.is_idle());
    let (call, _answering) =
        PendingCall::new(cmd::FLUSH, 0, ByteRange::new(0, 0), Body::Nothing, JournalEffect::Nothing);
    link.channels[1].lock().calls.push_back(call);
    assert!(!link.is_idle());
}

/// A server that breaks at a request of the second connection may answer those of the first.
#[test]
fn a_call_that_is_left_again_is_told_from_one_of_another_connection_within_a_tick() {
    let link = link(None);
    let ask = |index: usize| {
        let (mut call, answering) =
            PendingCall::new(cmd::FLUSH, 0, ByteRange::new(0, 0), Body::Nothing, JournalEffect::Nothing);
        call.first_sent = Some(Duration::ZERO);
        link.channels[index].lock().calls.push_back(call);
        answering
    };
    let _asked = [ask(0), ask(1)];
    assert!(!link.is_stuck(), "neither was left before");
    link.channels[0].lock().calls.clear();
    let _another = ask(0);
    assert!(link.is_stuck(), "that of the second connection was");
}

/// A call that is left of a layer that has ended would keep its thread, and with it the process, for ever.
#[test]
fn a_call_that_a_silent_server_leaves_unanswered_ends_with_the_link() {
    let link = link(None);
    let (mut session, mut context) = (connected(&link), Context::from_waker(Waker::noop()));
    let mut call =
        pin!(link.call(cmd::FLUSH, 0, ByteRange::new(0, 0), Body::Nothing, JournalEffect::Nothing));
    assert!(call.as_mut().poll(&mut context).is_pending());
    session.poll(&mut context);
    assert_eq!(session.pending(), 1, "the call is sent");

    let mut close = pin!(link.close());
    assert!(close.as_mut().poll(&mut context).is_pending());
    session.poll(&mut context);
    assert!(!session.finished(), "the server has time to answer");
    assert!(close.as_mut().poll(&mut context).is_ready());
    session.poll(&mut context);
    assert!(session.finished());
    let Poll::Ready(answered) = call.as_mut().poll(&mut context) else { panic!("it waits on") };
    assert_eq!(answered.result, Err(Kind::ShuttingDown));
}
