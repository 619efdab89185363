//! A block device, as the kernel describes it in sysfs (Documentation/ABI/stable/sysfs-block).

use std::path::PathBuf;

use rustix::fs::{major, minor};
use spillway_core::size::human;

use super::finding::Finding;
use super::host::Host;

/// The folder of a device, and that of its queue; a partition has the queue of its disk.
pub(super) struct QueueFolder<'a> {
    host: &'a Host,
    node: PathBuf,
    queue: PathBuf,
}

impl<'a> QueueFolder<'a> {
    /// That of a device by its number; `None` where the kernel has none, as for file systems of several disks or none.
    pub(super) fn of(host: &'a Host, device: u64) -> Option<Self> {
        let node = PathBuf::from(format!("sys/dev/block/{}:{}", major(device), minor(device)));
        let queues = [node.join("queue"), node.join("../queue")];
        let queue = queues.into_iter().find(|queue| host.root().join(queue).is_dir())?;
        Some(Self { host, node, queue })
    }

    fn text(&self, name: &str) -> Option<String> {
        self.host.text(self.queue.join(name).to_str()?)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Whether the kernel forbids to write it.
    pub(super) fn is_read_only(&self) -> bool {
        self.node.join("ro").to_str().and_then(|path| self.host.text(path)).as_deref() == Some("1")
    }

    /// What matters of a device that is served, or below the file system of one that is.
    pub(super) fn medium(&self) -> [Finding; 2] {
        let zones = self.text("zoned").filter(|zones| zones == "host-managed");
        let (found, remedy) = match self.number("rotational") {
            _ if zones.is_some() => {
                ("host-managed zones", Some("It takes writes in sequence only: use another device."))
            }
            Some(1) => (
                "rotational",
                Some(
                    "Fit for an origin. A cache or a spill file needs an SSD. Virtual disks may call themselves rotational without being it.",
                ),
            ),
            Some(0) => ("not rotational", None),
            _ => ("unknown", None),
        };
        let volatile = self.text("write_cache").unwrap_or_else(|| "unknown".to_owned());
        let meaning = match volatile.as_str() {
            "write back" => ": each flush has the device write it to its medium",
            "write through" => ": flushes cost nothing",
            _ => "",
        };
        [
            Finding::new("medium", found, remedy.map(str::to_owned)),
            Finding::ok("write cache", format!("{volatile}{meaning}")),
        ]
    }

    /// What matters of a device alone.
    pub(super) fn device(&self) -> [Finding; 2] {
        let told = |name| self.number(name).map_or("unknown".to_owned(), |bytes| bytes.to_string());
        let blocks =
            format!("{} logical, {} physical", told("logical_block_size"), told("physical_block_size"));
        let discard = match self.number("discard_max_bytes").filter(|bytes| *bytes > 0) {
            Some(bytes) => Finding::ok("discard", format!("supported, up to {} at once", human(bytes))),
            None => {
                let remedy = "Discards of clients are not offered, and space that they no longer use is not freed on this device.";
                Finding::note("discard", "not supported", remedy)
            }
        };
        [Finding::ok("blocks", blocks), discard]
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    const DISK: [(&str, &str); 6] = [
        ("devices/sda/queue/rotational", "1\n"),
        ("devices/sda/queue/write_cache", "write back\n"),
        ("devices/sda/queue/discard_max_bytes", "0\n"),
        ("devices/sda/queue/logical_block_size", "512\n"),
        ("devices/sda/queue/physical_block_size", "4096\n"),
        ("devices/sda/sda1/ro", "1\n"),
    ];

    #[test]
    fn a_partition_has_the_queue_of_its_disk() {
        let (host, root) = host(&DISK);
        root.write("sys/dev/block/x", "");
        symlink(root.path().join("devices/sda/sda1"), root.path().join("sys/dev/block/8:1")).unwrap();
        let queue = QueueFolder::of(&host, makedev(8, 1)).expect("it is there");
        let [medium, write_cache] = queue.medium();
        assert_eq!((medium.status, medium.found.as_str()), (Status::Note, "rotational"));
        assert!(write_cache.found.starts_with("write back: each flush"), "{write_cache:?}");
        let [blocks, discard] = queue.device();
        assert_eq!((blocks.found.as_str(), discard.status), ("512 logical, 4096 physical", Status::Note));
        assert!(queue.is_read_only());
        assert!(QueueFolder::of(&host, makedev(0, 40)).is_none(), "a file system without a disk");
    }

    #[test]
    fn a_disk_that_is_good_has_no_notes() {
        let (host, _root) = host(&[
            ("sys/dev/block/259:0/queue/rotational", "0\n"),
            ("sys/dev/block/259:0/queue/write_cache", "write through\n"),
            ("sys/dev/block/259:0/queue/discard_max_bytes", "2199023255552\n"),
            ("sys/dev/block/259:0/queue/zoned", "none\n"),
            ("sys/dev/block/259:0/ro", "0\n"),
        ]);
        let queue = QueueFolder::of(&host, makedev(259, 0)).expect("it is there");
        let all = [queue.medium(), queue.device()].concat();
        assert!(all.iter().all(|finding| finding.status == Status::Ok), "{all:?}");
        assert!(all[3].found.contains("up to 2T") && !queue.is_read_only(), "{all:?}");
    }

    #[test]
    fn zones_that_the_host_manages_are_told() {
        let files = [
            ("sys/dev/block/8:16/queue/zoned", "host-managed\n"),
            ("sys/dev/block/8:16/queue/rotational", "1\n"),
        ];
        let (host, _root) = host(&files);
        let [medium, write_cache] = QueueFolder::of(&host, makedev(8, 16)).expect("it is there").medium();
        assert_eq!((medium.found.as_str(), write_cache.found.as_str()), ("host-managed zones", "unknown"));
    }
}
