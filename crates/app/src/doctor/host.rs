//! A host by the texts that its kernel and its programs keep: `/proc`, `/sys` and `/etc`, below a root that tests replace.

use std::fs;
use std::path::{Path, PathBuf};

use spillway_core::size::human;

use crate::system::{bytes_of, field_of, has_capability, version};

/// See the head of this file.
pub(super) struct Host(PathBuf);

/// A limit of this process, as of proc_pid_limits(5). [`u64::MAX`] is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResourceLimit {
    pub(super) soft: u64,
    pub(super) hard: u64,
}

/// A limit in words.
pub(super) fn counted(limit: u64) -> String {
    if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() }
}

/// A limit of bytes in words.
pub(super) fn sized(limit: Option<ResourceLimit>) -> String {
    match limit {
        None => "unknown".to_owned(),
        Some(ResourceLimit { soft: u64::MAX, .. }) => counted(u64::MAX),
        Some(limit) => human(limit.soft),
    }
}

impl Host {
    /// The host whose file systems are mounted below `root`.
    pub(super) fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    /// A file by its path below the root, without the space around its text; `None` where it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.0.join(path)).ok()?.trim().to_owned())
    }

    /// Whether there is such a file.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// The kernel's version, as `6.12` is (6, 12).
    pub(super) fn kernel(&self) -> Option<(u32, u32)> {
        version(&self.text("proc/sys/kernel/osrelease")?)
    }

    /// Whether the kernel is that version or a later one. One that does not say is taken for a later one.
    pub(super) fn is_since(&self, version: (u32, u32)) -> bool {
        self.kernel().is_none_or(|kernel| kernel >= version)
    }

    /// A field of what the kernel says about this process, such as `Cpus_allowed_list`.
    pub(super) fn status(&self, field: &str) -> Option<String> {
        field_of(&self.text("proc/self/status")?, field).map(str::to_owned)
    }

    /// Whether this process may act as root.
    pub(super) fn is_root(&self) -> bool {
        self.user() == Some(0)
    }

    /// The effective user: the second of `Uid: REAL EFFECTIVE SAVED FILESYSTEM`.
    pub(super) fn user(&self) -> Option<u32> {
        self.status("Uid")?.split_whitespace().nth(1)?.parse().ok()
    }

    /// Whether a set of capabilities has one: `CapEff`, those of this process; `CapBnd`, those that its programs can have.
    pub(super) fn has_capability(&self, set: &str, capability: u32) -> bool {
        self.text("proc/self/status").is_some_and(|status| has_capability(&status, set, capability))
    }

    /// A size of `/proc/meminfo` in bytes.
    pub(super) fn memory(&self, field: &str) -> Option<u64> {
        bytes_of(&self.text("proc/meminfo")?, field)
    }

    /// A limit of this process by the kernel's name for it, such as `Max open files`.
    pub(super) fn limit(&self, name: &str) -> Option<ResourceLimit> {
        limit(&self.text("proc/self/limits")?, name)
    }
}

fn limit(text: &str, name: &str) -> Option<ResourceLimit> {
    let mut values = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    let mut value = || match values.next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    Some(ResourceLimit { soft: value()?, hard: value()? })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::system::{CAP_SYS_ADMIN, CAP_SYS_RESOURCE};

    /// A host with these files.
    pub(in crate::doctor) fn host(files: &[(&str, &str)]) -> (Host, Scratch) {
        let root = Scratch::new("host");
        files.iter().for_each(|(path, text)| root.write(path, text));
        (Host::at(root.path()), root)
    }

    #[test]
    fn versions_are_two_numbers_whatever_follows() {
        for (release, expected) in [
            ("6.18.44-fc-v595", Some((6, 18))),
            ("5.14.0-427.13.1.el9_4.x86_64", Some((5, 14))),
            ("6.6.87.2-microsoft-standard-WSL2", Some((6, 6))),
            ("7.0-rc1", Some((7, 0))),
            ("4", None),
            ("", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn limits_are_found_by_their_whole_names() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max locked memory         8388608              unlimited            bytes     \n\
                    Max open files            1024                 524288               files     \n\
                    Max nice priority         0                    0                    \n";
        assert_eq!(limit(text, "Max open files"), Some(ResourceLimit { soft: 1024, hard: 524_288 }));
        assert_eq!(limit(text, "Max locked memory"), Some(ResourceLimit { soft: 8 << 20, hard: u64::MAX }));
        assert_eq!((limit(text, "Max processes"), limit("", "Max open files")), (None, None));
    }

    #[test]
    fn a_process_is_known_by_its_status() {
        let status =
            "Name:\tspillway\nUid:\t0\t1000\t0\t0\nCapEff:\t00000000a80425fb\nCpus_allowed_list:\t0-1\n";
        let (host, _root) =
            host(&[("proc/self/status", status), ("proc/meminfo", "MemTotal:  4 kB\nSwapTotal: 0 kB\n")]);
        assert_eq!((host.user(), host.is_root()), (Some(1000), false));
        assert_eq!(host.status("Cpus_allowed_list").as_deref(), Some("0-1"));
        let has = |capability| host.has_capability("CapEff", capability);
        assert_eq!((has(0), has(CAP_SYS_ADMIN), has(CAP_SYS_RESOURCE)), (true, false, false));
        assert!(!host.has_capability("CapBnd", 0));
        assert_eq!(
            (host.memory("MemTotal"), host.memory("Mem"), host.memory("SwapTotal")),
            (Some(4096), None, Some(0))
        );
    }
}
