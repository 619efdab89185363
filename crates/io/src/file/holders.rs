//! Who holds the lock of an open file, as the kernel lists it (proc_locks(5)).

use std::fs::read_to_string;

use rustix::fs::{Stat, major, minor};

/// Whether there are processes that took a lock of this file, and every one is dead. What has no list, or shows no process of another
/// namespace, counts as alive, and so does one that the list leaves out because others went while it was read.
pub(super) fn are_dead(file: &Stat) -> bool {
    let locks = read_to_string("/proc/locks").unwrap_or_default();
    let holders = of(&locks, file);
    !holders.is_empty() && holders.into_iter().all(is_dead)
}

/// The processes that `locks` names for a file. A lock that is waited for has an arrow behind its number.
fn of(locks: &str, file: &Stat) -> Vec<u32> {
    let (major, minor) = (major(file.st_dev), minor(file.st_dev));
    let name = format!("{major:02x}:{minor:02x}:{}", file.st_ino);
    let holder = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = fields[..] else { return None };
        (place == name).then(|| process.parse().ok())?
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
}
