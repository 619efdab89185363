//! Writes of clients: into memory, folio by folio, where each of them finds room; and back from there for those that have to be below
//! before they are acknowledged.

use std::sync::Arc;

use futures_util::future::join;
use spillway_core::sync::RangeTurn;
use spillway_core::{ByteRange, Kind, Reply, Request, mutant};

use super::config::Mode;
use super::device::Core;
use super::device::counts::Count;
use super::folios::folio::Folio;
use super::folios::places::FolioSpan;
use super::work::{FOLIO, copied};
use crate::slice::Slice;

/// What a write waits for.
pub(super) enum Need {
    /// That so many blocks may become unsaved.
    Unsaved(u64),
    /// Memory of this shard.
    Memory(usize),
    /// That others have their turn.
    Turn,
    /// That nobody changes this range, which is the rest of the write, beside the cache.
    Clear(ByteRange),
}

/// How far a write is; what it has taken and not used yet, which are blocks that it may dirty; and what it has dirtied.
pub(super) struct WriteState {
    core: Arc<Core>,
    /// Bytes that are in memory.
    done: u64,
    blocks: u64,
    /// From when the write first meets a range that is changed beside the cache: later changes there wait for it.
    turn: Option<RangeTurn>,
    dirtied: u64,
    slice: Slice,
    /// Of the folio that it wrote last.
    zone: u8,
    /// Up to where the stream of writes will go that this one is of, once it has come to a folio that is not there.
    until: Option<u64>,
}

impl WriteState {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core, done: 0, blocks: 0, turn: None, dirtied: 0, slice: Slice::new(), zone: 0, until: None }
    }

    /// Blocks that the write has dirtied so far.
    pub(super) fn dirtied(&self) -> u64 {
        self.dirtied
    }

    fn give_back(&mut self) {
        if self.blocks > 0 {
            self.core.unsaved.give(std::mem::take(&mut self.blocks));
        }
    }
}

impl Drop for WriteState {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Core {
    /// Puts what is left of a write into memory, as far as nothing has to be waited for.
    pub(super) fn absorb(self: &Arc<Self>, request: &Request, state: &mut WriteState) -> Result<(), Need> {
        while state.done < request.range.len {
            if state.slice.is_over() {
                return Err(Need::Turn);
            }
            self.absorb_piece(request, state, false)?;
        }
        Ok(())
    }

    /// The same for one folio. Others that wait for memory there come first, unless this is the `first` of them.
    fn absorb_piece(
        self: &Arc<Self>,
        request: &Request,
        state: &mut WriteState,
        first: bool,
    ) -> Result<(), Need> {
        let (start, at) = (state.done, request.range.offset + state.done);
        let unit = self.places.unit_at(at);
        let number = self.places.shard_of(self.places.region_at(at));
        let mut shard = self.shards[number].write();
        let folio = shard.get(unit).map(Folio::span);
        let span = folio.unwrap_or_else(|| {
            let until = *state.until.get_or_insert_with(|| self.written_until(request.range));
            shard.room(unit, self.places.order(at, until))
        });
        let mut piece = self.places.piece(request.range, start, span);
        let range = self.places.range(span, &piece.blocks);
        if self.is_outside(range) && !mutant::on("page_cache: write into a range that is being discarded") {
            return Err(Need::Clear(ByteRange::new(at, request.range.len - start)));
        }
        let blocks = piece.blocks.len() as u64;
        let wanted = blocks.saturating_sub(state.blocks);
        if wanted > 0 && !self.unsaved.try_take(wanted) {
            return Err(Need::Unsaved(blocks));
        }
        state.blocks += wanted;
        if folio.is_none() {
            if !first && self.pressure[number].room.is_waited_for() {
                return Err(Need::Memory(number));
            }
            let frame = self.frame_to_dirty(&mut shard, span.order, &mut state.slice);
            let frame = frame.ok_or(Need::Memory(number))?;
            piece = self.places.piece(request.range, start, FolioSpan { order: frame.order, ..span });
            shard.insert(unit, frame, Some(&piece.blocks));
        }
        let bytes = &request.buf[piece.start..][..piece.bytes.len()];
        let (dirtied, zone) = shard.write(&piece, bytes, self.stamp());
        // With the lock: a batch that has these blocks ends after they are counted.
        self.zones.dirtied(zone, dirtied);
        drop(shard);
        assert!(dirtied <= state.blocks, "{dirtied} blocks became dirty, with room for {}", state.blocks);
        state.blocks -= dirtied;
        (state.dirtied, state.zone) = (state.dirtied + dirtied, zone);
        self.dirtied(dirtied);
        state.slice.count(FOLIO + copied(bytes.len() as u64));
        state.done += bytes.len() as u64;
        Ok(())
    }

    /// So many blocks have become dirty.
    fn dirtied(self: &Arc<Self>, dirtied: u64) {
        if dirtied == 0 {
            return;
        }
        self.aging.timer.start();
        if self.zones.dirty() > self.background() || self.unsaved.waiting() > 0 {
            self.writeback.kick();
        }
    }

    /// The same, waiting for what is needed; then below, where it has to be there.
    pub(super) async fn write(self: &Arc<Self>, request: Request, mut state: WriteState) -> Reply {
        let range = request.range;
        let mut result = Ok(());
        while let Err(need) = self.absorb(&request, &mut state) {
            result = self.satisfy(need, &request, &mut state).await;
            if result.is_err() {
                return request.answer(result);
            }
        }
        let (dirtied, zone) = (state.dirtied, state.zone);
        assert_eq!(state.done, range.len, "all of a write is absorbed");
        drop(state);
        if self.goes_below(&request) {
            result = self.save(range).await;
        } else if self.is_throttled(dirtied) {
            self.throttle(dirtied, zone).await;
        }
        if result.is_ok() && request.flags.fua && !mutant::on("page_cache: ack FUA without a flush") {
            result = self.sync().await;
        }
        request.answer(result)
    }

    /// Whether a write is acknowledged only once the device below has it.
    pub(super) fn goes_below(&self, request: &Request) -> bool {
        let through = self.settings.mode == Mode::Writethrough;
        (through || request.flags.fua) && !mutant::on("page_cache: acknowledge FUA from memory")
    }

    /// Waits for what a write needs, holding nothing that it could wait for itself, by way of others. A turn is no such thing: only zeroes and
    /// discards wait for it, before they hold anything. Given up here, it would let them hold the range again each time that the write waits for
    /// room. Nor are units where memory is waited for: that comes free without anybody's. Fails where write-back has failed: nothing may come
    /// free any more; and where nothing is there that could come free.
    async fn satisfy(
        self: &Arc<Self>,
        need: Need,
        request: &Request,
        state: &mut WriteState,
    ) -> Result<(), Kind> {
        if !matches!(need, Need::Memory(_)) && !mutant::on("page_cache: wait while holding units") {
            state.give_back();
        }
        match need {
            Need::Turn => state.slice.renew(&*self.env).await,
            Need::Clear(range) => state.turn.get_or_insert_with(|| self.outside.line_up(range)).clear().await,
            Need::Unsaved(blocks) => {
                self.counts.add(Count::Blocked, 1);
                // Polled second: the engine sees for what it is waited for.
                let kick = async { self.writeback.kick() };
                self.failure.or_passing(join(self.unsaved.take(blocks), kick)).await?;
                state.blocks += blocks;
            }
            Need::Memory(shard) => self.wait_for_memory(shard, request, state).await?,
        }
        Ok(())
    }

    /// Waits until what comes next has memory of a shard, or needs something else.
    async fn wait_for_memory(
        self: &Arc<Self>,
        shard: usize,
        request: &Request,
        state: &mut WriteState,
    ) -> Result<(), Kind> {
        self.counts.add(Count::Blocked, 1);
        let look = || match self.absorb_piece(request, state, true) {
            // The system refuses memory, and no folio is there that could leave.
            Err(Need::Memory(_)) if self.shards[shard].read().units() == 0 => Some(Err(Kind::OutOfMemory)),
            Err(Need::Memory(_)) => {
                // Something may have become dirty there since it was last looked at.
                self.writeback.kick();
                None
            }
            _ => Some(Ok(())),
        };
        self.failure.or_passing(self.pressure[shard].room.until(&self.changes, look)).await?
    }
}
