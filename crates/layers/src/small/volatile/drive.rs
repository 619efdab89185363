//! How a volatile cache accepts writes, evicts, flushes and loses power.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use spillway_core::buffer::Workspace;
use spillway_core::random::Random;
use spillway_core::sync::{Mutex, Semaphore, StickyError};
use spillway_core::{
    Answer, Budget, ByteRange, Env, Error, Job, Kind, Op, Place, Reply, Request, SECTOR, Seam, Submission,
    mutant,
};

use super::blocks::{CachedBlocks, Content};
use super::config::Settings;

/// All blocks of a device.
const ALL: Range<u64> = 0..u64::MAX;

/// See the head of this file.
pub(super) struct Drive {
    pub(super) below: Seam,
    env: Arc<dyn Env>,
    pub(super) settings: Settings,
    block: u64,
    state: Mutex<State>,
    /// Held while blocks are in flight, and while a read of cached blocks is below. One task at a time.
    transfer: Semaphore,
    /// Room for a block in flight.
    room: Workspace,
    /// The first failure of a flush: from then on nobody knows what is durable below.
    failure: StickyError,
}

struct State {
    blocks: CachedBlocks,
    powered: bool,
}

impl Drive {
    /// An empty cache with power. [`Kind::NoSpace`] where `budget` has no room for a block in flight.
    pub(super) fn new(
        settings: Settings,
        below: Seam,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<Self, Error> {
        let block = below.geometry().block_size.bytes();
        let room = Workspace::new("a block of a volatile cache", budget, block as usize)?;
        let state =
            Mutex::new(State { blocks: CachedBlocks::new(budget.clone(), block as usize), powered: true });
        let (transfer, failure) = (Semaphore::new(1), StickyError::default());
        Ok(Self { below, env, settings, block, state, transfer, room, failure })
    }

    pub(super) fn cached_bytes(&self) -> u64 {
        self.state.lock().blocks.bytes()
    }

    pub(super) fn is_powered(&self) -> bool {
        self.state.lock().powered
    }

    /// Whether a part of `range` is cached.
    pub(super) fn caches(&self, range: ByteRange) -> bool {
        self.state.lock().blocks.contains_any(self.numbers(range))
    }

    fn numbers(&self, range: ByteRange) -> Range<u64> {
        assert!(range.aligned(self.block), "{range:?} is whole blocks of {}", self.block);
        range.offset / self.block..(range.offset + range.len) / self.block
    }

    /// Runs `work` on the cached blocks; [`Kind::Io`] while the power is off.
    fn with_power<T>(&self, work: impl FnOnce(&mut CachedBlocks) -> T) -> Result<T, Kind> {
        let mut state = self.state.lock();
        if state.powered { Ok(work(&mut state.blocks)) } else { Err(Kind::Io) }
    }

    pub(super) fn read(self: &Arc<Self>, request: Request) -> Submission {
        let numbers = self.numbers(request.range);
        match self.with_power(|blocks| blocks.contains_any(numbers)) {
            Ok(true) if !mutant::on("volatile: read only the device below") => {
                let drive = self.clone();
                Answer::pending(async move { drive.read_cached(request).await })
            }
            Ok(_) => self.below.submit(request),
            Err(kind) => Answer::Done(request.answer(Err(kind))),
        }
    }

    /// Reads the device below, then copies cached blocks over it. None of them is evicted in between.
    async fn read_cached(&self, request: Request) -> Reply {
        let _transfer = self.transfer.hold().await;
        let first = self.numbers(request.range).start;
        let mut reply = self.below.submit(request).await;
        if reply.result.is_ok() {
            reply.result = self.with_power(|blocks| blocks.overlay(first, &mut reply.buf));
        }
        reply
    }

    /// A write or zeroing without FUA: cached at once where there is room.
    pub(super) fn write(self: &Arc<Self>, request: Request) -> Submission {
        match self.insert(&request, 0) {
            Ok(done) if done == request.range.len => Answer::Done(request.answer(Ok(()))),
            Ok(done) => {
                let drive = self.clone();
                Answer::pending(async move { drive.evict_and_write(request, done).await })
            }
            Err(kind) => Answer::Done(request.answer(Err(kind))),
        }
    }

    /// Caches a write from byte `done` on until the cache is full. Returns how many of its bytes are cached then.
    fn insert(&self, request: &Request, done: u64) -> Result<u64, Kind> {
        let bytes_max = self.settings.volatile_bytes_max.get();
        let content = |at: u64| match request.op {
            Op::Write => Content::Bytes(request.buf[at as usize..][..self.block as usize].into()),
            _ => Content::Zeroes { no_hole: request.flags.no_hole },
        };
        self.with_power(|blocks| {
            let mut rest = (done..request.range.len).step_by(self.block as usize);
            let mut insert = |at: u64| {
                let number = (request.range.offset + at) / self.block;
                blocks.insert(number, || content(at), bytes_max)
            };
            rest.find(|&at| insert(at).is_err()).unwrap_or(request.range.len)
        })
    }

    /// Evicts blocks until a write is cached from byte `done` to its end; writes through where nothing is left to evict.
    async fn evict_and_write(&self, request: Request, mut done: u64) -> Reply {
        let transfer = self.transfer.hold().await;
        while done < request.range.len {
            match self.evict().await {
                Ok(true) => {}
                Ok(false) => {
                    drop(transfer);
                    return self.write_through(request).await;
                }
                Err(kind) => return request.answer(Err(kind)),
            }
            done = match self.insert(&request, done) {
                Ok(done) => done,
                Err(kind) => return request.answer(Err(kind)),
            };
        }
        request.answer(Ok(()))
    }

    /// Passes a write or zeroing on as it is. Cached versions of its blocks are dropped once it succeeds.
    pub(super) async fn write_through(&self, request: Request) -> Reply {
        let _transfer = self.transfer.hold().await;
        let numbers = self.numbers(request.range);
        if let Err(kind) = self.with_power(|blocks| blocks.begin_flight(numbers.clone())) {
            return request.answer(Err(kind));
        }
        let reply = self.below.submit(request).await;
        if reply.result.is_ok() && !mutant::on("volatile: keep what a durable write replaced") {
            self.state.lock().blocks.complete(numbers);
        }
        reply
    }

    /// Writes all blocks that were cached when it began to the device below, in random order, and flushes that. Fails for ever once that failed,
    /// unless the failure passes: the next one writes what is left.
    pub(super) async fn flush(&self) -> Result<(), Kind> {
        let _transfer = self.transfer.hold().await;
        self.with_power(|blocks| blocks.begin_flight(ALL))?;
        let transferred = self.transfer_all().await;
        if let Err(kind) = transferred {
            self.failure.set(kind);
        }
        self.failure.check().and(transferred)
    }

    async fn transfer_all(&self) -> Result<(), Kind> {
        while self.transfer_one(self.env.random()).await? {
            if mutant::on("volatile: end a flush after the first block") {
                break;
            }
        }
        self.below.flush().await
    }

    /// Writes a random block below, one that a cancelled request left in flight before any other; false where none is cached.
    async fn evict(&self) -> Result<bool, Kind> {
        let lot = self.env.random();
        self.with_power(|blocks| {
            if blocks.draw_in_flight(lot).is_none()
                && let Some(number) = blocks.draw_dirty(lot)
            {
                blocks.begin_flight(number..number + 1);
            }
        })?;
        self.transfer_one(lot).await
    }

    /// Writes a block in flight below; false where there is none.
    async fn transfer_one(&self, lot: u64) -> Result<bool, Kind> {
        let mut buf = self.room.take(self.block as usize).await;
        let (number, zeroes) = {
            let state = self.state.lock();
            let Some((number, content)) = state.blocks.draw_in_flight(lot) else { return Ok(false) };
            content.copy(&mut buf, |_| true);
            (number, if let Content::Zeroes { no_hole } = content { Some(*no_hole) } else { None })
        };
        let request = match zeroes {
            Some(no_hole) => self.zeroes(number, no_hole),
            None => Request::write(number * self.block, buf),
        };
        self.below.submit(request).await.result?;
        self.state.lock().blocks.complete(number..number + 1);
        Ok(true)
    }

    fn zeroes(&self, number: u64, no_hole: bool) -> Request {
        let range = ByteRange::new(number * self.block, self.block);
        let mut request = Request::bare(Op::WriteZeroes, range);
        request.flags.no_hole = no_hole;
        request
    }

    /// Cuts the power at once. The answer follows when the data that survives, drawn from `seed`, is on the device below.
    pub(super) fn cut_power(self: &Arc<Self>, seed: u64) -> Answer<Result<(), Error>> {
        self.state.lock().powered = false;
        let drive = self.clone();
        let failure = "the data that survived the power cut cannot be written to the device below";
        self.command(failure, move || async move { drive.lose(seed).await })
    }

    /// Serves requests again, after a power cut that is still writing what survived.
    pub(super) fn power_on(self: &Arc<Self>) -> Answer<Result<(), Error>> {
        let drive = self.clone();
        self.command("the power cannot be turned on", move || async move {
            let _transfer = drive.transfer.hold().await;
            drive.state.lock().powered = true;
            Ok(())
        })
    }

    /// Runs a command to its end, also where its caller gives up.
    fn command<F: Future<Output = Result<(), Kind>> + 'static>(
        &self,
        failure: &'static str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Answer<Result<(), Error>> {
        let outcome = Job::spawn(&*self.env, Place::Background, work);
        Answer::pending(async move {
            outcome.await.unwrap_or(Err(Kind::ShuttingDown)).map_err(|kind| Error::new(kind, failure))
        })
    }

    async fn lose(&self, seed: u64) -> Result<(), Kind> {
        let _transfer = self.transfer.hold().await;
        let cached = self.state.lock().blocks.take_all();
        let mut random = Random(seed);
        for (number, block) in cached {
            self.save_survivors(number, &block.content, &mut random).await?;
        }
        self.below.flush().await
    }

    /// Writes the sectors of a block that survive below.
    async fn save_survivors(&self, number: u64, content: &Content, random: &mut Random) -> Result<(), Kind> {
        let survivors = self.draw_survivors(random);
        if survivors == 0 {
            return Ok(());
        }
        let buf = self.room.take(self.block as usize).await;
        let mut reply = self.below.submit(Request::read(number * self.block, buf)).await;
        reply.result?;
        content.copy(&mut reply.buf, |sector| survivors & (1 << sector) != 0);
        self.below.submit(Request::write(number * self.block, reply.buf)).await.result
    }

    /// The sectors of a block that survive a power cut, a bit for each.
    fn draw_survivors(&self, random: &mut Random) -> u128 {
        let sectors = self.block / SECTOR;
        assert!(sectors <= u128::BITS.into(), "a block of {} bytes", self.block);
        let lost = self.settings.lost_percent.get();
        let mut survives = || random.below(100) >= lost;
        match self.settings.torn.get() {
            true => (0..sectors).map(|sector| u128::from(survives()) << sector).sum(),
            false if survives() => u128::MAX,
            false => 0,
        }
    }
}
