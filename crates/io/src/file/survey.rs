//! What a file or block device offers and who uses it, seen without locking or changing it. What is seen may be over a moment later.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use spillway_core::{BlockSize, Error};

use super::footprint::loop_over;
use super::length::length_of;
use super::lock::failed;
use super::open::{FileAccess, logical_block};
use super::{byte_locks, holders};

/// A file or block device that was looked at.
pub struct Survey {
    /// Its length in bytes.
    pub len: u64,
    /// The least block of O_DIRECT in bytes; what the system says where it refuses that.
    pub direct: Result<u64, std::io::Error>,
    /// Programs, mounts and devices that keep a server from writing it, in words, as far as this process may see them.
    pub users: Vec<String>,
}

impl Survey {
    /// Opens the file or device to read, and reads a block of it past the kernel's page cache.
    ///
    /// Of the kind that the system names where it cannot be opened to read.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let fd =
            open(path, flags, Mode::empty()).map_err(|why| failed(path, "cannot be opened to read", why))?;
        let stat = fstat(&fd).map_err(|why| failed(path, "cannot be examined", why))?;
        let block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let len = length_of(&fd, block_device).map_err(|why| failed(path, "has no size", why))?;
        let least = if block_device { logical_block(&fd, path)? } else { BlockSize::SECTOR };
        let users = users(&fd, path, block_device);
        let direct = FileAccess::direct(&fd, least, len).map(|access| access.block.bytes());
        Ok(Self { len, direct: direct.map_err(std::io::Error::from), users })
    }
}

fn users(fd: &OwnedFd, path: &Path, block_device: bool) -> Vec<String> {
    let mut users = if block_device { holders::of_block_device(path) } else { Vec::new() };
    users.extend(loop_over(fd.as_fd(), false).map(|device: PathBuf| device.display().to_string()));
    let Ok(file) = fstat(fd) else { return users };
    let locked = byte_locks::is_locked(fd.as_fd());
    let mut programs: BTreeSet<u32> = holders::of_flock(&file).into_iter().collect();
    if locked {
        programs.extend(holders::of_byte_locks(&file));
    }
    let programs: Vec<_> = programs.into_iter().collect();
    users.extend(holders::in_words(&programs).or_else(|| locked.then(|| "another program".to_owned())));
    users
}

#[cfg(test)]
mod tests {
    use super::super::tests::Loop;
    use super::super::{FileOptions, open};
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("spillway-survey-{name}-{}", std::process::id()));
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        path
    }

    #[test]
    fn a_server_is_seen_while_it_has_the_file_and_is_not_in_the_way_of_one() {
        let path = scratch("held");
        let looked_at = Survey::of(&path).unwrap();
        assert!(looked_at.len == 1 << 20 && looked_at.users.is_empty(), "{:?}", looked_at.users);
        let served = open(&FileOptions { path: path.clone(), ..FileOptions::default() }).unwrap();
        let own = holders::in_words(&[std::process::id()]).unwrap();
        assert_eq!(Survey::of(&path).unwrap().users, [own]);
        drop(served);
        // A program that another test starts meanwhile has the file too, until it is another program.
        while !Survey::of(&path).unwrap().users.is_empty() {
            std::thread::yield_now();
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_loop_device_is_a_user_of_its_file_and_has_the_blocks_of_its_own() {
        let device = Loop::new();
        let looked_at = Survey::of(&device.path).unwrap();
        assert_eq!((looked_at.len, looked_at.direct.unwrap()), (4 << 20, 512));
        assert_eq!(looked_at.users, [""; 0]);
        let file = crate::fuse::backing_file(&device.path).expect("it has one");
        assert_eq!(Survey::of(&file).unwrap().users, [device.path.display().to_string()]);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let refused = Survey::of(Path::new("/does/not/exist")).err().expect("nothing is there");
        assert!(refused.message().contains("/does/not/exist cannot be opened"), "{refused}");
    }
}
