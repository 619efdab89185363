//! Threads that the system may refuse while a server runs.
//!
//! One of the standard library asks for memory once more after it has begun, for a stack of its signal handlers, and where there is none the
//! process ends. A thread from here has all that it needs before it counts as made. It has no such stack: an overflow of its own is a plain SIGSEGV.

use std::io;
use std::ptr;
use std::sync::Arc;

use crate::runtime::pool::AbortOnPanic;

type Call = Box<dyn FnOnce() + Send>;

/// Bytes of a stack, as the standard library has it.
pub const STACK_BYTES: usize = 2 << 20;

/// A running thread. Dropped without [`Thread::join`], it goes on by itself.
pub struct Thread {
    id: Option<libc::pthread_t>,
    /// The thread has it too until its call is made.
    mark: Arc<()>,
}

impl Thread {
    /// Makes a thread with a stack of so many bytes, which makes the call. What the system says where it has none.
    pub fn spawn(stack_bytes: usize, call: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let mark = Arc::new(());
        let held = mark.clone();
        let call: Box<Call> = Box::new(Box::new(move || {
            call();
            drop(held);
        }));
        let mut id = 0;
        let attributes = Attributes::new(stack_bytes)?;
        let call = Box::into_raw(call);
        // SAFETY: the attributes are initialised, and the thread gets the call for its own.
        let refused = unsafe { libc::pthread_create(&mut id, &attributes.0, thread_main, call.cast()) };
        if refused != 0 {
            // SAFETY: no thread was made, so the call is still ours.
            drop(unsafe { Box::from_raw(call) });
            return Err(io::Error::from_raw_os_error(refused));
        }
        Ok(Self { id: Some(id), mark })
    }

    /// Whether its call is made.
    pub fn is_finished(&self) -> bool {
        Arc::strong_count(&self.mark) == 1
    }

    /// Waits until it has ended.
    pub fn join(mut self) {
        let id = self.id.take().expect("joined once");
        // SAFETY: it was neither joined nor detached.
        let failed = unsafe { libc::pthread_join(id, ptr::null_mut()) };
        assert_eq!(failed, 0, "a thread can be joined by another one");
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // SAFETY: it was neither joined nor detached.
            unsafe { libc::pthread_detach(id) };
        }
    }
}

extern "C" fn thread_main(call: *mut libc::c_void) -> *mut libc::c_void {
    let _guard = AbortOnPanic;
    // SAFETY: the pointer is that of `spawn`, which has left it to this thread.
    let call = unsafe { Box::from_raw(call.cast::<Call>()) };
    call();
    ptr::null_mut()
}

struct Attributes(libc::pthread_attr_t);

impl Attributes {
    fn new(stack_bytes: usize) -> io::Result<Self> {
        // SAFETY: it has numbers and pointers only, which may be zero until the call initialises it.
        let mut attributes = Self(unsafe { std::mem::zeroed() });
        // SAFETY: the call fills the attributes, which live until it returns.
        refusal(unsafe { libc::pthread_attr_init(&mut attributes.0) })?;
        // SAFETY: the attributes are initialised.
        refusal(unsafe { libc::pthread_attr_setstacksize(&mut attributes.0, stack_bytes) })?;
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_makes_its_call_joined_or_not() {
        let (sender, calls) = mpsc::channel();
        let second = sender.clone();
        Thread::spawn(STACK_BYTES, move || sender.send(1).unwrap()).unwrap().join();
        assert_eq!(calls.try_recv(), Ok(1), "it has ended");
        let (release, held) = mpsc::channel::<()>();
        let thread = Thread::spawn(STACK_BYTES, move || {
            held.recv().unwrap();
            second.send(2).unwrap();
        });
        let thread = thread.unwrap();
        assert!(!thread.is_finished());
        drop(thread);
        release.send(()).unwrap();
        assert_eq!(calls.recv(), Ok(2));
    }

    #[test]
    fn a_refused_thread_drops_the_call() {
        let (sender, calls) = mpsc::channel();
        let refused = Thread::spawn(1 << 62, move || sender.send(1).unwrap());
        assert!(refused.is_err() && calls.recv().is_err());
    }
}
