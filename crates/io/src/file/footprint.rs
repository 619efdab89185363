//! Which bytes of which file or disk a path stands on, to see that two paths are not the same storage, and that no loop device uses it.
//!
//! Links and other nodes of a device lead to the same inode or device number. A partition is a range of its disk. A loop device
//! is a disk of its own and a range of the file behind it. A path where nothing is yet is a name in a folder. What other devices are made of is not followed: their parts are
//! claimed by the system, so that opening them is refused.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::fuse::{LoopBacking, LoopDevice, file_shown_in, is_away, loop_devices};
use crate::sysfs::{device_number, in_sysfs, link_of, number_in};

/// What a path stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint(Vec<Stretch>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    ground: Ground,
    bytes: Range<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ground {
    /// Device and number of the inode.
    File(u64, u64),
    /// Device number of a whole disk.
    Disk(u64),
    /// Device and number of the folder's inode, and a name that is not in it.
    Missing(u64, u64, OsString),
}

const SECTOR: u64 = 512;

impl Footprint {
    /// That of a file or block device, or of a file that may be made there; `None` where there can be none, or it is something else.
    pub fn of(path: &Path) -> Option<Self> {
        let found = match fs::metadata(path) {
            Err(why) if why.kind() == ErrorKind::NotFound => return missing(path).map(|one| Self(vec![one])),
            found => found.ok()?,
        };
        match FileType::from_raw_mode(found.mode()) {
            FileType::RegularFile => Some(Self(vec![file((found.dev(), found.ino()), 0..u64::MAX)])),
            FileType::BlockDevice => Some(Self(of_device(found.rdev(), 0..u64::MAX))),
            _ => None,
        }
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|one| other.0.iter().any(|other| one.overlaps(other)))
    }

    fn is_of_disk(&self, disk: u64) -> bool {
        self.0.iter().any(|stretch| stretch.ground == Ground::Disk(disk))
    }
}

impl Stretch {
    fn overlaps(&self, other: &Self) -> bool {
        let (one, other_bytes) = (&self.bytes, &other.bytes);
        self.ground == other.ground && one.start < other_bytes.end && other_bytes.start < one.end
    }
}

fn file((device, number): (u64, u64), bytes: Range<u64>) -> Stretch {
    Stretch { ground: Ground::File(device, number), bytes }
}

fn missing(path: &Path) -> Option<Stretch> {
    let path = std::path::absolute(path).ok()?;
    let folder = fs::metadata(path.parent()?).ok()?;
    let ground = Ground::Missing(folder.dev(), folder.ino(), path.file_name()?.to_owned());
    Some(Stretch { ground, bytes: 0..u64::MAX })
}

fn of_device(device: u64, bytes: Range<u64>) -> Vec<Stretch> {
    let link = link_of(device);
    let node = fs::canonicalize(&link).unwrap_or(link);
    device_stretches(device, &node, bytes)
}

/// What some bytes of a device stand on, as the system tells at `node`. Where it tells nothing, the device is a disk of its own.
fn device_stretches(device: u64, node: &Path, bytes: Range<u64>) -> Vec<Stretch> {
    let (disk, folder, bytes) = match partition(node) {
        Some((disk, folder, whole)) => (disk, folder, part_of(&bytes, whole.start, whole.end)),
        None => (device, node.to_owned(), bytes),
    };
    let behind = behind_loop(disk, &folder, &bytes);
    [vec![Stretch { ground: Ground::Disk(disk), bytes }], behind].concat()
}

/// `bytes` of something that begins at `start` of something else and ends at `end`.
fn part_of(bytes: &Range<u64>, start: u64, end: u64) -> Range<u64> {
    let at = |offset: u64| start.saturating_add(offset).min(end);
    let part = at(bytes.start)..at(bytes.end);
    assert!(part.start <= part.end, "bytes that overlap nothing: {bytes:?} of {start}..{end}");
    part
}

/// The disk of a partition, where the system tells of it, and the partition's bytes.
fn partition(node: &Path) -> Option<(u64, PathBuf, Range<u64>)> {
    number_in(&node.join("partition"))?;
    let folder = node.parent()?.to_owned();
    let disk = device_number(&folder)?;
    let (start, len) = (number_in(&node.join("start"))?, number_in(&node.join("size"))?);
    let start = start.checked_mul(SECTOR)?;
    Some((disk, folder, start..start.checked_add(len.checked_mul(SECTOR)?)?))
}

/// The bytes of the file or device behind a loop device that `bytes` of the loop device are.
fn behind_loop(device: u64, folder: &Path, bytes: &Range<u64>) -> Vec<Stretch> {
    let Some(path) = file_shown_in(folder) else { return Vec::new() };
    let backing = backing_told(device, folder).or_else(|| backing_at(&path));
    let Some(LoopBacking { inode, rdevice }) = backing else { return Vec::new() };
    let folder = folder.join("loop");
    let offset = number_in(&folder.join("offset")).unwrap_or(0);
    let limit = number_in(&folder.join("sizelimit")).filter(|&limit| limit > 0).unwrap_or(u64::MAX);
    let bytes = part_of(bytes, offset, offset.saturating_add(limit));
    if rdevice == 0 { vec![file(inode, bytes)] } else { of_device(rdevice, bytes) }
}

/// What the driver says of a loop device; `None` for who may not ask.
fn backing_told(device: u64, folder: &Path) -> Option<LoopBacking> {
    let opened = LoopDevice::open_to_read(&Path::new("/dev").join(folder.file_name()?)).ok()?;
    (opened.number().ok()? == device).then(|| opened.backing().ok())?
}

/// The same by the path that the kernel shows to all. It may lead elsewhere in another mount namespace.
fn backing_at(path: &Path) -> Option<LoopBacking> {
    let found = fs::metadata(path).ok()?;
    Some(LoopBacking { inode: (found.dev(), found.ino()), rdevice: found.rdev() })
}

/// A loop device that stands on what is open, other than the one that it is itself. Readers share with one that is read-only.
pub(super) fn loop_over(fd: BorrowedFd<'_>, read_only: bool) -> Option<PathBuf> {
    let opened = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let (found, own) = (fs::metadata(&opened).ok()?, Footprint::of(&opened)?);
    // The file system of another file may hang.
    let devices = loop_devices().into_iter().filter(|(_, file)| !is_away(file, found.dev()));
    devices.map(|(device, _)| device).find(|device| {
        let folder = in_sysfs(device);
        let Some(device) = device_number(&folder) else { return false };
        let shares = read_only && number_in(&folder.join("ro")) == Some(1);
        !shares
            && !own.is_of_disk(device)
            && Footprint(behind_loop(device, &folder, &(0..u64::MAX))).overlaps(&own)
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("spillway-footprint-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn links_stand_on_their_file() {
        let folder = folder("links");
        let path = |name: &str| folder.join(name);
        fs::write(path("one"), "").unwrap();
        fs::write(path("two"), "").unwrap();
        fs::hard_link(path("one"), path("hard")).unwrap();
        std::os::unix::fs::symlink("hard", path("soft")).unwrap();
        let of = |name: &str| Footprint::of(&path(name)).expect("it exists");
        for (name, same) in [("one", true), ("hard", true), ("soft", true), ("two", false)] {
            assert_eq!(of(name).overlaps(&of("one")), same, "{name}");
        }
        assert_eq!(Footprint::of(&folder), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_path_where_nothing_is_yet_is_a_name_in_its_folder() {
        let folder = folder("missing");
        for name in ["one", "two"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("one", folder.join("link")).unwrap();
        let of = |path: &str| Footprint::of(&folder.join(path)).expect("a file may be made there");
        let same = ["one/new", "./one//new", "two/../one/new", "link/new", "link/../one/./new"];
        for (path, same) in
            same.map(|path| (path, true)).into_iter().chain([("one/other", false), ("two/new", false)])
        {
            assert_eq!(of(path).overlaps(&of("one/new")), same, "{path}");
        }
        fs::write(folder.join("one/file"), "").unwrap();
        assert!(!of("one/file").overlaps(&of("one/new")));
        for path in ["none/new", "one/file/new", "one/none/.."] {
            assert_eq!(Footprint::of(&folder.join(path)), None, "{path}");
        }
        let below_here = Path::new("no-such-file-here");
        let whole = std::env::current_dir().unwrap().join(below_here);
        assert!(Footprint::of(below_here).unwrap().overlaps(&Footprint::of(&whole).unwrap()));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A disk 8:0 with two partitions, and a loop device over a file, as sysfs shows them.
    #[test]
    fn disks_partitions_and_loops_are_told_apart_by_their_bytes() {
        let folder = folder("disks");
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sda/dev", "8:0\n");
        for (name, number, start) in [("sda/sda1", "1\n", "2048\n"), ("sda/sda2", "2\n", "4096\n")] {
            write(&format!("{name}/partition"), number);
            write(&format!("{name}/start"), start);
            write(&format!("{name}/size"), "2048\n");
        }
        let image = folder.join("image");
        fs::write(&image, "").unwrap();
        write("loop0/loop/backing_file", &format!("{}\n", image.display()));
        write("loop0/loop/offset", "0\n");
        write("loop0/loop/sizelimit", "4096\n");
        write("loop1/loop/backing_file", &format!("{}\n", image.display()));
        write("loop1/loop/offset", "4096\n");
        write("loop1/loop/sizelimit", "0\n");
        let device = |name: &str, minor| {
            Footprint(device_stretches(makedev(8, minor), &folder.join(name), 0..u64::MAX))
        };
        let (disk, first, second) = (device("sda", 0), device("sda/sda1", 1), device("sda/sda2", 2));
        assert!(disk.overlaps(&first) && second.overlaps(&disk) && first.overlaps(&first));
        assert!(!first.overlaps(&second), "they are neighbours");
        let (low, high) = (device("loop0", 16), device("loop1", 17));
        let whole = Footprint::of(&image).expect("it exists");
        assert!(low.overlaps(&whole) && whole.overlaps(&high) && !low.overlaps(&high));
        assert!(!low.overlaps(&disk) && device("unknown", 16).overlaps(&low));
        fs::remove_dir_all(&folder).unwrap();
    }
}
