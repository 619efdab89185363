//! Limits of this process: processors that it may use, clients that it may have, and lengths of files.

use spillway_core::size::human;

use super::finding::Finding;
use super::host::{Host, counted, sized};
use crate::memory::ServerMemory;
use crate::system::cgroup;

/// What a cgroup lets its processes use: microseconds of processor time in each period.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quota {
    used_us: f64,
    period_us: f64,
}

impl Quota {
    fn processors(self) -> f64 {
        assert!(self.used_us > 0.0 && self.period_us > 0.0, "no quota: {self:?}");
        self.used_us / self.period_us
    }
}

/// The processors, and the `workers` that a server has for them.
pub(super) fn processors(host: &Host, workers: usize) -> Finding {
    let online = host.text("sys/devices/system/cpu/online").and_then(|list| listed(&list));
    let allowed = host.status("Cpus_allowed_list").and_then(|list| listed(&list));
    let told = |count: Option<usize>| count.map_or("unknown".to_owned(), |count| count.to_string());
    let mut found = format!("{} of {} may be used", told(allowed), told(online));
    let quota = quota(host);
    let quota = quota.filter(|quota| allowed.is_none_or(|allowed| quota.processors() < allowed as f64));
    if let Some(quota) = quota {
        found += &format!(", a quota of {:.2} in the cgroup", quota.processors());
    }
    found += &format!("; --workers is {workers}, and more do not help");
    Finding::new("processors", found, quota.map(throttled))
}

fn throttled(quota: Quota) -> String {
    format!(
        "Once the quota is used, all threads pause until the period of {:.0} ms ends, and requests wait. Give whole processors instead \
         (docker --cpuset-cpus, the static CPU policy of Kubernetes, systemd AllowedCPUs=).",
        quota.period_us / 1000.0
    )
}

/// How many numbers a list such as `0-3,8` has.
fn listed(list: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some((last + 1).saturating_sub(first))
    };
    list.split(',').map(count).sum()
}

/// The least quota of the cgroups that hold this process.
fn quota(host: &Host) -> Option<Quota> {
    let unified = cgroup::unified(host.root(), "cpu.max").into_iter();
    let unified = unified
        .filter_map(|text| text.split_once(' ').map(|(used, period)| (used.to_owned(), period.to_owned())));
    let of_cpu = |file| cgroup::legacy(host.root(), "cpu", file).into_iter();
    let legacy = of_cpu("cpu.cfs_quota_us").zip(of_cpu("cpu.cfs_period_us"));
    // No quota is `max` in version 2 and -1 in version 1.
    let quotas = unified.chain(legacy).filter_map(|(used, period)| {
        let (used_us, period_us) = (used.parse().ok()?, period.parse().ok()?);
        (used_us > 0.0 && period_us > 0.0).then_some(Quota { used_us, period_us })
    });
    quotas.min_by(|one, other| one.processors().total_cmp(&other.processors()))
}

/// Descriptors of a server besides those of its clients: sockets, rings, wakes and files, generously.
const OWN_DESCRIPTORS: u64 = 256;

/// Whether there is a descriptor for each of the `clients` for which the `memory` of a server has room.
pub(super) fn open_files(host: &Host, memory: &ServerMemory, clients: usize) -> Finding {
    let Some(limit) = host.limit("Max open files") else {
        return Finding::ok("open files", "limit unknown");
    };
    let found = format!(
        "at most {} (ulimit -Hn), which a server takes at its start; --memory {} has room for {clients} clients",
        counted(limit.hard),
        human(memory.bytes)
    );
    let wanted = clients as u64 + OWN_DESCRIPTORS;
    let remedy = format!(
        "Further clients wait at the socket once the descriptors are used. For more: {wanted} (ulimit -Hn, docker --ulimit nofile=, \
         systemd LimitNOFILE=)."
    );
    Finding::new("open files", found, (limit.hard < wanted).then_some(remedy))
}

/// How long files may be that a server writes.
pub(super) fn file_sizes(host: &Host) -> Finding {
    let limit = host.limit("Max file size");
    let remedy = "Writes beyond this length of an origin, a cache, a spill file or an image fail: ulimit -f unlimited.";
    let limited = limit.is_some_and(|limit| limit.soft < u64::MAX);
    Finding::new("file sizes", format!("{} (ulimit -f)", sized(limit)), limited.then(|| remedy.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, count) in
            [("0", Some(1)), ("0-63", Some(64)), ("0-3,8,10-11", Some(7)), ("", None), ("x-1", None)]
        {
            assert_eq!(listed(list), count, "{list}");
        }
    }

    #[test]
    fn processors_are_those_that_are_allowed() {
        let files =
            [("sys/devices/system/cpu/online", "0-15\n"), ("proc/self/status", "Cpus_allowed_list:\t4-7\n")];
        let finding = processors(&host(&files).0, 4);
        assert_eq!(
            finding,
            Finding::ok("processors", "4 of 16 may be used; --workers is 4, and more do not help")
        );
        assert!(processors(&host(&[]).0, 1).found.starts_with("unknown of unknown"));
    }

    #[test]
    fn a_quota_of_either_version_is_a_note_where_it_is_less_than_what_is_allowed() {
        let status = ("proc/self/status", "Cpus_allowed_list:\t0-3\n");
        let (unified, legacy) = (("proc/self/cgroup", "0::/c\n"), ("proc/self/cgroup", "3:cpu,cpuacct:/c\n"));
        for (membership, files, expected) in [
            (
                unified,
                [("sys/fs/cgroup/c/cpu.max", "150000 100000\n"), ("sys/fs/cgroup/cpu.max", "max 100000\n")],
                Some("1.50"),
            ),
            (unified, [("sys/fs/cgroup/c/cpu.max", "max 100000\n"), ("sys/fs/cgroup/x", "")], None),
            (unified, [("sys/fs/cgroup/c/cpu.max", "800000 100000\n"), ("sys/fs/cgroup/x", "")], None),
            (
                legacy,
                [
                    ("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000\n"),
                    ("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n"),
                ],
                Some("0.50"),
            ),
            (
                legacy,
                [
                    ("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n"),
                    ("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n"),
                ],
                None,
            ),
        ] {
            let finding = processors(&host(&[&files[..], &[status, membership]].concat()).0, 1);
            let words = expected.map(|count| format!("a quota of {count} in the cgroup"));
            assert_eq!(finding.status == Status::Note, expected.is_some(), "{finding:?}");
            assert!(words.is_none_or(|words| finding.found.contains(&words)), "{finding:?}");
        }
    }

    #[test]
    fn a_limit_of_file_sizes_is_a_note() {
        let limited = |size: &str| {
            let text = format!(
                "Max cpu time   unlimited   unlimited   seconds\nMax file size   {size}   unlimited   bytes\n"
            );
            file_sizes(&host(&[("proc/self/limits", &text)]).0)
        };
        assert_eq!(limited("unlimited"), Finding::ok("file sizes", "unlimited (ulimit -f)"));
        let finding = limited("1073741824");
        assert_eq!((finding.status, finding.found.as_str()), (Status::Note, "1G (ulimit -f)"));
    }

    #[test]
    fn clients_for_which_there_is_no_descriptor_are_a_note() {
        let files = [
            ("proc/meminfo", "MemTotal:        4194304 kB\n"),
            (
                "proc/self/limits",
                "Max open files            1024                 1024                 files     \n",
            ),
        ];
        let (host, _root) = host(&files);
        let memory = ServerMemory::choose(None, host.root()).unwrap();
        let finding = open_files(&host, &memory, 2048);
        assert!(
            finding.status == Status::Note && finding.remedy.as_ref().expect("a note").contains("2304"),
            "{finding:?}"
        );
        assert_eq!(open_files(&host, &memory, 700).status, Status::Ok);
    }
}
