//! How much memory a server may use: what was asked for, or half of what the machine and the cgroups allow.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use spillway_core::buffer::{LEN_MAX, Workspace};
use spillway_core::size::human;
use spillway_core::{Budget, Charge};
use spillway_export::nbd;
use spillway_io::BULK_LEN;

use crate::exit::Failure;
use crate::system::{bytes_of, cgroup};

/// Least budget in bytes: below it the buffers alone would not leave room for data.
pub(crate) const BUDGET_BYTES_MIN: u64 = 32 << 20;

const BUFFERS_BYTES_MIN: u64 = 16 << 20;
const BUFFERS_BYTES_MAX: u64 = 256 << 20;

/// The share of the budget for connections: one for each MiB of the budget, as long as there are fewer than 2048.
const CONNECTIONS_SHARE: u64 = 16;
const CONNECTIONS_BYTES_MAX: u64 = 128 << 20;

/// Taken where the system says nothing about its memory.
const FALLBACK_BYTES: u64 = 1 << 30;

/// A server's memory budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerMemory {
    /// The whole budget in bytes.
    pub(crate) bytes: u64,
    /// How it was chosen, for the start line.
    pub(crate) reason: String,
    /// The share in bytes that request buffers may take, charged up front.
    pub(crate) buffers: u64,
    /// The share in bytes for connections, charged up front.
    pub(crate) connections: u64,
}

impl ServerMemory {
    /// The budget `asked` for, or the default for the machine whose file systems are mounted below `root`.
    pub(crate) fn choose(asked: Option<u64>, root: &Path) -> Result<Self> {
        let ceiling = Ceiling::read(root);
        let (bytes, reason) = match asked {
            Some(bytes) => (bytes, "as given".to_owned()),
            None => (ceiling.bytes / 2, format!("half of {}", ceiling.describe())),
        };
        if bytes < BUDGET_BYTES_MIN {
            return Err(Failure::usage(format!(
                "a memory budget of {} ({reason}) is too small: give --memory at least {}",
                human(bytes),
                human(BUDGET_BYTES_MIN)
            ))
            .into());
        }
        if bytes > ceiling.bytes {
            tracing::warn!("the memory budget of {} is more than {}", human(bytes), ceiling.describe());
        }
        let buffers = (bytes / 8).clamp(BUFFERS_BYTES_MIN, BUFFERS_BYTES_MAX);
        let connections = (bytes / CONNECTIONS_SHARE).min(CONNECTIONS_BYTES_MAX);
        assert!(buffers + connections < bytes, "{buffers} and {connections} bytes leave none of {bytes}");
        Ok(Self { bytes, reason, buffers, connections })
    }

    /// The part of the buffers for receives of much at once: an eighth, for at most two on each worker.
    pub(crate) fn bulk(&self, workers: usize) -> Workspace {
        let most = (2 * workers * BULK_LEN).min(LEN_MAX);
        let bytes = (self.buffers as usize / 8).clamp(BULK_LEN, most) / BULK_LEN * BULK_LEN;
        let charged = Budget::new(bytes as u64);
        Workspace::new("large receives", &charged, bytes).expect("the budget is as large")
    }

    /// Limits of one client: its longest payload and what it may hold are a quarter of all buffers at most, so that a
    /// payload of the advertised length always finds room and no client takes all of it.
    pub(crate) fn session_limits(&self) -> nbd::Config {
        let share = self.buffers / 4;
        let most = nbd::Config::default();
        nbd::Config {
            payload_len_max: most.payload_len_max.min(u32::try_from(share).unwrap_or(u32::MAX)),
            held_bytes_max: most.held_bytes_max.min(usize::try_from(share).unwrap_or(usize::MAX)),
            ..most
        }
    }

    /// Charges the shares of buffers and of connections.
    pub(crate) fn charge(&self, budget: &Arc<Budget>) -> Result<[Charge; 2]> {
        let hold = |bytes| {
            budget.hold(bytes).map_err(|kind| {
                anyhow::anyhow!("a budget of {} bytes has no room for buffers ({kind:?})", budget.limit())
            })
        };
        Ok([hold(self.buffers)?, hold(self.connections)?])
    }

    /// Connections that may be open at a time, of so many bytes each.
    pub(crate) fn connections_max(&self, each: u64) -> usize {
        (self.connections / each) as usize
    }
}

/// The most that this process could use.
struct Ceiling {
    bytes: u64,
    source: &'static str,
}

impl Ceiling {
    fn read(root: &Path) -> Self {
        let ram = ram_bytes(root).map(|bytes| Self { bytes, source: "RAM" });
        let cgroup = cgroup_bytes(root).map(|bytes| Self { bytes, source: "the cgroup limit" });
        let known = ram.into_iter().chain(cgroup).min_by_key(|ceiling| ceiling.bytes);
        known.unwrap_or(Self { bytes: FALLBACK_BYTES, source: "an assumed" })
    }

    fn describe(&self) -> String {
        format!("{} {}", self.source, human(self.bytes))
    }
}

fn ram_bytes(root: &Path) -> Option<u64> {
    bytes_of(&fs::read_to_string(root.join("proc/meminfo")).ok()?, "MemTotal")
}

/// The least memory limit of the cgroups that hold this process, of either version.
fn cgroup_bytes(root: &Path) -> Option<u64> {
    let limits = cgroup::unified(root, "memory.max");
    let limits = limits.into_iter().chain(cgroup::legacy(root, "memory", "memory.limit_in_bytes"));
    limits.filter_map(|limit| limit.parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn machine(files: &[(&str, &str)]) -> Scratch {
        let root = Scratch::new("memory");
        for (path, text) in files {
            root.write(path, text);
        }
        root
    }

    const RAM: (&str, &str) = ("proc/meminfo", "MemTotal:        4194304 kB\nMemFree: 1 kB\n");

    #[test]
    fn half_of_ram_without_cgroups() {
        let memory = ServerMemory::choose(None, machine(&[RAM]).path()).unwrap();
        assert_eq!((memory.bytes, memory.reason.as_str()), (2 << 30, "half of RAM 4G"));
        assert_eq!(memory.buffers, 256 << 20);
    }

    #[test]
    fn the_least_limit_up_the_tree_counts() {
        let root = machine(&[
            RAM,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        let memory = ServerMemory::choose(None, root.path()).unwrap();
        assert_eq!((memory.bytes, memory.reason.as_str()), (1 << 29, "half of the cgroup limit 1G"));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_top() {
        let root = machine(&[
            RAM,
            ("proc/self/cgroup", "5:cpu:/x\n4:memory,hugetlb:/outside/container\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ]);
        assert_eq!(ServerMemory::choose(None, root.path()).unwrap().bytes, 256 << 20);
    }

    #[test]
    fn no_limit_in_version_1_is_a_huge_number() {
        let root = machine(&[
            RAM,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(ServerMemory::choose(None, root.path()).unwrap().reason, "half of RAM 4G");
    }

    #[test]
    fn what_was_asked_for_is_taken_or_refused() {
        let root = machine(&[RAM]);
        let memory = ServerMemory::choose(Some(64 << 20), root.path()).unwrap();
        assert_eq!(
            (memory.bytes, memory.buffers, memory.connections_max(nbd::CONNECTION_BYTES)),
            (64 << 20, 16 << 20, 64)
        );
        let memory = ServerMemory::choose(Some(128 << 20), root.path()).unwrap();
        assert_eq!(memory.connections_max(nbd::CONNECTION_BYTES), 128);
        let memory = ServerMemory::choose(Some(3 << 30), root.path()).unwrap();
        assert_eq!((memory.buffers, memory.connections_max(nbd::CONNECTION_BYTES)), (256 << 20, 2048));
        let error = ServerMemory::choose(Some(1 << 20), root.path()).unwrap_err().to_string();
        assert!(error.contains("1M") && error.contains("at least 32M"), "{error}");
    }

    #[test]
    fn a_system_that_says_nothing_gets_a_modest_budget() {
        assert_eq!(ServerMemory::choose(None, machine(&[]).path()).unwrap().bytes, FALLBACK_BYTES / 2);
    }
}
