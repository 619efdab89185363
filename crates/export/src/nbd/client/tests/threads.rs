//! Models for the checker of threads: calls are to wait anew as they begin to fail.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use spillway_core::ByteRange;
use spillway_core::models::{every_order, join};
use spillway_core::sync::shuttle::thread::{self, JoinHandle};
use spillway_core::test_clock::Clock;

use super::super::call::{Answered, Body, JournalEffect};
use super::super::link::Link;
use crate::nbd::wire::cmd;

const TIMEOUT: Duration = Duration::from_secs(60);

/// What looks after the connections, once.
fn look(link: &Arc<Link>) -> JoinHandle<()> {
    let link = link.clone();
    thread::spawn(move || {
        link.restore_deadline();
        link.fail_in_time();
    })
}

async fn flush(link: &Link) -> Answered {
    link.call(cmd::FLUSH, 0, ByteRange::new(0, 0), Body::Nothing, JournalEffect::Nothing).await
}

/// The last flush of a device that ends.
#[test]
fn a_call_that_comes_once_calls_wait_anew_does_not_fail_with_those_before_it() {
    every_order(2000, || {
        let (clock, mut context) = (Arc::<Clock>::default(), Context::from_waker(Waker::noop()));
        let link = super::link(clock.clone(), Some(TIMEOUT), 0);
        clock.pass(TIMEOUT);
        let looking = look(&link);
        link.wait_from_now();
        let mut call = pin!(flush(&link));
        assert!(call.as_mut().poll(&mut context).is_pending());
        join([looking]);
        assert!(call.as_mut().poll(&mut context).is_pending());
    });
}

#[test]
fn a_call_that_has_waited_for_long_has_all_of_a_timeout_that_is_set() {
    every_order(2000, || {
        let (clock, mut context) = (Arc::<Clock>::default(), Context::from_waker(Waker::noop()));
        let link = super::link(clock.clone(), None, 0);
        clock.pass(10 * TIMEOUT);
        let mut call = pin!(flush(&link));
        assert!(call.as_mut().poll(&mut context).is_pending());
        let looking = look(&link);
        link.set_timeout(Some(TIMEOUT));
        join([looking]);
        assert!(call.as_mut().poll(&mut context).is_pending());
        assert_eq!(link.deadline(), TIMEOUT);
    });
}
