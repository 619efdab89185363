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
use spillway_core::sync::Ordering;
use spillway_core::{Error, Kind};

use super::backing::{AtWork, Backing};
use super::cell::{Scratch, SlotIndex};
use super::codec::CodecIndex;
use super::device::{Core, Count};
use super::mark::{Away, record_codec};
use super::moving::Pick;
use super::page::PAGE;
use super::scan::{Pages, Scan};
use super::table::PAGE_SLOTS;
use super::work::{self, Slice};
use crate::spill::{Batch, Content, Placed};

/// Writes back what `scans` name. One run at a time.
///
/// [`Kind::NoDevice`] without a spill file; [`Kind::NoSpace`] where it is full; [`Kind::Io`] where `writeback_limit` is used up, or an
/// I/O has failed.
pub(super) async fn run(core: Arc<Core>, scans: Vec<Scan>) -> Result<(), Error> {
    let backing = core.backing()?.clone();
    let _turn = backing.turn.hold().await;
    let mut run = Run { core: &core, backing: &backing, scans: scans.into_iter(), left: None, ended: None };
    let (mut under_way, mut outcome) = (FuturesUnordered::new(), Ok(()));
    let mut written = Vec::new();
    while let Some(full) = beside(&mut under_way, &mut written, run.gather()).await {
        under_way.push(full.write(&core));
        // A page at a time is one I/O at a time.
        let depth = if run.pages_an_io() == 1 { 1 } else { backing.depth };
        while under_way.len() >= depth {
            written.extend(under_way.next().await);
        }
        written.drain(..).for_each(|result| run.note(result, &mut outcome));
    }
    written.extend(under_way.collect::<Vec<_>>().await);
    written.drain(..).for_each(|result| run.note(result, &mut outcome));
    match run.ended {
        Some(kind) => Err(why(kind)),
        None => outcome.map_err(why),
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

/// What came of writing a batch.
type Written = Result<(), Kind>;

fn why(kind: Kind) -> Error {
    Error::new(
        kind,
        match kind {
            Kind::NoSpace => "the spill file is full, or the file system that it lies on",
            Kind::ShuttingDown => "the device ends",
            _ => {
                "not all could be written back: writing to the spill file failed, or writeback_limit is used up"
            }
        },
    )
}

/// Objects that were picked, and a batch with their bytes.
struct Gathered<'a> {
    batch: Batch,
    picks: Vec<Picked<'a>>,
    /// Nothing more fits.
    full: bool,
    // The last to go.
    at_work: AtWork,
}

struct Picked<'a> {
    pick: Pick<'a>,
    len: usize,
    codec: CodecIndex,
    /// What was charged to the limit.
    charged: u64,
}

impl Picked<'_> {
    fn publish(self, placed: Placed) -> bool {
        self.pick.spill_to(Away { placed, len: self.len, codec: self.codec })
    }
}

impl Gathered<'_> {
    /// Writes the batch; what reached the file is published. Objects that did not stay where they are.
    async fn write(self, core: &Core) -> Written {
        let Self { batch, picks, at_work, .. } = self;
        let mut picks: Vec<Option<Picked<'_>>> = picks.into_iter().map(Some).collect();
        let publish = |index: usize, placed| picks[index].take().expect("each lands once").publish(placed);
        let (done, result) = batch.write(core, publish).await;
        core.count(Count::BackingWrites, done as u64);
        core.knobs.give_back(picks.drain(..).flatten().map(|picked| picked.charged).sum());
        drop(at_work);
        result
    }
}

/// A run on its way through the slots.
struct Run<'a> {
    core: &'a Arc<Core>,
    backing: &'a Arc<Backing>,
    scans: std::vec::IntoIter<Scan>,
    /// What is left of the present scan.
    left: Option<Scan>,
    /// Why nothing more is gathered.
    ended: Option<Kind>,
}

impl<'a> Run<'a> {
    fn pages_an_io(&self) -> usize {
        self.core.knobs.writeback_batch_size.get() as usize
    }

    fn note(&mut self, written: Result<(), Kind>, outcome: &mut Result<(), Kind>) {
        match written {
            Ok(()) => {}
            Err(kind @ (Kind::NoSpace | Kind::ShuttingDown)) => self.ended = Some(kind),
            Err(kind) if self.backing.store.has_failed() => self.ended = Some(kind),
            Err(kind) => *outcome = Err(kind),
        }
    }

    /// The next objects that go into one I/O; `None` at the end.
    async fn gather(&mut self) -> Option<Gathered<'a>> {
        let at_work = self.backing.begin();
        let batch = self.backing.store.batch().await;
        let mut gathered = Gathered { batch, picks: Vec::new(), full: false, at_work };
        let mut slice = Slice::new();
        while !gathered.full && self.ended.is_none() {
            if self.is_ending() {
                self.ended = Some(Kind::ShuttingDown);
                break;
            }
            let Some((pages, slots)) = self.next_slots() else { break };
            let next = self.gather_from(pages, slots, &mut gathered, &mut slice);
            self.left.as_mut().expect("a scan is under way").slots.start = next;
            if slice.is_over() {
                slice.renew(&*self.core.env).await;
            }
        }
        (!gathered.picks.is_empty()).then_some(gathered)
    }

    /// What of the present scan, or else the next, comes next: slots of one page that has some in use.
    fn next_slots(&mut self) -> Option<(Pages, Range<u64>)> {
        loop {
            let Some(Scan { pages, slots }) = &mut self.left else {
                self.left = Some(self.scans.next()?);
                continue;
            };
            let among = slots.start / PAGE_SLOTS..slots.end.div_ceil(PAGE_SLOTS);
            match self.core.table.next_page(among).filter(|_| !slots.is_empty()) {
                Some(page) => {
                    slots.start = slots.start.max(page * PAGE_SLOTS);
                    return Some((*pages, slots.start..slots.end.min((page + 1) * PAGE_SLOTS)));
                }
                None => self.left = None,
            }
        }
    }

    /// Gathers objects in `slots` until no more fit, or the slice is over; returns the slot to go on with.
    fn gather_from(
        &mut self,
        pages: Pages,
        slots: Range<u64>,
        gathered: &mut Gathered<'a>,
        slice: &mut Slice,
    ) -> u64 {
        for index in slots.clone() {
            if slice.is_over() || gathered.full || self.ended.is_some() {
                return index;
            }
            slice.count(work::SLOT);
            let mut scratch = Scratch::new();
            let wanted = |mark, cell| pages.mean(mark, cell);
            let picked = self.core.pick(SlotIndex::new(index), wanted, &mut scratch);
            if let Some((pick, bytes)) = picked
                && !self.add(gathered, pick, bytes, slice)
            {
                return index;
            }
        }
        slots.end
    }

    /// Adds an object that was picked; false where it does not fit, or may not be written.
    fn add(&mut self, gathered: &mut Gathered<'a>, pick: Pick<'a>, bytes: &[u8], slice: &mut Slice) -> bool {
        slice.count(work::COPY);
        let Some(charged) = self.core.knobs.take_page() else {
            self.ended = Some(Kind::Io);
            return false;
        };
        let (codec, mut page) = (pick.codec(), [0; PAGE]);
        let bytes = if self.core.knobs.compressed_writeback.get() {
            bytes
        } else {
            // What cannot be read stays where it is, and whoever reads it is told.
            let Ok(units) = self.core.decode(codec, bytes, &mut page) else {
                self.core.knobs.give_back(charged);
                return true;
            };
            slice.count(units);
            &page
        };
        let content =
            Content { slot: pick.index().0, codec: record_codec(bytes.len(), codec), members: 1, bytes };
        if !gathered.batch.push(content) {
            self.core.knobs.give_back(charged);
            gathered.full = true;
            return false;
        }
        gathered.picks.push(Picked { pick, len: bytes.len(), codec, charged });
        gathered.full = gathered.picks.len() >= self.pages_an_io();
        true
    }

    /// The device ends, or was reset.
    fn is_ending(&self) -> bool {
        self.backing.ending.load(Ordering::Relaxed) || self.core.size() == 0
    }
}
