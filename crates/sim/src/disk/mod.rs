//! A disk with a volatile cache that fails and loses power.
//!
//! The fault model:
//!
//! - A write that ended lies in the cache. Reads see the newest; what is on the medium is another matter.
//! - A power cut keeps, for each sector of 512 bytes by itself, what was last made durable or any version written since,
//!   those of calls still in flight included: writes are reordered, torn between sectors and lost, never inside a sector.
//! - A sync makes durable what had been written by calls that ended before it began. A sync that fails loses its claim: what
//!   it should have covered is no longer made durable by a later one, as with Linux's page cache.
//! - A durable write makes its own sectors durable, and no other.
//! - A call may fail once or from then on, move less than it was asked to, or not be known to the system. A write that fails
//!   may have stored some of its sectors. Bits rot and writes go to the wrong place where a plan says so: for layers that
//!   check what they read.
//! - A call whose future is dropped is carried out all the same, or not, now or after some later calls.
//! - The power is cut at a boundary: each call has one when it begins and one when it ends.

mod cache;
mod latency;

use std::sync::Arc;

use spillway_core::contract::Random;
use spillway_core::storage::Moved;
use spillway_core::sync::Mutex;
use spillway_core::{
    Answer, BlockSize, ByteRange, Env, Extent, Geometry, IoBuf, Kind, LocalFuture, Room, SECTOR, Storage,
};

use cache::Cache;

pub use cache::Medium;
pub use latency::Latency;

/// The calls of [`Storage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `read`.
    Read,
    /// `write`, durable or not.
    Write,
    /// `sync`.
    Sync,
    /// `zero`.
    Zero,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call fails with this kind.
    Fail(Kind),
    /// A read or write moves only its first sector.
    Short,
    /// A bit of the first sector of a write is stored wrong.
    Rot,
    /// A write lands one block further on.
    Misdirect,
}

/// A planned fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which calls count; all of them if `None`.
    pub call: Option<Call>,
    /// The counted call that it strikes, from 0.
    pub nth: u64,
    /// What happens.
    pub effect: Effect,
    /// Whether it strikes all counted calls from then on.
    pub sticky: bool,
}

/// What is to go wrong with a disk while it has power.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Planned faults.
    pub faults: Vec<Fault>,
    /// Boundary at which the power is cut; never if `None`.
    pub cut_at: Option<u64>,
    /// How long calls take.
    pub latency: Latency,
}

struct State {
    cache: Cache,
    plan: Plan,
    random: Random,
    counts: [u64; 4],
    calls: u64,
    boundaries: u64,
    cut: bool,
    head: u64,
}

impl State {
    /// Passes a boundary; false once the power is gone.
    fn pass(&mut self) -> bool {
        self.cut |= self.plan.cut_at == Some(self.boundaries);
        self.boundaries += 1;
        if !self.cut {
            self.cache.ghosts_pass(&mut self.random);
        }
        !self.cut
    }

    /// Counts a call and tells what strikes it.
    fn strike(&mut self, call: Call) -> Option<Effect> {
        let (of_kind, of_all) = (self.counts[call as usize], self.calls);
        self.counts[call as usize] += 1;
        self.calls += 1;
        let strikes = |fault: &&Fault| {
            let count = match fault.call {
                None => of_all,
                Some(wanted) if wanted == call => of_kind,
                Some(_) => return false,
            };
            if fault.sticky { count >= fault.nth } else { count == fault.nth }
        };
        self.plan.faults.iter().find(strikes).map(|fault| fault.effect)
    }
}

/// A disk that has power.
pub struct Disk {
    state: Arc<Mutex<State>>,
    env: Arc<dyn Env>,
    geometry: Geometry,
}

impl Disk {
    /// Powers `medium` up in blocks of `block` bytes.
    pub fn new(env: Arc<dyn Env>, medium: Medium, block: BlockSize, plan: Plan, seed: u64) -> Self {
        let geometry = Geometry {
            size: medium.bytes(),
            block_size: block,
            optimal_io: block.bytes().max(4096) as u32,
            read_only: false,
            volatile: false,
            discards: true,
            write_through: false,
            fast_zeroes: true,
            rotational: false,
            identity: None,
        };
        let state = State {
            cache: Cache::new(medium),
            plan,
            random: Random(seed),
            counts: [0; 4],
            calls: 0,
            boundaries: 0,
            cut: false,
            head: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), env, geometry }
    }

    /// Whether the power is gone.
    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    /// Cuts the power now.
    pub fn cut(&self) {
        self.state.lock().cut = true;
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
        self.env.sleep(std::time::Duration::from_nanos(nanos)).await;
        effect
    }

    /// Ends a call: `work` is done in one step. Never returns without power.
    async fn end<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let done = {
            let mut state = self.state.lock();
            if state.pass() { Some(work(&mut state)) } else { None }
        };
        match done {
            Some(value) => value,
            None => std::future::pending().await,
        }
    }

    fn share(&self) -> Self {
        Self { state: self.state.clone(), env: self.env.clone(), geometry: self.geometry }
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
        self.end(|state| state.cache.read(at, into)).await;
        (Ok(len as usize), buf)
    }

    async fn write_at(self, at: u64, buf: IoBuf, done: usize, durable: bool) -> Moved {
        let range = ByteRange::new(at, (buf.len() - done) as u64);
        let flight = Flight::board(&self.state, at, &buf[done..]);
        let effect = self.begin(Call::Write, range).await;
        let block = self.geometry.block_size.bytes();
        let result = self
            .end(|state| {
                flight.land(state);
                let bytes = &buf[done..];
                match effect {
                    None => state.cache.write(at, bytes, durable),
                    Some(Effect::Fail(kind)) => {
                        let sectors = state.random.below(range.len / SECTOR + 1);
                        state.cache.write(at, &bytes[..(sectors * SECTOR) as usize], false);
                        return Err(kind);
                    }
                    Some(Effect::Short) => {
                        let len = range.len.min(block);
                        state.cache.write(at, &bytes[..len as usize], durable);
                        return Ok(len as usize);
                    }
                    Some(Effect::Rot) => {
                        let mut rotten = bytes.to_vec();
                        rotten[state.random.below(SECTOR) as usize] ^= 1 << state.random.below(8);
                        state.cache.write(at, &rotten, durable);
                    }
                    Some(Effect::Misdirect) => {
                        let elsewhere = (at + block) % (self.geometry.size - range.len + block);
                        state.cache.write(elsewhere.min(self.geometry.size - range.len), bytes, durable);
                    }
                }
                Ok(range.len as usize)
            })
            .await;
        (result, buf)
    }

    async fn sync_all(self) -> Result<(), Kind> {
        let covered = self.state.lock().cache.newest();
        let effect = self.begin(Call::Sync, ByteRange::new(0, 0)).await;
        self.end(|state| match effect {
            Some(Effect::Fail(kind)) => {
                state.cache.forget(covered);
                Err(kind)
            }
            _ => {
                state.cache.sync(covered);
                Ok(())
            }
        })
        .await
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
    state: Arc<Mutex<State>>,
    number: Option<u64>,
}

impl Flight {
    fn board(state: &Arc<Mutex<State>>, at: u64, bytes: &[u8]) -> Self {
        let number = Some(state.lock().cache.take_off(at, bytes));
        Self { state: state.clone(), number }
    }

    fn land(mut self, state: &mut State) {
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
        self.geometry
    }

    fn memory_alignment(&self) -> usize {
        1
    }

    fn direct(&self) -> bool {
        true
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        Box::pin(self.share().read_at(at, buf, done))
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        Box::pin(self.share().write_at(at, buf, done, durable))
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.share().sync_all())
    }

    fn zero(&self, range: ByteRange, _room: Room) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.share().zero_at(range))
    }

    fn extents(&self, range: ByteRange, _count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::Done(Ok(vec![Extent::stored(range.len)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;

    /// What lies in the first two blocks after `bytes` were written to the first, with `effect`.
    fn after_a_write(effect: Effect, byte: u8) -> (Result<usize, Kind>, Vec<u8>) {
        let world = World::new(1);
        let plan = Plan {
            faults: vec![Fault { call: Some(Call::Write), nth: 0, effect, sticky: false }],
            ..Plan::default()
        };
        let disk = Disk::new(world.clone(), Medium::new(32 << 10), BlockSize::PAGE, plan, 1);
        let mut buf = IoBuf::new(4096);
        buf.fill(byte);
        let (result, _) = world.run(Answer::Pending(disk.write(0, buf, 0, false)));
        let (_, read) = world.run(Answer::Pending(disk.read(0, IoBuf::new(8192), 0)));
        (result, read.to_vec())
    }

    #[test]
    fn rot_changes_a_bit_and_says_nothing() {
        let (result, bytes) = after_a_write(Effect::Rot, 7);
        let wrong: u32 = bytes[..4096].iter().map(|byte| (byte ^ 7).count_ones()).sum();
        assert_eq!((result, wrong), (Ok(4096), 1));
    }

    #[test]
    fn a_misdirected_write_lands_elsewhere_and_says_nothing() {
        let (result, bytes) = after_a_write(Effect::Misdirect, 7);
        assert_eq!(result, Ok(4096));
        assert!(bytes[..4096].iter().all(|&byte| byte == 0) && bytes[4096..].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_write_that_fails_may_have_stored_some_sectors() {
        let (result, bytes) = after_a_write(Effect::Fail(Kind::NoSpace), 7);
        assert_eq!(result, Err(Kind::NoSpace));
        let stored = bytes.iter().take_while(|&&byte| byte == 7).count();
        assert!(stored.is_multiple_of(512) && bytes[stored..].iter().all(|&byte| byte == 0), "{stored}");
    }

    #[test]
    fn without_power_nothing_is_answered() {
        let world = World::new(1);
        let plan = Plan { cut_at: Some(1), ..Plan::default() };
        let disk = Disk::new(world.clone(), Medium::new(4096), BlockSize::PAGE, plan, 1);
        let mut write = disk.write(0, IoBuf::zeroed(4096), 0, true);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while !disk.is_cut() {
            assert!(write.as_mut().poll(&mut context).is_pending());
            world.go_on();
        }
        assert!(write.as_mut().poll(&mut context).is_pending());
        drop(write);
        assert_eq!(disk.survivors().bytes(), 4096);
    }
}
