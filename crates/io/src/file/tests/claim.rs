//! Files that are made by being opened.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock, fstat};
use spillway_core::Kind;

use super::{Mounted, Scratch, open_device, openings};
use crate::file::holders::are_dead;
use crate::file::lock::{LOCK_TRIES, LockAttempts, lock_pausing};
use crate::file::{Direct, FileOptions, open};

#[test]
fn a_file_is_made_sparse_and_for_its_owner_only() {
    let scratch = Scratch::new();
    let opened = scratch.open(Direct::Auto);
    assert_eq!(opened.device.geometry().size, 4 << 20);
    assert!(opened.notes.iter().any(|note| note.contains("was created")), "{:?}", opened.notes);
    let found = std::fs::metadata(&scratch.0).unwrap();
    assert_eq!((found.len(), found.mode() & 0o7777), (4 << 20, 0o600));
    assert!(found.blocks() < 64, "{} sectors of a file that holds nothing", found.blocks());
    drop(opened);
    assert!(scratch.0.exists(), "it stays when nobody uses it");
    let again = scratch.open(Direct::Auto);
    assert!(!again.notes.iter().any(|note| note.contains("was created")), "{:?}", again.notes);
}

/// The umask belongs to the process, so that this test runs in one of its own.
#[test]
fn a_umask_takes_nothing_from_its_owner() {
    let name = "file::tests::claim::made_under_a_umask";
    let program = std::env::current_exe().unwrap();
    let done = Command::new(program).args(["--exact", name, "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "a_umask_takes_nothing_from_its_owner runs it"]
fn made_under_a_umask() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
    let scratch = Scratch::new();
    drop(scratch.open(Direct::Auto));
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn an_empty_file_gets_the_length_once_it_is_locked() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, "").unwrap();
    let reader = std::fs::File::open(&scratch.0).unwrap();
    reader.lock_shared().unwrap();
    let error = open_device(&scratch.options()).err().expect("another reads it");
    assert!(error.message().contains("name another path"), "{error}");
    assert_eq!((error.kind, std::fs::metadata(&scratch.0).unwrap().len()), (Kind::Busy, 0));
    drop(reader);
    let opened = scratch.open(Direct::Auto);
    assert_eq!(opened.device.geometry().size, 4 << 20);
    assert!(!opened.notes.iter().any(|note| note.contains("was created")), "{:?}", opened.notes);
}

#[test]
fn an_opening_that_fails_takes_back_what_it_made() {
    for size in [0, 100, u64::MAX] {
        let scratch = Scratch::new();
        let options = FileOptions { create: Some(size), ..scratch.options() };
        let refusal = open_device(&options).err().expect("no such file is a device");
        assert!(!scratch.0.exists(), "{refusal}");
        std::fs::write(&scratch.0, "").unwrap();
        let refusal = open_device(&options).err().expect("no such file is a device");
        assert_eq!(std::fs::metadata(&scratch.0).unwrap().len(), 0, "{refusal}");
        assert!(scratch.0.exists(), "it was there before: {refusal}");
    }
}

#[test]
fn a_link_to_nothing_is_not_followed_and_one_to_a_file_is() {
    let (link, target) = (Scratch::new(), Scratch::new());
    std::os::unix::fs::symlink(&target.0, &link.0).unwrap();
    let error = open_device(&link.options()).err().expect("it points to nothing");
    assert!(error.kind == Kind::NotFound && error.message().contains("links to nothing"), "{error}");
    assert!(!target.0.exists());
    drop(target.open(Direct::Auto));
    assert_eq!(link.open(Direct::Auto).device.geometry().size, 4 << 20);
}

/// One waits for the lock of a file that its maker takes back: the file that it gets in the end is the one at the path.
#[test]
fn a_file_that_was_taken_back_is_not_used() {
    let (scratch, made) = (Scratch::new(), 1 << 20);
    while !outlives_its_file(&scratch, made) {}
    assert_eq!(std::fs::metadata(&scratch.0).expect("it is at its path").len(), 4 << 20);
}

/// Opens the path while this test has a file of `made` bytes there, which it removes before it gives up the lock. False where the opening did
/// not wait as long.
fn outlives_its_file(scratch: &Scratch, made: u64) -> bool {
    let file = std::fs::File::create(&scratch.0).unwrap();
    file.set_len(made).unwrap();
    file.lock().unwrap();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| open(&scratch.options()));
        while !opener.is_finished() && openings(&scratch.0) < 2 {
            std::thread::yield_now();
        }
        std::fs::remove_file(&scratch.0).unwrap();
        drop(file);
        match opener.join().unwrap() {
            Ok(opened) => {
                assert_eq!(opened.storage.geometry().size, 4 << 20, "it is the file that was removed");
                true
            }
            Err(error) => {
                assert_eq!(error.kind, Kind::Busy, "{error}");
                false
            }
        }
    })
}

/// With one that takes back what it makes in every other round.
#[test]
fn of_many_that_make_one_file_one_has_it() {
    std::thread::scope(|scope| (0..40).for_each(|round| _ = scope.spawn(move || race(round % 2 == 0))));
}

fn race(spoiled: bool) {
    let scratch = Scratch::new();
    let failing = FileOptions { create: Some(100), ..scratch.options() };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| spoiled.then(|| open(&failing).err()));
        let openers: Vec<_> = (0..3).map(|_| scope.spawn(|| open(&scratch.options()))).collect();
        openers.into_iter().map(|opener| opener.join().unwrap()).collect()
    });
    let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(refused.len() == 2 && refused.iter().all(|error| error.kind == Kind::Busy), "{refused:?}");
    let sizes: Vec<_> = outcomes.iter().flatten().map(|opened| opened.storage.geometry().size).collect();
    assert_eq!(sizes, [4 << 20]);
    assert_eq!(std::fs::metadata(&scratch.0).expect("it is at its path").len(), 4 << 20);
}

#[test]
fn a_file_that_cannot_be_made_is_a_refusal_with_the_way_out() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, "").unwrap();
    let (read_only, full) = (Mounted::of("tmpfs", "ro"), Mounted::of("tmpfs", "nr_inodes=1"));
    let path = |path: &str| PathBuf::from(path);
    for (path, kind, words) in [
        (std::env::temp_dir().join("none-here/spill"), Kind::NotFound, "none-here does not exist: create it"),
        (scratch.0.join("spill"), Kind::NotFolder, "is not a folder"),
        (path("/sys/spill"), Kind::Denied, "no file may be made in /sys"),
        (read_only.0.0.join("spill"), Kind::ReadOnly, "is read-only"),
        (full.0.0.join("spill"), Kind::NoSpace, "is full"),
        (path("/dev/spillway-none"), Kind::NotFound, "no file is made among devices"),
        (std::env::temp_dir(), Kind::NotBlock, "is neither a file nor"),
        (path("/dev/null"), Kind::NotBlock, "is neither a file nor"),
    ] {
        let options = FileOptions { path: path.clone(), create: Some(4 << 20), ..FileOptions::default() };
        let error = open_device(&options).err().expect("it cannot be made");
        let message = error.message();
        assert!(error.kind == kind && message.contains(words), "{}: {error}", path.display());
        assert!(message.starts_with(&path.display().to_string()), "{message}");
    }
    let huge = FileOptions { path: scratch.0.clone(), create: Some(u64::MAX), ..FileOptions::default() };
    let error = open_device(&huge).err().expect("no file is as large");
    assert!(error.kind == Kind::Invalid && error.message().contains("give a smaller size"), "{error}");
}

/// A ring keeps what a process had open for a while after its end, as the second descriptor does here.
#[test]
fn the_lock_of_a_dead_process_is_waited_for() {
    let scratch = Scratch::new();
    let file = File::create(&scratch.0).unwrap();
    file.set_len(1 << 20).unwrap();
    let held = || are_dead(&fstat(&file).unwrap());
    assert!(!held(), "nobody has it");
    let its = Stdio::from(file.try_clone().unwrap());
    let mut holder = Command::new("flock").args(["-x", "0"]).stdin(its).spawn().unwrap();
    assert!(holder.wait().unwrap().success());
    while !held() {
        std::thread::yield_now();
    }
    let ours = File::options().read(true).write(true).open(&scratch.0).unwrap();
    let mut pauses = 0;
    let locked = lock_pausing(ours.as_fd(), &scratch.0, false, "", || {
        pauses += 1;
        if pauses == 2 * LOCK_TRIES {
            flock(&file, FlockOperation::Unlock).unwrap();
        }
    });
    assert_eq!((locked, pauses), (Ok(()), 2 * LOCK_TRIES), "longer than a living one is waited for");
    assert!(!held(), "this process has it");
}

/// The look at its holders comes after the try, so that a dead one's lock may be given up between the two.
#[test]
fn a_lock_that_a_dead_process_gave_up_is_tried_for_again() {
    let mut attempts = LockAttempts::default();
    assert!((0..100).all(|_| attempts.lasts(true)), "it is waited for for 5 s");
    assert!((0..9).all(|_| attempts.lasts(false)), "who comes next has the moment of every living one");
    assert!(!attempts.lasts(false));
    let mut attempts = LockAttempts::default();
    let tries = (1..).find(|_| !attempts.lasts(true));
    assert_eq!(tries, Some(200), "a lock that nobody gives up is refused after 10 s");
}
