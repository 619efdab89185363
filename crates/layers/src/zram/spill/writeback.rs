//! `writeback`: pages that a command names go to the spill file, in the order of their slots, many of them in one I/O.
//!
//! ```text
//!   pick, and copy out under the slot's lock -> batch -> I/O -> the slot names the record, unless its page was
//!                                                               read or written meanwhile; the object is freed
//! ```
//!
//! A page whose I/O fails stays in memory. The run goes on, as the kernel's does, and answers with the last error; a full file or a
//! limit that is used up ends it.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, StreamExt};
use spillway_core::progress::Counted;
use spillway_core::{Error, Kind, WorkKind};
use spillway_policy::depth::{Waiting, depth};

use super::gathered::{Added, Gathered, Written};
use super::spiller::SPILL;
use crate::decisions::Decision;
use crate::zram::control::scan::{PageFilter, SlotScan};
use crate::zram::device::Core;
use crate::zram::device::backing::Backing;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::{Cell, SlotIndex};
use crate::zram::slots::mark::Mark;
use crate::zram::slots::picked::PublishIf;
use crate::zram::work::Slice;

/// Why pages are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A command names them.
    Command,
    /// They were not accessed for so many seconds: as far as the device may write by itself.
    Age(u64),
    /// The device ends, and its spill file keeps them: all of them, whatever is deferred or limited.
    Keep,
}

/// Writes back what `scans` name and `why` means. One run at a time. It ends once the device, which was reset `resets` times when it was asked
/// for, is reset again.
///
/// [`Kind::NoDevice`] without a spill file; [`Kind::NoSpace`] where it is full; [`Kind::Io`] where `writeback_limit` is used up, or an
/// I/O has failed.
pub(crate) async fn run(core: Arc<Core>, resets: u64, scans: Vec<SlotScan>, why: Why) -> Result<(), Error> {
    let backing = core.backing()?;
    let _turn = backing.turn.hold().await;
    let mut run = Run::new(&core, &backing, resets, scans, why);
    let (mut under_way, mut outcome) = (FuturesUnordered::new(), Ok(()));
    let mut written = Vec::new();
    while let Some(full) = beside(&mut under_way, &mut written, run.gather()).await {
        if let Why::Age(age) = why {
            let figures = || format!("pages were not accessed for {age} s");
            core.decisions.note(Decision(SPILL, "spill_age"), (full.len() * PAGE) as u64, figures);
        }
        under_way.push(full.write());
        while under_way.len() >= run.depth() {
            written.extend(under_way.next().await);
        }
        written.drain(..).for_each(|result| run.note(result, &mut outcome));
    }
    written.extend(under_way.collect::<Vec<_>>().await);
    written.drain(..).for_each(|result| run.note(result, &mut outcome));
    match run.ended {
        Some(kind) => Err(refusal(kind)),
        None => outcome.map_err(refusal),
    }
}

/// Awaits `future` while what is under way goes on, and keeps what came of that.
async fn beside<F: Future<Output = Written>, T>(
    under_way: &mut FuturesUnordered<F>,
    written: &mut Vec<Written>,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        while let Poll::Ready(Some(result)) = under_way.poll_next_unpin(context) {
            written.push(result);
        }
        future.as_mut().poll(context)
    })
    .await
}

fn refusal(kind: Kind) -> Error {
    Error::new(
        kind,
        match kind {
            Kind::NoSpace => "the spill file is full, or the file system that it lies on",
            Kind::ShuttingDown => "the device ends, or is reset",
            _ => {
                "not all could be written back: writing to the spill file failed, or writeback_limit is used up"
            }
        },
    )
}

/// A run on its way through the slots.
struct Run<'a> {
    core: &'a Arc<Core>,
    backing: &'a Arc<Backing>,
    resets: u64,
    scans: std::vec::IntoIter<SlotScan>,
    /// What is left of the present scan.
    left: Option<SlotScan>,
    /// What is registered of it; nothing where the device ends, which registers that itself.
    work: Option<Counted>,
    /// Slots of the scans before the present one, and the first of that.
    passed: u64,
    first: u64,
    why: Why,
    /// Why nothing more is gathered.
    ended: Option<Kind>,
}

impl<'a> Run<'a> {
    fn new(
        core: &'a Arc<Core>,
        backing: &'a Arc<Backing>,
        resets: u64,
        scans: Vec<SlotScan>,
        why: Why,
    ) -> Self {
        let slots: u64 = scans.iter().map(|scan| scan.slots.end - scan.slots.start).sum();
        let begin = || core.works().begin(WorkKind::WriteBack, Some(slots * PAGE as u64));
        let (work, scans) = ((why != Why::Keep).then(begin), scans.into_iter());
        Self { core, backing, resets, scans, left: None, work, passed: 0, first: 0, why, ended: None }
    }

    fn note(&mut self, written: Result<(), Kind>, outcome: &mut Result<(), Kind>) {
        match written {
            Ok(()) => {}
            Err(kind @ (Kind::NoSpace | Kind::ShuttingDown)) => self.ended = Some(kind),
            Err(kind) if self.backing.store.has_failed() => self.ended = Some(kind),
            Err(kind) => *outcome = Err(kind),
        }
    }

    /// I/Os in flight: one where pages are written one at a time, few while clients read from the spill file.
    fn depth(&self) -> usize {
        match self.why {
            Why::Keep => return self.core.settings.writeback_depth,
            _ if self.core.settings.writeback_batch_size.get() == 1 => return 1,
            _ => {}
        }
        let waiting =
            Waiting { reads: self.backing.meter.is_read(), room: self.backing.pressure.is_waited_for() };
        depth(waiting).min(self.core.settings.writeback_depth)
    }

    /// The next objects that go into one I/O; `None` at the end.
    async fn gather(&mut self) -> Option<Gathered> {
        let Some(mut gathered) = Gathered::new(self.core, self.backing, PublishIf::Untouched).await else {
            self.ended = Some(Kind::ShuttingDown);
            return None;
        };
        if self.why == Why::Keep {
            gathered = gathered.keeping();
        }
        let mut slice = Slice::new();
        while !gathered.is_full() && self.ended.is_none() {
            if self.is_ending() {
                self.ended = Some(Kind::ShuttingDown);
                break;
            }
            if matches!(self.why, Why::Age(_)) && !self.core.may_spill(self.backing) {
                break;
            }
            let Some((pages, slots)) = self.next_slots() else { break };
            let next = self.gather_from(pages, slots, &mut gathered, &mut slice);
            self.left.as_mut().expect("a scan is under way").slots.start = next;
            slice.renew_if_over(&*self.core.env).await;
        }
        (gathered.len() > 0).then_some(gathered)
    }

    /// What of the present scan, or else the next, comes next: slots of one page that has some in use.
    fn next_slots(&mut self) -> Option<(PageFilter, Range<u64>)> {
        loop {
            let Some(SlotScan { pages, slots }) = &self.left else {
                let scan = self.scans.next()?;
                self.first = scan.slots.start;
                self.left = Some(scan);
                continue;
            };
            match self.core.table.next_slots(slots.clone()) {
                Some(next) => {
                    self.reach(next.start);
                    return Some((*pages, next));
                }
                None => {
                    self.passed += slots.end - self.first;
                    self.left = None;
                }
            }
        }
    }

    /// Everything before `slot` was looked at.
    fn reach(&self, slot: u64) {
        assert!(slot >= self.first, "slot {slot} of a scan from {} on", self.first);
        let looked_at = self.passed + slot - self.first;
        self.work.iter().for_each(|work| work.reach(looked_at * PAGE as u64));
    }

    /// Gathers objects in `slots` until no more fit, or the slice is over; returns the slot to go on with.
    fn gather_from(
        &mut self,
        pages: PageFilter,
        slots: Range<u64>,
        gathered: &mut Gathered,
        slice: &mut Slice,
    ) -> u64 {
        for index in slots.clone() {
            if slice.is_over() || gathered.is_full() || self.ended.is_some() {
                return index;
            }
            // The time is asked for under the slot's lock: no access is later.
            let old = |mark: Mark, age| u64::from(mark.age(self.core.seconds())) >= age;
            let wanted = |mark, cell: Cell| match self.why {
                Why::Command => pages.mean(mark, cell.len()),
                Why::Age(age) => pages.mean(mark, cell.len()) && old(mark, age),
                Why::Keep => true,
            };
            match gathered.add(SlotIndex::new(index), wanted, slice) {
                Added::Yes | Added::AtOnce | Added::Not => {}
                Added::NoRoom => return index,
                Added::NoLimit => self.ended = Some(Kind::Io),
            }
        }
        slots.end
    }

    /// The device ends, or was reset.
    fn is_ending(&self) -> bool {
        let ends = self.why != Why::Keep && self.core.go_on_since(self.resets).is_err();
        ends || self.backing.is_ending() || self.core.size() == 0
    }
}
