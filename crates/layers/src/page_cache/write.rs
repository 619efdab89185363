//! Writes of clients: into memory, folio by folio, where each of them finds room; and back from there for those that have to be below
//! before they are acknowledged.

use std::sync::Arc;

use spillway_core::sync::{AtomicU64, Ordering, RangeTurn};
use spillway_core::{ByteRange, Kind, Reply, Request, mutant};

use super::config::Mode;
use super::device::Core;
use super::device::counts::Count;
use super::folios::folio::Folio;
use super::folios::places::Span;
use super::work::{FOLIO, copied};
use crate::slice::Slice;

/// What a write waits for.
pub(super) enum Need {
    /// That so many blocks may become unsaved.
    Unsaved(u64),
    /// Memory for a folio at this byte, which is in that shard.
    Memory(u64, usize),
    /// That others have their turn.
    Turn,
    /// That nobody changes this range, which is the rest of the write, beside the cache.
    Clear(ByteRange),
}

/// What a write has taken and not used yet: blocks that it may dirty; and what it has dirtied.
pub(super) struct Hand {
    core: Arc<Core>,
    blocks: u64,
    /// The shard of which it has the turn to look for memory: from when it finds none there until it comes to another.
    memory: Option<usize>,
    /// From when the write first meets a range that is changed beside the cache: later changes there wait for it.
    turn: Option<RangeTurn>,
    dirtied: u64,
    slice: Slice,
    /// Of the folio that it wrote last.
    zone: u8,
    /// Up to where the stream of writes will go that this one is of, once it has come to a folio that is not there.
    until: Option<u64>,
}

impl Hand {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            blocks: 0,
            memory: None,
            turn: None,
            dirtied: 0,
            slice: Slice::new(),
            zone: 0,
            until: None,
        }
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

    /// It looks for no memory but in `shard`.
    fn leave_others(&mut self, shard: Option<usize>) {
        if self.memory != shard
            && let Some(other) = self.memory.take()
        {
            self.core.pressure[other].turn.give(1);
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.give_back();
        self.leave_others(None);
    }
}

/// Counts one that waits.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Core {
    /// Puts what is written from `done` on into memory, as far as nothing has to be waited for; `done` tells how far that is.
    pub(super) fn absorb(
        self: &Arc<Self>,
        request: &Request,
        done: &mut u64,
        hand: &mut Hand,
    ) -> Result<(), Need> {
        while *done < request.range.len {
            if hand.slice.is_over() {
                return Err(Need::Turn);
            }
            let bytes = self.absorb_piece(request, *done, hand)?;
            hand.slice.count(FOLIO + copied(bytes));
            *done += bytes;
        }
        Ok(())
    }

    fn absorb_piece(self: &Arc<Self>, request: &Request, start: u64, hand: &mut Hand) -> Result<u64, Need> {
        let at = request.range.offset + start;
        let unit = self.places.unit_at(at);
        let number = self.places.shard_of(self.places.region_at(at));
        hand.leave_others(Some(number));
        let mut shard = self.shards[number].write();
        let folio = shard.get(unit).map(Folio::span);
        let span = folio.unwrap_or_else(|| {
            let until = *hand.until.get_or_insert_with(|| self.written_until(request.range));
            shard.room(unit, self.places.order(at, until))
        });
        let mut piece = self.places.piece(request.range, start, span);
        let range = self.places.range(span, &piece.blocks);
        if self.is_outside(range) && !mutant::on("page_cache: write into a range that is being discarded") {
            return Err(Need::Clear(ByteRange::new(at, request.range.len - start)));
        }
        let blocks = piece.blocks.len() as u64;
        let wanted = blocks.saturating_sub(hand.blocks);
        if wanted > 0 && !self.unsaved.try_take(wanted) {
            return Err(Need::Unsaved(blocks));
        }
        hand.blocks += wanted;
        if folio.is_none() {
            if self.pressure[number].has_line() && hand.memory.is_none() {
                return Err(Need::Memory(at, number));
            }
            let frame = self.frame_to_dirty(&mut shard, span.order, &mut hand.slice);
            let frame = frame.ok_or(Need::Memory(at, number))?;
            piece = self.places.piece(request.range, start, Span { order: frame.order, ..span });
            shard.insert(unit, frame, Some(&piece.blocks));
        }
        let bytes = &request.buf[piece.start..][..piece.bytes.len()];
        let (dirtied, zone) = shard.write(&piece, bytes, self.stamp());
        // With the lock: a batch that has these blocks ends after they are counted.
        self.zones.dirtied(zone, dirtied);
        let dirty = self.dirty.fetch_add(dirtied, Ordering::Relaxed) + dirtied;
        drop(shard);
        assert!(dirtied <= hand.blocks, "{dirtied} blocks became dirty, with room for {}", hand.blocks);
        hand.blocks -= dirtied;
        (hand.dirtied, hand.zone) = (hand.dirtied + dirtied, zone);
        self.dirtied(dirtied, dirty);
        Ok(bytes.len() as u64)
    }

    /// So many blocks have become dirty, which makes `dirty` of them.
    fn dirtied(self: &Arc<Self>, dirtied: u64, dirty: u64) {
        if dirtied == 0 {
            return;
        }
        self.age_timer.start();
        if dirty > self.background() {
            self.writeback.kick();
        }
    }

    /// The same, waiting for what is needed; then below, where it has to be there.
    pub(super) async fn write(self: &Arc<Self>, request: Request, mut done: u64, mut hand: Hand) -> Reply {
        let range = request.range;
        let mut result = Ok(());
        while let Err(need) = self.absorb(&request, &mut done, &mut hand) {
            result = self.satisfy(need, &mut hand).await;
            if result.is_err() {
                return request.answer(result);
            }
        }
        let (dirtied, zone) = (hand.dirtied, hand.zone);
        assert_eq!(done, range.len, "all of a write is absorbed");
        drop(hand);
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
    /// room. Fails where write-back has failed: nothing may come free any more; and where nothing is there that could come free.
    async fn satisfy(self: &Arc<Self>, need: Need, hand: &mut Hand) -> Result<(), Kind> {
        // Whose turn it is to look for memory keeps what it has meanwhile: that comes free without anybody's units.
        let keeps = matches!(need, Need::Memory(..)) && hand.memory.is_some();
        if !keeps && !mutant::on("page_cache: wait while holding units") {
            hand.give_back();
        }
        if matches!(need, Need::Clear(_)) {
            hand.leave_others(None);
        }
        match need {
            Need::Turn => hand.slice.renew(&*self.env).await,
            Need::Clear(range) => hand.turn.get_or_insert_with(|| self.outside.line_up(range)).clear().await,
            Need::Unsaved(blocks) => {
                // Before the engine is told: it then sees for what it is waited for.
                let _blocked = Waiting::new(&self.blocked);
                let _waiting = self.wait_for_room();
                self.failure.or(self.unsaved.take(blocks)).await?;
                hand.blocks += blocks;
            }
            Need::Memory(at, shard) => self.wait_for_memory(at, shard, hand).await?,
        }
        Ok(())
    }

    /// Waits for the turn to look for memory of a shard, then until there is some for a folio at `at`. A read may take it first: then it is
    /// waited for again.
    async fn wait_for_memory(self: &Arc<Self>, at: u64, shard: usize, hand: &mut Hand) -> Result<(), Kind> {
        let (_waiting, pressure) = (self.wait_for_room(), &self.pressure[shard]);
        if hand.memory.is_none() {
            self.failure.or(pressure.turn.take(1)).await?;
            hand.memory = Some(shard);
        }
        let _waits = pressure.wait();
        let slice = &mut hand.slice;
        let has_room = || match self.has_room(at, slice) {
            Ok(false) => {
                // Something may have become dirty there since it was last looked at.
                self.writeback.kick();
                None
            }
            found => Some(found),
        };
        self.failure.or(self.room.until(has_room)).await??;
        Ok(())
    }

    fn wait_for_room(&self) -> Waiting<'_> {
        self.counts.add(Count::Blocked, 1);
        let waiting = Waiting::new(&self.waiting);
        self.writeback.kick();
        waiting
    }
}
