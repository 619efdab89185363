//! How a client resets its device, and sets it up again: with another spill file, for which it may not wait.

use spillway_core::{Attributes, SECTOR};
use spillway_sim::model::{Change, End, Violation};

use super::Visitor;
use crate::run::dropping::Dropping;
use crate::stacks::row::BACKING;

impl Visitor {
    /// Resets the device while nobody but commands is at work, and sets it up again. Neither may fail, but for a disk that does. With `withdraw`
    /// nobody waits for spill files to be attached.
    pub(crate) async fn reset(&self, setup: usize, withdraw: Option<u8>) {
        self.resets.begin().await;
        let _reserved = match self.network() {
            Some(network) => Some(network.reserve().await),
            None => None,
        };
        let sectors = self.model.borrow().sectors();
        let number = self.model.borrow_mut().begin_write(0, sectors, Change::Discarded);
        let size = (sectors * SECTOR).to_string();
        self.set_up("reset", "1", false, None).await;
        for &(name, value) in self.setups[setup] {
            let left = self.spill.as_ref().is_some_and(|spill| spill.left);
            let attaches = name == BACKING;
            let polls = withdraw.filter(|_| attaches);
            self.set_up(name, value, attaches && (self.faulty || left), polls).await;
        }
        if !self.set_up("disksize", &size, self.faulty, None).await {
            // It lets go of the disk that cannot be opened.
            self.set_up("reset", "1", false, None).await;
            self.set_up("disksize", &size, false, None).await;
        }
        let mut model = self.model.borrow_mut();
        model.end_write(number, End::Done { durable: false });
        if let Some(room) = &self.site().room {
            room.set_limit(model.moment(), "0");
        }
        self.resets.end();
    }

    /// Sets an attribute of a device that is reset; false where that fails, as it may.
    async fn set_up(&self, name: &str, value: &str, may_fail: bool, polls: Option<u8>) -> bool {
        tracing::debug!("client: {name} {value}");
        let answer = self.stack().store(name, value);
        let Some(stored) = (Dropping { answer, polls }).await else { return true };
        if let (Err(error), false) = (&stored, may_fail) {
            self.fail(Violation(format!("{name} {value} fails: {error}")));
        }
        stored.is_ok()
    }
}
