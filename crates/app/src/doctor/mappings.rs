//! How the system lets a server lock, map and share memory.

use rustix::fs::{MemfdFlags, memfd_create, statvfs};
use spillway_core::size::human;

use super::finding::Finding;
use super::host::{Host, sized};
use super::kernel::RINGS_UNLOCKED;
use crate::system::{CAP_IPC_LOCK, CAP_SYS_RESOURCE};

/// Bytes of a ring, which the kernel counts as locked memory before [`RINGS_UNLOCKED`].
const RING_BYTES: u64 = 256 << 10;

/// From which version on the kernel takes locked pages back.
const LOCKED_TAKEN_BACK: (u32, u32) = (5, 18);

/// Whether the rings of so many threads may be locked, where the kernel counts them.
pub(super) fn locked_memory(host: &Host, threads: usize) -> Finding {
    let limit = host.limit("Max locked memory");
    let found = format!("at most {} (ulimit -l)", sized(limit));
    if host.is_since(RINGS_UNLOCKED) || host.is_root() {
        return Finding::ok("locked memory", format!("{found}, of which a server needs none"));
    }
    let wanted = threads as u64 * RING_BYTES;
    let remedy = format!(
        "Before Linux 5.12 the rings of io_uring count as locked memory. Allow this user {} (ulimit -l, systemd LimitMEMLOCK=).",
        human(wanted)
    );
    let short = limit.is_some_and(|limit| limit.soft < wanted);
    Finding::new("locked memory", found, short.then_some(remedy))
}

/// Whether a server may lock all that it maps.
pub(super) fn locking(host: &Host) -> Finding {
    let limit = host.limit("Max locked memory");
    let may =
        host.has_capability("CapEff", CAP_IPC_LOCK) || limit.is_some_and(|limit| limit.hard == u64::MAX);
    let remedy = if !host.is_since(LOCKED_TAKEN_BACK) {
        Some("Only for --lock-memory, which swap on a device needs: Linux 5.18 or later.")
    } else {
        let limited = "Only for --lock-memory, which swap on a device needs: no limit (systemd LimitMEMLOCK=infinity, ulimit -l unlimited, docker \
                       --ulimit memlock=-1), or CAP_IPC_LOCK.";
        (!may).then_some(limited)
    };
    let found = if may { "all of a server's" } else { "a part of a server's" };
    Finding::new(
        "lock memory",
        format!("{found}; at most {} (ulimit -l)", sized(limit)),
        remedy.map(str::to_owned),
    )
}

/// Whether address space costs nothing.
pub(super) fn address_space(host: &Host) -> Finding {
    let mode = host.text("proc/sys/vm/overcommit_memory").unwrap_or_else(|| "unknown".to_owned());
    let limit = host.limit("Max address space");
    let remedy = if limit.is_some_and(|limit| limit.soft < u64::MAX) {
        Some(
            "A server maps more than it uses, and ends where a thread finds no room: ulimit -v unlimited. --memory limits what it uses."
                .to_owned(),
        )
    } else {
        (mode == "2").then(|| counted_mappings(host))
    };
    Finding::new(
        "address space",
        format!("{} (ulimit -v), vm.overcommit_memory is {mode}", sized(limit)),
        remedy,
    )
}

fn counted_mappings(host: &Host) -> String {
    let told = |field| host.memory(field).map_or("unknown".to_owned(), human);
    format!(
        "Mappings count as memory ({} of {} used), and a server maps more than it uses: large devices are refused, or requests fail. \
         sysctl vm.overcommit_memory=0.",
        told("Committed_AS"),
        told("CommitLimit")
    )
}

/// Whether the kernel gives more memory than is asked for.
pub(super) fn huge_pages(host: &Host) -> Finding {
    let chosen = |name: &str| {
        let text = host.text(&format!("sys/kernel/mm/transparent_hugepage/{name}"));
        text.and_then(|text| chosen(&text).map(str::to_owned)).unwrap_or_else(|| "unknown".to_owned())
    };
    let (enabled, shared) = (chosen("enabled"), chosen("shmem_enabled"));
    let slow = "Reads from page caches take longer. For them alone: echo madvise > \
                /sys/kernel/mm/transparent_hugepage/enabled.";
    let sparse = "Each 4 KiB of a sparse file on tmpfs takes up to 2 MiB of memory. For origins and caches there: \
                  echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled.";
    let remedies: Vec<&str> = [(enabled == "never").then_some(slow), (shared == "force").then_some(sparse)]
        .into_iter()
        .flatten()
        .collect();
    let found = format!("{enabled}, for page caches; {shared} in shared memory");
    Finding::new("huge pages", found, (!remedies.is_empty()).then(|| remedies.join(" ")))
}

/// The word in brackets of a list such as `always [madvise] never`.
fn chosen(list: &str) -> Option<&str> {
    Some(list.split_once('[')?.1.split_once(']')?.0)
}

/// Whether memory can be shared with virtual machine monitors.
pub(super) fn shared_memory(host: &Host) -> Finding {
    let made = memfd_create("spillway-doctor", MemfdFlags::CLOEXEC).map(drop);
    let size = statvfs(host.root().join("dev/shm")).map(|found| found.f_blocks * found.f_frsize);
    let shown = size.map_or("none".to_owned(), human);
    let found = match made {
        Ok(()) => format!("memfd works; /dev/shm is {shown}, for guests whose memory is a file there"),
        Err(why) => format!("memfd is refused ({why}); /dev/shm is {shown}"),
    };
    let remedy = "Only for --vhost-user: guests cannot share their memory, and requests in flight are lost with a server. Allow memfd_create \
                  in the seccomp profile.";
    Finding::new("shared memory", found, made.is_err().then(|| remedy.to_owned()))
}

/// Whether the kernel can be told that file systems depend on the server.
pub(super) fn reclaim(host: &Host) -> Finding {
    let remedy = "Only for file systems of this host on a device: short of memory, the kernel may wait for one of them while the server \
                  waits for memory, and the host hangs. Run the server with CAP_SYS_RESOURCE, or keep memory free.";
    let may = host.has_capability("CapEff", CAP_SYS_RESOURCE);
    let found = if may { "CAP_SYS_RESOURCE" } else { "no CAP_SYS_RESOURCE" };
    Finding::new("reclaim", found, (!may).then(|| remedy.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    #[test]
    fn rings_count_as_locked_memory_on_old_kernels_alone_and_not_for_root() {
        let limits = (
            "proc/self/limits",
            "Max locked memory         65536                65536                bytes     \n",
        );
        let user = |id: &str| format!("Uid:\t{id}\t{id}\t{id}\t{id}\n");
        for (release, id, status) in
            [("5.10.0", "1000", Status::Note), ("5.10.0", "0", Status::Ok), ("5.12.0", "1000", Status::Ok)]
        {
            let (user, release) = (user(id), ("proc/sys/kernel/osrelease", release));
            let finding = locked_memory(&host(&[limits, release, ("proc/self/status", &user)]).0, 5);
            assert_eq!(finding.status, status, "{finding:?}");
            assert!(finding.found.contains("64K"), "{finding:?}");
        }
    }

    #[test]
    fn memory_that_cannot_be_locked_is_a_note() {
        let found = |release, limit, capabilities| {
            let limits =
                format!("Max locked memory         8388608                {limit}            bytes     \n");
            let status = format!("CapEff:\t{capabilities}\n");
            let files = [
                ("proc/sys/kernel/osrelease", release),
                ("proc/self/limits", &*limits),
                ("proc/self/status", &*status),
            ];
            locking(&host(&files).0)
        };
        assert_eq!(found("6.1.0", "unlimited", "0000000000000000").status, Status::Ok);
        assert_eq!(found("6.1.0", "8388608", "0000000000004000").status, Status::Ok);
        let limited = found("6.1.0", "8388608", "0000000000000000");
        assert!(limited.remedy.expect("a note").contains("LimitMEMLOCK=infinity"));
        assert!(found("5.17.0", "unlimited", "0000000000000000").remedy.expect("a note").contains("5.18"));
    }

    #[test]
    fn address_space_that_counts_is_a_note() {
        let overcommit = |mode| ("proc/sys/vm/overcommit_memory", mode);
        let limits = |text| ("proc/self/limits", text);
        let free = limits("Max address space         unlimited            unlimited            bytes     \n");
        assert_eq!(address_space(&host(&[overcommit("1"), free]).0).status, Status::Ok);
        let meminfo = ("proc/meminfo", "CommitLimit:    2097152 kB\nCommitted_AS:   1048576 kB\n");
        let strict = address_space(&host(&[overcommit("2"), free, meminfo]).0);
        assert!(strict.remedy.expect("a note").contains("(1G of 2G used)"));
        let limited =
            limits("Max address space         4294967296           unlimited            bytes     \n");
        let limited = address_space(&host(&[overcommit("0"), limited]).0);
        assert!(
            limited.found.starts_with("4G")
                && limited.remedy.expect("a note").contains("ulimit -v unlimited")
        );
    }

    #[test]
    fn huge_pages_are_a_note_where_tmpfs_always_has_them_or_page_caches_have_none() {
        let (some, none) = ("always [madvise] never\n", "always madvise [never]\n");
        let (rare, forced) = (
            "always within_size advise [never] deny force\n",
            "always within_size advise never deny [force]\n",
        );
        let found = |enabled, shared| {
            let files = [
                ("sys/kernel/mm/transparent_hugepage/enabled", enabled),
                ("sys/kernel/mm/transparent_hugepage/shmem_enabled", shared),
            ];
            huge_pages(&host(&files).0)
        };
        let finding = found(some, rare);
        assert!(finding.status == Status::Ok && finding.found.starts_with("madvise,"), "{finding:?}");
        for (enabled, shared, words) in
            [(some, forced, "tmpfs"), (none, rare, "madvise"), (none, forced, "tmpfs")]
        {
            let finding = found(enabled, shared);
            assert_eq!(finding.status, Status::Note);
            assert!(finding.remedy.expect("a note").contains(words));
        }
        assert!(huge_pages(&host(&[]).0).found.starts_with("unknown,"));
    }

    #[test]
    fn this_host_shares_memory() {
        let finding = shared_memory(&Host::at(std::path::Path::new("/")));
        assert!(finding.status == Status::Ok && finding.found.starts_with("memfd works"), "{finding:?}");
    }

    #[test]
    fn file_systems_on_devices_need_a_capability() {
        assert_eq!(
            reclaim(&host(&[("proc/self/status", "CapEff:\t000001ffffffffff\n")]).0).status,
            Status::Ok
        );
        assert_eq!(
            reclaim(&host(&[("proc/self/status", "CapEff:\t00000000a80425fb\n")]).0).status,
            Status::Note
        );
    }
}
