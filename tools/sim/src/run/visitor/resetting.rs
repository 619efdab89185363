//! A device that is reset and set up again while commands run: what lasts beside a reset, and what may fail because of one.
//!
//! Nobody is connected to a device that is reset, so requests and settings wait until it is over, as a reset waits for them. Commands go
//! on: what one of them has begun may end at any time of the reset, or on the device that follows.

use std::cell::Cell;

use spillway_core::Kind;
use spillway_core::sync::{Permit, Semaphore};

/// Requests and settings at a time: more than there are clients.
const SHARES: u64 = 1 << 16;

/// Who uses the device, and how often it was reset.
pub(crate) struct Resets {
    users: Semaphore,
    begun: Cell<u64>,
    ended: Cell<u64>,
}

impl Default for Resets {
    fn default() -> Self {
        Self { users: Semaphore::new(SHARES), begun: Cell::default(), ended: Cell::default() }
    }
}

impl Resets {
    /// Waits until no reset runs; none does as long as the result is there.
    pub(crate) async fn share(&self) -> Permit<'_> {
        self.users.hold().await
    }

    /// Waits until nobody uses the device; nobody does before [`Self::end`].
    pub(crate) async fn begin(&self) {
        self.users.take(SHARES).await;
        self.begun.set(self.begun.get() + 1);
    }

    pub(crate) fn end(&self) {
        self.ended.set(self.ended.get() + 1);
        self.users.give(SHARES);
    }

    /// Resets that have ended: before a command, for [`Self::may_refuse`] after it.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// Whether a command may fail so that began when `ended` resets had ended: one runs or ran beside it, or has dropped what it asks for.
    pub(crate) fn may_refuse(&self, name: &str, kind: Kind, ended: u64) -> bool {
        let beside = self.begun.get() > ended;
        let dropped = self.begun.get() > 0 && name == "recompress";
        match kind {
            Kind::Invalid => beside || dropped,
            Kind::Busy | Kind::ShuttingDown | Kind::NoDevice => beside,
            // How full the file was is gone with the reset.
            Kind::NoSpace => beside && name == "writeback",
            _ => false,
        }
    }
}
