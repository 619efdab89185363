//! The gates that keep merges and whole-block writes of the same blocks apart.
//!
//! A gate is a lock that many share or one has alone, first come, first served, for the regions of 64 KiB that hash to it.
//! A request takes its gates in ascending order, so that requests never wait for each other in a ring.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::block::ByteRange;
use crate::sync::Semaphore;

const REGION_SHIFT: u32 = 16;
const GATES: usize = 1 << GATES_SHIFT;
const GATES_SHIFT: u32 = 8;
const WORDS: usize = GATES / 64;

/// A range of so many regions takes every gate: it would take nearly all.
const REGIONS_MAX: u64 = 4 * GATES as u64;

/// Units of a gate: one for who shares it, all of them for who has it alone.
const WHOLE: u64 = 1 << 32;

/// Some of the gates.
#[derive(Clone)]
pub(super) enum GateSet {
    /// What nearly every request takes.
    One(usize),
    Bits([u64; WORDS]),
}

impl Default for GateSet {
    fn default() -> Self {
        GateSet::Bits([0; WORDS])
    }
}

impl GateSet {
    /// The gates of a range.
    #[inline]
    pub(super) fn of(range: ByteRange) -> Self {
        let first = range.offset >> REGION_SHIFT;
        let last = (range.offset + range.len.max(1) - 1) >> REGION_SHIFT;
        match range.len {
            0 => GateSet::default(),
            _ if first == last => GateSet::One(gate_of(first)),
            _ => Self::of_regions(first, last),
        }
    }

    fn of_regions(first: u64, last: u64) -> Self {
        if last - first >= REGIONS_MAX {
            return GateSet::Bits([u64::MAX; WORDS]);
        }
        let mut set = GateSet::default();
        (first..=last).for_each(|region| set.insert(gate_of(region)));
        set
    }

    /// The gates of both.
    pub(super) fn or(self, other: Self) -> Self {
        let (one, other) = (self.bits(), other.bits());
        GateSet::Bits(std::array::from_fn(|word| one[word] | other[word]))
    }

    fn bits(&self) -> [u64; WORDS] {
        match self {
            GateSet::One(gate) => std::array::from_fn(|word| u64::from(gate / 64 == word) << (gate % 64)),
            GateSet::Bits(bits) => *bits,
        }
    }

    fn contains(&self, other: &Self) -> bool {
        self.bits().iter().zip(other.bits()).all(|(own, other)| other & !own == 0)
    }

    fn has(&self, gate: usize) -> bool {
        self.bits()[gate / 64] >> (gate % 64) & 1 == 1
    }

    fn insert(&mut self, gate: usize) {
        let mut bits = self.bits();
        bits[gate / 64] |= 1 << (gate % 64);
        *self = GateSet::Bits(bits);
    }

    /// In ascending order.
    fn members(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.bits().into_iter().enumerate().filter(|(_, bits)| *bits != 0);
        words.flat_map(|(word, bits)| {
            let mut bits = bits;
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

/// By Fibonacci hashing: neighbours go to different gates, and so do regions at any usual stride.
fn gate_of(region: u64) -> usize {
    (region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - GATES_SHIFT)) as usize
}

pub(super) struct Gates {
    gates: Box<[CachePadded<Semaphore>]>,
}

impl Default for Gates {
    fn default() -> Self {
        Self { gates: (0..GATES).map(|_| CachePadded::new(Semaphore::new(WHOLE))).collect() }
    }
}

impl Gates {
    /// Shares all gates of `set` unless a task has or awaits one of them alone; then none is taken.
    #[inline]
    pub(super) fn try_share(&self, set: &GateSet) -> bool {
        match set {
            GateSet::One(gate) => self.gates[*gate].try_take(1),
            GateSet::Bits(_) => self.try_share_all(set),
        }
    }

    fn try_share_all(&self, set: &GateSet) -> bool {
        let Some(refused) = set.members().find(|&gate| !self.gates[gate].try_take(1)) else { return true };
        set.members().take_while(|&gate| gate != refused).for_each(|gate| self.gates[gate].give(1));
        false
    }

    /// Leaves gates that were shared.
    #[inline]
    pub(super) fn unshare(&self, set: &GateSet) {
        match set {
            GateSet::One(gate) => self.gates[*gate].give(1),
            GateSet::Bits(_) => set.members().for_each(|gate| self.gates[gate].give(1)),
        }
    }
}

/// Gates held, in part while they are being taken; left on drop.
pub(super) struct HeldGates {
    gates: Arc<Gates>,
    held: GateSet,
    alone: GateSet,
}

impl HeldGates {
    /// Gates that [`Gates::try_share`] took.
    pub(super) fn of_shared(gates: &Arc<Gates>, set: GateSet) -> Self {
        Self { gates: gates.clone(), held: set, alone: GateSet::default() }
    }

    /// Shares the gates of `set`.
    pub(super) async fn shared(gates: &Arc<Gates>, set: GateSet) -> Self {
        Self::merging(gates, set, GateSet::default()).await
    }

    /// Takes the gates of `set`: those that are in `alone` too alone, the others shared.
    pub(super) async fn merging(gates: &Arc<Gates>, set: GateSet, alone: GateSet) -> Self {
        assert!(set.contains(&alone), "a merge does not take every gate that it needs alone");
        let mut held = HeldGates { gates: gates.clone(), held: GateSet::default(), alone };
        for gate in set.members() {
            gates.gates[gate].take(held.units(gate)).await;
            held.held.insert(gate);
        }
        held
    }

    fn units(&self, gate: usize) -> u64 {
        if self.alone.has(gate) { WHOLE } else { 1 }
    }
}

impl Drop for HeldGates {
    fn drop(&mut self) {
        self.held.members().for_each(|gate| self.gates.gates[gate].give(self.units(gate)));
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::{AtomicUsize, Ordering};
    use crate::threads::every_order;
    use shuttle::future::block_on;
    use shuttle::thread;

    fn set(gates: &[usize]) -> GateSet {
        let mut set = GateSet::default();
        gates.iter().for_each(|&gate| set.insert(gate));
        set
    }

    /// Goes through gates and counts who is inside: a sharer by one, who is alone by a hundred.
    fn pass(gates: &Arc<Gates>, inside: &[AtomicUsize; 2], of: &[usize], alone: &[usize]) {
        let held = block_on(HeldGates::merging(gates, set(of), set(alone)));
        for &gate in of {
            let (weight, most) = if alone.contains(&gate) { (100, 1) } else { (1, 100) };
            let before = inside[gate].fetch_add(weight, Ordering::SeqCst);
            assert!(before < most, "{before} in gate {gate} with {weight}");
        }
        for &gate in of {
            inside[gate].fetch_sub(if alone.contains(&gate) { 100 } else { 1 }, Ordering::SeqCst);
        }
        drop(held);
    }

    #[test]
    fn no_task_shares_a_gate_that_another_has_alone() {
        every_order(|| {
            let shared = Arc::new((Arc::new(Gates::default()), [const { AtomicUsize::new(0) }; 2]));
            let users: Vec<_> =
                [(&[0][..], &[][..]), (&[0, 1], &[0, 1]), (&[0, 1], &[1]), (&[0, 1], &[]), (&[0], &[0])]
                    .into_iter()
                    .map(|(of, alone)| {
                        let shared = shared.clone();
                        thread::spawn(move || pass(&shared.0, &shared.1, of, alone))
                    })
                    .collect();
            users.into_iter().for_each(|user| user.join().expect("everybody gets in"));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const GATE: ByteRange = ByteRange { offset: 0, len: 4096 };

    #[test]
    fn a_merge_waits_for_writers_and_writers_wait_for_a_merge() {
        let gates = Arc::new(Gates::default());
        let mut context = Context::from_waker(Waker::noop());
        assert!(gates.try_share(&GateSet::of(GATE)));
        let mut merge = pin!(HeldGates::merging(&gates, GateSet::of(GATE), GateSet::of(GATE)));
        assert!(merge.as_mut().poll(&mut context).is_pending());
        assert!(!gates.try_share(&GateSet::of(GATE)), "the merge was there before");
        assert!(gates.try_share(&GateSet::of(ByteRange::new(1 << 16, 1))), "other gates are open");
        let mut newcomer = pin!(HeldGates::shared(&gates, GateSet::of(GATE)));
        assert!(newcomer.as_mut().poll(&mut context).is_pending());
        gates.unshare(&GateSet::of(GATE));
        let Poll::Ready(held) = merge.as_mut().poll(&mut context) else { panic!("no task holds the gate") };
        assert!(newcomer.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(newcomer.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_refused_share_keeps_no_gate() {
        let gates = Arc::new(Gates::default());
        let (small, large) = (GateSet::of(GATE), GateSet::of(ByteRange::new(0, 40 << 16)));
        let Poll::Ready(held) = pin!(HeldGates::merging(&gates, small.clone(), small))
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("no task is there")
        };
        assert!(!gates.try_share(&large));
        drop(held);
        assert!(gates.gates.iter().all(|gate| gate.used() == 0));
    }

    #[test]
    fn a_range_takes_the_gates_of_its_regions() {
        let members = |offset, len| GateSet::of(ByteRange::new(offset, len)).members().collect::<Vec<_>>();
        assert_eq!(members(0, 4096), [gate_of(0)]);
        let mut both = [gate_of(0), gate_of(1)];
        both.sort_unstable();
        assert_eq!(members(65535, 2), both);
        assert_eq!(members(0, 1 << 40), (0..GATES).collect::<Vec<_>>());
        assert!(members(7 << 16, 0).is_empty());
    }

    #[test]
    fn strided_regions_spread_over_the_gates() {
        for stride in [1u64, 2, 16, 64, 256, 1 << 14, 1 << 20] {
            let mut set = GateSet::default();
            (0..64).for_each(|index| set.insert(gate_of(index * stride)));
            assert!(set.members().count() > 24, "64 regions at a stride of {stride} share a few gates");
        }
    }
}
