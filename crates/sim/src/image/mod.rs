//! An image in a cluster that several hosts can open, with a lock, a list of clients that are locked out, and the name of who has written last.
//!
//! It stands for what `io::rbd` reaches: a [`Client`] is the [`Storage`](spillway_core::Storage) of one host, the image outlives all of them.
//!
//! - A request travels to the cluster, is carried out there in pieces, and its answer travels back. What is on its way arrives whatever
//!   becomes of its sender. While a link is cut, nothing travels over it.
//! - What the cluster has carried out is durable. It never loses its power.
//! - One client has the lock. Who takes the lock from another has that one locked out first: of what it has sent, nothing is carried out any
//!   more, nor is the rest of what is under way. Who gives the lock back has waited for its own requests.
//! - A client waits for an answer for so long as its link says, and fails then. What it has sent is carried out all the same, late; the client
//!   begins no other change of the same place before that.
//! - A pool may be full: then it refuses a change of sectors of zeroes, which take no room, to others, and carries out the rest.
//! - The first change of a client is preceded by its signature. Who opens the image learns whose was the last, once it has the lock.

mod client;
mod link;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use spillway_core::random::Random;
use spillway_core::sync::Mutex;
use spillway_core::{ByteRange, Env, Error, Job, Kind, SECTOR, mutant};

pub use client::Client;
pub use link::Link;

/// Bytes of a change that the cluster carries out at once.
const PIECE_BYTES: u64 = 8192;

/// An image, and the cluster that has it.
pub struct Image {
    env: Arc<dyn Env>,
    state: Mutex<State>,
}

struct State {
    content: Vec<u8>,
    /// Clients so far: the number of the last.
    clients: u64,
    owner: Option<u64>,
    locked_out: BTreeSet<u64>,
    /// Who has written last, by the number it writes under; 0 is nobody.
    writer: u32,
    /// Clients that have signed, one after the other.
    signatures: Vec<u64>,
    /// Times that the lock was taken.
    reigns: u64,
    /// There is no room for more.
    full: bool,
    told: BTreeMap<u64, Told>,
    random: Random,
}

/// What a client was told.
#[derive(Default)]
struct Told {
    /// When it was last told that there was no answer in time, or no room.
    failures: Vec<(Kind, Duration)>,
    /// The longest that it has waited for an answer.
    longest: Duration,
}

/// Whether a client may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LockedOut;

impl Image {
    /// An image of `bytes` zeroes in the world of `env`.
    pub fn new(env: Arc<dyn Env>, bytes: u64, seed: u64) -> Arc<Self> {
        assert!(bytes.is_multiple_of(SECTOR), "{bytes} bytes are no sectors");
        let state = State {
            content: vec![0; bytes as usize],
            clients: 0,
            owner: None,
            locked_out: BTreeSet::new(),
            writer: 0,
            signatures: Vec::new(),
            reigns: 0,
            full: false,
            told: BTreeMap::new(),
            random: Random(seed),
        };
        Arc::new(Self { env, state: Mutex::new(state) })
    }

    /// What a reader of the image finds who has nothing to do with any host.
    pub fn content(&self) -> Vec<u8> {
        self.state.lock().content.clone()
    }

    /// Who has the lock.
    pub fn owner(&self) -> Option<u64> {
        self.state.lock().owner
    }

    /// Times that the lock was taken.
    pub fn reigns(&self) -> u64 {
        self.state.lock().reigns
    }

    /// The client that has signed last.
    pub fn last_signature(&self) -> Option<u64> {
        self.state.lock().signatures.last().copied()
    }

    /// From now on there is no room for more, or some again.
    pub fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Whether a request of this client has failed with this kind at that moment or later: without an answer in time, or without room.
    pub fn has_failed_since(&self, client: u64, kind: Kind, since: Duration) -> bool {
        let state = self.state.lock();
        let failures = state.told.get(&client).map_or(&[][..], |told| &told.failures);
        failures.iter().any(|&(what, at)| what == kind && at >= since)
    }

    /// The longest that this client has waited for an answer.
    pub fn longest(&self, client: u64) -> Duration {
        self.state.lock().told.get(&client).map_or(Duration::ZERO, |told| told.longest)
    }

    /// This client has waited since `begun` for an answer.
    fn note_wait(&self, client: u64, begun: Duration) {
        let (mut state, now) = (self.state.lock(), self.env.now());
        let told = state.told.entry(client).or_default();
        told.longest = told.longest.max(now - begun);
    }

    /// This client is told now that its request has failed so.
    fn note_failure(&self, client: u64, kind: Kind) {
        let (mut state, now) = (self.state.lock(), self.env.now());
        let failures = &mut state.told.entry(client).or_default().failures;
        failures.retain(|&(what, _)| what != kind);
        failures.push((kind, now));
    }

    /// Has the cluster carry out `work` on a request of `bytes` bytes that comes over `link`, in pieces of which each gets its range within the
    /// request. [`LockedOut`] where the client is, which may be in the middle.
    fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        link: &Arc<Link>,
        client: u64,
        bytes: u64,
        mut work: impl FnMut(&mut State, ByteRange) -> T + 'static,
    ) -> Job<Result<T, LockedOut>> {
        let (image, link) = (self.clone(), link.clone());
        Job::spawn_here(&*self.env, async move {
            image.travel(&link).await;
            let mut done = 0;
            let outcome = loop {
                let piece = ByteRange::new(done, PIECE_BYTES.min(bytes - done));
                let outcome = image.carry_out(client, |state| work(state, piece));
                done += piece.len;
                if outcome.is_err() || done == bytes {
                    break outcome;
                }
                image.rest().await;
            };
            image.travel(&link).await;
            outcome
        })
    }

    fn carry_out<T>(&self, client: u64, work: impl FnOnce(&mut State) -> T) -> Result<T, LockedOut> {
        let state = &mut *self.state.lock();
        let out = state.locked_out.contains(&client);
        if out && !mutant::on("image: carry out what a client sent that is locked out") {
            return Err(LockedOut);
        }
        Ok(work(state))
    }

    async fn travel(&self, link: &Link) {
        link.up().await;
        self.rest().await;
        link.up().await;
    }

    /// Takes some time, mostly little.
    async fn rest(&self) {
        let micros = {
            let mut random = self.state.lock();
            let longest = [1, 100, 100, 20_000][random.random.below(4) as usize];
            random.random.below(longest)
        };
        self.env.sleep(Duration::from_micros(micros)).await;
    }
}

impl State {
    /// Takes the lock for a new client, from any that is gone, and from one that is not where it is to be taken over. [`Kind::Busy`] where it is not.
    fn take_lock(&mut self, client: u64, take_over: bool, is_alive: bool) -> Result<u32, Error> {
        if let Some(owner) = self.owner {
            if is_alive && !take_over {
                return Err(Error::new(Kind::Busy, format!("the image is locked by client.{owner}")));
            }
            if !mutant::on("image: take the lock from one that may go on") {
                self.locked_out.insert(owner);
            }
        }
        (self.owner, self.reigns) = (Some(client), self.reigns + 1);
        Ok(self.writer)
    }

    /// Changes what is at `at`. [`Kind::Exhausted`] where that takes room that is not there.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Kind> {
        let place = &mut self.content[at as usize..][..bytes.len()];
        let is_zero = |sector: &[u8]| sector.iter().all(|&byte| byte == 0);
        let mut sectors = place.chunks(SECTOR as usize).zip(bytes.chunks(SECTOR as usize));
        if self.full && sectors.any(|(old, new)| is_zero(old) && !is_zero(new)) {
            return Err(Kind::Exhausted);
        }
        place.copy_from_slice(bytes);
        Ok(())
    }
}
