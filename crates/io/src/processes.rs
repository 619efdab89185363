//! Looks at what other processes have open, none of which keeps who looks waiting.
//!
//! A process that closes a file at its execve(2) and waits for the file's server, which may be stopped, lets nobody read its links in `/proc` until
//! then. So each is looked at by a thread of its own, and only for so long.

use std::collections::BTreeSet;
use std::fs::read_dir;
use std::sync::mpsc;
use std::time::Duration;

use spillway_core::sync::Mutex;

use crate::thread::{STACK_BYTES, Thread};

/// How long a process may take to let anybody see.
const PATIENCE: Duration = Duration::from_secs(1);

/// Processes that are being looked at, those included that let nobody see yet: these are not looked at again meanwhile.
static LOOKED_AT: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The other processes that this one sees, as far as `look` finds something of them in time.
pub fn look_at_others<T: Send + 'static>(
    look: impl Fn(u32) -> Option<T> + Clone + Send + 'static,
) -> impl Iterator<Item = (u32, T)> {
    let processes = read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    let others = processes.filter(|&process: &u32| process != std::process::id());
    others.filter_map(move |process| Some((process, in_time(process, look.clone())?)))
}

fn in_time<T: Send + 'static>(process: u32, look: impl Fn(u32) -> Option<T> + Send + 'static) -> Option<T> {
    if !LOOKED_AT.lock().insert(process) {
        return None;
    }
    let (sender, found) = mpsc::channel();
    let look = move || {
        let found = look(process);
        LOOKED_AT.lock().remove(&process);
        // Who asked may have waited long enough.
        let _ = sender.send(found);
    };
    if Thread::spawn(STACK_BYTES, look).is_err() {
        LOOKED_AT.lock().remove(&process);
    }
    found.recv_timeout(PATIENCE).ok().flatten()
}
