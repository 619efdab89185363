//! Running a program to its end, with what it said.

use std::ffi::OsStr;
use std::fmt;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// Tools and the Debian packages that have them.
const PACKAGES: &[(&str, &str)] = &[
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("/usr/bin/python3", "python3-libnbd"),
    ("curl", "curl"),
    ("chromium", "chromium"),
    ("systemd-analyze", "systemd"),
    ("dpkg", "dpkg"),
    ("fio", "fio"),
    ("/usr/sbin/mke2fs", "e2fsprogs"),
    ("/usr/sbin/mkswap", "util-linux"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("/usr/sbin/e2fsck", "e2fsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("/usr/sbin/debugfs", "e2fsprogs"),
    ("diff", "diffutils"),
    ("sqlite3", "sqlite3"),
    ("strace", "strace"),
    ("ip", "iproute2"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("umount", "mount"),
];

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Said {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    command: String,
}

impl Said {
    /// Panics with everything that was said unless the exit code is 0.
    #[track_caller]
    pub fn well(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// Panics unless the exit code is `code` and standard error contains `words`.
    #[track_caller]
    pub fn refused(self, code: i32, words: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        assert!(self.err.contains(words), "{words:?} is not in what was said: {self}");
        self
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nended with {:?}\n{}\n{}", self.command, self.code, self.out, self.err)
    }
}

/// Runs `program` to its end; panics if it cannot be started, naming the package to install.
pub fn run<A: AsRef<OsStr>>(program: &str, arguments: &[A]) -> Said {
    finish(Command::new(program).args(arguments))
}

/// Runs a prepared command to its end.
pub fn finish(command: &mut Command) -> Said {
    let shown = format!("{command:?}");
    let output =
        command.stdin(Stdio::null()).output().unwrap_or_else(|why| panic!("{}", absence(&shown, &why)));
    Said {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into(),
        err: String::from_utf8_lossy(&output.stderr).into(),
        command: shown,
    }
}

/// Runs a Python script that uses libnbd's bindings.
pub fn python(script: &str, arguments: &[&str]) -> Said {
    let said = run("/usr/bin/python3", &[&["-c", script], arguments].concat());
    let absent = said.err.contains("No module named 'nbd'");
    assert!(!absent, "the Python bindings of libnbd are missing: apt-get install python3-libnbd");
    said
}

fn absence(command: &str, why: &std::io::Error) -> String {
    let package = PACKAGES.iter().find(|(tool, _)| command.starts_with(&format!("{tool:?}")));
    match package {
        Some((tool, package)) if why.kind() == ErrorKind::NotFound => {
            format!("{tool} is missing: apt-get install {package}")
        }
        _ => format!("cannot start {command}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        let why = std::io::Error::from(ErrorKind::NotFound);
        assert_eq!(absence("\"fio\" \"--name=x\"", &why), "fio is missing: apt-get install fio");
    }

    #[test]
    fn what_was_said_is_kept() {
        let said = run("sh", &["-c", "echo out; echo err >&2; exit 3"]);
        assert_eq!((said.code, said.out.as_str()), (Some(3), "out\n"));
        said.refused(3, "err");
    }
}
