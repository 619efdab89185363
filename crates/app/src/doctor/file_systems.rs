//! What the type of a file system, and the room in it, mean for the files of a device.

use spillway_core::size::human;

use super::finding::Finding;

/// Bytes below which there is little room.
const LITTLE_BYTES: u64 = 1 << 30;

/// Types by how the kernel's names for them begin, and their effects.
const EFFECTS: [(&[&str], &str); 4] = [
    (
        &["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"],
        "It is memory, which --memory does not count, and its files are gone after a restart of the host. A spill file or a cache here saves \
         nothing: name a path on a disk.",
    ),
    (
        &["overlay", "aufs"],
        "A file of a lower layer is copied as a whole before its first write, and files are gone with the container. Name a path on a volume \
         (docker -v, a Kubernetes volume).",
    ),
    (
        &["btrfs", "bcachefs", "zfs"],
        "Copy-on-write: random writes fragment a file and write more than they change. Use a block device, or on Btrfs an empty folder with \
         chattr +C.",
    ),
    (
        &["nfs", "cifs", "smb", "9p", "ceph", "fuse", "virtiofs", "lustre", "glusterfs"],
        "Another host or program serves it: requests wait while that does not answer, and it may not see locks of other hosts. For a cache or \
         a spill file name a local disk.",
    ),
];

/// What to know of a file system of that type.
pub(super) fn effect(kind: &str) -> Option<&'static str> {
    // A block device below `fuseblk` is local, but its program is not the kernel's either.
    EFFECTS
        .iter()
        .find(|(kinds, _)| kinds.iter().any(|known| kind.starts_with(known)))
        .map(|(_, effect)| *effect)
}

/// Whether there is room: of the file system, and for the holes of a file in it.
pub(super) fn room(free: u64, all: u64, holes: u64) -> Finding {
    if all == 0 {
        return Finding::ok("room", "unknown");
    }
    let found = format!("{} of {} free", human(free), human(all));
    let remedy = if holes > free {
        format!(
            "The file is sparse: it stores {} more at most, and writes fail (ENOSPC) once the file system is full. Make room, or allocate \
             it (fallocate).",
            human(holes)
        )
    } else if free < LITTLE_BYTES {
        "Writes fail (ENOSPC) once it is full. Make room, or name another path.".to_owned()
    } else {
        String::new()
    };
    Finding::new("room", found, (!remedy.is_empty()).then_some(remedy))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn types_of_file_systems_have_their_effects() {
        for (kind, words) in [
            ("tmpfs", "It is memory"),
            ("ramfs", "It is memory"),
            ("overlay", "on a volume"),
            ("btrfs", "chattr +C"),
            ("nfs4", "Another host"),
            ("fuse.sshfs", "Another host"),
            ("9p", "Another host"),
        ] {
            assert!(effect(kind).expect(kind).contains(words), "{kind}");
        }
        assert!(["ext4", "xfs", "f2fs", "unknown"].iter().all(|kind| effect(kind).is_none()));
    }

    #[test]
    fn room_is_judged_by_what_is_free_and_what_a_file_may_still_store() {
        assert_eq!(room(0, 0, 0), Finding::ok("room", "unknown"));
        assert_eq!(room(4 << 30, 8 << 30, 0), Finding::ok("room", "4G of 8G free"));
        assert_eq!(room(4 << 30, 8 << 30, 4 << 30).status, Status::Ok);
        let sparse = room(4 << 30, 8 << 30, 5 << 30);
        assert!(sparse.remedy.expect("a note").contains("5G more"));
        assert!(room(1 << 20, 8 << 30, 0).remedy.expect("a note").contains("Make room"));
    }
}
