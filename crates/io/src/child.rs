//! Programs that this one starts: they end with it, however it ends, and have what it had before it changed that for itself.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, configure_io_flusher_behavior, getppid, getrlimit,
    set_parent_process_death_signal, setrlimit,
};

use crate::signals::{ignore, is_ignored, leave};

/// Has the program killed when the thread that starts it ends, for which the thread of `main` stands for the whole process.
pub fn end_with_us(command: &mut Command) -> &mut Command {
    let us = Pid::from_raw(std::process::id() as i32);
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that ended before that sends nothing.
        if getppid() == us { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec only two system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(ask) }
}

/// Has the program find no descriptors but the standard ones, where the system can do that (Linux 5.11).
pub fn keep_descriptors_from(command: &mut Command) -> &mut Command {
    let keep = || {
        // SAFETY: the call marks descriptors, and touches no memory.
        let _ =
            unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    };
    // SAFETY: between fork and exec only one system call is made, and nothing is allocated.
    unsafe { command.pre_exec(keep) }
}

/// Signals that programs know: those behind are the C library's, or nobody's.
const SIGNALS: usize = 31;

/// What a server changes for itself and programs of its user are to have as it was: the limit of open files, signals that are ignored, and
/// whose memory the kernel finds without writing. Not SIGPIPE: this language ignores it before `main`, and has programs end by it.
#[derive(Clone, Copy)]
pub struct Before {
    open_files: Rlimit,
    /// By number, from 1 on.
    ignored: [bool; SIGNALS],
}

impl Before {
    /// As it is now.
    pub fn now() -> Self {
        let ignored = std::array::from_fn(|index| is_ignored(index as i32 + 1));
        Self { open_files: getrlimit(Resource::Nofile), ignored }
    }

    /// Has the program find it so.
    pub fn restore_for(self, command: &mut Command) -> &mut Command {
        let Self { open_files, ignored } = self;
        let restore = move || {
            setrlimit(Resource::Nofile, open_files)?;
            for (signal, ignored) in (1..).zip(ignored).filter(|(signal, _)| *signal != libc::SIGPIPE) {
                // Those that this process handles are left to the system by the start of a program.
                match (ignored, is_ignored(signal)) {
                    (true, false) => ignore(signal)?,
                    (false, true) => leave(signal)?,
                    _ => {}
                }
            }
            // Who may not do that has not done it.
            let _ = configure_io_flusher_behavior(false);
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
        unsafe { command.pre_exec(restore) }
    }
}
