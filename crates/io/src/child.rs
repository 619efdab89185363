//! Programs that this one starts: they end with it, however it ends, and have what it had before it changed that for itself.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, configure_io_flusher_behavior, getppid, getrlimit,
    set_parent_process_death_signal, setrlimit,
};

use crate::signals::{is_ignored, leave};

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

/// What a server changes for itself and programs of its user are to have as it was: the limit of open files, SIGTTOU, and whose memory the
/// kernel finds without writing.
#[derive(Clone, Copy)]
pub struct Before {
    open_files: Rlimit,
    ignores_ttou: bool,
}

impl Before {
    /// As it is now.
    pub fn now() -> Self {
        Self { open_files: getrlimit(Resource::Nofile), ignores_ttou: is_ignored(libc::SIGTTOU) }
    }

    /// Has the program find it so.
    pub fn restore_for(self, command: &mut Command) -> &mut Command {
        let Self { open_files, ignores_ttou } = self;
        let restore = move || {
            setrlimit(Resource::Nofile, open_files)?;
            if !ignores_ttou {
                leave(libc::SIGTTOU)?;
            }
            // Who may not do that has not done it.
            let _ = configure_io_flusher_behavior(false);
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
        unsafe { command.pre_exec(restore) }
    }
}
