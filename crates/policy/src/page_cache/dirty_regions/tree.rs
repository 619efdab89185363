//! The regions that are not clean, in order: an AVL tree in slots that follow each other, so that it takes no more than they do.
//!
//! Each node knows which one below it became dirty first: the next region with something old enough is found without looking at the others.
//! When a node leaves, the last one takes its slot. A `BTreeMap` knows nothing of what lies below a node: the search would visit each younger
//! region before the next old one, while writers wait; and with a set by age its nodes, half empty at worst, would take about 120 bytes a
//! region, where 34 are charged.

use std::cmp::Ordering;

use super::region::{RegionNumber, Stamp};
use crate::chunked::{CHUNK, Chunked};

/// No node.
const NONE: u32 = u32::MAX;

/// The word of a region: its number below, flags, and the height of the node above them.
const FLAGS_SHIFT: u32 = 50;
const HEIGHT_SHIFT: u32 = 56;
const NUMBER: u64 = (1 << FLAGS_SHIFT) - 1;

/// A batch has it.
pub(super) const WRITING: u64 = 1 << FLAGS_SHIFT;
/// How its last batch ended.
pub(super) const LANDED: u64 = 2 << FLAGS_SHIFT;
pub(super) const FAILED: u64 = 4 << FLAGS_SHIFT;

/// A region.
#[derive(Clone, Debug)]
pub(super) struct RegionNode {
    word: u64,
    stamp: Stamp,
    /// Dirty blocks that no batch has.
    pub(super) blocks: u32,
    /// The trees of regions before it and after it.
    links: [u32; 2],
    /// The slot of the one with the first stamp in this tree.
    oldest: u32,
}

impl Default for RegionNode {
    fn default() -> Self {
        Self { word: 0, stamp: Stamp::MAX, blocks: 0, links: [NONE; 2], oldest: NONE }
    }
}

impl RegionNode {
    pub(super) fn region(&self) -> RegionNumber {
        RegionNumber(self.word & NUMBER)
    }

    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }

    pub(super) fn has(&self, flag: u64) -> bool {
        self.word & flag != 0
    }

    pub(super) fn set(&mut self, flag: u64, to: bool) {
        self.word = self.word & !flag | if to { flag } else { 0 };
    }

    fn height(&self) -> u32 {
        (self.word >> HEIGHT_SHIFT) as u32
    }
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct RegionTree {
    nodes: Chunked<RegionNode>,
    len: u32,
    root: u32,
    /// The one that was found last: a writer often stays in a region.
    recent: u32,
}

impl Default for RegionTree {
    fn default() -> Self {
        Self { nodes: Chunked::default(), len: 0, root: NONE, recent: 0 }
    }
}

impl RegionTree {
    /// Bytes that it takes for each region, at most, and for regions that there are not: a node, its part of a chunk that is allocated by itself, and
    /// of the list of chunks, three quarters of which may be free.
    pub(super) const BYTES_EACH: u64 = (size_of::<RegionNode>() as u64) + (16 + 4 * 8) / CHUNK as u64 + 1;
    pub(super) const BYTES_SPARE: u64 = 2 * CHUNK as u64 * Self::BYTES_EACH;

    /// The slot of a region.
    pub(super) fn find(&self, region: RegionNumber) -> Option<u32> {
        let mut at = self.root;
        while at != NONE {
            let node = &self.nodes[at];
            at = match region.cmp(&node.region()) {
                Ordering::Less => node.links[0],
                Ordering::Greater => node.links[1],
                Ordering::Equal => return Some(at),
            };
        }
        None
    }

    pub(super) fn get(&self, region: RegionNumber) -> Option<&RegionNode> {
        Some(&self.nodes[self.find(region)?])
    }

    /// A region, whose stamp stays.
    pub(super) fn get_mut(&mut self, region: RegionNumber) -> Option<&mut RegionNode> {
        if self.recent >= self.len || self.nodes[self.recent].region() != region {
            self.recent = self.find(region)?;
        }
        Some(&mut self.nodes[self.recent])
    }

    /// A region that is not there, without blocks.
    pub(super) fn insert(&mut self, region: RegionNumber, stamp: Stamp) -> &mut RegionNode {
        assert!(region.0 <= NUMBER, "{region:?}");
        let slot = self.len;
        self.len += 1;
        self.nodes.grow_to(self.len);
        let word = region.0 | 1 << HEIGHT_SHIFT;
        self.nodes[slot] = RegionNode { word, stamp, blocks: 0, links: [NONE; 2], oldest: slot };
        self.root = self.attach(self.root, slot);
        self.recent = slot;
        &mut self.nodes[slot]
    }

    /// A region leaves.
    pub(super) fn remove(&mut self, region: RegionNumber) {
        let (root, gone) = self.detach(self.root, region);
        self.root = root;
        self.len -= 1;
        if gone != self.len {
            self.move_node(self.len, gone);
        }
        self.nodes[self.len] = RegionNode::default();
        self.nodes.shrink_to(self.len);
    }

    /// The stamp of a region that is there changes.
    pub(super) fn set_stamp(&mut self, region: RegionNumber, stamp: Stamp) {
        let slot = self.find(region).expect("it is there");
        self.nodes[slot].stamp = stamp;
        self.renew(self.root, region);
    }

    /// Finds out again who is the oldest, from a region up.
    fn renew(&mut self, at: u32, region: RegionNumber) {
        let side = match region.cmp(&self.nodes[at].region()) {
            Ordering::Less => Some(0),
            Ordering::Greater => Some(1),
            Ordering::Equal => None,
        };
        if let Some(side) = side {
            self.renew(self.nodes[at].links[side], region);
        }
        self.update(at);
    }

    /// The first stamp.
    pub(super) fn oldest(&self) -> Option<Stamp> {
        (self.root != NONE).then(|| self.oldest_of(self.root))
    }

    /// The first region from `from` on that no batch has, with a stamp before `before`.
    pub(super) fn next(&self, from: RegionNumber, before: Stamp) -> Option<RegionNumber> {
        self.next_of(self.root, from, before)
    }

    fn next_of(&self, at: u32, from: RegionNumber, before: Stamp) -> Option<RegionNumber> {
        if at == NONE || self.oldest_of(at) >= before {
            return None;
        }
        let node = &self.nodes[at];
        if node.region() < from {
            return self.next_of(node.links[1], from, before);
        }
        let this = || (!node.has(WRITING) && node.stamp < before).then(|| node.region());
        let found = self.next_of(node.links[0], from, before).or_else(this);
        found.or_else(|| self.next_of(node.links[1], from, before))
    }

    /// The first region from `from` on.
    pub(super) fn first_from(&self, from: RegionNumber) -> Option<RegionNumber> {
        let (mut at, mut found) = (self.root, None);
        while at != NONE {
            let node = &self.nodes[at];
            let is_before = node.region() < from;
            found = if is_before { found } else { Some(node.region()) };
            at = node.links[usize::from(is_before)];
        }
        found
    }

    /// The nodes, in order.
    pub(super) fn all(&self) -> Vec<&RegionNode> {
        let mut found = Vec::new();
        self.collect(self.root, &mut found);
        found
    }

    fn collect<'a>(&'a self, at: u32, found: &mut Vec<&'a RegionNode>) {
        if at == NONE {
            return;
        }
        let node = &self.nodes[at];
        self.collect(node.links[0], found);
        found.push(node);
        self.collect(node.links[1], found);
    }

    fn height(&self, at: u32) -> u32 {
        if at == NONE { 0 } else { self.nodes[at].height() }
    }

    fn oldest_of(&self, at: u32) -> Stamp {
        self.nodes[self.nodes[at].oldest].stamp
    }

    /// What a node knows of those below it.
    fn known(&self, at: u32) -> (u32, u32) {
        let [before, after] = self.nodes[at].links;
        let height = 1 + self.height(before).max(self.height(after));
        let below = [before, after].into_iter().filter(|link| *link != NONE);
        let slots = below.map(|link| self.nodes[link].oldest).chain([at]);
        let oldest = slots.min_by_key(|slot| self.nodes[*slot].stamp).expect("it is one of them");
        (height, oldest)
    }

    fn update(&mut self, at: u32) {
        let (height, oldest) = self.known(at);
        let node = &mut self.nodes[at];
        node.word = node.word & ((1 << HEIGHT_SHIFT) - 1) | u64::from(height) << HEIGHT_SHIFT;
        node.oldest = oldest;
    }

    /// The node on one `side` of `at` comes to stand above it.
    fn rotate(&mut self, at: u32, side: usize) -> u32 {
        let up = self.nodes[at].links[side];
        self.nodes[at].links[side] = std::mem::replace(&mut self.nodes[up].links[1 - side], at);
        self.update(at);
        self.update(up);
        up
    }

    /// Makes a tree whose sides have changed even again; what is on top of it then.
    fn balance(&mut self, at: u32) -> u32 {
        self.update(at);
        let heights = self.nodes[at].links.map(|link| self.height(link));
        let Some(side) = (0..2).find(|side| heights[*side] > heights[1 - side] + 1) else { return at };
        let high = self.nodes[at].links[side];
        let below = self.nodes[high].links.map(|link| self.height(link));
        if below[side] < below[1 - side] {
            self.nodes[at].links[side] = self.rotate(high, 1 - side);
        }
        self.rotate(at, side)
    }

    fn attach(&mut self, at: u32, slot: u32) -> u32 {
        if at == NONE {
            return slot;
        }
        let side = usize::from(self.nodes[at].region() < self.nodes[slot].region());
        self.nodes[at].links[side] = self.attach(self.nodes[at].links[side], slot);
        self.balance(at)
    }

    /// Takes a region out of a tree: what is on top of it then, and the slot.
    fn detach(&mut self, at: u32, region: RegionNumber) -> (u32, u32) {
        let [before, after] = self.nodes[at].links;
        let side = match region.cmp(&self.nodes[at].region()) {
            Ordering::Less => 0,
            Ordering::Greater => 1,
            Ordering::Equal if before == NONE => return (after, at),
            Ordering::Equal if after == NONE => return (before, at),
            Ordering::Equal => {
                let (after, next) = self.detach(after, self.first(after));
                self.nodes[next].links = [before, after];
                return (self.balance(next), at);
            }
        };
        let (link, gone) = self.detach(self.nodes[at].links[side], region);
        self.nodes[at].links[side] = link;
        (self.balance(at), gone)
    }

    fn first(&self, mut at: u32) -> RegionNumber {
        while self.nodes[at].links[0] != NONE {
            at = self.nodes[at].links[0];
        }
        self.nodes[at].region()
    }

    /// A node comes to another slot.
    fn move_node(&mut self, from: u32, to: u32) {
        let region = self.nodes[from].region();
        let (mut at, mut link) = (self.root, None);
        while at != NONE {
            let node = &mut self.nodes[at];
            if node.oldest == from {
                node.oldest = to;
            }
            if at == from {
                break;
            }
            let side = usize::from(node.region() < region);
            link = Some((at, side));
            at = node.links[side];
        }
        assert_eq!(at, from, "a node is found by its region");
        match link {
            Some((above, side)) => self.nodes[above].links[side] = to,
            None => self.root = to,
        }
        self.nodes[to] = std::mem::take(&mut self.nodes[from]);
    }

    /// Asserts that it is in order and even, and knows the oldest.
    pub(super) fn verify(&self) {
        let all = self.all();
        assert!(all.is_sorted_by(|one, next| one.region() < next.region()), "regions are in order");
        assert_eq!(all.len(), self.len as usize, "each region is in the tree");
        for slot in 0..self.len {
            let (node, known) = (&self.nodes[slot], self.known(slot));
            let [before, after] = node.links.map(|link| self.height(link));
            assert!(before.abs_diff(after) <= 1, "the tree is even");
            let oldest = self.nodes[known.1].stamp;
            assert_eq!((node.height(), self.nodes[node.oldest].stamp), (known.0, oldest), "what it knows");
        }
        let spare = self.nodes.len() - self.len;
        assert!(spare < 2 * CHUNK, "{spare} slots that nothing is in");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_was_put_in(
            steps in prop::collection::vec((0u8..4, 0u64..300, 0u64..9), 1..900),
            from in 0u64..300,
        ) {
            let (mut tree, mut plain) = (RegionTree::default(), BTreeMap::new());
            for (kind, region, stamp) in steps {
                let (at, stamp) = (RegionNumber(region), Stamp(stamp));
                match (kind, plain.contains_key(&region)) {
                    (0, true) => {
                        tree.remove(at);
                        plain.remove(&region);
                    }
                    (1, true) => {
                        tree.set_stamp(at, stamp);
                        plain.insert(region, stamp);
                    }
                    (_, false) => {
                        tree.insert(at, stamp);
                        plain.insert(region, stamp);
                    }
                    _ => prop_assert_eq!(tree.get_mut(at).map(|node| node.region()), Some(at)),
                }
            }
            tree.verify();
            prop_assert_eq!(tree.oldest(), plain.values().min().copied());
            let first = plain.range(from..).next().map(|(region, _)| RegionNumber(*region));
            prop_assert_eq!(tree.first_from(RegionNumber(from)), first);
            for before in (0..10).map(Stamp) {
                let next = plain.range(from..).find(|(_, stamp)| **stamp < before);
                prop_assert_eq!(tree.next(RegionNumber(from), before), next.map(|(region, _)| RegionNumber(*region)));
            }
            for region in 0..300 {
                let found = tree.get(RegionNumber(region)).map(RegionNode::stamp);
                prop_assert_eq!(found, plain.get(&region).copied());
            }
        }
    }

    #[test]
    fn it_is_low_and_takes_what_is_said() {
        assert_eq!(size_of::<RegionNode>(), 32);
        let mut tree = RegionTree::default();
        (0..10_000).for_each(|region| _ = tree.insert(RegionNumber(region), Stamp(region)));
        tree.verify();
        assert!(tree.height(tree.root) <= 14, "{} nodes above each other", tree.height(tree.root));
        (0..10_000).for_each(|region| tree.remove(RegionNumber(region)));
        tree.verify();
    }
}
