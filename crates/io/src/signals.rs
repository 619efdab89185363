//! Signals that this process ignores, or no longer does. What a process ignores, the programs that it starts ignore too.

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
}
