//! Objects on their way to the spill file: picked, copied out, written together, and published.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Job, Kind, Place};

use crate::spill::format::Record;
use crate::spill::{Batch, Spilled};
use crate::zram::device::backing::{Backing, BatchAtWork};
use crate::zram::device::{Core, Count};
use crate::zram::limit::Charged;
use crate::zram::mover::moving::Pick;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::{Cell, Scratch, SlotIndex};
use crate::zram::slots::mark::{Away, Mark, Slot};
use crate::zram::slots::picked::{Gather, PickOutcome, PublishIf};
use crate::zram::work::{self, Slice};

/// What came of writing.
pub(crate) type Written = Result<(), Kind>;

/// Objects that were picked, and a batch with their bytes. Dropped, they stay where they are.
pub(crate) struct Gathered {
    batch: Batch,
    picks: Picks,
    /// Whether pages that are read meanwhile leave all the same.
    when: PublishIf,
    /// They leave because the device ends: no limit counts, and they are written as they are.
    keeps: bool,
    /// The last one did not fit.
    no_room: bool,
    // The last to go.
    at_work: BatchAtWork,
}

/// What was picked and is not published yet, by its record. Dropped, it stays where it is, and the limit has its pages back.
struct Picks {
    core: Arc<Core>,
    all: Vec<Option<Gather>>,
}

impl Picks {
    /// Has a slot name its record; false where it does not, after all.
    fn publish(&mut self, index: usize, spilled: Spilled, when: PublishIf) -> bool {
        let Gather { picked, .. } = self.all[index].take().expect("each lands once");
        let Spilled { at, record: Record { crc, len, .. } } = spilled;
        let away = Away { at, crc, len: len.into(), codec: picked.codec() };
        let published = Pick::resume(&self.core, picked).publish(Slot::Spilled(away), when, Mark::has_left);
        let named = published == PickOutcome::InPlace;
        if named {
            self.core.has_left();
        }
        named
    }

    fn left(&self) -> usize {
        self.all.iter().flatten().count()
    }
}

impl Drop for Picks {
    fn drop(&mut self) {
        for Gather { picked, charged } in self.all.drain(..).flatten() {
            drop(Pick::resume(&self.core, picked));
            charged.into_iter().for_each(|page| self.core.writeback_limit.give_back(page));
        }
    }
}

impl Core {
    /// A page has left.
    fn has_left(&self) {
        self.pressure.left.fetch_add(1, Ordering::Relaxed);
        self.budget.note_reclaimed();
    }

    /// Whether a page may be written back.
    pub(crate) fn may_write(&self) -> bool {
        !self.settings.writeback_limit_enable.get() || self.writeback_limit.left() > 0
    }

    /// Charges a page that is about to be written back, where that is limited; `None` where it may not be.
    pub(crate) fn take_page(&self) -> Option<Option<Charged>> {
        if !self.settings.writeback_limit_enable.get() {
            return Some(None);
        }
        self.writeback_limit.take().map(Some)
    }
}

/// What became of a slot that was to be gathered.
pub(crate) enum Added {
    Yes,
    /// It has left without being written.
    AtOnce,
    /// It holds nothing that is wanted.
    Not,
    /// What it holds does not fit: it is for the next batch.
    NoRoom,
    /// Nothing more may be written.
    NoLimit,
}

impl Gathered {
    /// An empty one, of pages that leave `when`, once there is a buffer for it; `None` where nothing more is written back.
    pub(crate) async fn new(core: &Arc<Core>, backing: &Arc<Backing>, when: PublishIf) -> Option<Self> {
        let at_work = backing.begin_batch()?;
        let batch = backing.store.batch().await;
        let picks = Picks { core: core.clone(), all: Vec::new() };
        Some(Self { batch, picks, when, keeps: false, no_room: false, at_work })
    }

    /// The same, of a device that ends, whose pages all leave.
    pub(crate) fn keeping(self) -> Self {
        Self { when: PublishIf::Always, keeps: true, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.picks.all.len()
    }

    /// Whether it has as much as goes into one I/O.
    pub(crate) fn is_full(&self) -> bool {
        let wanted = self.picks.core.settings.writeback_batch_size.get();
        self.no_room || !self.keeps && self.len() as u64 >= wanted
    }

    /// Picks what slot `index` holds, if it is an object that is `wanted`. What the spill file has still leaves at once.
    pub(crate) fn add(
        &mut self,
        index: SlotIndex,
        wanted: impl Fn(Mark, Cell) -> bool,
        slice: &mut Slice,
    ) -> Added {
        slice.count(work::SLOT);
        if self.picks.core.leave_as_copy(index, &wanted) {
            self.picks.core.has_left();
            return Added::AtOnce;
        }
        let wanted = |mark: Mark, cell| !mark.has_copy() && wanted(mark, cell);
        let Some(room) = self.batch.room(PAGE) else {
            self.no_room = true;
            return Added::NoRoom;
        };
        let core = &*self.picks.core;
        // What cannot be read stays where it is, and fails when it is read.
        let picked = if self.keeps || core.compressed_writeback.get() {
            core.pick_into(index, wanted, room).map(|pick| (pick.cell().len(), pick))
        } else {
            pick_decoded(core, index, wanted, room, slice)
        };
        let Some((len, pick)) = picked else { return Added::Not };
        slice.count(work::COPY);
        let charged = if self.keeps { Some(None) } else { core.take_page() };
        let Some(charged) = charged else { return Added::NoLimit };
        self.batch.keep(index.0, core.codecs.record_codec(len, pick.codec()), len);
        self.picks.all.push(Some(Gather { picked: pick.pause(), charged }));
        assert_eq!(self.len(), self.batch.len(), "each record has its slot");
        Added::Yes
    }

    /// Has a compute thread write the batch and publish what reached the file, while the caller gathers the next one. Objects that did not
    /// stay where they are.
    pub(crate) async fn write(self) -> Written {
        // Who has pages written one by one, each after the other, has nothing to do meanwhile.
        let ended = if self.len() == 1 {
            Some(self.write_here().await)
        } else {
            let env = self.picks.core.env.clone();
            Job::spawn(&*env, Place::Compute, move || self.write_here()).await
        };
        // A batch is at work until its end was seen: who asks then finds nothing of it on its way.
        ended.map_or(Err(Kind::ShuttingDown), |(written, _at_work)| written)
    }

    /// Writes the batch, which is measured, and publishes it.
    async fn write_here(self) -> (Written, BatchAtWork) {
        let measured = self.at_work.meter().write(self.batch.bytes());
        let Self { batch, mut picks, when, at_work, .. } = self;
        let (core, pages) = (picks.core.clone(), picks.all.len());
        let (done, result) = batch.write(&*core, |index, spilled| picks.publish(index, spilled, when)).await;
        if result.is_ok() {
            measured.landed();
        }
        assert_eq!(picks.left(), pages - done, "what has not landed stays where it is");
        core.count(Count::BackingWrites, done as u64);
        if done > 0 {
            at_work.pressure().has_found_room();
        }
        (result, at_work)
    }
}

/// Picks an object and decompresses it to the start of `room`; returns the bytes there.
fn pick_decoded<'a>(
    core: &'a Core,
    index: SlotIndex,
    wanted: impl FnOnce(Mark, Cell) -> bool,
    room: &mut [u8],
    slice: &mut Slice,
) -> Option<(usize, Pick<'a>)> {
    let mut scratch = Scratch::new();
    let (pick, bytes) = core.pick(index, wanted, &mut scratch)?;
    slice.count(core.decode(pick.codec(), bytes, room).ok()?);
    Some((PAGE, pick))
}
