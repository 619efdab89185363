//! The readers of a mount: how many there are, how they end, and what one hears for another.

use std::sync::Arc;

use spillway_core::sync::{AtomicUsize, Ordering, WaitList};
use spillway_core::{Phase, Shutdown, block_on};

/// All readers of a mount.
pub(super) struct Readers {
    /// Of each.
    shutdowns: Vec<Shutdown>,
    open: AtomicUsize,
    /// Woken when a reader has gone.
    left: WaitList,
}

impl Readers {
    /// So many, none of which has begun, and the guard of each.
    pub(super) fn new(count: usize) -> (Arc<Self>, Vec<ReaderGuard>) {
        let shutdowns = (0..count).map(|_| Shutdown::default()).collect();
        let readers = Arc::new(Self { shutdowns, open: AtomicUsize::new(count), left: WaitList::default() });
        let guard = |index| ReaderGuard { readers: readers.clone(), index };
        let guards = (0..count).map(guard).collect();
        (readers, guards)
    }

    /// Whether there are any.
    pub(super) fn remain(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Ends them all, and waits until they have. Blocks: not to be called on a worker.
    pub(super) fn end(&self) {
        self.shutdowns.iter().for_each(|shutdown| shutdown.ask(Phase::Aborting));
        block_on(self.left.until(|| (!self.remain()).then_some(())));
    }
}

/// A reader counts as open until this is dropped.
pub(super) struct ReaderGuard {
    readers: Arc<Readers>,
    index: usize,
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

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        let before = self.readers.open.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "reader {} leaves, and none was open", self.index);
        self.readers.left.wake_all();
    }
}
