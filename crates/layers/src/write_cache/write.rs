//! Reads and writes of clients, through the cache.

use std::sync::Arc;

use spillway_core::buffer::ZEROES_LEN;
use spillway_core::{ByteRange, Extent, Flags, IoBuf, Kind, Op, Reply, Request, mutant};
use spillway_policy::free_runs::Run;

use super::bypass::{BypassWrite, Entered};
use super::device::counts::Count;
use super::device::{Core, Wants};
use super::index::block::{CacheBlock, Epoch, OriginBlock};
use super::index::stretch::{BlockLocation, Stretch};
use super::pieces::DevicePart;
use super::read::PinnedRead;
use super::reservation::Reservation;
use crate::decisions::Decision;
use crate::slice::Slice;

/// Zeroes go through the cache up to so many bytes, and up to this part of the cache; more bypass it.
const ZEROES_BYTES: u64 = ZEROES_LEN as u64;
const ZEROES_SHARE: u64 = 8;

/// Where the first blocks of a write go.
pub(super) enum WriteTarget {
    Cache(Reservation),
    Bypass(BypassWrite),
}

impl Core {
    pub(super) fn block_bytes(&self) -> u64 {
        self.settings.block_size().bytes()
    }

    /// First block and number of blocks; a range of more than 2^32 - 1 bytes has fewer blocks than that.
    pub(super) fn blocks(&self, range: ByteRange) -> (OriginBlock, u32) {
        let [first, len] = [range.offset, range.len].map(|bytes| (bytes / self.block_bytes()) as u32);
        (OriginBlock(first), len)
    }

    /// Where a range is to be read; a long one is looked up in slices.
    pub(super) async fn look_up(self: &Arc<Self>, origin: OriginBlock, len: u32) -> PinnedRead {
        let mut reading = PinnedRead { core: self.clone(), stretches: Vec::new() };
        let (mut at, mut slice) = (0, Slice::new());
        loop {
            let looked = self.index.look_up(origin.plus(at), len - at, &mut reading.stretches);
            at += looked;
            assert!(at <= len, "{at} blocks were looked up of {len}");
            if at == len {
                return reading;
            }
            slice.count(looked);
            slice.renew_if_over(&*self.env).await;
        }
    }

    pub(super) async fn read(self: &Arc<Self>, request: Request) -> Reply {
        if mutant::on("write_cache: reads fail once an error sticks")
            && let Err(kind) = self.failure.check()
        {
            return request.answer(Err(kind));
        }
        if mutant::on("write_cache: a read waits for the commit under way") {
            let commit = self.journal.committed.reached(self.journal.wanted.current());
            let _ = self.journal.failure.or(commit).await;
        }
        let (origin, len) = self.blocks(request.range);
        let reading = self.look_up(origin, len).await;
        self.counts.add(Count::Reads, len);
        self.counts.add(Count::ReadHits, reading.hits());
        let found: u32 = reading.stretches.iter().map(|stretch| stretch.len).sum();
        assert_eq!(found, len, "each block lies somewhere");
        let origin_is_read = (reading.hits() < len).then(|| self.meter.read());
        let reply = match &reading.stretches[..] {
            [stretch] => {
                let DevicePart { device, at, .. } = self.source(stretch, origin);
                device.submit(Request::read(at, request.buf)).await
            }
            stretches => self.read_pieces(stretches, origin, request.buf).await,
        };
        drop(origin_is_read);
        reading.end().await;
        reply
    }

    /// A stretch whose first block is `origin` on the origin.
    fn source(&self, stretch: &Stretch, origin: OriginBlock) -> DevicePart<'_> {
        let len = (u64::from(stretch.len) * self.block_bytes()) as usize;
        match stretch.location {
            BlockLocation::Cache(block) => {
                DevicePart { device: &self.cache, at: self.cache_offset(block), len }
            }
            BlockLocation::Origin => {
                DevicePart { device: &self.origin, at: u64::from(origin.0) * self.block_bytes(), len }
            }
        }
    }

    /// Where a block lies on the cache device.
    pub(super) fn cache_offset(&self, block: CacheBlock) -> u64 {
        self.layout.block_offset(block.0.into())
    }

    async fn read_pieces(&self, stretches: &[Stretch], origin: OriginBlock, buf: IoBuf) -> Reply {
        let mut at = 0;
        let part = |stretch: &Stretch| {
            at += stretch.len;
            self.source(stretch, origin.plus(at - stretch.len))
        };
        let parts: Vec<DevicePart> = stretches.iter().map(part).collect();
        let (results, buf) = self.move_parts(Op::Read, &parts, buf).await;
        let all =
            if mutant::on("write_cache: a read in pieces forgets an error") { 1 } else { results.len() };
        Reply { result: results.into_iter().take(all).fold(Ok(()), Result::and), buf }
    }

    /// What is cached is stored; of the rest the origin knows.
    pub(super) async fn extents(
        self: &Arc<Self>,
        range: ByteRange,
        count_max: usize,
    ) -> Result<Vec<Extent>, Kind> {
        let mut list = Vec::new();
        let block = self.block_bytes();
        let (mut at, mut slice) = (range.offset, Slice::new());
        while at < range.offset + range.len && list.len() < count_max {
            slice.renew_if_over(&*self.env).await;
            let (origin, len) = self.blocks(ByteRange::new(at, range.offset + range.len - at));
            let (held, count) = self.index.presence(origin, len);
            slice.count(count);
            let held = held && !mutant::on("write_cache: ask only the origin for extents");
            let part = ByteRange::new(at, u64::from(count) * block);
            if held {
                Extent::stored(part.len).append_to(&mut list);
                at += part.len;
                continue;
            }
            // Its blocks may be smaller, and its answer ends where it likes.
            while at < part.offset + part.len && list.len() < count_max {
                let rest = ByteRange::new(at, part.offset + part.len - at);
                let below = self.origin.extents(rest, count_max).await?;
                at += Extent::append_in_blocks(&below, rest, block, &mut list);
            }
        }
        list.truncate(count_max);
        Ok(list)
    }

    pub(super) async fn write(self: &Arc<Self>, request: Request) -> Reply {
        let (origin, len) = self.blocks(request.range);
        self.counts.add(Count::Writes, len);
        let Request { flags, mut buf, .. } = request;
        let block = self.block_bytes() as usize;
        let (mut done, mut committed_with, mut bypassed) = (0, None, false);
        while done < len {
            let room = match self.room_for(origin.plus(done), len - done).await {
                Ok(room) => room,
                Err(kind) => return Reply { result: Err(kind), buf },
            };
            let part = match &room {
                WriteTarget::Cache(reservation) => reservation.len,
                WriteTarget::Bypass(write) => write.len(),
            };
            assert!(0 < part && part <= len - done, "{part} blocks of {}", len - done);
            let from = done as usize * block;
            buf.narrow(from, part as usize * block);
            let result;
            (result, buf) = match room {
                WriteTarget::Cache(reservation) => {
                    let (result, buf) = self.write_cached(reservation, origin.plus(done), buf).await;
                    (result.map(|epoch| committed_with = committed_with.max(Some(epoch))), buf)
                }
                WriteTarget::Bypass(write) => {
                    bypassed = true;
                    write.write(buf).await
                }
            };
            buf.unnarrow(from, len as usize * block);
            if let Err(kind) = result {
                return Reply { result: Err(kind), buf };
            }
            done += part;
        }
        let commits = self.settings.acks_committed() && !mutant::on("write_cache: ack=committed acks early");
        let result = match flags.fua || commits {
            true => self.settle(committed_with, bypassed).await,
            false => Ok(()),
        };
        Reply { result, buf }
    }

    /// Writes `bytes` to reserved blocks and publishes them; returns the epoch with which they are committed.
    async fn write_cached(
        self: &Arc<Self>,
        mut reservation: Reservation,
        origin: OriginBlock,
        mut bytes: IoBuf,
    ) -> (Result<Epoch, Kind>, IoBuf) {
        let reserved = u64::from(reservation.len) * self.block_bytes();
        assert!(bytes.len() as u64 == reserved, "bytes for the blocks that are reserved");
        if mutant::on("write_cache: overwrite a version in place") {
            let reading = Box::pin(self.look_up(origin, 1)).await;
            let DevicePart { device, at, len } = self.source(&reading.stretches[0], origin);
            if bytes.len() == len {
                bytes = device.submit(Request::write(at, bytes)).await.buf;
            }
        }
        let (result, bytes) = self.write_runs(&mut reservation, bytes).await;
        if let Err(kind) = result {
            return (Err(kind), bytes);
        }
        let published = reservation.publish(origin).await;
        self.counts.add(Count::Allocated, published.added);
        self.counts.add(Count::HitsUncommitted, published.over_uncommitted);
        self.counts.add(Count::HitsCommitted, published.over_committed);
        self.commit_if_due();
        self.write_back_if_due();
        (Ok(published.epoch), bytes)
    }

    /// One I/O for each run.
    async fn write_runs(&self, reservation: &mut Reservation, bytes: IoBuf) -> (Result<(), Kind>, IoBuf) {
        let Reservation { runs, bad, .. } = reservation;
        self.counts.add(Count::CacheWrites, 1);
        self.counts.add(Count::Pieces, runs.len() as u32);
        if let [run] = &runs[..] {
            let reply =
                self.cache.submit(Request::write(self.cache_offset(CacheBlock(run.start)), bytes)).await;
            return (set_aside(bad, *run, reply.result), reply.buf);
        }
        let block = self.block_bytes() as usize;
        let part = |run: &Run| DevicePart {
            device: &self.cache,
            at: self.cache_offset(CacheBlock(run.start)),
            len: run.len as usize * block,
        };
        let parts: Vec<DevicePart> = runs.iter().map(part).collect();
        let (results, bytes) = self.move_parts(Op::Write, &parts, bytes).await;
        let noted = results.into_iter().zip(&*runs).map(|(result, run)| set_aside(bad, *run, result));
        (noted.fold(Ok(()), Result::and), bytes)
    }

    /// Waits until some of the blocks can be written.
    pub(super) async fn room_for(
        self: &Arc<Self>,
        origin: OriginBlock,
        len: u32,
    ) -> Result<WriteTarget, Kind> {
        let mut wants = match self.look_for_room(origin, len, None) {
            Ok(found) => return found,
            Err(wants) => wants,
        };
        self.counts.add(Count::Blocked, 1);
        let bytes = u64::from(len) * self.block_bytes();
        self.decisions.note(Decision("hold writes", why_held(wants)), bytes, || self.held_figures());
        loop {
            let look = || match self.look_for_room(origin, len, Some(wants)) {
                Err(same) if same == wants => {
                    self.writeback.kick();
                    self.flush_for_waiters();
                    None
                }
                found => Some(found),
            };
            match self.failure.or_passing(self.room(wants).until(&self.changes, look)).await? {
                Ok(found) => return found,
                Err(other) => wants = other,
            }
        }
    }

    fn held_figures(&self) -> String {
        let (free, under_way) = (self.space.count(), self.index.writing_back());
        format!("{free} blocks of the cache are free, {under_way} are being written back")
    }

    /// Where some of the blocks can be written, or what they want for that. Others come first that want it already, unless those come
    /// first that `wanted` it.
    fn look_for_room(
        self: &Arc<Self>,
        origin: OriginBlock,
        len: u32,
        wanted: Option<Wants>,
    ) -> Result<Result<WriteTarget, Kind>, Wants> {
        if let Err(kind) = self.failure.check()
            && !mutant::on("write_cache: writes go on once an error sticks")
        {
            return Ok(Err(kind));
        }
        self.space.retry_bad(self.env.coarse_now());
        let is_turn = |wants| wanted == Some(wants) || !self.room(wants).is_waited_for();
        // What is not held may have to bypass the cache; what is goes there as far as it is held.
        let (mut held, mut count) = self.may_enter(origin, len);
        if held && !self.is_closed() {
            if is_turn(Wants::Blocks)
                && let Some(reservation) = Reservation::take(self, count)
            {
                // From here on a drain waits for it. One may have ended since the look.
                let (still, as_far) = self.may_enter(origin, reservation.len);
                if still && as_far == reservation.len {
                    return Ok(Ok(WriteTarget::Cache(reservation)));
                }
                drop(reservation);
                return self.look_for_room(origin, len, wanted);
            }
            (held, count) = self.index.presence(origin, len);
        }
        if held {
            return Err(if self.is_closed() { Wants::Gone } else { Wants::Blocks });
        }
        if !is_turn(Wants::Bypass) {
            return Err(Wants::Bypass);
        }
        match BypassWrite::enter(self, origin, count) {
            Entered::Yes(write) => Ok(Ok(WriteTarget::Bypass(write))),
            Entered::Waits => Err(Wants::Bypass),
            // It has come meanwhile.
            Entered::Held => self.look_for_room(origin, len, wanted),
        }
    }

    /// Whether the first of `len` blocks may be written to the cache, and how many are like it.
    fn may_enter(&self, origin: OriginBlock, len: u32) -> (bool, u32) {
        let bypasses = self.settings.bypasses() || self.drain.is_running();
        if bypasses { self.index.presence(origin, len) } else { (true, len) }
    }

    /// Zeroes of a discard go to the origin: in the cache they would take room instead of making it.
    pub(super) async fn write_zeroes(self: &Arc<Self>, request: Request) -> Reply {
        let share = self.layout.n_blocks * self.block_bytes() / ZEROES_SHARE;
        if request.flags.free || request.range.len > ZEROES_BYTES.min(share) {
            return self.replace(request).await;
        }
        let Request { range, flags, .. } = request;
        let flags = Flags { fua: flags.fua, ..Flags::default() };
        let zeroes = IoBuf::zeroes(range.len as usize);
        let reply = self.write(Request { op: Op::Write, range, flags, buf: zeroes }).await;
        request.answer(reply.result)
    }
}

/// The rule by which a write waits.
fn why_held(wants: Wants) -> &'static str {
    match wants {
        Wants::Blocks => "no block of the cache is free",
        Wants::Bypass => "as much bypasses the cache as may",
        Wants::Gone => "the cache is drained",
    }
}

/// Notes blocks whose write failed. Want of room or memory says nothing of them.
fn set_aside(bad: &mut Vec<Run>, run: Run, result: Result<(), Kind>) -> Result<(), Kind> {
    if result == Err(Kind::Io) {
        bad.push(run);
    }
    result
}
