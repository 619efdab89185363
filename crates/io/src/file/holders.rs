//! Who holds a lock of an open file, as the kernel lists it (proc_locks(5), proc_pid_fdinfo(5)).

use std::fs::{metadata, read_dir, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Stat, major, minor};

use crate::fuse::places_of;
use crate::processes::look_at_others;
use crate::sysfs::link_of;

/// Whether there are processes that took a flock of this file, and every one is dead. What has no list, or shows no process of another
/// namespace, counts as alive, and so does one that the list leaves out because others went while it was read.
pub(super) fn are_dead(file: &Stat) -> bool {
    let holders = of_flock(file);
    !holders.is_empty() && holders.into_iter().all(is_dead)
}

/// The processes that took a flock of a file.
pub(super) fn of_flock(file: &Stat) -> Vec<u32> {
    of(&read_to_string("/proc/locks").unwrap_or_default(), file)
}

/// Other processes with an open file to which byte locks of this file belong, as far as this one may look at them.
pub(super) fn of_byte_locks(file: &Stat) -> Vec<u32> {
    let place = place_of(file);
    let is_locked =
        move |about: String| about.lines().any(|line| line.contains(" OFDLCK ") && line.contains(&place));
    let locks = move |process: u32| {
        let files = read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
        files.filter_map(|file| read_to_string(file.path()).ok()).any(&is_locked)
    };
    look_at_others(move |process| locks(process).then_some(())).map(|(process, ())| process).collect()
}

/// Where a block device is mounted, and which devices it is a part of.
pub(super) fn of_block_device(path: &Path) -> Vec<String> {
    let number = metadata(path).map_or(0, |found| found.rdev());
    let mounts = places_of(path).into_iter().map(|place| format!("mounted at {}", place.display()));
    let above = read_dir(link_of(number).join("holders")).into_iter().flatten().flatten();
    mounts.chain(above.map(|holder| format!("part of {}", holder.file_name().display()))).collect()
}

/// Programs by name and process; `None` where none is known.
pub(super) fn in_words(holders: &[u32]) -> Option<String> {
    let programs: Vec<_> = holders.iter().filter_map(|&holder| program_of(holder)).collect();
    (!programs.is_empty()).then(|| programs.join(", "))
}

/// The program that a process or a thread belongs to, as `NAME (pid N)`, as long as it lives.
pub fn program_of(thread: u32) -> Option<String> {
    let status = read_to_string(format!("/proc/{thread}/status")).ok()?;
    let pid: u32 = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    let name = read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // A program names itself: what it says goes to terminals of others.
    Some(format!("{} (pid {pid})", name.trim_end().replace(char::is_control, "?")))
}

fn place_of(file: &Stat) -> String {
    format!("{:02x}:{:02x}:{} ", major(file.st_dev), minor(file.st_dev), file.st_ino)
}

/// The processes that `locks` names for a file. A lock that is waited for has an arrow behind its number.
fn of(locks: &str, file: &Stat) -> Vec<u32> {
    let name = place_of(file);
    let holder = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = fields[..] else { return None };
        (place == name.trim_end()).then(|| process.parse().ok())?
    };
    locks.lines().filter_map(holder).collect()
}

/// Gone, or ended and not asked about by its parent yet (state Z or X in proc_pid_stat(5)).
fn is_dead(process: u32) -> bool {
    let Ok(stat) = read_to_string(format!("/proc/{process}/stat")) else { return true };
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.starts_with(['Z', 'X'])
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn who_waits_is_no_holder_and_other_locks_are_none() {
        let file = fstat(File::open("/proc/self/exe").unwrap()).unwrap();
        let (major, minor, inode) = (major(file.st_dev), minor(file.st_dev), file.st_ino);
        let place = format!("{major:02x}:{minor:02x}:{inode} 0 EOF");
        let locks = format!(
            "1: FLOCK  ADVISORY  WRITE 71 {place}\n1: -> FLOCK  ADVISORY  WRITE 72 {place}\n2: POSIX  ADVISORY  WRITE 73 {place}\n\
             3: OFDLCK ADVISORY  WRITE -1 {place}\n4: FLOCK  ADVISORY  READ  74 {place}\n5: FLOCK  ADVISORY  READ  75 00:01:{inode} 0 EOF\n6: FLOCK"
        );
        assert_eq!(of(&locks, &file), [71, 74]);
    }

    #[test]
    fn who_ended_and_was_not_waited_for_is_dead() {
        let mut child = Command::new("true").spawn().unwrap();
        while !is_dead(child.id()) {
            std::thread::yield_now();
        }
        assert!(!is_dead(std::process::id()));
        child.wait().unwrap();
    }

    #[test]
    fn a_living_program_is_named_by_any_of_its_threads() {
        let pid = std::process::id();
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for id in [pid, thread] {
            let program = program_of(id).expect("it runs");
            assert!(program.ends_with(&format!(" (pid {pid})")), "{program}");
        }
        assert_eq!(program_of(0), None);
    }

    #[test]
    fn a_program_s_name_does_nothing_to_a_terminal() {
        let path = std::env::temp_dir().join(format!("\u{1b}c{}", std::process::id()));
        std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
        let mut child = Command::new(&path).arg("1000").spawn().unwrap();
        // Until it is that program, it has the name of this thread.
        let before = |name: &Option<String>| name.as_ref().is_none_or(|name| name.starts_with("file::"));
        let mut name = program_of(child.id());
        while before(&name) {
            std::thread::yield_now();
            name = program_of(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(&path).unwrap();
        let expected = format!("?c{} (pid {})", std::process::id(), child.id());
        assert_eq!(name, Some(expected));
    }
}
