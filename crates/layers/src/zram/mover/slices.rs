//! How the work of the mover is cut: into slices, between which others have their turn.

use std::ops::Range;

use spillway_core::Kind;

use crate::zram::device::Core;
use crate::zram::work::Slice;

/// For whom the mover works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The device itself: requests come first, unless they wait for the background task.
    Device,
    /// Requests that wait for memory.
    Requests,
    /// A command, whose end is waited for; it is over early where the device ends.
    Command,
}

impl Core {
    /// Lets others have their turn between two slices of work; false where the work is over.
    pub(crate) async fn next_slice(&self, caller: Caller) -> bool {
        let is_waited_for = || self.compactor.is_asked() || self.table.deferred.is_waited_for();
        self.env.give_way(caller != Caller::Device || is_waited_for()).await;
        caller != Caller::Command || self.go_on().is_ok()
    }

    /// Goes over all slots in slices, for a command that lasts as long as it may `go_on`. `visit` takes those of one page that has some in
    /// use and returns the slot to go on with; with an error the slot at which it arose. Where it found no memory, that is waited for.
    pub(crate) async fn walk(
        &self,
        go_on: impl Fn() -> Result<(), Kind>,
        mut visit: impl FnMut(Range<u64>, &mut Slice) -> Result<u64, (u64, Kind)>,
    ) -> Result<(), Kind> {
        let (mut slice, mut relief, mut from) = (Slice::new(), self.relief(), 0);
        loop {
            go_on()?;
            let Some(slots) = self.next_slots(from) else { return Ok(()) };
            from = match visit(slots, &mut slice) {
                Ok(next) => {
                    relief.progress();
                    next
                }
                Err((at, kind)) if self.relieve(kind, &mut relief).await => at,
                Err((_, kind)) => return Err(kind),
            };
            if slice.is_over() {
                self.env.give_way(true).await;
                slice = Slice::new();
            }
        }
    }
}
