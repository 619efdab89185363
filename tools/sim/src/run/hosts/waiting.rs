//! How a story goes on until something is done; and what goes on where a call to the cache device of a host hangs, until its power goes.

use std::time::Duration;

use spillway_core::Env;
use spillway_sim::disk::Call;
use spillway_sim::model::Violation;

use super::Story;
use super::host::Machine;

/// Steps of the executor after which a phase is called stuck.
const STEPS_MAX: u64 = 3_000_000;

/// How long something is waited for that may need what hangs, and how long a stop takes where nothing does.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Sectors that are read at a time beside what hangs: a block.
const LOOK_SECTORS: u64 = 8;

impl Story {
    /// Goes on until something is done. Where the host of the phase waits for a call that never ends, its power goes.
    pub(super) fn until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        let start = self.shared.world.now();
        for _ in 0..STEPS_MAX {
            if done(self) {
                return Ok(());
            }
            if (self.is_long_since(start) && self.hangs()) || !self.step()? {
                self.give_up()?;
            }
        }
        Err(Violation(format!("a request is not answered within {STEPS_MAX} steps")))
    }

    /// A step of the world; false where nothing happens by itself any more.
    fn step(&mut self) -> Result<bool, Violation> {
        let goes_on = self.shared.world.go_on();
        self.notice_reign()?;
        let guests = self.hosts.iter().filter_map(|host| host.machine.as_ref()?.guest.as_ref());
        guests.for_each(|guest| guest.site.stack.device.verify());
        self.shared.violation.borrow_mut().take().map_or(Ok(goes_on), Err)
    }

    fn is_long_since(&self, start: Duration) -> bool {
        self.shared.world.now() - start > PATIENCE
    }

    /// The host of the phase, where it has power.
    fn machine_at_work(&self) -> Option<&Machine> {
        self.hosts[self.opening].machine.as_ref().filter(|machine| !machine.is_cut())
    }

    /// Whether a call to its cache device never ends.
    fn hangs(&self) -> bool {
        self.machine_at_work().is_some_and(|machine| !machine.disk.hung().is_empty())
    }

    /// What is waited for never comes. Where a call hangs that is no wonder: what does not need it goes on, and the power goes, as after a
    /// second signal.
    fn give_up(&mut self) -> Result<(), Violation> {
        if !self.hangs() {
            return Err(Violation("nothing is ready and nobody sleeps: a request is never answered".into()));
        }
        self.look_past_it()?;
        if let Some(machine) = &mut self.hosts[self.opening].machine {
            machine.cut();
        }
        Ok(())
    }

    /// Reads where no other request is under way are answered while a call hangs that is none for them. A page cache, where they may join
    /// others, is left out.
    fn look_past_it(&mut self) -> Result<(), Violation> {
        let host = self.opening;
        let Some(machine) = self.machine_at_work() else { return Ok(()) };
        let reads = machine.disk.hung().iter().any(|(call, _)| *call == Call::Read);
        let Some(guest) = machine.guest.clone().filter(|_| !reads && !self.row().joins()) else {
            return Ok(());
        };
        let done = machine.spawn(async move {
            for first in (0..guest.shared.row.sectors()).step_by(LOOK_SECTORS as usize) {
                let quiet = guest.kept.model.borrow().is_quiet(first, LOOK_SECTORS);
                if quiet {
                    guest.read(first, LOOK_SECTORS, None).await;
                }
            }
        });
        let start = self.shared.world.now();
        while !done.get() && !self.is_cut(host) {
            if self.is_long_since(start) || !self.step()? {
                return Err(Violation(
                    "a read waits for a call to the cache device that is none for it".into(),
                ));
            }
        }
        Ok(())
    }
}
