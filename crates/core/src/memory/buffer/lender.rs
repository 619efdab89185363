//! The memory behind a workspace: lent, kept for the next taker, charged.

use crate::memory::budget::Charge;
use crate::sync::{Mutex, Semaphore};

use super::page::{ALIGNMENT, Page};

/// Unused buffers that a workspace keeps for the next taker of the same size.
const KEPT_MAX: usize = 16;

/// A number of bytes that buffers are made of.
pub(super) struct Lender {
    /// In bytes, whole pages.
    pub(super) lent: Semaphore,
    pub(super) whole: u64,
    pub(super) kept: Mutex<Vec<Box<[Page]>>>,
    _charge: Charge,
}

impl Lender {
    /// Lends `whole` bytes, for which `charge` pays.
    pub(super) fn new(whole: u64, charge: Charge) -> Self {
        assert_eq!(charge.bytes(), whole, "the charge of a workspace and its bytes differ");
        Self { lent: Semaphore::new(whole), whole, kept: Mutex::default(), _charge: charge }
    }

    /// A kept buffer of that many pages. Where there is none, as much of what is kept is freed as is lent now.
    pub(super) fn reuse(&self, pages: usize) -> Option<Box<[Page]>> {
        let mut kept = self.kept.lock();
        if let Some(index) = kept.iter().rposition(|memory| memory.len() == pages) {
            return Some(kept.swap_remove(index));
        }
        let excess = |kept: &[Box<[Page]>]| {
            let bytes: usize = kept.iter().map(|memory| memory.len() * ALIGNMENT).sum();
            bytes as u64 + self.lent.used() > self.whole
        };
        let mut evicted = Vec::new();
        while excess(&kept) && !kept.is_empty() {
            evicted.push(kept.remove(0));
        }
        drop(kept);
        None
    }

    /// Keeps memory for the next taker, and counts it as free.
    pub(super) fn give_back(&self, memory: Box<[Page]>) {
        let bytes = (memory.len() * ALIGNMENT) as u64;
        let evicted = {
            let mut kept = self.kept.lock();
            kept.push(memory);
            (kept.len() > KEPT_MAX).then(|| kept.remove(0))
        };
        drop(evicted);
        self.lent.give(bytes);
    }
}
