//! The readers of a mount: how many there are, the orders that they get, and what one hears for another.

use std::sync::Arc;
use std::thread::{Thread, current, park_timeout};
use std::time::Duration;

use spillway_core::sync::{AtomicUsize, Mutex, Ordering};

use crate::net::control::{Control, Order};

/// All readers of a mount.
pub(super) struct Readers {
    controls: Vec<Control>,
    open: AtomicUsize,
    stopper: Mutex<Option<Thread>>,
}

impl Readers {
    /// So many, none of which has begun, and the guard of each.
    pub(super) fn new(count: usize) -> (Arc<Self>, Vec<ReaderGuard>) {
        let controls = (0..count).map(|_| Control::new(Order::Serve)).collect();
        let readers = Arc::new(Self { controls, open: AtomicUsize::new(count), stopper: Mutex::default() });
        let guard = |index| ReaderGuard { readers: readers.clone(), index };
        let guards = (0..count).map(guard).collect();
        (readers, guards)
    }

    /// Whether there are any.
    pub(super) fn remain(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Orders them all to go, and waits until they have. Blocks: not to be called on a worker.
    pub(super) fn end(&self) {
        *self.stopper.lock() = Some(current());
        self.controls.iter().for_each(|control| control.order(Order::Abort));
        while self.remain() {
            park_timeout(Duration::from_millis(50));
        }
    }
}

/// A reader counts as open until this is dropped.
pub(super) struct ReaderGuard {
    readers: Arc<Readers>,
    index: usize,
}

impl ReaderGuard {
    /// What orders come by.
    pub(super) fn control(&self) -> &Control {
        &self.readers.controls[self.index]
    }

    /// Has all other readers look whether there is something to read.
    pub(super) fn wake_others(&self) {
        let others = self.readers.controls.iter().enumerate().filter(|(index, _)| *index != self.index);
        others.for_each(|(_, control)| control.wake());
    }
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        self.readers.open.fetch_sub(1, Ordering::AcqRel);
        let stopper = self.readers.stopper.lock().clone();
        if let Some(stopper) = stopper {
            stopper.unpark();
        }
    }
}
