//! Other programs that use a file: by byte locks, by whole locks, and by loop devices.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_core::{Error, Kind, OpenStorage};

use super::{Loop, Scratch, must};
use crate::file::{FileOptions, open};

/// Locks bytes of an open file as another program would, shared or alone.
fn lock_bytes(file: &File, command: libc::c_int, kind: libc::c_int, at: i64, len: i64) {
    let whence = libc::SEEK_SET as libc::c_short;
    let range =
        libc::flock64 { l_type: kind as libc::c_short, l_whence: whence, l_start: at, l_len: len, l_pid: 0 };
    // SAFETY: the call reads a structure of this layout at the address that it is given.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const range) };
    assert_eq!(answer, 0, "{at}+{len}: {}", std::io::Error::last_os_error());
}

fn is_locked(path: &Path, at: i64) -> bool {
    let file = File::open(path).unwrap();
    let (kind, whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    let mut range = libc::flock64 { l_type: kind, l_whence: whence, l_start: at, l_len: 1, l_pid: 0 };
    // SAFETY: the call writes a structure of this layout at the address that it is given.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    assert_eq!(answer, 0);
    i32::from(range.l_type) != libc::F_UNLCK
}

fn image() -> Scratch {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, vec![0; 1 << 20]).unwrap();
    scratch
}

fn open_at(path: &Path, read_only: bool) -> Result<OpenStorage, Error> {
    open(&FileOptions { path: path.to_owned(), read_only, ..FileOptions::default() })
}

#[track_caller]
fn refused(path: &Path, read_only: bool, words: &str) {
    let error = open_at(path, read_only).err().expect("another program uses it");
    let message = error.message();
    assert!(error.kind == Kind::Busy && message.contains(": in use (") && message.contains(words), "{error}");
}

/// What QEMU and its tools lock, by what they do: of a running machine, of qemu-nbd, of a backing file, and each permission alone. What
/// they lock is theirs to share with a reader and with a writer of ours, or not.
#[test]
fn permissions_of_qemu_are_respected() {
    for (bytes, with_reader, with_writer) in [
        (&[100, 101, 103, 201, 203][..], false, false),
        (&[100, 101, 203], false, false),
        (&[100, 201, 203], true, false),
        (&[100, 203], true, false),
        (&[100], true, true),
        (&[102, 202], true, true),
        (&[200], false, false),
        (&[101], false, false),
        (&[103], false, false),
        (&[201], true, false),
        (&[203], true, false),
    ] {
        let scratch = image();
        let other = File::open(&scratch.0).unwrap();
        bytes.iter().for_each(|&at| lock_bytes(&other, libc::F_OFD_SETLK, libc::F_RDLCK, at, 1));
        for (read_only, shares) in [(true, with_reader), (false, with_writer)] {
            let opened = open_at(&scratch.0, read_only);
            assert_eq!(opened.is_ok(), shares, "{bytes:?}, read-only {read_only}: {:?}", opened.err());
        }
    }
}

#[test]
fn our_own_locks_say_the_same_to_qemu_and_go_with_the_file() {
    let scratch = image();
    let bytes = [100, 101, 102, 103, 200, 201, 202, 203];
    let locked = || bytes.into_iter().filter(|&at| is_locked(&scratch.0, at)).collect::<Vec<_>>();
    let writer = open_at(&scratch.0, false).unwrap();
    assert_eq!(locked(), [100, 101, 103, 201, 203]);
    drop(writer);
    let readers = [(); 3].map(|()| open_at(&scratch.0, true).unwrap());
    assert_eq!(locked(), [100, 201, 203]);
    drop(readers);
    assert_eq!(locked(), []);
}

/// As nfs(5) makes them of flock: they lie over QEMU's bytes, and mean nothing of it.
#[test]
fn a_lock_of_a_range_is_shared_by_readers_alone() {
    for (at, len) in [(0, 0), (0, 1), (150, 50), (1 << 30, 510)] {
        let scratch = image();
        let other = File::options().read(true).write(true).open(&scratch.0).unwrap();
        lock_bytes(&other, libc::F_OFD_SETLK, libc::F_RDLCK, at, len);
        refused(&scratch.0, false, "another program");
        open_at(&scratch.0, true).expect("readers share");
        lock_bytes(&other, libc::F_OFD_SETLK, libc::F_WRLCK, at, len);
        refused(&scratch.0, true, "another program");
        refused(&scratch.0, false, "another program");
    }
}

#[test]
fn the_program_with_the_lock_is_named() {
    let scratch = image();
    let own = crate::file::program_of(std::process::id()).unwrap();
    let other = File::options().read(true).write(true).open(&scratch.0).unwrap();
    lock_bytes(&other, libc::F_SETLK, libc::F_WRLCK, 0, 0);
    refused(&scratch.0, true, &own);
    drop(other);
    let opened = open_at(&scratch.0, false).unwrap();
    refused(&scratch.0, false, &own);
    drop(opened);
    open_at(&scratch.0, false).unwrap();
}

/// A lock that is given up in a moment is waited for, as device managers take them.
#[test]
fn a_byte_lock_of_a_moment_is_waited_for() {
    let scratch = image();
    let other = File::open(&scratch.0).unwrap();
    lock_bytes(&other, libc::F_OFD_SETLK, libc::F_RDLCK, 101, 1);
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| open_at(&scratch.0, false).is_ok());
        // Once it has looked, its own locks are there.
        while !is_locked(&scratch.0, 203) && !opener.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(other);
        assert!(opener.join().unwrap());
    });
}

fn losetup(file: &Path, options: &[&str]) -> PathBuf {
    let words: Vec<&OsStr> = ["--find", "--show"].iter().chain(options).map(OsStr::new).collect();
    PathBuf::from(must("losetup", &[&words[..], &[file.as_os_str()]].concat()).trim())
}

/// Ends a loop device whatever becomes of the test.
struct Detached(PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        must("losetup", &["--detach".as_ref(), self.0.as_os_str()]);
    }
}

#[test]
fn a_file_below_a_loop_device_is_refused_by_whatever_path() {
    let (scratch, hard, soft) = (image(), Scratch::new(), Scratch::new());
    std::fs::hard_link(&scratch.0, &hard.0).unwrap();
    std::os::unix::fs::symlink(&hard.0, &soft.0).unwrap();
    let device = Detached(losetup(&scratch.0, &["--offset", "512K"]));
    let name = device.0.display().to_string();
    for path in [&scratch.0, &hard.0, &soft.0] {
        refused(path, false, &name);
        refused(path, true, &name);
    }
    // What the kernel calls its file is no name of it any more.
    std::fs::remove_file(&scratch.0).unwrap();
    refused(&hard.0, false, &name);
    open_at(&device.0, false).expect("the loop device itself");
    drop(device);
    open_at(&hard.0, false).expect("it is gone");
}

#[test]
fn readers_share_with_a_loop_device_that_is_read_only() {
    let scratch = image();
    let device = Detached(losetup(&scratch.0, &["--read-only"]));
    open_at(&scratch.0, true).expect("nobody writes");
    refused(&scratch.0, false, &device.0.display().to_string());
}

#[test]
fn a_loop_device_over_a_loop_device_and_one_beside_it_are_seen() {
    let lower = Loop::new();
    let upper = Detached(losetup(&lower.path, &["--offset", "1M"]));
    refused(&lower.path, false, &upper.0.display().to_string());
    open_at(&upper.0, false).expect("nothing stands on it");
    drop(upper);
    let beside = Detached(losetup(&lower.backing.0, &["--sizelimit", "1M"]));
    refused(&lower.path, false, &beside.0.display().to_string());
    refused(&beside.0, false, &lower.path.display().to_string());
}

#[test]
fn a_block_device_that_is_mounted_is_refused_with_the_place() {
    let (device, place) = (Loop::new(), Scratch::new());
    std::fs::create_dir(&place.0).unwrap();
    must("mkfs.ext4", &["-q".as_ref(), device.path.as_os_str()]);
    must("mount", &[device.path.as_os_str(), place.0.as_os_str()]);
    let (writer, reader) = (open_at(&device.path, false), open_at(&device.path, true));
    must("umount", &[place.0.as_os_str()]);
    std::fs::remove_dir(&place.0).unwrap();
    let error = writer.err().expect("it is mounted");
    let words = format!("{}: in use (mounted at {})", device.path.display(), place.0.display());
    assert!(error.kind == Kind::Busy && error.message().starts_with(&words), "{error}");
    drop(reader.expect("the system reads it too"));
    open_at(&device.path, false).expect("it is free");
}
