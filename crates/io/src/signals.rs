//! Signals that this process ignores or blocks, or no longer does. What a process ignores or blocks, the programs that it starts ignore or block
//! too.

use std::io::{Error, Result};
use std::mem::MaybeUninit;

/// Whether the process ignores `signal`.
pub fn is_ignored(signal: i32) -> bool {
    let mut found = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is changed, and a successful call fills `found`, which has room for what it writes.
    let found = unsafe {
        match libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr()) {
            0 => found.assume_init(),
            _ => return false,
        }
    };
    found.sa_sigaction == libc::SIG_IGN
}

/// Ignores `signal` from now on.
pub fn ignore(signal: i32) -> Result<()> {
    dispose(signal, libc::SIG_IGN)
}

/// Leaves `signal` to the system from now on.
pub fn leave(signal: i32) -> Result<()> {
    dispose(signal, libc::SIG_DFL)
}

fn dispose(signal: i32, how: libc::sighandler_t) -> Result<()> {
    // SAFETY: no function of this program is called for a signal that is ignored or left to the system.
    match unsafe { libc::signal(signal, how) } {
        libc::SIG_ERR => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Lets these signals reach this thread, and the threads that it starts, from now on: also those that have come before.
pub fn unblock(signals: &[i32]) -> Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is initialized by the first call, before any other uses it. Numbers that are no signals are errors, which leave it as it is.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        if signals.iter().any(|&signal| libc::sigaddset(set.as_mut_ptr(), signal) != 0) {
            return Err(Error::last_os_error());
        }
        set.assume_init()
    };
    // SAFETY: `set` is initialized, and nobody asks for the mask that was there.
    match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_known_to_be() {
        assert!(!is_ignored(libc::SIGTTOU) && !is_ignored(libc::SIGKILL) && !is_ignored(-1));
        ignore(libc::SIGTTOU).unwrap();
        assert!(is_ignored(libc::SIGTTOU));
        leave(libc::SIGTTOU).unwrap();
        assert!(!is_ignored(libc::SIGTTOU));
        ignore(libc::SIGKILL).unwrap_err();
    }

    #[test]
    fn what_is_no_signal_is_not_unblocked() {
        unblock(&[libc::SIGTERM]).unwrap();
        unblock(&[libc::SIGTERM, 1000]).unwrap_err();
    }
}
