//! Calls of librbd that go on by themselves, as futures.
//!
//! librbd's threads tell when a call has ended, by a callback that wakes the task that waits for it. The memory of a call belongs to the
//! call until then, also where nobody waits any more.

use std::ffi::{c_int, c_void};
use std::future::Future;
use std::pin::Pin;
use std::ptr::null_mut;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use spillway_core::IoBuf;
use spillway_core::sync::Mutex;

use super::library::{Library, RawCompletion};

/// What comes of a call: bytes of a read, or 0; or an errno. And its buffer.
type Ended = (Result<usize, i32>, IoBuf);

/// A call from its beginning to its end.
struct Call {
    library: &'static Library,
    state: Mutex<State>,
}

enum State {
    /// The buffer, and who waits.
    UnderWay(IoBuf, Option<Waker>),
    /// The buffer, and what is done at the end. Nobody waits.
    GivenUp(IoBuf, Box<dyn FnOnce() + Send>),
    Ended(Ended),
    /// It was told.
    Told,
}

/// The end of a call that is under way.
pub(super) struct Completion(Arc<Call>);

impl Completion {
    /// Begins a call with the completion that `begin` gets. What it reads or writes is memory of `buf`.
    pub(super) fn begin(
        library: &'static Library,
        buf: IoBuf,
        begin: impl FnOnce(RawCompletion) -> c_int,
    ) -> Self {
        let call = Arc::new(Call { library, state: Mutex::new(State::UnderWay(buf, None)) });
        let argument = Arc::into_raw(call.clone()).cast_mut().cast::<c_void>();
        let mut completion: RawCompletion = null_mut();
        // SAFETY: the argument is a reference that the callback takes, the place is ours.
        let made = unsafe { (library.rbd_aio_create_completion)(argument, ended, &raw mut completion) };
        let begun = if made < 0 { made } else { begin(completion) };
        if begun < 0 {
            // SAFETY: the callback is never called; this is its reference.
            drop(unsafe { Arc::from_raw(argument.cast_const().cast::<Call>()) });
            if made >= 0 {
                // SAFETY: the completion was made and never begun.
                unsafe { (library.rbd_aio_release)(completion) };
            }
            call.end(begun as isize);
        }
        Self(call)
    }

    /// Nobody waits any more. What is to be done at the end is done where it ends.
    pub(super) fn give_up(self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        match std::mem::replace(&mut *state, State::Told) {
            State::UnderWay(buf, _) => *state = State::GivenUp(buf, Box::new(then)),
            _ => {
                drop(state);
                then();
            }
        }
    }
}

impl Call {
    fn end(&self, result: isize) {
        let result = usize::try_from(result).map_err(|_| result.unsigned_abs() as i32);
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Told) {
            State::UnderWay(buf, waker) => {
                *state = State::Ended((result, buf));
                drop(state);
                waker.into_iter().for_each(Waker::wake);
            }
            State::GivenUp(buf, then) => {
                drop((state, buf));
                then();
            }
            State::Ended(_) | State::Told => unreachable!("a call ends once"),
        }
    }
}

/// Runs on a thread of librbd.
extern "C" fn ended(completion: RawCompletion, argument: *mut c_void) {
    // SAFETY: the argument is the reference that `begin` made, and this is called once.
    let call = unsafe { Arc::from_raw(argument.cast_const().cast::<Call>()) };
    // SAFETY: the call has ended, and nobody else releases its completion.
    let result = unsafe {
        let result = (call.library.rbd_aio_get_return_value)(completion);
        (call.library.rbd_aio_release)(completion);
        result
    };
    call.end(result);
}

impl Future for Completion {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let mut state = self.0.state.lock();
        if let State::UnderWay(_, waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Told) {
            State::Ended(ended) => Poll::Ready(ended),
            _ => unreachable!("not polled after its end"),
        }
    }
}
