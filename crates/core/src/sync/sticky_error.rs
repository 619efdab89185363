//! The first error, which stays; and those that pass.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_util::future::{Either, select};

use super::primitives::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use super::watermark::Watermark;
use crate::error::Kind;
use crate::mutant;

/// The first failure of something that cannot be used as before afterwards. Reading it is one load. One that passes ([`Kind::passes`]) does
/// not stay: it only ends the waits for what is below that it finds, so that nobody waits for longer than one try.
#[derive(Default)]
pub struct StickyError {
    /// Errno, 0 for none.
    errno: AtomicU32,
    /// 1 once there is one.
    failures: Watermark,
    /// Failures that did not stay.
    passing: AtomicU64,
    passed: Watermark,
    /// The latest of those was [`Kind::Exhausted`].
    exhausted: AtomicBool,
}

impl StickyError {
    /// Notes a failure; true if it is the first that stays, for which the caller says what failed and what to do.
    pub fn set(&self, kind: Kind) -> bool {
        let stays = kind == Kind::Exhausted && mutant::on("sticky error: a full pool is an error for good");
        if kind.passes() && !stays {
            self.exhausted.store(kind == Kind::Exhausted, Ordering::Release);
            let number = self.passing.fetch_add(1, Ordering::AcqRel) + 1;
            self.passed.advance(number);
            return false;
        }
        let errno = kind.errno() as u32;
        let first = self.errno.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first && !mutant::on("sticky error: tell nobody who waits") {
            self.failures.advance(1);
        }
        first
    }

    /// Fails with the first failure, if there was one.
    #[inline]
    pub fn check(&self) -> Result<(), Kind> {
        match self.errno.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(Kind::of_errno(errno as i32)),
        }
    }

    /// What `wait` comes to; fails as [`StickyError::check`] does where there is a failure before. Registers for failures only
    /// where `wait` takes its time.
    pub async fn or<T>(&self, wait: impl Future<Output = T>) -> Result<T, Kind> {
        let (mut failed, mut wait) = (self.failures.reached(1), pin!(wait));
        poll_fn(|context| {
            self.check()?;
            if let Poll::Ready(value) = wait.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            let failed = Pin::new(&mut failed).poll(context);
            failed.map(|()| Err(self.check().expect_err("it has failed")))
        })
        .await
    }

    /// The same for a `wait` that needs what is below: a failure that passes ends it too, if it comes later than this call.
    pub async fn or_passing<T>(&self, wait: impl Future<Output = T>) -> Result<T, Kind> {
        let before = match mutant::on("sticky error: what has passed ends later waits") {
            true => self.passing.load(Ordering::Acquire).saturating_sub(1),
            false => self.passing.load(Ordering::Acquire),
        };
        let passed = self.passed.reached(before + 1);
        match select(pin!(self.or(wait)), passed).await {
            Either::Left((result, _)) => result,
            Either::Right(_) if self.exhausted.load(Ordering::Acquire) => Err(Kind::Exhausted),
            Either::Right(_) => Err(Kind::Unreachable),
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use shuttle::future::block_on;
    use shuttle::thread;
    use std::sync::Arc;

    /// Two fail, while one waits for what never happens and one for what does.
    fn failures() {
        let shared = Arc::new((StickyError::default(), Watermark::default()));
        let wait = |number| {
            let shared = shared.clone();
            thread::spawn(move || block_on(shared.0.or(shared.1.reached(number))))
        };
        let waits = [wait(1), wait(2)];
        let fail = |kind| {
            let shared = shared.clone();
            thread::spawn(move || shared.0.set(kind))
        };
        let fails = [fail(Kind::Io), fail(Kind::NoSpace)];
        shared.1.advance(1);
        let first = fails.map(|thread| thread.join().expect("it fails"));
        let failure = if first[0] { Kind::Io } else { Kind::NoSpace };
        assert!(first[0] != first[1] && shared.0.check() == Err(failure));
        let [one, never] = waits.map(|thread| thread.join().expect("a wait ends"));
        assert!(one == Ok(()) || one == Err(failure));
        assert_eq!(never, Err(failure));
    }

    #[test]
    fn a_failure_ends_every_wait_and_only_the_first_counts() {
        every_order(10_000, failures);
    }

    #[test]
    fn the_checker_finds_an_error_that_nobody_is_told_of() {
        finds("sticky error: tell nobody who waits", a_failure_ends_every_wait_and_only_the_first_counts);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn the_first_error_stays() {
        let error = StickyError::default();
        assert_eq!(error.check(), Ok(()));
        assert!(error.set(Kind::NoSpace) && !error.set(Kind::Io));
        assert_eq!(error.check(), Err(Kind::NoSpace));
    }

    #[test]
    fn what_passes_ends_the_waits_that_it_finds_and_stays_for_nobody() {
        let error = StickyError::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(!error.set(Kind::Unreachable));
        let (mut own, mut below) = (pin!(error.or(pending::<()>())), pin!(error.or_passing(pending::<()>())));
        assert!(
            own.as_mut().poll(&mut context).is_pending() && below.as_mut().poll(&mut context).is_pending()
        );
        assert!(!error.set(Kind::Unreachable) && error.check().is_ok());
        assert!(own.as_mut().poll(&mut context).is_pending());
        assert_eq!(below.as_mut().poll(&mut context), Poll::Ready(Err(Kind::Unreachable)));
        let mut full = pin!(error.or_passing(pending::<()>()));
        assert!(full.as_mut().poll(&mut context).is_pending());
        assert!(!error.set(Kind::Exhausted) && error.check().is_ok());
        assert_eq!(full.as_mut().poll(&mut context), Poll::Ready(Err(Kind::Exhausted)));
        let mut next = pin!(error.or_passing(pending::<()>()));
        assert!(next.as_mut().poll(&mut context).is_pending());
        assert!(error.set(Kind::Io));
        assert_eq!(next.as_mut().poll(&mut context), Poll::Ready(Err(Kind::Io)));
    }
}
