//! Who leaves a full cache: hit ratios of the page cache's policy beside LRU's, both alone, over the same accesses.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::Result;
use hashbrown::HashMap;
use spillway_core::random::Random;
use spillway_policy::eviction::{Residents, S3Fifo};

use crate::measure::rounds::Rounds;
use crate::measure::table::{Cell, once, row};

/// Folios of the cache, and accesses of a workload.
const ROOM: usize = 10_000;
const ACCESSES: usize = 1_000_000;

/// A cache of names.
trait Cache {
    /// Whether it hits.
    fn access(&mut self, name: u64) -> bool;

    /// Hits of each hundred accesses.
    fn hits(&mut self, names: &[u64]) -> f64 {
        let hits = names.iter().filter(|name| self.access(**name)).count();
        100.0 * hits as f64 / names.len() as f64
    }
}

/// From which the one leaves that was used least recently.
#[derive(Default)]
struct Lru {
    /// The time of the last access to each name, and the names in this order.
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    now: u64,
}

impl Cache for Lru {
    fn access(&mut self, name: u64) -> bool {
        self.now += 1;
        let before = self.used.insert(name, self.now);
        match before {
            Some(before) => _ = self.order.remove(&before),
            None if self.used.len() > ROOM => {
                let (_, oldest) = self.order.pop_first().expect("there are others");
                self.used.remove(&oldest);
            }
            None => {}
        }
        self.order.insert(self.now, name);
        before.is_some()
    }
}

/// Under the page cache's policy.
struct Ours {
    policy: S3Fifo,
    slots: HashMap<u64, u32>,
    marks: Marks,
}

/// The name and the mark of each slot.
#[derive(Default)]
struct Marks(RefCell<Vec<(u64, u32)>>);

impl Residents for Marks {
    fn name(&self, slot: u32) -> u64 {
        self.0.borrow()[slot as usize].0
    }

    fn mark(&self, slot: u32) -> u32 {
        self.0.borrow()[slot as usize].1
    }

    fn set_mark(&self, slot: u32, mark: u32) {
        self.0.borrow_mut()[slot as usize].1 = mark;
    }
}

impl Cache for Ours {
    fn access(&mut self, name: u64) -> bool {
        if let Some(&slot) = self.slots.get(&name) {
            self.marks.set_mark(slot, S3Fifo::touched(self.marks.mark(slot)));
            return true;
        }
        let slot = if self.slots.len() < ROOM { self.grow() } else { self.evict() };
        self.marks.0.borrow_mut()[slot as usize] = (name, 0);
        self.slots.insert(name, slot);
        self.policy.admit(slot, name, 0);
        false
    }
}

impl Ours {
    fn new() -> Self {
        Self { policy: S3Fifo::new(ROOM as u32), slots: HashMap::new(), marks: Marks::default() }
    }

    fn grow(&mut self) -> u32 {
        self.marks.0.borrow_mut().push((0, 0));
        self.slots.len() as u32
    }

    fn evict(&mut self) -> u32 {
        let slot = self.policy.evict(u32::MAX, &self.marks, |_| true).expect("all can leave");
        self.slots.remove(&self.marks.name(slot));
        slot
    }
}

/// Names by Zipf's law with exponent 1, of `count`.
fn zipf(count: u64, draws: usize) -> Vec<u64> {
    let mut random = Random(7);
    let mut draw = || (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
    (0..draws).map(|_| (count as f64).powf(draw()) as u64).collect()
}

/// A hot set of 80 % of the cache, ten times; then a scan of ten times the cache; then the hot set, which alone is judged.
fn hot_after_scan(mut cache: impl Cache) -> f64 {
    let hot = || 0..ROOM as u64 * 8 / 10;
    (0..10).flat_map(|_| hot()).for_each(|name| _ = cache.access(name));
    (1 << 40..(1 << 40) + 10 * ROOM as u64).for_each(|name| _ = cache.access(name));
    let names: Vec<u64> = hot().collect();
    cache.hits(&names)
}

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let zipfian = zipf(1_000_000, ACCESSES);
    let scan: Vec<u64> = (0..ACCESSES as u64).collect();
    let cycle = |percent: u64| (0..ROOM as u64 * percent / 100).cycle().take(ACCESSES).collect::<Vec<_>>();
    let mix: Vec<u64> = zipfian.iter().copied().zip(1 << 40..).flat_map(|(hot, once)| [hot, once]).collect();
    let workloads = [
        ("zipf, a million names", zipfian.clone()),
        ("scan", scan),
        ("loop over 90 % of the cache", cycle(90)),
        ("loop over 120 % of the cache", cycle(120)),
        ("zipf beside a scan", mix),
    ];
    let mut pairs: Vec<(&str, [f64; 2])> = Vec::new();
    for (name, names) in &workloads {
        let s3 = Ours::new().hits(names);
        pairs.push((name, [s3, Lru::default().hits(names)]));
    }
    let after = [hot_after_scan(Ours::new()), hot_after_scan(Lru::default())];
    pairs.push(("hot set after a scan of 10 times the cache", after));
    let rows = pairs.into_iter().map(|(name, hits)| hits_of(name, hits)).collect();
    let title = "Hits of each hundred accesses, a cache of 10,000 folios, a million accesses";
    rounds.show_once(title, &["accesses", "S3-FIFO", "LRU"], rows)
}

/// As many are wanted, as exactly as is shown.
fn hits_of(name: &str, hits: [f64; 2]) -> Vec<Cell> {
    let [ours, lru] = hits.map(|hits| (hits * 10.0).round() / 10.0);
    row![name, once(ours, 1).at_least(lru), once(lru, 1)]
}
