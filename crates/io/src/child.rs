//! Programs that end with the one that started them, however it ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

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
