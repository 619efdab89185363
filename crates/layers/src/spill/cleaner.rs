//! Cleaning: what is live in a segment with little of it is copied elsewhere, so that the whole comes free.
//!
//! It runs where new content finds no segment, one at a time. Each step wins at least a sixteenth of a segment, so it comes to an end; and
//! the segments in reserve hold what it copies before any comes free. A segment that cannot be read is set aside, until nothing else is
//! left to clean: its pages stay where they are, and errors of the medium answer who reads them.

use std::sync::Arc;

use spillway_core::{IoBuf, Kind, mutant};

use super::batch::{Batch, batch_bytes};
use super::format::{FOOTER_LEN, Footer, Layout, ROOM_MIN, Record, RecordCodec, UNIT, read_tail};
use super::reading::{READ_BYTES, span};
use super::segments::space::Taker;
use super::segments::streams::{WriteStream, tail_bytes, tail_len};
use super::segments::{SegmentSnapshot, SegmentState};
use super::store::{Count, Location, Owner, Spilled, Store};

/// Segments that are looked at before others have their turn.
const LOOKS: u32 = 1 << 16;

/// Records that are read together.
const RECORDS_A_READ: usize = 1024;

/// What may be done for room.
enum NextStep {
    /// Segments are being closed.
    Closing,
    /// This one comes free by itself: nobody names anything of it.
    Leaving(u32),
    /// This one has the least that is needed.
    Clean(u32),
    Nothing,
}

impl Store {
    /// Waits until new content finds a segment. [`Kind::NoSpace`] where cleaning brings none.
    pub(super) async fn make_room(self: &Arc<Self>, owner: &impl Owner) -> Result<(), Kind> {
        let _turn = self.cleaning.hold().await;
        while !self.space.has_room(Taker::Content) {
            self.check()?;
            match self.next_step().await {
                NextStep::Closing => self.settled.until(|| (!self.streams.are_closing()).then_some(())).await,
                NextStep::Leaving(segment) => self.has_left(segment).await,
                NextStep::Clean(segment) => self.clean(segment, owner).await?,
                // It may have come free during the look.
                NextStep::Nothing if self.space.has_room(Taker::Content) => {}
                NextStep::Nothing => {
                    self.reconsider();
                    return Err(Kind::NoSpace);
                }
            }
        }
        Ok(())
    }

    /// Has the host have the room of a segment again in which nothing is needed, for it has no other; false where there is none.
    pub(super) async fn give_up_copies(self: &Arc<Self>, owner: &impl Owner) -> bool {
        let _turn = self.cleaning.hold().await;
        let idle = |segment: &u32| {
            let look = self.segments.look(*segment);
            look.state == SegmentState::Closed
                && look.live > 0
                && look.needed() == 0
                && !self.is_set_aside(*segment)
        };
        while let Some(segment) = (0..self.segments.count()).find(idle) {
            let cleaned = self.clean(segment, owner).await;
            self.has_left(segment).await;
            if cleaned.is_err() || self.check().is_err() {
                return false;
            }
            // Otherwise it could not be read, and is set aside.
            if self.segments.look(segment).state != SegmentState::Closed {
                return true;
            }
        }
        false
    }

    /// Waits until a segment that nobody names is free, or more than that.
    pub(super) async fn has_left(&self, segment: u32) {
        self.settled.until(|| (!self.segments.look(segment).is_leaving()).then_some(())).await;
    }

    async fn next_step(&self) -> NextStep {
        // In this order: what is closed after this is looked at as it is then.
        if self.streams.are_closing() {
            return NextStep::Closing;
        }
        let (mut best, mut freeing, mut read): (Option<(u32, u32)>, _, _) = (None, None, None);
        for segment in 0..self.segments.count() {
            if segment % LOOKS == LOOKS - 1 {
                self.env.sleep(std::time::Duration::ZERO).await;
            }
            let look = self.segments.look(segment);
            let SegmentSnapshot { state, live, .. } = look;
            match (state, live) {
                (SegmentState::Freeing, _) => freeing = Some(segment),
                (SegmentState::Closed, 0) => read = Some(segment),
                (SegmentState::Closed, _) if !self.is_set_aside(segment) => {
                    let needed = look.needed();
                    best = best.filter(|(least, _)| *least <= needed).or(Some((needed, segment)));
                }
                _ => {}
            }
        }
        let best = best.filter(|(needed, _)| pays(self.layout(), *needed as usize));
        match (freeing, best, read) {
            (Some(segment), ..) => NextStep::Leaving(segment),
            // What is in reserve is still read where it was cleaned from.
            (.., Some(segment)) if !self.space.has_room(Taker::Cleaner) => NextStep::Leaving(segment),
            (_, Some((_, segment)), _) => NextStep::Clean(segment),
            (.., Some(segment)) => NextStep::Leaving(segment),
            _ => NextStep::Nothing,
        }
    }

    fn is_set_aside(&self, segment: u32) -> bool {
        self.set_aside.has(segment.into())
    }

    pub(super) fn set_aside(&self, segment: u32) {
        if !self.is_set_aside(segment) {
            self.set_aside.mark(segment.into());
            self.add(Count::SetAside, 1);
        }
    }

    /// Who comes next looks again at what was set aside: a disk that failed for a while is no reason to leave its room alone for good.
    fn reconsider(&self) {
        let closed = |segment: &u32| self.segments.look(*segment).state == SegmentState::Closed;
        (0..self.segments.count()).filter(closed).for_each(|segment| self.set_aside.unmark(segment.into()));
    }

    /// Copies what is needed of a closed segment, whose clean copies are given up. Fails where the copies cannot be written.
    async fn clean(self: &Arc<Self>, segment: u32, owner: &impl Owner) -> Result<(), Kind> {
        // Freed by itself meanwhile.
        let Some(_pinned) = self.pin_closed(segment) else { return Ok(()) };
        let before = self.segments.look(segment).live;
        let Some(tail) = self.read_summary(segment).await else {
            self.set_aside(segment);
            return Ok(());
        };
        let mut cleaning = Cleaning {
            store: self,
            owner,
            moves: Vec::new(),
            batch: None,
            batched: Vec::new(),
            failed: false,
        };
        let mut offset = 0;
        for record in read_tail(&tail).expect("it was checked").1 {
            let at = Location { segment, offset };
            offset += u32::from(record.len);
            if record.codec != RecordCodec::PAD && owner.needs(record.slot, at) {
                cleaning.add(Spilled { at, record }).await?;
            }
        }
        let failed = cleaning.finish().await?;
        self.add(Count::SegmentsCleaned, 1);
        // Otherwise it would be cleaned again and again.
        if failed || self.segments.look(segment).live == before {
            self.set_aside(segment);
        }
        Ok(())
    }

    /// The end of a closed segment, with its summary, if it is as it was written. What reads wrong is read once more.
    pub(super) async fn read_summary(&self, segment: u32) -> Option<IoBuf> {
        match self.read_summary_once(segment).await {
            None => self.read_summary_once(segment).await,
            found => found,
        }
    }

    async fn read_summary_once(&self, segment: u32) -> Option<IoBuf> {
        let bytes = self.layout().segment_bytes();
        let mut len = UNIT;
        loop {
            let buf = self.workspaces.cleaner.take(len).await;
            let buf = self.read_at(segment, bytes - len, buf).await.ok()?;
            let footer = Footer::decode(buf.last_chunk::<FOOTER_LEN>()?)?;
            let whole = tail_len(footer.records as usize);
            let ours = footer.low_uuid == self.superblock.low_uuid()
                && (footer.segment, footer.seq) == (segment, self.segments.seq(segment))
                && footer.records as usize <= self.layout().records_max();
            if !ours || whole < len {
                return None;
            }
            if whole == len {
                let fits = |records: usize| records <= bytes - len;
                let lens = read_tail(&buf)?.1.map(|record| usize::from(record.len)).sum::<usize>();
                return (fits(lens) && lens == footer.data_bytes as usize).then_some(buf);
            }
            len = whole;
        }
    }
}

/// The cleaning of a segment: records that are to be copied, and those on their way.
struct Cleaning<'a, O> {
    store: &'a Arc<Store>,
    owner: &'a O,
    /// To be read together.
    moves: Vec<Spilled>,
    batch: Option<Batch>,
    /// Where the records of the batch lie now.
    batched: Vec<Spilled>,
    /// Some could not be read.
    failed: bool,
}

impl<O: Owner> Cleaning<'_, O> {
    async fn add(&mut self, next: Spilled) -> Result<(), Kind> {
        let reaches = |first: &Spilled| span(first, &next).len() > READ_BYTES;
        if self.moves.len() == RECORDS_A_READ || self.moves.first().is_some_and(reaches) {
            self.copy().await?;
        }
        self.moves.push(next);
        Ok(())
    }

    /// Copies the rest. Returns whether some could not be read.
    async fn finish(mut self) -> Result<bool, Kind> {
        self.copy().await?;
        self.write().await?;
        Ok(self.failed)
    }

    /// Reads the records and puts them into batches.
    async fn copy(&mut self) -> Result<(), Kind> {
        let (store, moves) = (self.store, std::mem::take(&mut self.moves));
        let [Some(first), Some(last)] = [moves.first(), moves.last()] else { return Ok(()) };
        let range = span(first, last);
        let buf = store.workspaces.cleaner.take(range.len()).await;
        let Ok(buf) = store.read_at(first.at.segment, range.start, buf).await else {
            self.failed = true;
            return Ok(());
        };
        for spilled in moves {
            let again;
            let bytes = match store.checked(&spilled, &buf, range.start) {
                Some(bytes) => Ok(bytes),
                None => {
                    again = store.read_again(&spilled).await;
                    again.as_deref()
                }
            };
            match bytes {
                Ok(bytes) => self.push(spilled, bytes).await?,
                Err(Kind::Corrupt) if self.owner.lost(spilled.record.slot, spilled.at) => {
                    store.release(&spilled);
                }
                Err(Kind::Corrupt) => {}
                Err(_) => self.failed = true,
            }
        }
        Ok(())
    }

    async fn push(&mut self, next: Spilled, bytes: &[u8]) -> Result<(), Kind> {
        let Record { slot, codec, .. } = next.record;
        loop {
            let batch = match &mut self.batch {
                Some(batch) => batch,
                none => {
                    let buf = self.store.workspaces.cleaner.take(batch_bytes(self.store.layout())).await;
                    none.insert(Batch::new(self.store.clone(), WriteStream::Cleaner, buf))
                }
            };
            if batch.push(slot, codec, bytes) {
                self.batched.push(next);
                return Ok(());
            }
            self.write().await?;
        }
    }

    /// Writes the batch, and has the slots name the copies.
    async fn write(&mut self) -> Result<(), Kind> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        let (store, owner, batched) = (self.store, self.owner, std::mem::take(&mut self.batched));
        assert_eq!(batch.len(), batched.len(), "each record of the batch comes from somewhere");
        let early = mutant::on("spill: release a record before its copy is named");
        if early {
            batched.iter().for_each(|from| store.release(from));
        }
        let publish = |index: usize, to: Spilled| {
            let from = &batched[index];
            let moved = owner.moved(from.at, to);
            if moved {
                store.add(Count::RecordsMoved, 1);
            }
            if moved && !early {
                store.release(from);
            }
            moved
        };
        batch.write(owner, publish).await.1
    }
}

/// Whether room is won by cleaning a segment of which so much is needed: what its copies take, with a pad for each batch, and what is
/// left unused where they go on in another segment.
fn pays(layout: &Layout, live: usize) -> bool {
    let units = live / batch_bytes(layout) + 5;
    live + units * UNIT <= layout.segment_bytes() / 16 * 15
}

/// Bytes of buffers that cleaning takes at once: a summary, what is read, and what is written.
pub(super) fn cleaner_bytes(layout: &Layout) -> usize {
    tail_bytes(layout) + READ_BYTES + UNIT + batch_bytes(layout)
}

/// Bytes that cleaning takes beside its buffers.
pub(super) fn cleaner_overhead(layout: &Layout) -> usize {
    (batch_bytes(layout) / ROOM_MIN + RECORDS_A_READ) * size_of::<Spilled>()
}
