//! A disk with a volatile cache that fails and loses power.
//!
//! The fault model:
//!
//! - A write that ended lies in the cache. Reads see the newest; what is on the medium is another matter.
//! - A power cut keeps, for each sector of 512 bytes by itself, what was last made durable or any version written since,
//!   those of calls still in flight included: writes are reordered, torn between sectors and lost, never inside a sector.
//!   Persistent memory tears between words of 8 bytes, and a disk of 4096-byte blocks may tear between those alone.
//! - A sync makes durable what had been written by calls that ended before it began. A sync that fails loses its claim: what
//!   it should have covered is no longer made durable by a later one, as with Linux's page cache.
//! - A sync may succeed and do nothing: what it should have covered is as volatile as before, until a later one covers it.
//! - A durable write makes its own sectors durable, and no other.
//! - A disk that was made longer may be as short as before after a power cut, until a sync or a durable write.
//! - A call may fail once or from then on, move less than it was asked to, or not be known to the system. A write that fails
//!   may have stored some of its sectors.
//! - What is not durable may be lost while the disk is in use, as when Linux fails to write back what its page cache holds:
//!   reads go back to what is durable, one sync or durable write reports it, and later ones succeed. Without O_DIRECT a write of
//!   any kind may be the one that reports it.
//! - A sector may become unreadable: reads of it fail, after a restart too, until something is written there.
//! - Bits rot, writes go to the wrong place and reads come from there, and nothing says so.
//! - A call may hang: it takes seconds or minutes, or for ever.
//! - A call whose future is dropped is carried out all the same, or not, now or after some later calls.
//! - The answer to a call may come later than what it says happened: others may have been told something else meanwhile.
//! - The power is cut at a boundary: each call has one when it begins and one when it ends. It is cut for the whole machine, or
//!   for this disk alone, whose calls fail from then on.
//! - When the machine stops, the disk may have lost its power or kept it, as when a process is killed. What it kept in its cache
//!   is still seen, and not yet durable.
//!
//! What stories draw of it is what the layers above promise something about; see `scenario`.

mod answers;
mod cache;
mod fault;
mod latency;
mod medium;
mod restart;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use spillway_core::random::Random;
use spillway_core::storage::Moved;
use spillway_core::sync::Mutex;
use spillway_core::{
    Answer, BlockSize, ByteRange, Env, Extent, FallocateMode, Geometry, IoBuf, Kind, LocalFuture, SECTOR,
    Storage,
};

use cache::Cache;
use state::DiskState;

pub use answers::Answers;
pub use cache::Tear;
pub use fault::{Call, Effect, Fault};
pub use latency::Latency;
pub use medium::Medium;
pub use state::Plan;

/// A disk that has power.
pub struct Disk {
    name: &'static str,
    state: Arc<Mutex<DiskState>>,
    env: Arc<dyn Env>,
    geometry: Geometry,
}

impl Disk {
    /// Powers `medium` up in blocks of `block` bytes.
    pub fn new(env: Arc<dyn Env>, medium: Medium, block: BlockSize, plan: Plan, seed: u64) -> Self {
        let geometry = Geometry {
            block_size: block,
            optimal_io: block.bytes().max(4096) as u32,
            volatile: false,
            ..Geometry::in_memory(medium.bytes())
        };
        let state = DiskState {
            cache: Cache::new(medium),
            plan,
            random: Random(seed),
            counts: [0; 4],
            calls: 0,
            boundaries: 0,
            cut: false,
            gone: false,
            unreported: false,
            wrong: Vec::new(),
            changed: Vec::new(),
            ignored: None,
            forgot: false,
            hung: Vec::new(),
            answers: Answers::default(),
            head: 0,
        };
        Self { name: "disk", state: Arc::new(Mutex::new(state)), env, geometry }
    }

    /// The same, called `name` in the log.
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// The same, of which a power cut leaves this whole of what was not synced.
    pub fn tearing(self, tear: Tear) -> Self {
        self.state.lock().cache.set_tear(tear);
        self
    }

    /// What a power cut leaves whole.
    pub fn tear(&self) -> Tear {
        self.state.lock().cache.tear()
    }

    /// Whether the power is gone.
    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    /// Cuts the power now.
    pub fn cut(&self) {
        self.state.lock().cut = true;
    }

    /// Adds zeroes behind its end, `bytes` in all; as a volume grows, whatever happens to its power, or a file, whose length no power cut
    /// takes back once it is synced.
    pub fn enlarge(&self, bytes: u64) {
        self.state.lock().cache.enlarge(bytes);
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.state.lock().cache.bytes()
    }

    /// Whether a sync was ignored, and no later one has made good for it.
    pub fn has_ignored(&self) -> bool {
        self.state.lock().ignored.is_some()
    }

    /// Calls that never end, those that nobody waits for any more included.
    pub fn hung(&self) -> Vec<(Call, ByteRange)> {
        self.state.lock().hung.clone()
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Boundaries passed so far.
    pub fn boundaries(&self) -> u64 {
        self.state.lock().boundaries
    }

    /// What is left on the medium after the power was cut. All futures of calls are gone by now.
    pub fn survivors(&self) -> Medium {
        let state = &mut *self.state.lock();
        assert!(state.cut, "the power is cut first");
        state.cache.lose_power(&mut state.random)
    }

    /// What it holds after its machine stopped, where it kept its power. All futures of calls are gone by now.
    pub fn kept(&self) -> Medium {
        let state = &mut *self.state.lock();
        assert!(state.cut && !state.gone, "the machine stops first, and the disk has power");
        state.cache.keep_power(&mut state.random)
    }

    /// Whether this disk alone has lost its power.
    pub fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// How calls were answered so far.
    pub fn answers(&self) -> Answers {
        self.state.lock().answers
    }

    /// Sectors that hold what nobody wrote there, since this was last asked: first and count.
    pub fn take_wrong(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.state.lock().wrong)
    }

    /// Sectors that calls have begun to change since this was last asked: first and count.
    pub fn take_changed(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.state.lock().changed)
    }

    /// Begins a call: waits out its time and returns what strikes it. Never returns without power.
    async fn begin(&self, call: Call, range: ByteRange) -> Option<Effect> {
        let (effect, nanos) = {
            let mut state = self.state.lock();
            let powered = state.pass();
            let (head, latency) = (state.head, state.plan.latency);
            state.head = range.offset + range.len;
            let nanos = latency.nanos(call, range, head, &mut state.random);
            (powered.then(|| state.strike(call)), nanos)
        };
        let Some(effect) = effect else { return std::future::pending().await };
        self.env.sleep(Duration::from_nanos(nanos)).await;
        match effect {
            Some(Effect::Hang(Some(seconds))) => self.env.sleep(Duration::from_secs(seconds)).await,
            Some(Effect::Hang(None)) => {
                self.state.lock().hung.push((call, range));
                std::future::pending().await
            }
            _ => {}
        }
        effect
    }

    /// Ends a call: `work` is done in one step; its answer may be late. Never returns without power.
    async fn end<T>(&self, work: impl FnOnce(&mut DiskState) -> T) -> T {
        let (value, late) = {
            let mut state = self.state.lock();
            // Work that is not done is dropped later: it may lock the state itself.
            let done = if state.pass() { Some(work(&mut state)) } else { None };
            (done, state.plan.latency.answer_nanos(&mut state.random))
        };
        if late > 0 {
            self.env.sleep(Duration::from_nanos(late)).await;
        }
        match value {
            Some(value) => value,
            None => std::future::pending().await,
        }
    }

    fn share(&self) -> Self {
        let (state, env) = (self.state.clone(), self.env.clone());
        Self { name: self.name, state, env, geometry: self.geometry }
    }

    /// Carries a call out, with a line in the log at its begin and at its end.
    async fn logged<T>(
        self,
        call: Call,
        range: ByteRange,
        work: impl Future<Output = T>,
        result: impl Fn(&T) -> Result<usize, Kind>,
    ) -> T {
        let (first, count) = (range.offset / SECTOR, range.len / SECTOR);
        let log = |end: &dyn std::fmt::Debug| {
            let boundaries = self.state.lock().boundaries;
            tracing::debug!("{}, boundary {boundaries}: {call:?} {first}+{count} {end:?}", self.name);
        };
        log(&format_args!("begins"));
        let begun = self.env.now();
        let done = work.await;
        let result = result(&done);
        self.state.lock().answers.note(call, result, begun, self.env.now());
        log(&result);
        done
    }

    async fn read_at(self, at: u64, mut buf: IoBuf, done: usize) -> Moved {
        let range = ByteRange::new(at, (buf.len() - done) as u64);
        let effect = self.begin(Call::Read, range).await;
        let len = match effect {
            Some(Effect::Fail(kind)) => return (self.end(|_| Err(kind)).await, buf),
            Some(Effect::Short) => range.len.min(self.geometry.block_size.bytes()),
            _ => range.len,
        };
        let into = &mut buf[done..done + len as usize];
        let result = self
            .end(|state| {
                if effect == Some(Effect::GoBad) {
                    state.cache.go_bad(at);
                }
                if state.cache.is_bad(at, len) {
                    return Err(Kind::Io);
                }
                let last = state.cache.bytes() - len;
                let elsewhere =
                    ((at + self.geometry.block_size.bytes()) % (last + 1)).min(last) / SECTOR * SECTOR;
                state.cache.read(if effect == Some(Effect::Misread) { elsewhere } else { at }, into);
                Ok(len as usize)
            })
            .await;
        (result, buf)
    }

    async fn write_at(self, at: u64, buf: IoBuf, done: usize, durable: bool) -> Moved {
        let range = ByteRange::new(at, (buf.len() - done) as u64);
        let flight = Flight::board(&self.state, at, &buf[done..]);
        let effect = self.begin(Call::Write, range).await;
        let block = self.geometry.block_size.bytes();
        let result = self
            .end(|state| {
                flight.land(state);
                state.write(at, &buf[done..], durable, effect, block)
            })
            .await;
        (result, buf)
    }

    async fn sync_all(self) -> Result<(), Kind> {
        let covered = self.state.lock().cache.newest();
        let effect = self.begin(Call::Sync, ByteRange::new(0, 0)).await;
        self.end(|state| state.sync(covered, effect)).await
    }

    async fn zero_at(self, range: ByteRange) -> Result<(), Kind> {
        let zeroes = vec![0; range.len as usize];
        let flight = Flight::board(&self.state, range.offset, &zeroes);
        let effect = self.begin(Call::Zero, range).await;
        self.end(|state| {
            flight.land(state);
            match effect {
                Some(Effect::Fail(kind)) => Err(kind),
                _ => {
                    state.cache.write(range.offset, &zeroes, false);
                    Ok(())
                }
            }
        })
        .await
    }
}

/// A write that has begun. Dropped before it lands, it becomes a ghost.
struct Flight {
    state: Arc<Mutex<DiskState>>,
    number: Option<u64>,
}

impl Flight {
    fn board(state: &Arc<Mutex<DiskState>>, at: u64, bytes: &[u8]) -> Self {
        let mut locked = state.lock();
        locked.changed.push((at / SECTOR, bytes.len() as u64 / SECTOR));
        let number = Some(locked.cache.take_off(at, bytes));
        drop(locked);
        Self { state: state.clone(), number }
    }

    fn land(mut self, state: &mut DiskState) {
        state.cache.land(self.number.take().expect("landed once"));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.state.lock().cache.haunt(number);
        }
    }
}

impl Storage for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.state.lock().cache.bytes(), ..self.geometry }
    }

    fn direct(&self) -> bool {
        !self.state.lock().plan.buffered
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        let range = ByteRange::new(at, (buf.len() - done) as u64);
        let work = self.share().read_at(at, buf, done);
        Box::pin(self.share().logged(Call::Read, range, work, |moved| moved.0))
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        let range = ByteRange::new(at, (buf.len() - done) as u64);
        let work = self.share().write_at(at, buf, done, durable);
        Box::pin(self.share().logged(Call::Write, range, work, |moved| moved.0))
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        let work = self.share().sync_all();
        Box::pin(self.share().logged(Call::Sync, ByteRange::new(0, 0), work, |result| result.map(|()| 0)))
    }

    fn zero(&self, range: ByteRange, _mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        let work = self.share().zero_at(range);
        Box::pin(self.share().logged(Call::Zero, range, work, |result| result.map(|()| 0)))
    }

    /// Blocks that hold zeroes are holes.
    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let (state, block) = (self.state.lock(), self.geometry.block_size.bytes());
        let mut list = Vec::new();
        for at in (range.offset..range.offset + range.len).step_by(block as usize) {
            let stored = Extent::stored(block.min(range.offset + range.len - at));
            Extent { zero: state.cache.is_zero(at, stored.len), ..stored }.append_to(&mut list);
        }
        list.truncate(count_max);
        Answer::Done(Ok(list))
    }
}
