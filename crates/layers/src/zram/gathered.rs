//! Objects on their way to the spill file: picked, copied out, written together, and published.

use std::sync::Arc;

use spillway_core::Kind;

use super::backing::{Backing, BatchAtWork};
use super::cell::{Cell, Scratch, SlotIndex};
use super::codec::CodecIndex;
use super::device::{Core, Count};
use super::mark::{Away, Mark};
use super::moving::Pick;
use super::page::PAGE;
use super::work::{self, Slice};
use crate::spill::{Batch, Placed};

/// What came of writing.
pub(super) type Written = Result<(), Kind>;

/// Objects that were picked, and a batch with their bytes. Dropped, they stay where they are.
pub(super) struct Gathered {
    core: Arc<Core>,
    batch: Batch,
    picks: Vec<Gather>,
    /// The last one did not fit.
    no_room: bool,
    // The last to go.
    at_work: BatchAtWork,
}

struct Gather {
    pick: Pick<Arc<Core>>,
    len: usize,
    codec: CodecIndex,
    /// What was charged to the limit.
    charged: u64,
}

impl Gather {
    fn publish(self, placed: Placed) -> bool {
        self.pick.spill_to(Away { placed, len: self.len, codec: self.codec })
    }
}

/// What became of a slot that was to be gathered.
pub(super) enum Added {
    Yes,
    /// It holds nothing that is wanted.
    Not,
    /// What it holds does not fit: it is for the next batch.
    NoRoom,
    /// Nothing more may be written.
    NoLimit,
}

impl Gathered {
    /// An empty one, once there is a buffer for it; `None` where nothing more is written back.
    pub(super) async fn new(core: &Arc<Core>, backing: &Arc<Backing>) -> Option<Self> {
        let at_work = backing.begin_batch()?;
        let batch = backing.store.batch().await;
        Some(Self { core: core.clone(), batch, picks: Vec::new(), no_room: false, at_work })
    }

    pub(super) fn len(&self) -> usize {
        self.picks.len()
    }

    /// Bytes of what it has.
    fn bytes(&self) -> u64 {
        self.picks.iter().map(|gather| gather.len as u64).sum()
    }

    /// Whether it has as much as goes into one I/O.
    pub(super) fn is_full(&self) -> bool {
        self.no_room || self.picks.len() as u64 >= self.core.knobs.writeback_batch_size.get()
    }

    /// Picks what slot `index` holds, if it is an object that is `wanted`.
    pub(super) fn add(
        &mut self,
        index: SlotIndex,
        wanted: impl FnOnce(Mark, Cell) -> bool,
        slice: &mut Slice,
    ) -> Added {
        slice.count(work::SLOT);
        let Some(room) = self.batch.room(PAGE) else {
            self.no_room = true;
            return Added::NoRoom;
        };
        // What cannot be read stays where it is, and fails when it is read.
        let picked = if self.core.knobs.compressed_writeback.get() {
            Core::pick_into(self.core.clone(), index, wanted, room).map(|pick| (pick.cell().len(), pick))
        } else {
            pick_decoded(&self.core, index, wanted, room, slice)
        };
        let Some((len, pick)) = picked else { return Added::Not };
        slice.count(work::COPY);
        let Some(charged) = self.core.knobs.take_page() else { return Added::NoLimit };
        let codec = pick.codec();
        self.batch.keep(index.0, self.core.codecs.record_codec(len, codec), 1, len);
        self.picks.push(Gather { pick, len, codec, charged });
        assert_eq!(self.picks.len(), self.batch.len(), "each record has its slot");
        Added::Yes
    }

    /// Writes the batch, which is measured; what reached the file is published. Objects that did not stay where they are.
    pub(super) async fn write(self) -> Written {
        let _measured = self.at_work.meter().write(self.bytes());
        let Self { core, batch, picks, at_work, .. } = self;
        let mut picks: Vec<Option<Gather>> = picks.into_iter().map(Some).collect();
        let publish = |index: usize, placed| picks[index].take().expect("each lands once").publish(placed);
        let (done, result) = batch.write(&*core, publish).await;
        assert_eq!(
            picks.iter().flatten().count(),
            picks.len() - done,
            "what has not landed stays where it is"
        );
        core.count(Count::BackingWrites, done as u64);
        core.knobs.give_back(picks.drain(..).flatten().map(|gather| gather.charged).sum());
        drop(at_work);
        result
    }
}

/// Picks an object and decompresses it to the start of `room`; returns the bytes there.
fn pick_decoded(
    core: &Arc<Core>,
    index: SlotIndex,
    wanted: impl FnOnce(Mark, Cell) -> bool,
    room: &mut [u8],
    slice: &mut Slice,
) -> Option<(usize, Pick<Arc<Core>>)> {
    let mut scratch = Scratch::new();
    let (pick, bytes) = Core::pick(core.clone(), index, wanted, &mut scratch)?;
    slice.count(core.decode(pick.codec(), bytes, room).ok()?);
    Some((PAGE, pick))
}
