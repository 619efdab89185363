//! Calls of an image without a library.

use std::cell::Cell;
use std::future::{pending, poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::test_clock::Clock;

use super::storage::Image;

/// How the cluster is shown after it has said that the lock is there.
fn checked(image: &Image) -> &'static str {
    let now = image.env.now();
    let mut asked = pin!(image.answer(true, ready(())));
    assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    image.health.answered(now, true, now);
    image.health.connection(now).state
}

/// A part of it is down, and the check goes to another.
#[test]
fn a_cluster_answers_again_once_nothing_waits_that_has_taken_too_long() {
    let (world, mut context) = (Arc::<Clock>::default(), Context::from_waker(Waker::noop()));
    let image = Image::for_tests(world.clone(), None);
    let over = [false; 2].map(Cell::new);
    let mut calls = over.each_ref().map(|over| {
        let work = poll_fn(move |_| if over.get() { Poll::Ready(()) } else { Poll::Pending });
        Box::pin(image.answer(true, work))
    });
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut context).is_pending());
        assert_eq!(checked(&image), if image.env.now().is_zero() { "up" } else { "reconnecting" });
        assert!(call.as_mut().poll(&mut context).is_pending());
        assert_eq!([(); 3].map(|()| checked(&image)), ["reconnecting"; 3]);
        world.pass(Duration::from_secs(1));
    }
    for (call, after) in [(0, "reconnecting"), (1, "up")] {
        over[call].set(true);
        assert!(calls[call].as_mut().poll(&mut context).is_ready());
        assert_eq!(checked(&image), after);
    }
    assert_eq!(image.health.connection(image.env.now()).lost, 1, "it is said once");
}

/// The cluster has it still.
#[test]
fn a_request_that_has_failed_waits_until_the_cluster_has_answered_it() {
    let (world, mut context) = (Arc::<Clock>::default(), Context::from_waker(Waker::noop()));
    let image = Image::for_tests(world, Some(Duration::from_secs(2)));
    let mut call = pin!(image.answer(true, pending::<()>()));
    assert!(call.as_mut().poll(&mut context).is_pending());
    let Poll::Ready(Err(goes_on)) = call.as_mut().poll(&mut context) else { panic!("it has two seconds") };
    assert!(image.health.refuses(image.env.now()), "the next would wait for as long");
    assert_eq!(checked(&image), "failing");
    assert!(!image.health.refuses(image.env.now()), "something was answered");
    drop(goes_on);
    assert_eq!(checked(&image), "up");
}

/// No request waits for it.
#[test]
fn the_first_timeout_of_a_fenced_image_is_refused_for_that() {
    let image = Image::for_tests(Arc::<Clock>::default(), None);
    image.health.fenced("it was removed", Duration::ZERO);
    let error = image.set_timeout(Some(Duration::from_secs(1))).expect_err("it is fenced");
    assert!(error.message().contains("fenced") && !error.message().contains("wait"), "{}", error.message());
}
