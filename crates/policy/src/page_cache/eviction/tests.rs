//! Caches of numbers: what must hold of any, and the hit ratios of workloads, beside those of LRU.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;

/// Names from here on are those of folios of 512 units; others have one.
const LARGE: u64 = 1 << 40;

fn order(name: u64) -> u8 {
    if name < LARGE { 0 } else { 9 }
}

/// A cache of so many names.
struct Cache {
    policy: S3Fifo,
    slots: HashMap<u64, u32>,
    marks: Slots,
    room: usize,
    accesses: u64,
    hits: u64,
}

#[derive(Default)]
struct Slots {
    marks: RefCell<Vec<u32>>,
    names: RefCell<Vec<u64>>,
    pinned: RefCell<Vec<u32>>,
    looks: Cell<u32>,
}

impl Residents for Slots {
    fn name(&self, slot: u32) -> u64 {
        self.names.borrow()[slot as usize]
    }

    fn mark(&self, slot: u32) -> u32 {
        self.marks.borrow()[slot as usize]
    }

    fn set_mark(&self, slot: u32, mark: u32) {
        self.marks.borrow_mut()[slot as usize] = mark;
    }
}

impl Cache {
    fn new(room: usize) -> Self {
        let (policy, slots, marks) = (S3Fifo::new(room as u32), HashMap::new(), Slots::default());
        Self { policy, slots, marks, room, accesses: 0, hits: 0 }
    }

    fn access(&mut self, name: u64) {
        self.accesses += 1;
        let slot = match self.slots.get(&name) {
            Some(slot) => {
                self.hits += 1;
                let mark = self.marks.mark(*slot);
                return self.marks.set_mark(*slot, S3Fifo::touched(mark));
            }
            None if self.slots.len() == self.room => self.evict().expect("something can leave"),
            None => {
                self.marks.names.borrow_mut().push(0);
                self.marks.marks.borrow_mut().push(0);
                self.marks.marks.borrow().len() as u32 - 1
            }
        };
        self.marks.set_mark(slot, 0);
        self.marks.names.borrow_mut()[slot as usize] = name;
        self.slots.insert(name, slot);
        self.policy.admit(slot, name, order(name));
    }

    fn evict(&mut self) -> Option<u32> {
        self.evict_within(20 * self.room as u32 + 8)
    }

    fn evict_within(&mut self, looks: u32) -> Option<u32> {
        let marks = &self.marks;
        let may_leave = |slot| {
            marks.looks.set(marks.looks.get() + 1);
            !marks.pinned.borrow().contains(&slot)
        };
        let slot = self.policy.evict(looks, marks, may_leave)?;
        assert_eq!(self.slots.remove(&self.marks.name(slot)), Some(slot), "what leaves was there");
        Some(slot)
    }

    fn ratio(&mut self, names: impl IntoIterator<Item = u64>) -> f64 {
        let (before, from) = (self.hits, self.accesses);
        names.into_iter().for_each(|name| self.access(name));
        (self.hits - before) as f64 / (self.accesses - from) as f64
    }
}

fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// Names by Zipf's law with exponent 1, so many of `count`, by the inverse of the integral.
fn zipf(count: u64, draws: usize) -> Vec<u64> {
    let mut state = 7;
    (0..draws).map(|_| (count as f64).powf(draw(&mut state)) as u64).collect()
}

/// The hit ratio of a cache of so many names from which the one leaves that was used least recently.
fn lru_ratio(room: usize, names: &[u64]) -> f64 {
    let (mut used, mut order, mut hits) = (HashMap::new(), BTreeMap::new(), 0);
    for (now, name) in names.iter().enumerate() {
        if let Some(before) = used.insert(name, now) {
            order.remove(&before);
            hits += 1;
        } else if used.len() > room {
            let (_, oldest) = order.pop_first().expect("there are others");
            used.remove(oldest);
        }
        order.insert(now, name);
    }
    f64::from(hits) / names.len() as f64
}

/// Each name of a hot set ten times, then a scan of ten times the cache, then the hot set: most of it is still there.
#[test]
fn a_scan_of_ten_times_the_cache_leaves_the_hot_set() {
    let mut cache = Cache::new(1000);
    for _ in 0..10 {
        cache.ratio(0..800);
    }
    cache.ratio(10_000..20_000);
    assert!(cache.ratio(0..800) > 0.98);
}

/// Folios of a scan are few and large: it is their memory that counts.
#[test]
fn a_scan_in_large_folios_leaves_the_hot_set() {
    let mut cache = Cache::new(10_000);
    for _ in 0..10 {
        cache.ratio(0..9990);
    }
    cache.ratio(LARGE..LARGE + 1000);
    assert_eq!(cache.ratio(0..9990), 1.0);
}

#[test]
fn hit_ratios_are_at_least_those_of_lru() {
    let ratios = |names: &[u64]| (Cache::new(1000).ratio(names.iter().copied()), lru_ratio(1000, names));
    let (s3, lru) = ratios(&zipf(100_000, 200_000));
    assert!(s3 > lru && lru > 0.4, "zipf: {s3} and {lru}");
    let scan: Vec<u64> = (0..50_000).collect();
    assert_eq!(ratios(&scan), (0.0, 0.0));
    let within: Vec<u64> = (0..900).cycle().take(90_000).collect();
    let (s3, lru) = ratios(&within);
    assert!(s3 >= 0.98 && lru >= 0.98, "a loop that fits: {s3} and {lru}");
    let mix: Vec<u64> =
        zipf(100_000, 100_000).into_iter().zip(1_000_000..).flat_map(|(hot, once)| [hot, once]).collect();
    let (s3, lru) = ratios(&mix);
    assert!(s3 > lru * 1.1, "zipf beside a scan: {s3} and {lru}");
}

#[test]
fn what_was_evicted_a_short_time_ago_stays_when_it_comes_again() {
    let mut cache = Cache::new(100);
    cache.ratio(0..150);
    cache.ratio([0]);
    let slot = cache.slots[&0];
    cache.ratio(1000..1500);
    assert_eq!(cache.slots.get(&0), Some(&slot), "it went to the main queue");
    assert_eq!(cache.policy.activated(), 1, "and no other did");
}

#[test]
fn what_is_accessed_twice_while_it_is_new_is_activated() {
    let mut cache = Cache::new(100);
    cache.ratio((0..10).chain(0..10).chain(0..5));
    cache.ratio(1000..1200);
    assert_eq!((cache.policy.activated(), (0..5).all(|name| cache.slots.contains_key(&name))), (5, true));
}

/// Whatever happened before: one call finds the one folio that can leave, in whichever queue it is.
#[test]
fn one_call_finds_what_can_leave() {
    for free in 0..30 {
        for accesses in 0..6 {
            let mut cache = Cache::new(30);
            cache.ratio((0..60).chain(20..40));
            (0..accesses).for_each(|_| _ = cache.ratio(40..60));
            let pin = |cache: &mut Cache, free| {
                _ = cache.marks.pinned.replace((0..30).filter(|slot| *slot != free).collect())
            };
            pin(&mut cache, 30);
            assert_eq!(cache.evict(), None);
            pin(&mut cache, free);
            assert_eq!(cache.evict(), Some(free), "after {accesses} accesses");
        }
    }
}

/// All have been accessed as often as counts: each could stay for three rounds more.
#[test]
fn one_call_looks_at_few_however_often_all_were_used() {
    const LOOKS: u32 = 64;
    for pinned in [0, 2, 60] {
        let mut cache = Cache::new(10_000);
        (0..5).for_each(|_| _ = cache.ratio(0..10_000));
        cache.marks.pinned.replace((0..10_000).filter(|slot| slot % 63 < pinned).collect());
        let mut first = None;
        for left in 0..100 {
            cache.marks.looks.set(0);
            let slot = cache.evict_within(LOOKS).expect("there are some that can leave");
            let looks = cache.marks.looks.get();
            assert!(looks <= LOOKS * (CHANCES + 2), "{looks} looks for number {left} of {pinned} in 63");
            first.get_or_insert(slot);
        }
        assert!(pinned > 2 || first != Some(pinned), "the first that can leave has its chance");
    }
}

#[test]
fn what_was_used_often_stays_whatever_a_call_may_look_at() {
    let mut cache = Cache::new(4000);
    (0..5).for_each(|_| _ = cache.ratio(0..2000));
    cache.ratio(2000..4000);
    (0..1500).for_each(|_| _ = cache.evict_within(64));
    let stayed = (0..2000).filter(|name| cache.slots.contains_key(name)).count();
    assert!(stayed >= 1985, "{stayed} of 2000");
}

#[test]
fn what_cannot_leave_stays_and_is_looked_at_again() {
    let mut cache = Cache::new(20);
    cache.ratio(0..20);
    let kept = cache.slots[&7];
    cache.marks.pinned.replace((0..20).filter(|slot| *slot != kept).collect());
    assert_eq!(cache.evict(), Some(kept), "the one that can");
    assert_eq!(cache.evict(), None);
    assert!(cache.marks.looks.get() < 2000, "looks have a bound");
    cache.marks.pinned.replace(Vec::new());
    let mut left = 19;
    while cache.evict().is_some() {
        left -= 1;
    }
    assert_eq!((left, cache.slots.len()), (0, 0), "nothing is lost");
}

proptest! {
    #[test]
    fn every_folio_leaves_once(steps in prop::collection::vec((0u8..6, 0u64..20), 0..300)) {
        let mut cache = Cache::new(8);
        for (kind, name) in steps {
            match kind {
                0 => _ = cache.evict(),
                _ if cache.slots.len() < cache.room && cache.marks.names.borrow().len() == cache.room => {}
                _ => cache.access(name),
            }
        }
        let mut left = cache.slots.len();
        while cache.evict().is_some() {
            left -= 1;
        }
        prop_assert_eq!(left, 0, "each leaves once");
    }
}
