//! Which folio leaves a full cache: S3-FIFO, which a scan does not empty.
//!
//! A cache numbers its folios by slot. An access changes nothing but a mark that the cache keeps beside the folio, so that hits share a
//! lock; the policy reads the marks when a folio is to leave.
//!
//! S3-FIFO: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023.

mod queues;

use queues::{QueueNumber, Queues};

use crate::chunked::CHUNK;

/// The folios of a cache, as a policy sees them.
pub trait Residents {
    /// What the folio of a slot is called.
    fn name(&self, slot: u32) -> u64;

    /// The mark of a slot; 0 at first.
    fn mark(&self, slot: u32) -> u32;

    /// Changes the mark of a slot.
    fn set_mark(&self, slot: u32, mark: u32);

    /// Whether the folio of a slot was accessed at all: what was read ahead in vain is not remembered when it leaves.
    fn was_used(&self, slot: u32) -> bool {
        let _ = slot;
        true
    }
}

/// Looks, in parts of those that are asked for, after which no other round is given for accesses.
const CHANCES: u32 = 4;

/// Marks of S3-FIFO count accesses up to this.
const MARK_MAX: u32 = 3;

/// Part of the memory that is of new folios, of which most are accessed once only.
const SMALL_PART: u64 = 10;

/// S3-FIFO: new folios pass through a small queue; those accessed twice meanwhile, or evicted a short time ago, enter the main queue,
/// where an access is worth another round.
pub struct S3Fifo {
    queues: Queues<2>,
    ghosts: Ghosts,
    activated: u64,
}

const SMALL: QueueNumber = 0;
const MAIN: QueueNumber = 1;

impl S3Fifo {
    /// For a cache of about so many folios.
    pub fn new(folios: u32) -> Self {
        Self { queues: Queues::default(), ghosts: Ghosts::new(folios), activated: 0 }
    }

    /// Folios that have entered the main queue.
    pub fn activated(&self) -> u64 {
        self.activated
    }

    /// Bytes that it takes for each of its folios, at most.
    pub const BYTES_A_FOLIO: u64 = queues::BYTES_A_SLOT + 2 * size_of::<u16>() as u64;

    /// Bytes that it takes for folios that there are not, at most.
    pub const BYTES_SPARE: u64 = CHUNK as u64 * queues::BYTES_A_SLOT;

    /// The queue from which one leaves next: the small one while it is long, but not where no more of it are to be looked at.
    fn source(&self, looks: [u32; 2]) -> Option<QueueNumber> {
        let [small, main] = [SMALL, MAIN].map(|queue| self.queues.units(queue));
        let long = small > (small + main) / SMALL_PART;
        let [small, main] = [SMALL, MAIN].map(|queue| self.queues.len(queue));
        match (looks[SMALL].min(small) > 0, looks[MAIN].min(main) > 0) {
            (true, true) => Some(if long { SMALL } else { MAIN }),
            (true, false) => Some(SMALL),
            (false, true) => Some(MAIN),
            (false, false) => None,
        }
    }

    /// What becomes of the oldest of `queue`: where it goes, or `None` if it leaves.
    fn judge(&self, queue: QueueNumber, slot: u32, residents: &impl Residents) -> Option<QueueNumber> {
        let mark = residents.mark(slot);
        if queue == SMALL && mark > 1 {
            residents.set_mark(slot, 0);
            return Some(MAIN);
        }
        if queue == MAIN && mark > 0 {
            residents.set_mark(slot, mark - 1);
            return Some(MAIN);
        }
        None
    }

    /// The mark of a folio after an access.
    pub fn touched(mark: u32) -> u32 {
        (mark + 1).min(MARK_MAX)
    }

    /// A folio named `name`, of 2^`order` units of memory, enters in `slot`, which is free.
    pub fn admit(&mut self, slot: u32, name: u64, order: u8) {
        let queue = if self.ghosts.take(name) { MAIN } else { SMALL };
        self.activated += u64::from(queue == MAIN);
        self.queues.push(queue, slot, order);
    }

    /// Takes out the slot that leaves; `None` where none can of those looked at, `looks` at most of each kind. Looks at most `CHANCES` + 2 times as often.
    ///
    /// `may_leave`: whether the folio of a slot can leave now. A dirty one cannot.
    pub fn evict(
        &mut self,
        looks: u32,
        residents: &impl Residents,
        mut may_leave: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        // A round more costs a mark: only those that cannot leave have to be counted, and all of them once more after each round.
        let mut left = [looks; 2];
        // Where all were accessed often, one would leave only after as many rounds of all of them: a few more have their chance, then any will do.
        let mut chances = looks.saturating_mul(CHANCES);
        loop {
            let queue = self.source(left)?;
            let slot = self.queues.oldest(queue)?;
            chances = chances.saturating_sub(1);
            if !may_leave(slot) {
                self.queues.move_to(queue, slot);
                left[queue] = left[queue].min(self.queues.len(queue)) - 1;
                continue;
            }
            if chances > 0
                && let Some(next) = self.judge(queue, slot, residents)
            {
                self.queues.move_to(next, slot);
                self.activated += u64::from(queue != next);
                left[next] = looks;
                continue;
            }
            self.queues.remove(slot);
            if queue == SMALL && residents.was_used(slot) {
                self.ghosts.put(residents.name(slot));
            }
            return Some(slot);
        }
    }
}

/// Names of folios that left a short time ago: as many as the cache has folios, about, each until its place is taken by another.
struct Ghosts(Box<[u16]>);

impl Ghosts {
    fn new(folios: u32) -> Self {
        Self(vec![0; folios.max(1).next_power_of_two() as usize].into())
    }

    /// The place of a name, and what stands there for it: never 0.
    fn place(&self, name: u64) -> (usize, u16) {
        // Fibonacci hashing: the upper bits of the product depend on all of the name.
        let hash = (name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) as usize & (self.0.len() - 1), (hash >> 16) as u16 | 1)
    }

    fn put(&mut self, name: u64) {
        let (place, print) = self.place(name);
        self.0[place] = print;
    }

    /// Whether `name` is there; it is not afterwards.
    fn take(&mut self, name: u64) -> bool {
        let (place, print) = self.place(name);
        let found = self.0[place] == print;
        if found {
            self.0[place] = 0;
        }
        found
    }
}

#[cfg(test)]
mod tests;
