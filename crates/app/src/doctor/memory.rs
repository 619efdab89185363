//! The memory that a server gets: how much, and whether it stays in RAM.

use spillway_core::size::human;

use super::finding::Finding;
use super::host::Host;
use crate::memory::{BUDGET_BYTES_MIN, ServerMemory};
use crate::system::cgroup;

/// What a server may use beside its budget, in bytes.
const BESIDE_BYTES: u64 = 64 << 20;

/// How much there is, and what a server takes of it by default.
pub(super) fn memory(host: &Host, default: &anyhow::Result<ServerMemory>) -> Finding {
    let told = |field| host.memory(field).map_or("unknown".to_owned(), human);
    let mut found = format!("{} of {} available", told("MemAvailable"), told("MemTotal"));
    let group = least_room(host).filter(|group| host.memory("MemTotal").is_none_or(|all| group.limit < all));
    if let Some(group) = group {
        found += &format!(", {} of {} in the cgroup", human(group.room), human(group.limit));
    }
    let default = match default {
        Err(error) => {
            return Finding::problem(
                "memory",
                format!("{found}; {error}"),
                "No server starts without --memory.",
            );
        }
        Ok(default) => default,
    };
    found += &format!("; --memory is {} ({})", human(default.bytes), default.reason);
    Finding::new("memory", found, scarce(host, default))
}

/// A limit of a cgroup in bytes, a huge number where version 1 has none, and what is left of it. What the page cache keeps counts as left.
struct Group {
    limit: u64,
    room: u64,
}

/// The group with the least room of those that hold this process.
fn least_room(host: &Host) -> Option<Group> {
    let unified = |file| cgroup::unified(host.root(), file).into_iter();
    let legacy = |file| cgroup::legacy(host.root(), "memory", file).into_iter();
    let limits = unified("memory.max").zip(unified("memory.current")).zip(unified("memory.stat"));
    let old = legacy("memory.limit_in_bytes").zip(legacy("memory.usage_in_bytes")).zip(legacy("memory.stat"));
    let groups = limits.chain(old).filter_map(|((limit, used), stat)| {
        let (limit, used): (u64, u64) = (limit.parse().ok()?, used.parse().ok()?);
        let cached =
            stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok()).unwrap_or(0);
        Some(Group { limit, room: limit.saturating_sub(used.saturating_sub(cached)) })
    });
    groups.min_by_key(|group| group.room)
}

/// Why a server cannot use its default budget.
fn scarce(host: &Host, default: &ServerMemory) -> Option<String> {
    let high = cgroup::unified(host.root(), "memory.high").into_iter();
    let high = high.filter_map(|text| text.parse().ok()).min().unwrap_or(u64::MAX);
    let of_host = host.memory("MemAvailable").unwrap_or(u64::MAX);
    let available = least_room(host).map_or(of_host, |group| group.room.min(of_host));
    let (least, effect) = match high < available {
        true => (high, "The kernel slows a server down that uses more than memory.high of its cgroup"),
        false => (
            available,
            "A server that fills its budget makes the system run out of memory, which ends programs",
        ),
    };
    let fitting = least.saturating_sub(BESIDE_BYTES);
    let advice = match fitting < BUDGET_BYTES_MIN {
        true => "Make more memory available.".to_owned(),
        false => format!("Give --memory {} or less.", human(fitting)),
    };
    (default.bytes > fitting).then(|| format!("{effect}. {advice}"))
}

/// Whether a RAM disk stays in RAM.
pub(super) fn swap(host: &Host) -> Finding {
    let total = match host.memory("SwapTotal") {
        None => return Finding::ok("swap", "unknown"),
        Some(0) => return Finding::ok("swap", "none: data stays in RAM"),
        Some(total) => total,
    };
    let devices = host.text("proc/swaps").unwrap_or_default();
    let devices: Vec<_> = devices.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    let found = format!("{} ({})", human(total), devices.join(", "));
    if cgroup::unified(host.root(), "memory.swap.max").iter().any(|limit| limit == "0") {
        return Finding::ok("swap", format!("{found}, none for this cgroup: data stays in RAM"));
    }
    let remedy = "A server locks no memory: under pressure the kernel moves pages of a RAM disk or a cache to swap, and requests wait for \
                  them. Give the server no swap (systemd MemorySwapMax=0, docker --memory-swap equal to --memory), and a RAM disk --spill \
                  for its cold pages.";
    Finding::note("swap", found, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    fn judged(files: &[(&str, &str)]) -> Finding {
        let (host, _root) = host(files);
        memory(&host, &ServerMemory::choose(None, host.root()))
    }

    const MEMBER: (&str, &str) = ("proc/self/cgroup", "0::/c\n");

    #[test]
    fn the_default_budget_is_judged_by_what_is_available() {
        let with =
            |available: &str| format!("MemTotal:        8388608 kB\nMemAvailable:    {available} kB\n");
        let finding = judged(&[("proc/meminfo", &with("8000000"))]);
        assert_eq!(finding, Finding::ok("memory", "7.6G of 8G available; --memory is 4G (half of RAM 8G)"));
        let finding = judged(&[("proc/meminfo", &with("2097152"))]);
        assert!(finding.remedy.expect("a note").contains("Give --memory 1.9G or less"));
        let finding = judged(&[("proc/meminfo", &with("50000"))]);
        assert!(finding.remedy.expect("a note").contains("Make more memory available"));
    }

    #[test]
    fn limits_of_the_cgroup_count() {
        let meminfo = ("proc/meminfo", "MemTotal:        8388608 kB\nMemAvailable:    8000000 kB\n");
        let group = [
            meminfo,
            MEMBER,
            ("sys/fs/cgroup/c/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/c/memory.current", "536870912\n"),
            ("sys/fs/cgroup/c/memory.stat", "anon 1\ninactive_file 268435456\nactive_file 2\n"),
            // The top has no limit.
            ("sys/fs/cgroup/memory.stat", "anon 1\n"),
        ];
        let finding = judged(&group);
        let words = "available, 768M of 1G in the cgroup; --memory is 512M (half of the cgroup limit 1G)";
        assert!(finding.status == Status::Ok && finding.found.ends_with(words), "{finding:?}");
        let full = judged(&[&group[..], &[("sys/fs/cgroup/c/memory.stat", "inactive_file 0\n")]].concat());
        assert!(full.remedy.expect("a note").contains("ends programs. Give --memory 448M"));
        let slow = judged(&[&group[..], &[("sys/fs/cgroup/c/memory.high", "268435456\n")]].concat());
        assert!(slow.remedy.expect("a note").contains("memory.high of its cgroup. Give --memory 192M"));
        let finding = judged(&[meminfo, MEMBER, ("sys/fs/cgroup/c/memory.max", "33554432\n")]);
        assert!(
            finding.status == Status::Problem && finding.found.contains("give --memory at least 32M"),
            "{finding:?}"
        );
    }

    #[test]
    fn no_limit_in_version_1_is_none() {
        let meminfo = ("proc/meminfo", "MemTotal:        8388608 kB\nMemAvailable:    8000000 kB\n");
        let files = [
            meminfo,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 0\n"),
        ];
        assert!(!judged(&files).found.contains("cgroup"));
    }

    #[test]
    fn swap_is_a_note_unless_the_cgroup_has_none() {
        let meminfo = ("proc/meminfo", "SwapTotal:       2097152 kB\n");
        let swaps = (
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 100\n/swap.img file 1 0 -2\n",
        );
        let finding = swap(&host(&[meminfo, swaps]).0);
        assert_eq!((finding.status, finding.found.as_str()), (Status::Note, "2G (/dev/zram0, /swap.img)"));
        let finding = swap(&host(&[meminfo, swaps, MEMBER, ("sys/fs/cgroup/c/memory.swap.max", "0\n")]).0);
        assert!(
            finding.status == Status::Ok && finding.found.contains("none for this cgroup"),
            "{finding:?}"
        );
        let none = swap(&host(&[("proc/meminfo", "SwapTotal:   0 kB\n")]).0);
        assert_eq!(
            (none, swap(&host(&[]).0).found.as_str()),
            (Finding::ok("swap", "none: data stays in RAM"), "unknown")
        );
    }
}
