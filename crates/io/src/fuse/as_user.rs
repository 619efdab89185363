//! Work in the name of another user, by a thread of its own.
//!
//! FUSE lets nobody but its user look into a mount, root included, and what a path of another user leads to must be no more than that
//! user may reach. A thread can change its user alone. A process of that user's own could be taken over by it with everything that it
//! has open; this one cannot: the kernel closes a process to debuggers as soon as one of its threads changes its user.

use std::io;
use std::thread::Builder;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Who is meant, by numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// The one group that matters.
    pub gid: u32,
}

impl User {
    /// Has a thread do `work` as this user. The error is the kernel's: `EPERM` for others than root; or that of `work`.
    pub(crate) fn run<T: Send>(self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let as_user = || self.become_of_thread().and_then(|()| work());
        std::thread::scope(|scope| {
            let thread = Builder::new().name("as-user".to_owned()).spawn_scoped(scope, as_user)?;
            thread.join().expect("what is done for a user does not panic")
        })
    }

    /// For the calling thread, for good.
    fn become_of_thread(self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        if geteuid() == uid {
            return Ok(());
        }
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NOBODY: User = User { uid: 65534, gid: 65534 };

    /// User, effective and saved user of a thread by its file below `/proc`, and whether it may do anything that others may not.
    fn status() -> (String, bool) {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        (line("Uid:"), line("CapEff:") != "0000000000000000" || line("CapPrm:") != "0000000000000000")
    }

    #[test]
    fn only_the_thread_that_works_for_a_user_is_that_user() {
        let before = status();
        let within =
            NOBODY.run(|| Ok((status(), fs::read("/etc/shadow").map_err(|why| why.kind())))).unwrap();
        assert_eq!(within.0, ("65534\t65534\t65534\t65534".to_owned(), false));
        assert_eq!(within.1, Err(io::ErrorKind::PermissionDenied));
        assert_eq!(status(), before);
        assert!(fs::read("/etc/shadow").is_ok(), "tests run as root");
    }

    /// What this process has open must not be had through it.
    #[test]
    fn a_user_cannot_look_into_the_process_that_works_for_it() {
        let thread = NOBODY
            .run(|| {
                let own = format!("/proc/{}/fd", rustix::thread::gettid().as_raw_nonzero());
                let looks = std::process::Command::new("ls").arg(&own).output()?;
                Ok((looks.status.success(), String::from_utf8_lossy(&looks.stderr).into_owned()))
            })
            .unwrap();
        assert!(!thread.0 && thread.1.contains("Permission denied"), "{thread:?}");
    }
}
