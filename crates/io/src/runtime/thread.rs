//! Threads that the system may refuse while a server runs.
//!
//! One of the standard library asks for memory once more after it has begun, for a stack of its signal handlers, and where there is none the
//! process ends. A thread from here has all that it needs before it counts as made. It has no such stack: an overflow of its own is a plain SIGSEGV.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::{Duration, Instant};
use std::{io, ptr};

use crate::runtime::pool::AbortOnPanic;

type Call = Box<dyn FnOnce() + Send>;

/// Bytes of a stack, as the standard library has it.
const STACK_BYTES: usize = 2 << 20;

/// Makes a call on a thread of its own, which nobody joins. What the system says where it has no thread: then the call is dropped.
pub(crate) fn spawn(call: impl FnOnce() + Send + 'static) -> io::Result<()> {
    spawn_with_stack(STACK_BYTES, Box::new(call))
}

fn spawn_with_stack(stack_bytes: usize, call: Call) -> io::Result<()> {
    let attributes = Attributes::detached(stack_bytes)?;
    let (mut id, call) = (MaybeUninit::uninit(), Box::into_raw(Box::new(call)));
    // SAFETY: the attributes are initialised, there is room for an id, and the thread gets the call for its own.
    let refused = unsafe { libc::pthread_create(id.as_mut_ptr(), &attributes.0, thread_main, call.cast()) };
    if refused != 0 {
        // SAFETY: no thread was made, so the call is still ours.
        drop(unsafe { Box::from_raw(call) });
    }
    refusal(refused)
}

extern "C" fn thread_main(call: *mut libc::c_void) -> *mut libc::c_void {
    let _guard = AbortOnPanic;
    // SAFETY: the pointer is that of `spawn_with_stack`, which has left it to this thread.
    let call = unsafe { Box::from_raw(call.cast::<Call>()) };
    call();
    ptr::null_mut()
}

struct Attributes(libc::pthread_attr_t);

impl Attributes {
    fn detached(stack_bytes: usize) -> io::Result<Self> {
        // SAFETY: it has numbers and pointers only, which may be zero until the call initialises it.
        let mut attributes = Self(unsafe { std::mem::zeroed() });
        // SAFETY: the call fills the attributes, which live until it returns.
        refusal(unsafe { libc::pthread_attr_init(&mut attributes.0) })?;
        // SAFETY: the attributes are initialised.
        refusal(unsafe { libc::pthread_attr_setstacksize(&mut attributes.0, stack_bytes) })?;
        // SAFETY: the attributes are initialised.
        refusal(unsafe {
            libc::pthread_attr_setdetachstate(&mut attributes.0, libc::PTHREAD_CREATE_DETACHED)
        })?;
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: they are initialised: glibc's initialisation never fails.
        unsafe { libc::pthread_attr_destroy(&mut self.0) };
    }
}

fn refusal(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// Blocks until a future is ready, and has its output; `None` where that takes longer than `patience`.
pub(crate) fn wait_for<F: Future + Unpin>(future: &mut F, patience: Duration) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(current())));
    let (mut context, begin) = (Context::from_waker(&waker), Instant::now());
    loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut context) {
            return Some(output);
        }
        let left = patience.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return None;
        }
        park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use spillway_core::Job;

    use super::*;

    #[test]
    fn a_thread_makes_its_call() {
        let (mut job, report) = Job::new();
        spawn(move || report.done(1)).unwrap();
        assert_eq!(wait_for(&mut job, Duration::from_secs(60)), Some(Some(1)));
    }

    #[test]
    fn a_refused_thread_drops_the_call() {
        let (sender, calls) = mpsc::channel::<()>();
        let refused = spawn_with_stack(1 << 62, Box::new(move || sender.send(()).unwrap()));
        assert!(refused.is_err() && calls.recv().is_err());
    }

    #[test]
    fn who_waits_has_no_more_than_patience() {
        let (mut job, report) = Job::new();
        assert_eq!(wait_for(&mut job, Duration::from_millis(1)), None);
        report.done(1);
        assert_eq!(wait_for(&mut job, Duration::ZERO), Some(Some(1)));
    }
}
