//! What tells a file or block device from others, also after a restart and under another path.
//!
//! A file: its inode number and the time of its birth. A block device: what the system knows of the hardware, of the mapping or of
//! the file behind it; for a partition that of the whole disk, and its number. Nothing of these changes when the content does.

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, fstat, statx};

use crate::sysfs::link_of;

/// Where the system tells what a device is, the best first.
const NAMES: [&str; 5] = ["wwid", "device/wwid", "device/serial", "dm/uuid", "loop/backing_file"];

/// The identity, or `None` where there is nothing to tell it by.
pub(super) fn identity(fd: impl AsFd, block_device: bool) -> Option<NonZeroU64> {
    let text = if block_device { of_device(&link_of(fstat(fd).ok()?.st_rdev))? } else { of_file(fd)? };
    identity_of(&text)
}

/// The identity of what that text names, and nothing else does.
pub fn identity_of(text: &str) -> Option<NonZeroU64> {
    NonZeroU64::new(fnv1a(text.as_bytes()))
}

fn of_file(fd: impl AsFd) -> Option<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(fd, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let complete = StatxFlags::from_bits_retain(found.stx_mask).contains(wanted);
    complete.then(|| format!("file {} {} {}", found.stx_ino, found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}

fn of_device(node: &Path) -> Option<String> {
    let said = |node: &Path, name: &str| std::fs::read_to_string(node.join(name)).ok();
    let partition = said(node, "partition");
    // The folder of a partition lies in that of its disk; the link has to be followed first.
    let whole = std::fs::canonicalize(node).ok()?;
    let whole = if partition.is_some() { whole.parent()?.to_owned() } else { whole };
    let name = NAMES.iter().find_map(|name| said(&whole, name).filter(|text| !text.trim().is_empty()))?;
    Some(format!("device {} {}", name.trim(), partition.unwrap_or_default().trim()))
}

/// FNV-1a, 64 bits: the same in every version of this program.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_file_keeps_its_identity_and_a_copy_has_another() {
        let folder = std::env::temp_dir().join(format!("spillway-identity-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (first, second) = (folder.join("first"), folder.join("second"));
        std::fs::write(&first, "content").unwrap();
        std::fs::copy(&first, &second).unwrap();
        let of = |path: &Path| identity(std::fs::File::open(path).unwrap(), false);
        let before = of(&first);
        // Where a file system does not know when a file was born, no file has an identity.
        assert!(before.is_none() && of(&second).is_none() || of(&second) != before);
        std::fs::write(&first, "something else").unwrap();
        std::fs::rename(&first, folder.join("moved")).unwrap();
        assert_eq!(of(&folder.join("moved")), before);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_disk_and_its_partition_differ() {
        let folder = std::env::temp_dir().join(format!("spillway-sysfs-{}", std::process::id()));
        let (disk, part) = (folder.join("vda"), folder.join("vda/vda1"));
        std::fs::create_dir_all(disk.join("device")).unwrap();
        std::fs::create_dir_all(&part).unwrap();
        assert_eq!(of_device(&disk), None);
        std::fs::write(disk.join("device/serial"), "QM00001\n").unwrap();
        std::fs::write(part.join("partition"), "1\n").unwrap();
        assert_eq!(of_device(&disk).as_deref(), Some("device QM00001 "));
        assert_eq!(of_device(&part).as_deref(), Some("device QM00001 1"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
