//! Looks at what other processes have open, none of which keeps who looks waiting.
//!
//! A process that closes a file at its execve(2) and waits for the file's server, which may be stopped, lets nobody read its links in `/proc` until
//! then. So each is looked at by a thread of its own, and only for so long.

use std::collections::BTreeSet;
use std::fs::read_dir;
use std::time::Duration;

use spillway_core::Job;
use spillway_core::sync::Mutex;

use crate::runtime::thread::{spawn, wait_for};

/// How long a process may take to let anybody see.
const PATIENCE: Duration = Duration::from_secs(1);

/// Processes that have let nobody see in time, and do not yet: they are not looked at again meanwhile.
static HUNG: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The other processes that this one sees, as far as `look` finds something of them in time.
pub fn look_at_others<T: Send + 'static>(
    look: impl Fn(u32) -> Option<T> + Clone + Send + 'static,
) -> impl Iterator<Item = (u32, T)> {
    let processes = read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    let others = processes.filter(|&process: &u32| process != std::process::id());
    others.filter_map(move |process| Some((process, in_time(process, PATIENCE, look.clone())?)))
}

fn in_time<T: Send + 'static>(
    process: u32,
    patience: Duration,
    look: impl Fn(u32) -> Option<T> + Send + 'static,
) -> Option<T> {
    if HUNG.lock().contains(&process) {
        return None;
    }
    let (mut job, report) = Job::new();
    let look = move || {
        report.done(look(process));
        HUNG.lock().remove(&process);
    };
    spawn(look).ok()?;
    let found = wait_for(&mut job, patience).or_else(|| {
        let mut hung = HUNG.lock();
        // In this order: a look that ends later takes it out again.
        wait_for(&mut job, Duration::ZERO).or_else(|| {
            hung.insert(process);
            None
        })
    });
    found.flatten().flatten()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn two_that_look_at_once_both_see() {
        let both = Arc::new(Barrier::new(2));
        let looks = [(); 2].map(|()| {
            let both = both.clone();
            let look = move |process: u32| {
                both.wait();
                Some(process)
            };
            std::thread::spawn(|| in_time(u32::MAX, Duration::from_secs(60), look))
        });
        assert_eq!(looks.map(|one| one.join().unwrap()), [Some(u32::MAX); 2]);
    }
}
