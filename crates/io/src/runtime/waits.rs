//! A thread's waits for its driver, which survive that the system refuses one.
//!
//! The runtime panics where a call of its driver fails. At that moment nothing of it is under way, so the panic is caught here, and the wait is
//! tried again after a pause: a shortage of memory or descriptors passes. No task runs meanwhile, so that none fills the ring. Any other error
//! is tried again as well, but once it has come several times in a row it is told to the server, which ends in order then.
//! So is at once what shows that events are lost.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;
use std::thread::sleep;
use std::time::Duration;

use compio::runtime::Runtime;

/// Pauses after refusals in a row: they double from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// Errors in a row that are no shortage, from which on they are taken to last: they came over a quarter of a second.
const ODD_ERRORS_MAX: u32 = 10;

/// Sleeps in a row that ended with nothing to do, from which on a pause follows each: the runtime says nothing of EAGAIN and EBUSY.
const VAIN_SLEEPS_MAX: u32 = 256;

/// What passes: no memory, no descriptors, too many watches, a signal.
const SHORTAGES: [i32; 8] = [
    libc::ENOMEM,
    libc::ENOBUFS,
    libc::ENOSPC,
    libc::EMFILE,
    libc::ENFILE,
    libc::EAGAIN,
    libc::EBUSY,
    libc::EINTR,
];

/// What a polling driver says only where the kernel refused to change a watch, after the wait itself had ended: what the wait brought is lost
/// then, and no connection that it was for would go on. Linux does not refuse that, a sandbox may.
const EVENTS_LOST: [i32; 5] = [libc::ENOSPC, libc::ENOENT, libc::EEXIST, libc::EPERM, libc::ELOOP];

/// Whether a call that failed so may succeed later.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| SHORTAGES.contains(&errno))
}

/// The waits of one thread.
pub(crate) struct Waits<'a> {
    pub(crate) runtime: &'a Runtime,
    /// Told of errors that may not pass.
    failed: &'a dyn Fn(&io::Error),
    refused: u32,
    /// Errors in a row that are no shortage.
    odd: u32,
    vain_sleeps: u32,
}

impl<'a> Waits<'a> {
    pub(crate) fn new(runtime: &'a Runtime, failed: &'a dyn Fn(&io::Error)) -> Self {
        hush_refusals();
        Self { runtime, failed, refused: 0, odd: 0, vain_sleeps: 0 }
    }

    /// Tasks have run.
    pub(crate) fn worked(&mut self) {
        self.vain_sleeps = 0;
    }

    /// Takes what has come, without waiting. Where that is refused, until it is not, or the thread is `ending`.
    pub(crate) fn look(&mut self, ending: impl Fn() -> bool) {
        let runtime = self.runtime;
        self.insist(ending, Some(Duration::ZERO), |limit| runtime.poll_with(limit));
    }

    /// Waits until something comes; refusals as in [`Waits::look`].
    pub(crate) fn sleep(&mut self, ending: impl Fn() -> bool) {
        self.vain_sleeps += 1;
        if self.vain_sleeps > VAIN_SLEEPS_MAX {
            sleep(PAUSE_MIN);
        }
        let runtime = self.runtime;
        self.insist(ending, runtime.current_timeout(), |limit| runtime.poll_with(limit));
    }

    /// Calls until it is not refused, or the thread is ending. After a refusal the call is not to wait: the driver may have counted a wake-up
    /// from another thread as seen before it was refused.
    fn insist(
        &mut self,
        ending: impl Fn() -> bool,
        mut limit: Option<Duration>,
        call: impl Fn(Option<Duration>),
    ) {
        while let Err(error) = attempt(|| call(limit)) {
            limit = Some(Duration::ZERO);
            self.note(&error);
            sleep(PAUSE_MAX.min(PAUSE_MIN * (1 << self.refused.min(10))));
            self.refused += 1;
            if ending() {
                return;
            }
        }
        self.odd = 0;
        if std::mem::take(&mut self.refused) > 0 {
            tracing::warn!("the system takes requests again");
        }
    }

    fn note(&mut self, error: &io::Error) {
        if self.refused == 0 {
            tracing::warn!("the system refuses requests: {error}; trying again");
        }
        self.odd = if is_shortage(error) { 0 } else { self.odd + 1 };
        let lost = self.refused == 0 && self.loses_events(error);
        if lost || self.odd == ODD_ERRORS_MAX {
            (self.failed)(error);
        }
    }

    fn loses_events(&self, error: &io::Error) -> bool {
        let known = error.raw_os_error().is_some_and(|errno| EVENTS_LOST.contains(&errno));
        known && self.runtime.driver_type().is_polling()
    }
}

thread_local! {
    static ATTEMPTING: Cell<bool> = const { Cell::new(false) };
}

/// Calls the driver. Its error, where the runtime panicked over one; any other panic goes on.
fn attempt(call: impl Fn()) -> io::Result<()> {
    ATTEMPTING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    ATTEMPTING.set(false);
    outcome.map_err(|panic| match refusal(&*panic) {
        Some(error) => error,
        None => resume_unwind(panic),
    })
}

/// The error that the runtime has panicked over: it says `Os { code: 12, ... }`.
fn refusal(panic: &dyn Any) -> Option<io::Error> {
    let text = panic.downcast_ref::<String>()?;
    let (errno, _) = text.strip_prefix("Os { code: ")?.split_once(',')?;
    errno.parse().ok().map(io::Error::from_raw_os_error)
}

/// Nothing is printed of what is caught here.
fn hush_refusals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !ATTEMPTING.get() || refusal(panic.payload()).is_none() {
                print(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, DriverChoice};

    /// What the server is told of a refusal that comes so many times, and how often the driver was called.
    fn insisted(errno: i32, times: u32) -> (Vec<Option<i32>>, u32) {
        let recipe = crate::runtime::driver::RuntimeRecipe::choose(DriverChoice::Poll).unwrap();
        assert_eq!(recipe.driver, Driver::Poll(None));
        let runtime = recipe.runtime(8).unwrap();
        let told = std::cell::RefCell::new(Vec::new());
        let failed = |error: &io::Error| told.borrow_mut().push(error.raw_os_error());
        let mut waits = Waits::new(&runtime, &failed);
        let tries = Cell::new(0);
        waits.insist(
            || false,
            None,
            |limit| {
                tries.set(tries.get() + 1);
                let refused_once = tries.get() > 1;
                assert_eq!(
                    limit,
                    refused_once.then_some(Duration::ZERO),
                    "a wake-up may be lost with a refusal"
                );
                // As the runtime does it.
                let error = io::Error::from_raw_os_error(errno);
                assert!(tries.get() > times, "{error:?}");
            },
        );
        (told.take(), tries.get())
    }

    #[test]
    fn a_shortage_is_waited_for_and_any_other_error_that_lasts_is_told_once() {
        assert_eq!(insisted(libc::ENOMEM, 15), (vec![], 16));
        assert_eq!(insisted(libc::EINVAL, 9), (vec![], 10));
        assert_eq!(insisted(libc::EINVAL, 15), (vec![Some(libc::EINVAL)], 16));
    }

    #[test]
    fn lost_events_are_told_at_once() {
        assert_eq!(insisted(libc::ENOSPC, 1), (vec![Some(libc::ENOSPC)], 2));
    }

    #[test]
    fn a_panic_over_anything_else_goes_on() {
        let panic = catch_unwind(|| attempt(|| panic!("a bug"))).expect_err("it goes on");
        assert_eq!(panic.downcast_ref(), Some(&"a bug"));
    }
}
