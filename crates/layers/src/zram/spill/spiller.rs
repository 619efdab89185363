//! Spilling by itself: a device with a spill file keeps within its limits. It is a source of the write-back engine, whose batches are
//! pages that the clock has found cold.
//!
//! The hand names slots only; they are picked when their batch is written, so that nothing is held in between, and what was
//! accessed by then stays.

use std::ops::Range;
use std::sync::Arc;

use spillway_core::size::human;
use spillway_core::sync::Ordering;
use spillway_core::{Budget, Kind, LocalFuture, mutant};
use spillway_policy::spill::{self, LAPS_MAX, Level};
use spillway_policy::watermarks::Goal;

use super::gathered::{Added, Gathered, Written};
use crate::decisions::Decision;
use crate::writeback::{Source, Take};
use crate::zram::device::backing::Backing;
use crate::zram::device::{Core, Count};
use crate::zram::mover::deferring::Which;
use crate::zram::mover::slices::Caller;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::{Cell, SlotIndex};
use crate::zram::slots::mark::Mark;
use crate::zram::slots::picked::PublishIf;
use crate::zram::work::Slice;

/// The decision that pages leave.
pub(crate) const SPILL: &str = "spill";

/// Pages of slots that are looked at in one go.
const LOOKS: u32 = 16;

/// Of what moving objects together would free, this share is left where it is.
const SLACK_SHARE: u64 = 40;

/// Slots whose pages are to leave.
pub(crate) struct Victims {
    slots: Vec<SlotIndex>,
    bytes: u64,
    chosen: Chosen,
    backing: Arc<Backing>,
}

/// How they were chosen.
#[derive(Clone, Copy)]
struct Chosen {
    /// They leave also where they are accessed.
    any: bool,
    /// They may be written; otherwise only those leave that have a clean copy. Decided once, for what is on its way counts against the
    /// limits of what may be written.
    writes: bool,
}

impl Drop for Victims {
    fn drop(&mut self) {
        let before = self.backing.pressure.leaving.fetch_sub(self.bytes, Ordering::Relaxed);
        assert!(before >= self.bytes, "{} bytes on their way of {before}", self.bytes);
        self.backing.pressure.attempts.serve_all();
    }
}

impl Source for Core {
    type Batch = Victims;

    fn goal(&self) -> Goal {
        if self.backing.get().is_some_and(|backing| self.is_to_spill(&backing)) {
            return Goal::ToLow;
        }
        // Who waits may have asked before that was so.
        self.pressure.nothing_leaves();
        Goal::Rest
    }

    fn take(self: &Arc<Self>, _goal: Goal, bytes_max: u64) -> Take<Victims> {
        let Some(backing) = self.backing.get() else { return Take::Nothing };
        let wanted = self.excess().saturating_sub(backing.pressure.leaving.load(Ordering::Relaxed));
        if wanted == 0 {
            // What is on its way is enough; its end is the time to look again.
            return Take::Nothing;
        }
        let any = match backing.pressure.next_attempt(self.env.now()) {
            Ok(any) => any,
            Err(rest) => return Take::After(rest),
        };
        let bytes_max = bytes_max.min(wanted);
        let (mut victims, mut bytes) = (Vec::new(), 0);
        let (pages, writes) = (self.settings.writeback_batch_size.get(), self.may_spill(&backing));
        let full = |victims: &Vec<SlotIndex>, bytes| victims.len() as u64 >= pages || bytes >= bytes_max;
        let mut slice = Slice::new();
        for _ in 0..LOOKS {
            let Some(range) = self.next_under_hand(&backing) else { break };
            let (now, mut next) = (self.seconds(), range.end);
            let units = self.table.sweep(range, now, any, |index, mark| {
                if !writes && !mark.has_copy() {
                    return true;
                }
                victims.push(index);
                bytes += mark.len() as u64;
                let go_on = !full(&victims, bytes);
                if !go_on {
                    next = u64::from(index.0) + 1;
                }
                go_on
            });
            backing.pressure.hand.store(next, Ordering::Relaxed);
            slice.count(units);
            if full(&victims, bytes) || slice.is_over() {
                break;
            }
        }
        self.taken(&backing, victims, bytes, Chosen { any, writes })
    }

    fn write(self: &Arc<Self>, victims: Victims) -> LocalFuture<Written> {
        let core = self.clone();
        Box::pin(async move { core.spill(victims).await })
    }

    /// There are no drains.
    fn left(&self) -> u64 {
        0
    }

    fn is_waited_for(&self) -> bool {
        self.pressure.is_waited_for()
    }

    fn failed(&self, kind: Kind) {
        let Some(backing) = self.backing.get() else { return };
        if kind != Kind::NoSpace {
            return;
        }
        if backing.pressure.filled(self.env.coarse_now()) {
            let path = backing.path.display();
            self.decisions
                .note(Decision("keep in memory", "the spill file is full"), 0, || self.spill_figures());
            tracing::warn!("the spill file {path} is full: pages stay in memory until there is room");
        }
        // Who asked at the end of the batch did so before this was known.
        backing.pressure.attempts.serve_all();
    }
}

impl Core {
    /// How full memory is, by the limit that is nearer.
    pub(crate) fn level(&self) -> (&'static str, Level) {
        let held = self.table.holdings().object_bytes;
        let reusable = self.pool_bytes().saturating_sub(held + held / SLACK_SHARE);
        let level = |budget: &Budget| Level { used: budget.used(), reusable, limit: budget.limit() };
        let (own, all) = (level(&self.budget), level(&self.fixed));
        let alone = mutant::on("zram: --memory is ignored once mem_limit is set");
        if own.limit != Budget::UNLIMITED && (alone || own.percent() >= all.percent()) {
            ("mem_limit", own)
        } else {
            ("--memory", all)
        }
    }

    /// Whether pages are to leave, because memory is short or requests wait for it, and can.
    fn is_to_spill(&self, backing: &Backing) -> bool {
        let pressure = &backing.pressure;
        let (high, low) = self.watermarks();
        let before = pressure.leaves.load(Ordering::Relaxed);
        let leaves = spill::leaves(self.level().1.percent(), before, high, low);
        pressure.leaves.store(leaves, Ordering::Relaxed);
        (leaves || pressure.is_waited_for()) && self.can_spill(backing)
    }

    /// Whether there are pages that can leave, and room for them or a record of theirs in the file.
    pub(crate) fn can_spill(&self, backing: &Backing) -> bool {
        let forgets = mutant::on("zram: what a read brought back cannot leave");
        let copies = self.table.copies.count() > 0 && !backing.is_ending();
        (copies || self.may_spill(backing))
            && self.holds_objects()
            && !(forgets && self.counted(Count::BroughtBack) > 0)
    }

    /// Whether any page lies in memory but repeated words: each can leave sooner or later.
    fn holds_objects(&self) -> bool {
        self.table.holdings().object_bytes > 0
    }

    /// Slots of the next page that has some in use, from the hand on; `None` once it has gone round in vain for so long that it rests.
    fn next_under_hand(&self, backing: &Backing) -> Option<Range<u64>> {
        loop {
            let slots = self.next_slots(backing.pressure.hand.load(Ordering::Relaxed));
            if slots.is_some() {
                return slots;
            }
            backing.pressure.hand.store(0, Ordering::Relaxed);
            if backing.pressure.vain_laps.fetch_add(1, Ordering::Relaxed) + 1 >= LAPS_MAX {
                return None;
            }
        }
    }

    fn taken(
        &self,
        backing: &Arc<Backing>,
        slots: Vec<SlotIndex>,
        bytes: u64,
        chosen: Chosen,
    ) -> Take<Victims> {
        let pressure = &backing.pressure;
        if !slots.is_empty() {
            pressure.vain_laps.store(0, Ordering::Relaxed);
            pressure.leaving.fetch_add(bytes, Ordering::Relaxed);
            return Take::Batch(Victims { slots, bytes, chosen, backing: backing.clone() }, bytes);
        }
        if pressure.vain_laps.load(Ordering::Relaxed) < LAPS_MAX {
            return Take::Again;
        }
        // Pages that are accessed all the time, or that others have picked: some can leave soon.
        pressure.vain_laps.store(0, Ordering::Relaxed);
        pressure.tried(pressure.left.load(Ordering::Relaxed), chosen.any, self.env.now());
        pressure.attempts.serve_all();
        Take::Again
    }

    /// Bytes that have to leave.
    fn excess(&self) -> u64 {
        self.level().1.excess(self.watermarks().1, self.is_waited_for())
    }

    /// Where pages begin to leave, and where that ends, in percent: the low one is never above the high one.
    fn watermarks(&self) -> (u64, u64) {
        let high = self.settings.spill_high_watermark.get();
        (high, self.settings.spill_low_watermark.get().min(high))
    }

    /// Writes the pages of these slots that are still cold.
    async fn spill(self: &Arc<Self>, mut victims: Victims) -> Written {
        if self.table.deferred.pages() > 0 {
            // That may be room enough.
            self.compress_deferred(Which::All, Caller::Requests).await;
            if self.excess() == 0 {
                return Ok(());
            }
        }
        let mut left = std::mem::take(&mut victims.slots).into_iter().peekable();
        let (backing, Chosen { any, writes }) = (&victims.backing, victims.chosen);
        let before = backing.pressure.left.load(Ordering::Relaxed);
        while left.peek().is_some() {
            let when = if any { PublishIf::Always } else { PublishIf::Untouched };
            let Some(mut gathered) = Gathered::new(self, backing, when).await else { return Ok(()) };
            let (mut slice, mut at_once) = (Slice::new(), 0);
            while let Some(&index) = left.peek()
                && !gathered.is_full()
            {
                slice.renew_if_over(&*self.env).await;
                let now = self.seconds();
                let may = |mark: Mark| writes || mark.has_copy();
                let wanted = |mark: Mark, cell: Cell| may(mark) && (any || mark.leaves(cell.len(), now));
                match gathered.add(index, wanted, &mut slice) {
                    Added::AtOnce => (at_once, _) = (at_once + 1, left.next()),
                    Added::Yes | Added::Not => _ = left.next(),
                    Added::NoRoom => {}
                    // What is left of the limit says so to the next look.
                    Added::NoLimit => left = Vec::new().into_iter().peekable(),
                }
            }
            let pages = at_once + gathered.len();
            if pages == 0 {
                continue;
            }
            let (decision, figures) = (Decision(SPILL, why_spilled(backing)), self.spill_figures());
            assert!(gathered.len() <= pages, "{} of {pages} pages are written", gathered.len());
            if gathered.len() > 0 {
                gathered.write().await?;
            }
            self.decisions.note(decision, (pages * PAGE) as u64, || figures);
        }
        backing.pressure.tried(before, any, self.env.now());
        Ok(())
    }

    fn explain_age(&self) -> String {
        match self.settings.spill_age.get() {
            0 => String::new(),
            age => format!(", except pages not accessed for {age} s"),
        }
    }

    /// What spilling by itself has done last, and what it does next, in words.
    pub(crate) fn explain(&self) -> String {
        let Some(backing) = self.backing.get() else {
            return "no spill file: pages stay in memory".into();
        };
        let (of, level) = self.level();
        let speed = human(backing.meter.bytes_per_second());
        let slowed = if backing.pressure.has_paused(self.env.coarse_now()) {
            format!("; writers are slowed down to what the spill file takes, about {speed} a second")
        } else {
            String::new()
        };
        let used = format!("{} % of {of} is held", level.percent());
        let next = self.next_in_words(&backing);
        let last =
            self.decisions.latest(SPILL).map_or("nothing was spilled yet".to_owned(), |(ago, bytes, why)| {
                format!("last, {} s ago, {} of pages spilled by {why}", ago.as_secs(), human(bytes))
            });
        format!("{used}; {next}{slowed}; {last}")
    }

    /// What spilling by itself does next.
    fn next_in_words(&self, backing: &Backing) -> String {
        let (high, low) = self.watermarks();
        // First: it looks whether pages have to leave.
        let (goal, level, pressure) = (self.goal(), self.level().1, &backing.pressure);
        if backing.store.has_failed() {
            "nothing is spilled: writes to the spill file have failed too often, and none is tried before the next start".into()
        } else if !pressure.may_have_room(self.env.coarse_now()) || pressure.is_full() && pressure.is_felt() {
            "nothing is spilled: the spill file is full".into()
        } else if !self.may_write() {
            "nothing is spilled: writeback_limit is used up".into()
        } else if !self.may_spend(backing) {
            let wait = self.spends_in(backing).as_secs() + 1;
            format!("nothing is spilled: spill_daily_bytes is used up for now, and goes on in {wait} s")
        } else if level.percent() >= high && !self.holds_objects() {
            "nothing is spilled: no page in memory can be evicted".into()
        } else if goal == Goal::Rest {
            format!("nothing is spilled below {high} %{}", self.explain_age())
        } else {
            let beside =
                if backing.meter.is_read() { ", two I/Os at a time while clients read there" } else { "" };
            format!("cold pages are spilled down to {low} %{beside}")
        }
    }

    /// The figures by which pages are spilled.
    fn spill_figures(&self) -> String {
        let (high, low) = (self.settings.spill_high_watermark.get(), self.settings.spill_low_watermark.get());
        let (of, level) = self.level();
        format!(
            "{} % of {of} was held; spill_high_watermark {high} %, spill_low_watermark {low} %",
            level.percent()
        )
    }

    /// The figures for which writers pause.
    pub(super) fn pressed(&self, backing: &Backing) -> String {
        let ((of, level), speed) = (self.level(), human(backing.meter.bytes_per_second()));
        format!("{} % of {of} is held; the spill file takes {speed} a second", level.percent())
    }

    /// The figures for which a write is refused.
    pub(crate) fn refused(&self) -> String {
        let (of, level) = self.level();
        let next = match self.backing.get() {
            Some(backing) => self.next_in_words(&backing),
            None => "there is no spill file".to_owned(),
        };
        format!("{} % of {of} is held; {next}", level.percent())
    }
}

/// The rule by which pages are spilled.
fn why_spilled(backing: &Backing) -> &'static str {
    if backing.pressure.is_waited_for() { "writers wait for memory" } else { "spill_high_watermark" }
}
