//! Changes that are not answered. Of those that overlap one is under way; the others wait, first come, first served.

use std::collections::BTreeMap;
use std::task::Waker;

use spillway_core::{ByteRange, mutant};

/// See the head of this file.
#[derive(Default)]
pub(super) struct Changing {
    /// First byte and end of those under way: disjoint.
    begun: BTreeMap<u64, u64>,
    /// Those that wait, by number: nearly always none.
    waiting: BTreeMap<u64, Waiting>,
    /// Changes that have come so far.
    count: u64,
}

struct Waiting {
    range: ByteRange,
    /// Changes that came before and overlap it, whether they wait as well or not.
    before: usize,
    waker: Option<Waker>,
}

impl Changing {
    /// A change of `range` has come: it begins at once, or waits. Returns its number.
    pub(super) fn come(&mut self, range: ByteRange) -> u64 {
        self.count += 1;
        let range = place(self.count, range);
        let ends = self.begun.range(..range.offset + range.len).rev();
        let begun = ends.take_while(|&(_, &end)| end > range.offset).count();
        let waiting = self.waiting.values().filter(|other| other.range.overlaps(range)).count();
        match begun + waiting {
            0 => self.begin(range),
            before => _ = self.waiting.insert(self.count, Waiting { range, before, waker: None }),
        }
        self.count
    }

    fn begin(&mut self, range: ByteRange) {
        let twice = self.begun.insert(range.offset, range.offset + range.len);
        assert!(twice.is_none(), "changes at {} overlap", range.offset);
    }

    /// Whether the change of that number waits. Then `waker` is woken once it has begun.
    pub(super) fn is_waiting(&mut self, number: u64, waker: &Waker) -> bool {
        let waiting = self.waiting.get_mut(&number);
        waiting.map(|waiting| waiting.waker = Some(waker.clone())).is_some()
    }

    /// The change of that number and range is over, whether it had begun or not. Returns wakers of those that have begun by that.
    #[must_use]
    pub(super) fn end(&mut self, number: u64, range: ByteRange) -> Vec<Waker> {
        let range = place(number, range);
        if self.waiting.remove(&number).is_none() {
            let end = self.begun.remove(&range.offset);
            assert_eq!(end, Some(range.offset + range.len), "a change ends that has not begun");
        }
        // What came later and overlaps it has not begun.
        let later = self.waiting.range_mut(number..).filter(|(_, other)| other.range.overlaps(range));
        let mut free = Vec::new();
        for (&number, other) in later {
            assert!(other.before > 0, "change {number} waits, and for none");
            other.before -= 1;
            free.extend((other.before == 0).then_some(number));
        }
        free.into_iter().filter_map(|number| self.begin_waiting(number)).collect()
    }

    fn begin_waiting(&mut self, number: u64) -> Option<Waker> {
        let Waiting { range, waker, .. } = self.waiting.remove(&number).expect("it waits");
        self.begin(range);
        waker
    }
}

/// Where the change of that number is, for others to overlap it.
fn place(number: u64, range: ByteRange) -> ByteRange {
    let apart = mutant::on("nbd client: send changes that overlap beside each other");
    if apart { ByteRange::new(number, 1) } else { range }
}
