//! A disk of which a call never ends: what goes on all the same, until the power goes.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use spillway_core::{ByteRange, Env, SECTOR};
use spillway_sim::disk::Call;
use spillway_sim::model::Violation;

use super::House;

/// How long something is waited for that may need what hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sectors that are read at a time: a block of the largest kind.
const LOOK_SECTORS: u64 = 8;

impl House {
    /// Whether a call to a disk never ends.
    fn hangs(&self) -> bool {
        self.disks.iter().any(|disk| !disk.hung().is_empty())
    }

    /// Whether a call never ends, and something was waited for since `start` for as long as is enough.
    pub(super) fn hangs_since(&self, start: Duration) -> bool {
        self.world.now() - start > PATIENCE && self.hangs()
    }

    /// What is waited for never comes. Where a disk hangs that is no wonder: what does not need the call goes on, and the power goes.
    pub(super) fn give_up(&self) -> Result<(), Violation> {
        if !self.hangs() {
            return Err(Violation("nothing is ready and nobody sleeps: a request is never answered".into()));
        }
        if self.visitor.site.get().is_some() && self.steady {
            self.look_past_it()?;
            self.part()?;
        }
        self.disks.iter().for_each(|disk| disk.cut());
        Ok(())
    }

    /// Reads where no other request is under way are answered while calls hang that are none for them. Stacks where
    /// they join others are left out.
    fn look_past_it(&self) -> Result<(), Violation> {
        let in_place = if self.row.is_durable() { self.disks[0].hung() } else { Vec::new() };
        let reads = self.disks.iter().flat_map(|disk| disk.hung()).any(|(call, _)| call == Call::Read);
        let plain = self.row.is_durable() && self.row.cache.is_none();
        if self.row.joins() || reads && !plain {
            return Ok(());
        }
        let model = self.visitor.model.borrow();
        let of_it = |first: u64| {
            let here = ByteRange::new(first * SECTOR, LOOK_SECTORS * SECTOR);
            in_place.iter().any(|(_, range)| range.overlaps(here))
        };
        let looks = self.visitor.looks.iter().flat_map(|&(first, end)| {
            let end = end.min(model.sectors());
            (first..end).step_by(LOOK_SECTORS as usize).map(move |at| (at, LOOK_SECTORS.min(end - at)))
        });
        let looks: Vec<(u64, u64)> =
            looks.filter(|&(first, count)| model.is_quiet(first, count) && !of_it(first)).collect();
        drop(model);
        let (visitor, at) = (self.visitor.clone(), Rc::new(Cell::new(0)));
        let told = at.clone();
        let done = self.spawn(async move {
            for (first, count) in looks {
                told.set(first);
                visitor.read(first, count, None).await;
            }
        });
        let words = || format!("a read of sector {} waits for a call that is none for it", at.get());
        self.demand(&done, words)
    }

    /// Clients whose connections are lost are gone soon, whatever they asked for. A machine is not: the next one that has its memory is to
    /// find there what was answered.
    fn part(&self) -> Result<(), Violation> {
        if self.network.is_none_or(|way| way.outlasts_requests()) {
            return Ok(());
        }
        let visitor = self.visitor.clone();
        let done = self.spawn(async move { visitor.network().expect("it has one").leave().await });
        self.demand(&done, || "a session does not end with its connection: a call hangs".into())
    }

    /// Goes on until `done`, which takes no longer than something that hangs is waited for.
    fn demand(&self, done: &Cell<bool>, words: impl Fn() -> String) -> Result<(), Violation> {
        let (start, hung) = (self.world.now(), self.hung_calls());
        while !done.get() && !self.powerless() && self.hung_calls() == hung {
            if let Some(violation) = self.visitor.violation.borrow_mut().take() {
                return Err(violation);
            }
            if self.world.now() - start > PATIENCE || !self.world.go_on() {
                return Err(Violation(words()));
            }
            self.tell_what_changed();
        }
        Ok(())
    }

    fn hung_calls(&self) -> usize {
        self.disks.iter().map(|disk| disk.hung().len()).sum()
    }
}
