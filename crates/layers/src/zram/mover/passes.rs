//! Moving objects so that memory returns: by itself in the background, for a writer that found none left, and on `compact`.
//!
//! One pass at a time moves objects. A pass goes through three phases (policy decides how far): in each class, sparse spans are emptied
//! into fuller ones; packed spans with much dead are rewritten; the last sparse span of each class is packed. It works in
//! steps of a few moves, between which it holds nothing and the background task yields. How an object moves stands in `moving`: readers
//! and writers see it at one place or the other.

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::{Env, Place, mutant, task};
use spillway_policy::compaction::{self, Compaction, PoolLoad};

use super::slices::Caller;
use crate::zram::device::compactor::Compactor;
use crate::zram::device::{Core, Count};
use crate::zram::pool::cell::{Cell, Scratch, SlotIndex};
use crate::zram::pool::{ArenaId, Eviction};
use crate::zram::slots::picked::{PickOutcome, PublishIf};

/// How often the background task looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Looks without a change after which a device is at rest.
const QUIET_LOOKS: u32 = 3;

/// Objects moved in one step: about 100 us.
const MOVES_PER_STEP: usize = 200;

/// Starts the background task of a device; it ends when the device is gone.
pub(crate) fn start(core: &Arc<Core>) {
    let (env, compactor, weak) = (core.env.clone(), core.compactor.clone(), Arc::downgrade(core));
    core.env.spawn(Place::Compute, task(move || run(env, compactor, weak)));
}

/// While it waits it holds nothing of the device, whose memory returns as soon as nobody else uses it.
async fn run(env: Arc<dyn Env>, compactor: Arc<Compactor>, weak: Weak<Core>) {
    let (mut seen, mut quiet) = ((0, 0), 0);
    let mut timer = None;
    loop {
        // It goes on however many requests come.
        let running = timer.get_or_insert_with(|| env.sleep(LOOK_EVERY));
        let ended = compactor.attempts.asked_or(running).await;
        let Some(core) = weak.upgrade() else { return };
        if ended {
            timer = None;
            core.look_at_level();
            core.spill_old_pages();
        }
        let state = core.state();
        quiet = if state == seen { quiet + u32::from(ended) } else { 0 };
        seen = state;
        core.look(quiet).await;
        if ended {
            core.recompress_aged().await;
        }
    }
}

impl Core {
    /// What stays as it is while a device is at rest. It is what requests have done, not what they have asked for: one may last longer than
    /// the quiet time. Objects become smaller, leave and come back without a request that changes a page.
    fn state(&self) -> (u64, u64) {
        (self.table.tally.changes(), self.table.holdings().object_bytes)
    }

    pub(crate) fn pool_load(&self, busy: bool) -> PoolLoad {
        let held = self.table.holdings();
        let taken_bytes = self.budget.used() + self.pages.borrowed();
        PoolLoad { object_bytes: held.object_bytes, taken_bytes, busy }
    }

    async fn look(&self, quiet: u32) {
        let attempts = &self.compactor.attempts;
        let (asks, asked) = (attempts.asked(), attempts.is_asked());
        if quiet == QUIET_LOOKS {
            self.pool.narrow();
        }
        let which = self.wanted_of_deferred(quiet >= QUIET_LOOKS || asked);
        let caller = if asked { Caller::Requests } else { Caller::Device };
        self.compress_deferred(which, caller).await;
        if quiet >= QUIET_LOOKS {
            // At each look: a write that was refused changed nothing and may have left a span.
            self.pages.cool();
        }
        // A writer that waits gets all that moving objects can free.
        let busy = quiet < QUIET_LOOKS && !asked;
        let kind = match compaction::next_compaction(self.pool_load(busy)) {
            Compaction::Rest if asked => Compaction::Merge,
            Compaction::Pack if mutant::on("zram: pack at rest only") && asked => Compaction::Merge,
            // At rest a second pass over the same pool would find what the first left.
            Compaction::Pack if quiet > QUIET_LOOKS && !asked => Compaction::Rest,
            kind => kind,
        };
        if kind != Compaction::Rest {
            self.make_pass(kind, caller).await;
        }
        if asked {
            attempts.serve(asks);
            // A writer that was served may ask again at once.
            self.env.sleep(Duration::ZERO).await;
        }
    }

    /// A whole pass, or the beginning of one where it is over early.
    pub(crate) async fn make_pass(&self, kind: Compaction, caller: Caller) {
        let mut pass = Pass::new(kind);
        assert!(kind != Compaction::Rest, "a pass does something");
        // What it has picked comes free when it is done with it: a writer that finds no room meanwhile asks for a pass of its own.
        self.compactor.begin_pass();
        while self.step(&mut pass) {
            if !self.next_slice(caller).await {
                pass.give_up(self);
                break;
            }
        }
        self.pool.end_packing(&self.pages);
        if kind == Compaction::Pack {
            self.pages.cool();
        }
        self.compactor.end_pass();
    }

    /// Moves a few objects; false when the pass is over.
    fn step(&self, pass: &mut Pass) -> bool {
        let _one_at_a_time = self.compactor.pass.lock();
        for _ in 0..MOVES_PER_STEP {
            let Some((cell, owner)) = pass.next_object(self) else { return false };
            if !matches!(pass.phase, Phase::Merge(_)) {
                self.pool.prepare_packing(&self.pages);
            }
            match self.move_object(cell, owner, pass.phase) {
                Moved::Yes => pass.moved += 1,
                Moved::Gone => {}
                Moved::NoRoom => pass.give_up(self),
            }
        }
        true
    }

    fn move_object(&self, asked: Cell, owner: SlotIndex, phase: Phase) -> Moved {
        let mut scratch = Scratch::new();
        let Some((pick, bytes)) = self.pick(owner, |_, cell| cell.is_at(asked), &mut scratch) else {
            return Moved::Gone;
        };
        let (cell, len) = (pick.cell(), pick.cell().len());
        let fresh = match phase {
            Phase::Merge(_) => self.pool.place_merged(len, owner, cell),
            _ => self.pool.place_packed(&self.pages, len, owner).ok(),
        };
        let Some(fresh) = fresh else { return Moved::NoRoom };
        let moved = pick.moved_to(self.pool.fill(&self.pages, fresh, bytes));
        if pick.publish(moved, PublishIf::Always, |mark| mark) == PickOutcome::Replaced {
            return Moved::Gone;
        }
        if mutant::on("zram: forget what a moved object held") {
            self.clear(u64::from(owner.0)..u64::from(owner.0) + 1);
        }
        Moved::Yes
    }
}

enum Moved {
    Yes,
    /// The object was freed, or is not published yet.
    Gone,
    NoRoom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Merge(ArenaId),
    Rewrite,
    Pack(ArenaId),
    Over,
}

/// How far a pass has come.
struct Pass {
    kind: Compaction,
    phase: Phase,
    eviction: Option<Eviction>,
    /// Objects moved out of the span of this eviction.
    moved: usize,
    packed_before: Option<usize>,
    pages_freed: usize,
}

impl Pass {
    fn new(kind: Compaction) -> Self {
        Self {
            kind,
            phase: Phase::Merge(ArenaId::FIRST),
            eviction: None,
            moved: 0,
            packed_before: None,
            pages_freed: 0,
        }
    }

    fn next_object(&mut self, core: &Core) -> Option<(Cell, SlotIndex)> {
        let packed = *self.packed_before.get_or_insert_with(|| core.pool.packed_spans());
        loop {
            if let Some(object) = self.eviction.as_mut().and_then(|eviction| eviction.objects.pop()) {
                return Some(object);
            }
            self.end_eviction(core);
            assert_eq!(self.moved, 0, "moves are counted for one eviction");
            if self.phase == Phase::Over {
                let opened = core.pool.packed_spans().saturating_sub(packed);
                let pages = opened * spillway_policy::size_classes::SPAN_PAGES_MAX;
                let freed = std::mem::take(&mut self.pages_freed).saturating_sub(pages);
                core.count(Count::PagesCompacted, freed as u64);
                if freed > 0 {
                    core.budget.note_reclaimed();
                }
                return None;
            }
            self.eviction = match self.phase {
                Phase::Merge(arena) => core.pool.begin_merge(arena),
                Phase::Rewrite => core.pool.begin_rewrite(),
                Phase::Pack(arena) => core.pool.begin_pack(arena),
                Phase::Over => None,
            };
            if self.eviction.is_none() {
                self.advance(core);
            }
        }
    }

    /// Ends the present eviction. One that moved nothing would come again: on to the next phase.
    fn end_eviction(&mut self, core: &Core) {
        let Some(eviction) = self.eviction.take() else { return };
        self.pages_freed += core.pool.end_eviction(&core.pages, eviction);
        if std::mem::take(&mut self.moved) == 0 {
            self.advance(core);
        }
    }

    fn give_up(&mut self, core: &Core) {
        if let Some(eviction) = &mut self.eviction {
            eviction.objects.clear();
        }
        self.moved = 0;
        self.end_eviction(core);
    }

    fn advance(&mut self, core: &Core) {
        let next = |arena| core.pool.arena_after(arena);
        self.phase = match self.phase {
            Phase::Merge(arena) if let Some(arena) = next(arena) => Phase::Merge(arena),
            Phase::Merge(_) if self.kind == Compaction::Pack => Phase::Rewrite,
            Phase::Rewrite => Phase::Pack(ArenaId::FIRST),
            Phase::Pack(arena) if let Some(arena) = next(arena) => Phase::Pack(arena),
            _ => Phase::Over,
        };
    }
}
