//! A server whose system calls fail on purpose, by `strace`.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Scratch, until};

/// Which call fails, how, and from which call of a thread on.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The system call.
    pub call: &'static str,
    /// The name of its errno.
    pub errno: &'static str,
    /// The first call of each thread that fails, from 1 on.
    pub first: u32,
    /// The last one, if there is one.
    pub last: Option<u32>,
}

impl Refusal {
    /// All calls fail.
    pub fn of(call: &'static str, errno: &'static str) -> Self {
        Self { call, errno, first: 1, last: None }
    }

    fn options(&self) -> [String; 4] {
        let Self { call, errno, first, last } = self;
        let last = last.map_or("+".into(), |last| format!("..{last}"));
        let inject = format!("inject={call}:error={errno}:when={first}{last}");
        ["-e".into(), format!("trace={call}"), "-e".into(), inject]
    }

    /// The command that starts a program whose calls fail from the start; the program stays the child of who runs it.
    pub(crate) fn command(&self, folder: &Scratch) -> Vec<OsString> {
        let words = ["strace", "-D", "-f", "-qq", "-o"].map(OsString::from);
        let calls = folder.join("calls").into_os_string();
        words.into_iter().chain([calls]).chain(self.options().map(OsString::from)).collect()
    }
}

/// Calls of a running server fail until this is dropped.
pub struct Refusing {
    strace: Child,
    calls: PathBuf,
}

impl Refusing {
    /// Returns once it has all threads of the server.
    pub fn begin(pid: u32, refusal: &Refusal, folder: &Scratch) -> Self {
        let calls = folder.join("calls");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o"]).arg(&calls).args(refusal.options()).arg("-p").arg(pid.to_string());
        let strace = strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let strace = strace.spawn().expect("strace is missing: apt-get install strace");
        until("strace has all threads", || is_traced(pid).then_some(()));
        Self { strace, calls }
    }

    /// How many calls have failed on purpose so far.
    pub fn refused(&self) -> usize {
        fs::read_to_string(&self.calls).map_or(0, |calls| calls.matches("(INJECTED)").count())
    }
}

impl Drop for Refusing {
    /// Lets go of the server. A call that is refused at that very moment fails by ENOSYS.
    fn drop(&mut self) {
        let id = i32::try_from(self.strace.id()).expect("the kernel's ids fit");
        // It may have ended with the server.
        let _ = kill_process(Pid::from_raw(id).expect("an id is not 0"), Signal::TERM);
        let _ = self.strace.wait();
    }
}

fn is_traced(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the server is running");
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status"));
        // A thread may end meanwhile.
        status.is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
    })
}
