//! What is mounted where, as the kernel lists it, and which loop devices stand on files below a folder.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open, syncfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::loop_device::loop_devices;
use crate::processes::look_at_others;
use crate::sysfs::{device_number, in_sysfs, numbers};

/// Where the file system of the block device at `device` is mounted, for words to people.
pub fn places_of(device: &Path) -> Vec<PathBuf> {
    let number = number_of(device).unwrap_or(0);
    let mounts = entries().into_iter().filter(|entry| entry.is_of(number, device));
    mounts.map(|entry| entry.place).collect()
}

/// The number of a block device; by sysfs where its node is not seen from here, as by a service with devices of its own.
fn number_of(device: &Path) -> Option<u64> {
    fs::metadata(device).map_or_else(|_| device_number(&in_sysfs(device)), |found| Some(found.rdev()))
}

/// Where something is mounted below `place`, which itself is not among them; asks nothing of the file systems there.
pub fn mounts_below(place: &Path) -> Vec<PathBuf> {
    let places = entries().into_iter().map(|entry| entry.place);
    places.filter(|below| below.starts_with(place) && below != place).collect()
}

/// Types of file systems that other programs or hosts serve, by how their names begin.
const AWAY: [&str; 6] = ["fuse", "nfs", "cifs", "smb", "9p", "ceph"];

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// Number of the mount. Another one may get it as soon as this one is gone.
    pub(super) id: u64,
    /// Number of the mount that it lies on.
    pub(super) parent: u64,
    /// Numbers of the file system's device, the same wherever it is mounted.
    pub(super) device: String,
    /// Where.
    pub(super) place: PathBuf,
    /// The file system's type.
    pub(super) kind: String,
    /// What is mounted; a device for file systems that lie on one.
    pub(super) source: PathBuf,
    /// User who made it, as the kernel says of FUSE mounts.
    pub(super) user: Option<u32>,
}

impl MountEntry {
    /// Whether it is that of the file system on a block device. The text that a mount has for its source is anybody's; its device is not.
    fn is_of(&self, number: u64, device: &Path) -> bool {
        // The file systems of Btrfs have numbers of their own, and nobody but root makes them.
        self.device == numbers(number) || (self.kind == "btrfs" && self.source == device)
    }
}

/// The mounts that this process sees, in the order in which they were made; empty where the kernel does not say.
pub(super) fn entries() -> Vec<MountEntry> {
    entries_of(Path::new("/proc/self"))
}

/// The mounts that a process sees, by its folder in `/proc`.
fn entries_of(process: &Path) -> Vec<MountEntry> {
    let table = fs::read(process.join("mountinfo")).unwrap_or_default();
    table.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

/// A line is `ID PARENT DEVICE ROOT PLACE OPTIONS [TAG...] - KIND SOURCE OPTIONS` (man 5 proc_pid_mountinfo).
fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|&byte| byte == b' ');
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let path = |word: &[u8]| PathBuf::from(OsString::from_vec(unescaped(word)));
    let id = text(words.next()?).parse().ok()?;
    let parent = text(words.next()?).parse().ok()?;
    let device = text(words.next()?);
    let place = path(words.nth(1)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source, options) = (text(words.next()?), path(words.next()?), text(words.next()?));
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry { id, parent, device, place, kind, source, user })
}

/// The mount that a path leads to, whatever it hides; asks nothing of the file system there.
pub(super) fn mount_at(place: &Path) -> Option<MountEntry> {
    mount_of(&open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?)
}

/// The type of the file system that a path leads into, as the kernel lists it, such as `ext4` or `fuse.sshfs`; `None` where it is not listed.
pub fn file_system_at(path: &Path) -> Option<String> {
    mount_at(path).map(|mount| mount.kind)
}

/// The mount that an open file lies in.
pub(super) fn mount_of(fd: &OwnedFd) -> Option<MountEntry> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()?;
    entries().into_iter().find(|entry: &MountEntry| entry.id == id)
}

/// A place where a file system is mounted too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The path, as the process below sees it.
    pub place: PathBuf,
    /// A process that sees it, where this one does not.
    pub process: Option<u32>,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            None => self.place.display().fmt(f),
            Some(id) => write!(f, "{} (in the mount namespace of process {id})", self.place.display()),
        }
    }
}

/// Where the file system of `mount` is mounted besides, in each mount namespace of a process that this one may look at.
pub(super) fn bound_elsewhere(mount: &MountEntry) -> Vec<Bound> {
    let mut found: Vec<Bound> = Vec::new();
    for (process, entries) in namespaces() {
        let others = entries.into_iter().filter(|entry| entry.device == mount.device && entry.id != mount.id);
        found.extend(others.map(|entry| Bound { place: entry.place, process }));
    }
    found
}

/// What is mounted in this mount namespace, and in each other one by a process that lives there.
fn namespaces() -> Vec<(Option<u32>, Vec<MountEntry>)> {
    let namespace_of = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut known: Vec<_> = namespace_of(Path::new("/proc/self")).into_iter().collect();
    let mut found = vec![(None, entries())];
    let folder_of = |process: u32| PathBuf::from(format!("/proc/{process}"));
    for (process, namespace) in look_at_others(move |process| namespace_of(&folder_of(process))) {
        if !known.contains(&namespace) {
            known.push(namespace);
            found.push((Some(process), entries_of(&folder_of(process))));
        }
    }
    found
}

/// A place where something is mounted.
pub struct MountPoint(MountEntry);

impl MountPoint {
    /// Where `device` is mounted, the last mount first.
    pub fn all_of(device: &Path, number: u64) -> Vec<Self> {
        entries().into_iter().rev().filter(|entry| entry.is_of(number, device)).map(Self).collect()
    }

    /// The path.
    pub fn place(&self) -> &Path {
        &self.0.place
    }

    /// Has the kernel write what it keeps of it, unless it is in use, or something is mounted over it. The error is one of
    /// writing that nobody was told of before (syncfs(2)).
    pub fn write_back(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = self.here().and_then(|(_folder, place)| {
            // It is not unmounted by that (umount2(2)): what is opened next forgets that it was to expire.
            match unmount(&place, UnmountFlags::NOFOLLOW | UnmountFlags::EXPIRE) {
                Err(Errno::AGAIN) => Ok(open(&place, flags, Mode::empty())?),
                _ => Err(Errno::BUSY.into()),
            }
        });
        opened.map_or(Ok(()), |file| Ok(syncfs(file)?))
    }

    /// Unmounts it, and nothing else: who owns a folder above may put a link in its place. `EBUSY` while it is in use, or something
    /// is mounted over it; `ENOENT` where the path leads elsewhere.
    pub fn unmount(&self) -> io::Result<()> {
        let (_folder, place) = self.here()?;
        Ok(unmount(&place, UnmountFlags::NOFOLLOW)?)
    }

    /// The way to it by the folder that it lies in, which is open.
    fn here(&self) -> io::Result<(OwnedFd, PathBuf)> {
        let (Some(folder), Some(name)) = (self.0.place.parent(), self.0.place.file_name()) else {
            return Err(Errno::BUSY.into());
        };
        let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let place = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        match mount_at(&place) {
            Some(found) if found.id == self.0.id => Ok((folder, place)),
            Some(found) if found.parent == self.0.id => Err(Errno::BUSY.into()),
            _ => Err(Errno::NOENT.into()),
        }
    }
}

/// Whether a path leads to a file system that answers from elsewhere, and so may never, and that is not the one of number `device`. Asks
/// nothing of it.
pub(crate) fn is_away(path: &Path, device: u64) -> bool {
    let own = numbers(device);
    let mounts = entries().into_iter().filter(|entry| path.starts_with(&entry.place));
    // The last of those that lie deepest hides the others.
    let mount = mounts.max_by_key(|entry| entry.place.as_os_str().len());
    mount.is_some_and(|mount| mount.device != own && AWAY.iter().any(|kind| mount.kind.starts_with(kind)))
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, more)) = rest.split_first() {
        let octal =
            more.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(digits) => {
                let value = digits.iter().fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
                plain.push(value as u8);
                rest = &more[3..];
            }
            None => {
                plain.push(first);
                rest = more;
            }
        }
    }
    plain
}

/// Loop devices over files below `folder`, by the names that the files had when the devices were set up.
pub fn loop_devices_below(folder: &Path) -> Vec<PathBuf> {
    let below = |(device, file): (PathBuf, PathBuf)| file.starts_with(folder).then_some(device);
    loop_devices().into_iter().filter_map(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood_with_and_without_tags() {
        let plain = b"36 35 98:0 /root /mnt2 rw,noatime - ext3 /dev/root rw,errors=continue";
        assert_eq!(
            entry(plain).unwrap(),
            MountEntry {
                id: 36,
                parent: 35,
                device: "98:0".into(),
                place: "/mnt2".into(),
                kind: "ext3".into(),
                source: "/dev/root".into(),
                user: None
            }
        );
        let tagged = br"37 35 0:44 / /a\040b\134 rw shared:1 master:2 - fuse.spillway spillway rw,user_id=0";
        let MountEntry { place, kind, source, user, .. } = entry(tagged).unwrap();
        assert_eq!(user, Some(0));
        assert_eq!(
            (place.as_path(), kind.as_str(), source.as_path()),
            (Path::new(r"/a b\"), "fuse.spillway", Path::new("spillway"))
        );
        assert_eq!(entry(b""), None);
        assert_eq!(entry(b"1 2 3 4 5 6"), None);
    }

    #[test]
    fn the_kernels_own_table_is_understood() {
        let all = entries();
        assert!(all.iter().any(|entry| entry.place == Path::new("/proc") && entry.kind == "proc"), "{all:?}");
        let proc = mount_at(Path::new("/proc")).expect("it is mounted");
        assert_eq!((proc.place.as_path(), proc.kind.as_str()), (Path::new("/proc"), "proc"));
        assert_eq!(mount_at(Path::new("/proc/self/fdinfo")), Some(proc), "the mount that a path lies in");
        assert_eq!(mount_at(Path::new("/proc/none")), None);
    }

    /// Who owns a folder above a mount may move it, and put a link in its place.
    #[test]
    fn what_is_unmounted_is_the_mount_that_was_found_and_not_what_its_path_leads_to() {
        let folder = std::env::temp_dir().join(format!("spillway-{}-places", std::process::id()));
        let mount_below = |name: &str| {
            let place = folder.join(name).join("data");
            fs::create_dir_all(&place).unwrap();
            rustix::mount::mount("none", &place, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
            MountPoint(mount_at(&place).unwrap())
        };
        let (ours, other) = (mount_below("ours"), mount_below("other"));
        fs::rename(folder.join("ours"), folder.join("moved")).unwrap();
        std::os::unix::fs::symlink("other", folder.join("ours")).unwrap();
        let refused = ours.unmount();
        let both = [mount_at(other.place()), mount_at(&folder.join("moved/data"))];
        // Found again, it is where it is, and goes.
        let moved = MountPoint(both[1].clone().unwrap());
        let open = fs::File::open(moved.place()).unwrap();
        let busy = moved.unmount();
        drop(open);
        let gone = [moved.unmount(), other.unmount()];
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(both.map(|found| found.map(|entry| entry.id)), [Some(other.0.id), Some(ours.0.id)]);
        assert_eq!(busy.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert!(gone.iter().all(Result::is_ok), "{gone:?}");
    }

    #[test]
    fn a_backslash_that_escapes_nothing_stays() {
        assert_eq!(unescaped(br"a\9\12"), br"a\9\12");
    }
}
