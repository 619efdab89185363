//! A generator of load: one thread that keeps a fixed number of requests in flight, the same loop over every
//! transport.
//!
//! The loop allocates nothing, takes completions in batches, and sleeps in the kernel where nothing is
//! complete: it never spins. Every request in flight has a buffer of its own, a *slot*.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use spillway_core::random::Random;

use super::cases::{Case, Order, SIZE};
use crate::peers::pages::{self, PAGE};

/// A connection to a device, with slots for one case. Dropped only when no request is in flight.
pub(super) trait Transport {
    /// The slots, one after the other.
    fn memory(&mut self) -> &mut [u8];

    /// Queues the case's request at `offset` of the device, with the buffer of `slot`, which is free.
    fn submit(&mut self, slot: usize, offset: u64) -> Result<()>;

    /// Passes on what is queued, unless the next `reap` does that in one system call with its waiting.
    fn kick(&mut self) -> Result<()>;

    /// Appends the slots whose requests are complete; sleeps until there is at least one.
    fn reap(&mut self, slots: &mut Vec<usize>) -> Result<()>;
}

/// What was completed, and in which time.
#[derive(Clone, Copy)]
pub(super) struct Done {
    pub(super) requests: f64,
    pub(super) time: Duration,
}

impl Done {
    /// Requests a second.
    pub(super) fn rate(self) -> f64 {
        self.requests / self.time.as_secs_f64()
    }
}

/// A transport whose slots are prepared.
pub(super) struct Generator {
    transport: Box<dyn Transport>,
    case: Case,
    /// Slots without a request in flight.
    free: Vec<usize>,
    random: Random,
    /// Sequential requests so far.
    count: u64,
}

/// What a slot holds before the first read into it.
const UNREAD: u8 = 0xee;

impl Generator {
    /// `slots` requests in flight; `seed` decides the offsets.
    pub(super) fn new(
        mut transport: Box<dyn Transport>,
        case: Case,
        slots: usize,
        seed: u64,
    ) -> Result<Self> {
        let memory = transport.memory();
        if case.writes {
            memory.copy_from_slice(&pages::half(memory.len())?.bytes);
        } else {
            memory.fill(UNREAD);
        }
        Ok(Self { transport, case, free: (0..slots).collect(), random: Random(seed), count: 0 })
    }

    /// Sends requests until `goes_on` says no, which is asked after each batch with the number of all that
    /// are complete; then waits for those in flight, which do not count.
    pub(super) fn drive(mut self, mut goes_on: impl FnMut(usize) -> bool) -> Result<Done> {
        let slots = self.free.len();
        let (start, mut requests) = (Instant::now(), 0);
        loop {
            self.submit_all()?;
            self.transport.reap(&mut self.free)?;
            requests += self.free.len();
            if !goes_on(requests) {
                break;
            }
        }
        let done = Done { requests: requests as f64, time: start.elapsed() };
        while self.free.len() < slots {
            self.transport.reap(&mut self.free)?;
        }
        self.check()?;
        Ok(done)
    }

    /// A request on every free slot.
    fn submit_all(&mut self) -> Result<()> {
        let bytes = self.case.bytes as u64;
        for slot in self.free.drain(..) {
            let number = match self.case.order {
                Order::Random => self.random.draw(),
                Order::Sequential => self.count,
            };
            self.count += 1;
            self.transport.submit(slot, number % (SIZE / bytes) * bytes)?;
        }
        self.transport.kick()
    }

    /// Reads have brought what was written: a page is half noise, half zeros.
    fn check(&mut self) -> Result<()> {
        let is_filled = |page: &[u8]| {
            let (noise, zeros) = page.split_at(PAGE / 2);
            zeros.iter().all(|&byte| byte == 0) && noise.iter().any(|&byte| byte != 0)
        };
        ensure!(
            self.transport.memory().chunks(PAGE).all(is_filled),
            "a read has not brought what was written"
        );
        Ok(())
    }
}

/// Makes a call again as long as it is interrupted: the end of an io_uring does that to later calls of its
/// thread.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Goes on for so long from now on.
pub(super) fn lasting(time: Duration) -> impl FnMut(usize) -> bool {
    let start = Instant::now();
    move |_| start.elapsed() < time
}
