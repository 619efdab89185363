//! The readers of a mount: how many there are, how they end, and what one hears for another.

use std::sync::Arc;

use spillway_core::sync::Mutex;
use spillway_core::{Job, Phase, Report, Shutdown, block_on};

/// All readers of a mount.
pub(super) struct Readers {
    /// Of each.
    shutdowns: Vec<Shutdown>,
    /// Done once all have gone; absent once that is waited for.
    gone: Mutex<Option<Job<()>>>,
}

impl Readers {
    /// So many, none of which has begun, and the guard of each.
    pub(super) fn new(count: usize) -> (Arc<Self>, Vec<ReaderGuard>) {
        let shutdowns = (0..count).map(|_| Shutdown::default()).collect();
        let (gone, report) = Job::new();
        let report = Arc::new(report);
        let readers = Arc::new(Self { shutdowns, gone: Mutex::new(Some(gone)) });
        let guard = |index| ReaderGuard { readers: readers.clone(), index, _report: report.clone() };
        let guards = (0..count).map(guard).collect();
        (readers, guards)
    }

    /// Ends them all, and waits until they have. Blocks: not to be called on a worker.
    pub(super) fn end(&self) {
        self.shutdowns.iter().for_each(|shutdown| shutdown.ask(Phase::Aborting));
        let gone = self.gone.lock().take();
        let _ = gone.map(block_on);
    }
}

/// A reader has not gone until this is dropped.
pub(super) struct ReaderGuard {
    readers: Arc<Readers>,
    index: usize,
    _report: Arc<Report<()>>,
}

impl ReaderGuard {
    /// What ends the reader.
    pub(super) fn shutdown(&self) -> &Shutdown {
        &self.readers.shutdowns[self.index]
    }

    /// Has all other readers look whether there is something to read.
    pub(super) fn wake_others(&self) {
        let others = self.readers.shutdowns.iter().enumerate().filter(|(index, _)| *index != self.index);
        others.for_each(|(_, shutdown)| shutdown.wake());
    }
}
