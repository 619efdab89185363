//! How a client has its device grow, and what it then finds there.

use std::time::Duration;

use spillway_core::{Env, Kind, Op, SECTOR};
use spillway_sim::model::Violation;
use spillway_sim::workload::Act;

use super::Visitor;
use crate::stories::growing::has_range;

/// How long a server that is away is waited for.
const SERVER_PATIENCE: Duration = Duration::from_secs(10);

impl Visitor {
    /// Sectors that the device shows.
    pub(crate) fn sectors(&self) -> u64 {
        let sectors = self.site().device.geometry().size / SECTOR;
        if let Err(violation) = self.model.borrow_mut().see_size(sectors) {
            self.fail(violation);
        }
        sectors
    }

    /// The stack was opened: how large the device is.
    pub(crate) fn find_size(&self) -> Result<(), Violation> {
        let sectors = self.site().device.geometry().size / SECTOR;
        self.growth.told.set(sectors);
        self.model.borrow_mut().find_size(sectors)
    }

    /// How many of these sectors a step is made with; none where the device does not have the first of them.
    pub(crate) fn fitting(&self, act: Act, first: u64, count: u64) -> Option<u64> {
        let left = if has_range(act) { self.sectors().saturating_sub(first) } else { count };
        Some(count.min(left)).filter(|&count| count > 0)
    }

    /// Has the device grow to so many sectors, if it has fewer.
    pub(crate) async fn grow(&self, sectors: u64) {
        let _turn = self.growth.turn.hold().await;
        let mut sectors = sectors.max(self.sectors());
        if let Some(disk) = &self.growth.disk {
            // It may be longer where the device could not follow.
            sectors = sectors.max(disk.bytes() / SECTOR);
            disk.enlarge(sectors * SECTOR);
        }
        self.model.borrow_mut().ask_for(sectors);
        let begun = self.model.borrow_mut().moment();
        tracing::debug!("client: grow to {sectors}");
        let asked = self.world.now();
        let plainly = self.growth.disk.is_some() && sectors.is_multiple_of(16);
        let grown = self.stack().grow((!plainly).then_some(sectors * SECTOR)).await;
        tracing::debug!("client: grow to {sectors} {grown:?}");
        match grown {
            Ok(()) if self.sectors() < sectors => {
                self.fail(Violation(format!(
                    "it has grown to {sectors} sectors, and shows {}",
                    self.sectors()
                )));
            }
            Err(error) if error.kind == Kind::Unreachable && self.world.now() - asked >= SERVER_PATIENCE => {}
            // What grows in memory may find none as a write does, and what is known of a disk is in memory too.
            Err(error)
                if !self.faulty
                    && !self.may_be_refused(Op::Write, error.kind, begun)
                    && !self.others.may_refuse(error.kind) =>
            {
                self.fail(Violation(format!("growing to {sectors} sectors fails for no reason: {error}")));
            }
            _ => {}
        }
    }
}
