//! Which groups of blocks of the origin may have a version in the cache: marks, to which more are added when the origin grows.
//!
//! What is added is as large as all before, at least, so that a few parts are looked through however often an origin grows.

use std::sync::{Arc, OnceLock};

use spillway_core::sync::Marks;
use spillway_core::{Budget, Charge, Kind};

/// Groups from some number on.
pub(crate) struct Present {
    marks: Marks,
    /// How many.
    groups: u64,
    /// Those that follow.
    more: OnceLock<Box<Present>>,
    /// Of what was added later.
    _charge: Option<Charge>,
}

impl Present {
    /// Bytes for so many groups.
    pub(crate) fn bytes(groups: u64) -> u64 {
        Marks::bytes(groups)
    }

    /// So many groups, of which none has a version.
    pub(crate) fn new(groups: u64) -> Self {
        Self { marks: Marks::new(groups), groups, more: OnceLock::new(), _charge: None }
    }

    /// Makes room for `groups` in all, charged to `budget`; [`Kind::NoSpace`] where that has none. One caller at a time, beside all others.
    pub(crate) fn extend(&self, groups: u64, budget: &Arc<Budget>) -> Result<(), Kind> {
        let (mut last, mut all) = (self, self.groups);
        while let Some(more) = last.more.get() {
            (last, all) = (more, all + more.groups);
        }
        if groups <= all {
            return Ok(());
        }
        let added = all.max(groups - all);
        let charge = budget.hold(Self::bytes(added))?;
        let more = Self { _charge: Some(charge), ..Self::new(added) };
        assert!(last.more.set(Box::new(more)).is_ok(), "one caller at a time");
        Ok(())
    }

    /// The marks of a group, and its number there.
    fn at(&self, mut group: u64) -> (&Marks, u64) {
        let mut part = self;
        while group >= part.groups {
            group -= part.groups;
            part = part.more.get().expect("a group lies on the origin");
        }
        (&part.marks, group)
    }

    /// A group may have a version.
    pub(crate) fn mark(&self, group: u64) {
        let (marks, at) = self.at(group);
        marks.mark(at);
    }

    /// A group has none.
    pub(crate) fn unmark(&self, group: u64) {
        let (marks, at) = self.at(group);
        marks.unmark(at);
    }

    /// Whether a group may have one.
    pub(crate) fn has(&self, group: u64) -> bool {
        let (marks, at) = self.at(group);
        marks.has(at)
    }

    /// The first group from `from` on that may have one. One thread at a time.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        let (mut part, mut first) = (self, 0);
        loop {
            let end = first + part.groups;
            let found = (from < end).then(|| part.marks.next(from.saturating_sub(first))).flatten();
            match found {
                Some(at) => return Some(first + at),
                None => (part, first) = (part.more.get()?, end),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::random::Random;
    use std::collections::BTreeSet;

    #[test]
    fn it_stays_a_set_in_order_however_it_grows() {
        let budget = Budget::new(Budget::UNLIMITED);
        for begin in [1, 63, 64, 65, 5000] {
            let (set, mut bound) = (Present::new(begin), begin);
            let (mut model, mut random) = (BTreeSet::new(), Random(begin));
            for step in 0..4000 {
                if step % 400 == 399 {
                    bound += 1 + random.below(3 * bound);
                    set.extend(bound, &budget).unwrap();
                }
                let (number, from) = (random.below(bound), random.below(bound + 70));
                if random.below(2) == 0 {
                    set.mark(number);
                    model.insert(number);
                } else {
                    let gone = model.range(number..).next().copied().unwrap_or(number);
                    set.unmark(gone);
                    model.remove(&gone);
                }
                assert_eq!(set.has(number), model.contains(&number));
                assert_eq!(set.next(from), model.range(from..).next().copied(), "from {from} of {bound}");
            }
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn many_small_steps_make_few_parts_and_what_is_refused_changes_nothing() {
        let (set, budget) = (Present::new(1), Budget::new(2 << 10));
        for groups in 2..5000 {
            set.extend(groups, &budget).unwrap();
        }
        let parts = std::iter::successors(Some(&set), |part| part.more.get().map(|more| &**more)).count();
        assert!(parts <= 14, "{parts} parts");
        assert_eq!(set.extend(1 << 40, &budget), Err(Kind::NoSpace));
        set.mark(4999);
        assert_eq!((set.next(0), set.next(5000)), (Some(4999), None));
    }
}
