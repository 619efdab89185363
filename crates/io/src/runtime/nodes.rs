//! The machine's NUMA nodes, as the kernel shows them.

use std::fs;
use std::path::Path;

/// Bytes of memory of each NUMA node, by its number; none where the kernel shows none.
pub fn memory_nodes() -> Vec<u64> {
    nodes_in(Path::new("/sys/devices/system/node"))
}

fn nodes_in(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<(u32, u64)> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let text = fs::read_to_string(entry.path().join("meminfo")).ok()?;
            Some((number, memory(&text)?))
        })
        .collect();
    nodes.sort_unstable();
    // A node without memory of its own has processors only.
    nodes.into_iter().map(|(_, bytes)| bytes).filter(|bytes| *bytes > 0).collect()
}

/// All memory of a node, from lines like `Node 0 MemTotal:  24681012 kB`.
fn memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_memory_are_found_in_their_order() {
        let folder = std::env::temp_dir().join(format!("spillway-nodes-{}", std::process::id()));
        let node = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(&path)
                .and_then(|()| fs::write(path.join("meminfo"), text))
                .expect("it is made");
        };
        node("node10", "Node 10 MemTotal:       4 kB\nNode 10 MemFree: 1 kB\n");
        node("node2", "\nNode 2 MemTotal:       16 kB\n");
        node("node3", "Node 3 MemTotal:       0 kB\n");
        node("node4", "Node 4 MemFree:       9 kB\n");
        node("possible", "0-10");
        let found = nodes_in(&folder);
        fs::remove_dir_all(&folder).expect("it was made");
        assert_eq!(found, [16384, 4096]);
        assert_eq!(nodes_in(Path::new("/nowhere")), [0; 0]);
    }

    #[test]
    fn this_machine_has_one_or_more() {
        assert!(memory_nodes().iter().all(|bytes| *bytes > 0));
    }
}
