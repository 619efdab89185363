//! The requests that are measured.

use crate::peers::pages::PAGE;

/// Bytes of each device.
pub(super) const SIZE: u64 = 512 << 20;

pub(super) const CASES: [Case; 8] = [
    Case::small("4K reads, depth 16", false, 16),
    Case::small("4K writes, depth 16", true, 16),
    Case::small("4K reads, depth 64", false, 64),
    Case::small("4K writes, depth 64", true, 64),
    Case::small("4K reads, depth 1", false, 1),
    Case::small("4K writes, depth 1", true, 1),
    Case::large("128K reads", false, 16),
    Case::large("128K writes", true, 16),
];

/// Requests of one kind, and how they are named in the tables.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) writes: bool,
    /// Of a request.
    pub(super) bytes: usize,
    /// Requests in flight on each queue.
    pub(super) depth: usize,
    pub(super) order: Order,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Random,
    Sequential,
}

impl Case {
    /// Requests of 4 KiB in random order.
    pub(super) const fn small(name: &'static str, writes: bool, depth: usize) -> Self {
        Self { name, writes, bytes: PAGE, depth, order: Order::Random }
    }

    /// Requests of 128 KiB one after the other.
    pub(super) const fn large(name: &'static str, writes: bool, depth: usize) -> Self {
        Self { name, writes, bytes: 128 << 10, depth, order: Order::Sequential }
    }

    pub(super) fn is_small(&self) -> bool {
        self.bytes == PAGE
    }
}
