//! What tests and checks need from the system: found, installed from Debian's packages, or named as missing.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::cargo;

/// A Debian package and the command that succeeds once it is installed.
pub(crate) struct Need {
    package: &'static str,
    probe: &'static [&'static str],
}

/// For the end-to-end tests.
pub(crate) const TESTS: &[Need] = &[
    Need { package: "qemu-utils", probe: &["qemu-img", "--version"] },
    Need { package: "libnbd-bin", probe: &["nbdinfo", "--version"] },
    // The bindings belong to Debian's interpreter, not to whichever comes first in the path.
    Need { package: "python3-libnbd", probe: &["/usr/bin/python3", "-c", "import nbd"] },
    Need { package: "curl", probe: &["curl", "--version"] },
    Need {
        package: "python3-prometheus-client",
        probe: &["/usr/bin/python3", "-c", "import prometheus_client"],
    },
    Need { package: "chromium", probe: &["chromium", "--version"] },
    Need { package: "nbdkit", probe: &["nbdkit", "--version"] },
    Need { package: "fio", probe: &["fio", "--enghelp=nbd"] },
    Need { package: "gcc", probe: &["cc", "--version"] },
    // For libFuzzer.
    Need { package: "g++", probe: &["c++", "--version"] },
    // Outside the path of many users; run by their full names.
    Need { package: "e2fsprogs", probe: &["/usr/sbin/mke2fs", "-V"] },
    Need { package: "xfsprogs", probe: &["/usr/sbin/mkfs.xfs", "-V"] },
    Need { package: "iproute2", probe: &["ip", "-V"] },
    Need { package: "strace", probe: &["strace", "--version"] },
    Need { package: "sqlite3", probe: &["sqlite3", "--version"] },
    Need { package: "fuse3", probe: &["fusermount3", "--version"] },
    Need { package: "util-linux", probe: &["/usr/sbin/mkswap", "--version"] },
    Need { package: "systemd", probe: &["systemd-analyze", "--version"] },
    Need { package: "procps", probe: &["kill", "-V"] },
    // For the packages that users install.
    Need { package: "dpkg", probe: &["dpkg-deb", "--version"] },
    Need { package: "binutils", probe: &["strip", "--version"] },
    Need { package: "groff-base", probe: &["groff", "--version"] },
    // A cluster of their own. librbd1 comes with ceph-common.
    Need { package: "ceph-mon", probe: &["ceph-mon", "--version"] },
    Need { package: "ceph-mgr", probe: &["ceph-mgr", "--version"] },
    Need { package: "ceph-osd", probe: &["ceph-osd", "--version"] },
    Need { package: "ceph-common", probe: &["rbd", "--version"] },
];

/// For the report of the benchmarks: peers, load generators and what they stand on.
pub(crate) const BENCH: &[Need] = &[
    Need { package: "fio", probe: &["fio", "--enghelp=nbd"] },
    Need { package: "nbdkit", probe: &["nbdkit", "--version"] },
    Need { package: "qemu-utils", probe: &["qemu-nbd", "--version"] },
    // The driver for images of Ceph.
    Need { package: "qemu-block-extra", probe: &["dpkg", "--status", "qemu-block-extra"] },
    Need { package: "ceph-mon", probe: &["ceph-mon", "--version"] },
    Need { package: "ceph-mgr", probe: &["ceph-mgr", "--version"] },
    Need { package: "ceph-osd", probe: &["ceph-osd", "--version"] },
    Need { package: "ceph-common", probe: &["rbd", "--version"] },
    Need { package: "qemu-system-common", probe: &["qemu-storage-daemon", "--version"] },
    Need { package: "libnbd-bin", probe: &["nbdfuse", "--version"] },
    Need { package: "sqlite3", probe: &["sqlite3", "--version"] },
    // With pgbench. The benchmark makes clusters of its own.
    Need { package: "postgresql", probe: &["pgbench", "--version"] },
    Need { package: "git", probe: &["git", "--version"] },
    Need { package: "valgrind", probe: &["valgrind", "--version"] },
    Need { package: "linux-perf", probe: &["perf", "--version"] },
    Need { package: "python3", probe: &["python3", "--version"] },
    Need { package: "e2fsprogs", probe: &["/usr/sbin/mke2fs", "-V"] },
    Need { package: "mount", probe: &["/usr/sbin/losetup", "--version"] },
];

/// For what an emulated machine boots.
pub(crate) const KERNEL: &[Need] = &[
    Need { package: "qemu-system-x86", probe: &["qemu-system-x86_64", "--version"] },
    Need { package: "busybox-static", probe: &["busybox", "true"] },
    Need { package: "cpio", probe: &["cpio", "--version"] },
    Need { package: "kmod", probe: &["/usr/sbin/modprobe", "--version"] },
    Need { package: "dmsetup", probe: &["/usr/sbin/dmsetup", "help"] },
    Need { package: "e2fsprogs", probe: &["/usr/sbin/mke2fs", "-V"] },
    Need { package: "xfsprogs", probe: &["/usr/sbin/mkfs.xfs", "-V"] },
    Need { package: "binutils", probe: &["strip", "--version"] },
    // The kernel is a package that is downloaded and not installed.
    Need { package: "apt", probe: &["apt-get", "--version"] },
];

/// For the Debian that boots there, and the package that is installed in it.
pub(crate) const SYSTEMD: &[Need] = &[
    Need { package: "mmdebstrap", probe: &["mmdebstrap", "--version"] },
    Need { package: "dpkg", probe: &["dpkg-deb", "--version"] },
];

/// For packages.
pub(crate) const PACKAGE: &[Need] = &[
    Need { package: "dpkg", probe: &["dpkg-deb", "--version"] },
    Need { package: "binutils", probe: &["strip", "--version"] },
    Need { package: "gzip", probe: &["gzip", "--version"] },
    Need { package: "git", probe: &["git", "--version"] },
];

/// For the build of a static program.
pub(crate) const MUSL: &[Need] = &[Need { package: "musl-tools", probe: &["musl-gcc", "--version"] }];

/// How this user may install packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Root,
    Sudo,
    None,
}

/// Installs what is missing where that is allowed; otherwise fails and says what to type.
pub(crate) fn require(needs: &[Need]) -> Result<()> {
    let absent = missing(needs, works);
    if absent.is_empty() {
        println!("all tools are present");
        return Ok(());
    }
    install(&absent, right())?;
    let still = missing(needs, works);
    if still.is_empty() {
        return Ok(());
    }
    bail!("installed, but still not working: {}", still.join(", "))
}

fn missing(needs: &[Need], works: impl Fn(&[&str]) -> bool) -> Vec<&'static str> {
    needs.iter().filter(|need| !works(need.probe)).map(|need| need.package).collect()
}

/// Whether a command can be started and succeeds.
pub(crate) fn works(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn right() -> Right {
    if !works(&["apt-get", "--version"]) {
        return Right::None;
    }
    let id = Command::new("id").arg("-u").output();
    if id.is_ok_and(|output| output.stdout.trim_ascii() == b"0") {
        return Right::Root;
    }
    if works(&["sudo", "-n", "true"]) { Right::Sudo } else { Right::None }
}

fn install(packages: &[&str], right: Right) -> Result<()> {
    println!("missing: {}", packages.join(", "));
    let prefix: &[&str] = match right {
        Right::Root => &["env"],
        Right::Sudo => &["sudo", "-n", "env"],
        Right::None => bail!("{}", advice(packages)),
    };
    let apt = [prefix, &["DEBIAN_FRONTEND=noninteractive", "apt-get"]].concat();
    let words = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    apt_get(&apt, &["update", "--quiet"])?;
    apt_get(&apt, &words)
}

fn apt_get(apt: &[&str], words: &[&str]) -> Result<()> {
    cargo::succeed(Command::new(apt[0]).args(&apt[1..]).args(words).stdin(Stdio::null()))
}

fn advice(packages: &[&str]) -> String {
    let packages = packages.join(" ");
    format!(
        "packages are missing that this user may not install: {packages}\n\
         install them, then try again:\n\n    sudo apt-get install {packages}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_its_probe_is_missing() {
        let all = missing(TESTS, |_| false);
        assert_eq!(all.len(), TESTS.len());
        assert_eq!(missing(TESTS, |probe| probe[0] != "fio"), ["fio"]);
        assert!(missing(TESTS, |_| true).is_empty());
    }

    #[test]
    fn a_program_that_is_absent_or_fails_does_not_work() {
        assert!(works(&["true"]));
        assert!(!works(&["false"]));
        assert!(!works(&["spillway-no-such-program"]));
    }

    #[test]
    fn without_the_right_to_install_the_error_says_what_to_type() {
        let error = install(&["fio", "nbdkit"], Right::None).unwrap_err().to_string();
        assert!(error.contains("sudo apt-get install fio nbdkit"), "{error}");
    }
}
