//! Changes that overlap, in the order in which they come.

use std::task::Waker;

use spillway_core::ByteRange;
use spillway_core::random::Random;

use super::super::changing::Changing;

/// A change that has come.
#[derive(Clone, Copy)]
struct Change {
    number: u64,
    range: ByteRange,
}

#[derive(Default)]
struct Changes(Changing);

impl Changes {
    fn come(&mut self, start: u64, end: u64) -> Change {
        let range = ByteRange::new(start, end - start);
        Change { number: self.0.come(range), range }
    }

    fn waits(&mut self, change: Change) -> bool {
        self.0.is_waiting(change.number, Waker::noop())
    }

    /// How many have begun by that.
    fn end(&mut self, change: Change) -> usize {
        self.0.end(change.number, change.range).len()
    }
}

#[test]
fn changes_that_overlap_begin_one_after_the_other() {
    let mut changes = Changes::default();
    for (start, end) in [(4, 8), (8, 9), (0, 4)] {
        let change = changes.come(start, end);
        assert!(!changes.waits(change));
    }
    for (start, end) in [(4, 8), (3, 5), (7, 8), (5, 6), (0, 20), (8, 9), (3, 4)] {
        let change = changes.come(start, end);
        assert!(changes.waits(change), "{start}..{end} begins beside another");
        assert_eq!(changes.end(change), 0, "nobody waits for one that goes without having begun");
    }
    let beside = changes.come(9, 20);
    assert!(!changes.waits(beside));
}

/// Two write to the same range without end: the next of one comes before the last of the other is answered.
#[test]
fn a_large_change_begins_once_those_that_came_before_it_are_over() {
    let mut changes = Changes::default();
    let first = [changes.come(10, 11), changes.come(50, 51)];
    let large = changes.come(0, 64);
    let next = [10, 50].map(|at| {
        let next = changes.come(at, at + 1);
        assert!(changes.waits(large) && changes.waits(next), "a later one begins before it");
        next
    });
    let apart = changes.come(64, 65);
    assert!(!changes.waits(apart), "nothing overlaps it");
    assert_eq!(first.map(|change| changes.end(change)), [0, 1]);
    assert!(!changes.waits(large) && changes.waits(next[0]));
    assert_eq!(changes.end(large), 2);
    assert!(!changes.waits(next[0]) && !changes.waits(next[1]));
}

/// Each begins as soon as none that came before overlaps it, beside a list of them.
#[test]
fn a_change_waits_for_those_before_it_and_for_no_other() {
    let mut random = Random(1);
    for _ in 0..500 {
        let (mut changes, mut present) = (Changes::default(), Vec::<Change>::new());
        for _ in 0..60 {
            if random.below(2) == 0 || present.is_empty() {
                let start = random.below(20);
                present.push(changes.come(start, start + 1 + random.below(20 - start)));
            } else {
                let over = present.remove(random.below(present.len() as u64) as usize);
                changes.end(over);
            }
            for (at, change) in present.iter().enumerate() {
                let behind = present[..at].iter().any(|before| before.range.overlaps(change.range));
                assert_eq!(changes.waits(*change), behind, "{:?}", change.range);
            }
        }
        present.into_iter().for_each(|change| _ = changes.end(change));
        let all = changes.come(0, 20);
        assert!(!changes.waits(all));
    }
}

#[test]
#[should_panic(expected = "has not begun")]
fn a_change_ends_once() {
    let mut changes = Changes::default();
    let change = changes.come(0, 4);
    changes.end(change);
    changes.end(change);
}
