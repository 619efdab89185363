//! What a device does for requests that find no memory: its own, and those of others that share its budget.

use spillway_core::{Attempt, Kind, Reclaimer, Relief, mutant};
use spillway_policy::compaction::{self, Compaction};

use super::device::Core;
use crate::decisions::Decision;

impl Reclaimer for Core {
    /// Warm spans go back at once. Deferred pages are compressed, and objects moved together, in a pass; pages are spilled in a batch, which
    /// comes after what is deferred.
    fn reclaim(&self, anew: bool) -> Vec<Attempt> {
        self.pages.cool();
        let deferred = self.table.deferred.pages() > 0;
        let pass = (anew && (deferred || self.can_free())).then(|| self.compactor.attempts.ask());
        let spill = if anew && deferred { None } else { self.ask_to_spill() };
        pass.into_iter().chain(spill).collect()
    }
}

/// Nobody makes an attempt any more.
impl Drop for Core {
    fn drop(&mut self) {
        self.compactor.attempts.end();
        self.pressure.attempts.end();
    }
}

impl Core {
    /// For a request that is about to try, and may find no memory.
    pub(super) fn relief(&self) -> Relief<'_> {
        Relief::new(&self.budget)
    }

    /// Waits after a refusal; true if it is worth trying again.
    pub(super) async fn relieve(&self, refused: Kind, relief: &mut Relief<'_>) -> bool {
        let may_wait = refused == Kind::NoSpace && !mutant::on("zram: refuse without a pass");
        let relieved = may_wait && relief.wait(&*self.env).await;
        if !relieved && refused == Kind::NoSpace {
            self.decisions.note(Decision("refuse writes", "memory is full"), 0, || self.refused());
        }
        relieved
    }

    /// Whether moving objects frees memory soon. A pass goes on below the overhead at which it begins.
    fn can_free(&self) -> bool {
        self.compactor.is_under_way()
            || compaction::next_compaction(self.pool_load(false)) != Compaction::Rest
    }

    /// A batch that spills, or one that is on its way where no other can; `None` where neither is.
    fn ask_to_spill(&self) -> Option<Attempt> {
        let (backing, spiller) = (self.backing.get()?, self.spiller.get()?);
        let attempt = self.pressure.attempts.ask();
        if self.can_spill(&backing) && !self.pressure.is_stalled() {
            spiller.kick();
        } else if self.pressure.nothing_leaves() {
            return None;
        }
        Some(attempt)
    }
}
