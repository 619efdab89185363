//! A disk in use: the medium, the versions written since, and the writes on their way.

use std::collections::BTreeMap;
use std::sync::Arc;

use spillway_core::SECTOR;
use spillway_core::random::Random;

use super::medium::{Content, LEN, Medium, Version};

/// A write that has not ended.
struct Airborne {
    at: u64,
    content: Vec<Content>,
    /// Its future is gone: boundaries until it is carried out.
    ghost: Option<u64>,
}

pub(super) struct Cache {
    medium: Medium,
    airborne: BTreeMap<u64, Airborne>,
    tear: Tear,
}

/// What a power cut leaves whole of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tear {
    /// Words of 8 bytes, as persistent memory does.
    Words,
    /// Sectors of 512 bytes.
    #[default]
    Sectors,
    /// Sectors of 4096 bytes, of a disk that is written in such blocks.
    Blocks,
}

impl Tear {
    /// Sectors of 512 bytes that are stored together.
    fn sectors(self) -> usize {
        if self == Tear::Blocks { 8 } else { 1 }
    }
}

/// Bytes that persistent memory stores whole.
const WORD: usize = 8;

impl Cache {
    pub(super) fn new(medium: Medium) -> Self {
        Self { medium, airborne: BTreeMap::new(), tear: Tear::default() }
    }

    pub(super) fn tear(&self) -> Tear {
        self.tear
    }

    pub(super) fn set_tear(&mut self, tear: Tear) {
        self.tear = tear;
    }

    /// Bytes of a failed write of `len` that are stored.
    pub(super) fn torn_len(&self, len: u64, random: &mut Random) -> u64 {
        let unit = self.tear.sectors() as u64 * SECTOR;
        random.below(len / unit + 1) * unit
    }

    pub(super) fn bytes(&self) -> u64 {
        self.medium.bytes()
    }

    pub(super) fn enlarge(&mut self, bytes: u64) {
        self.medium.enlarge(bytes);
    }

    /// See [`Medium::keep_length`].
    pub(super) fn keep_length(&mut self, covered: u64) {
        self.medium.keep_length(covered);
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) {
        for (index, chunk) in into.chunks_exact_mut(LEN).enumerate() {
            chunk.copy_from_slice(&self.medium.visible((at / SECTOR) as usize + index)[..]);
        }
    }

    pub(super) fn is_zero(&self, at: u64, len: u64) -> bool {
        let sectors = (at / SECTOR) as usize..((at + len) / SECTOR) as usize;
        sectors.into_iter().all(|sector| self.medium.visible(sector).iter().all(|&byte| byte == 0))
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8], durable: bool) {
        for (index, content) in sectors(bytes).into_iter().enumerate() {
            self.store((at / SECTOR) as usize + index, content, durable);
        }
    }

    fn store(&mut self, sector: usize, content: Content, durable: bool) {
        let Medium { versions, next, bad, .. } = &mut self.medium;
        bad.remove(&sector);
        if durable {
            versions.remove(&sector);
            self.medium.set_durable(sector, content);
            self.medium.keep_length(u64::MAX);
            return;
        }
        versions.entry(sector).or_default().push(Version { number: *next, content, forgotten: false });
        *next += 1;
    }

    /// The number above all versions so far.
    pub(super) fn newest(&self) -> u64 {
        self.medium.next
    }

    /// Makes durable what has a number below `covered`.
    pub(super) fn sync(&mut self, covered: u64) {
        self.medium.keep_length(covered);
        let mut versions = std::mem::take(&mut self.medium.versions);
        for (&sector, versions) in &mut versions {
            let last = versions.iter().rposition(|version| version.number < covered && !version.forgotten);
            if let Some(last) = last {
                let newest = versions.drain(..=last).next_back().expect("not empty");
                self.medium.set_durable(sector, newest.content);
            }
        }
        versions.retain(|_, versions| !versions.is_empty());
        self.medium.versions = versions;
    }

    /// A sync of what is below `covered` failed.
    pub(super) fn forget(&mut self, covered: u64) {
        let all = self.medium.versions.values_mut().flatten();
        all.filter(|version| version.number < covered).for_each(|version| version.forgotten = true);
    }

    /// What is not durable is gone, and reads see what was there before.
    pub(super) fn lose(&mut self) {
        self.medium.versions.clear();
    }

    /// From now on the sector at byte `at` cannot be read.
    pub(super) fn go_bad(&mut self, at: u64) {
        self.medium.bad.insert((at / SECTOR) as usize);
    }

    /// Whether one of these sectors cannot be read.
    pub(super) fn is_bad(&self, at: u64, len: u64) -> bool {
        self.medium.bad.range((at / SECTOR) as usize..((at + len) / SECTOR) as usize).next().is_some()
    }

    pub(super) fn take_off(&mut self, at: u64, bytes: &[u8]) -> u64 {
        let number = self.medium.next;
        self.medium.next += 1;
        self.airborne.insert(number, Airborne { at, content: sectors(bytes), ghost: None });
        number
    }

    pub(super) fn land(&mut self, number: u64) {
        self.airborne.remove(&number).expect("it took off");
    }

    /// The future of a write is gone: it is carried out after some boundaries, unless the power goes first.
    pub(super) fn haunt(&mut self, number: u64) {
        if let Some(airborne) = self.airborne.get_mut(&number) {
            airborne.ghost = Some(number % 5);
        }
    }

    pub(super) fn ghosts_pass(&mut self, random: &mut Random) {
        let mut due = Vec::new();
        for (&number, airborne) in &mut self.airborne {
            match &mut airborne.ghost {
                Some(0) => due.push(number),
                Some(left) => *left -= 1,
                None => {}
            }
        }
        for number in due {
            let ghost = self.airborne.remove(&number).expect("just seen");
            if random.below(2) == 0 {
                for (index, content) in ghost.content.into_iter().enumerate() {
                    self.store((ghost.at / SECTOR) as usize + index, content, false);
                }
            }
        }
    }

    /// What a power cut leaves: mostly each sector by itself, sometimes the newest of all, sometimes nothing of it.
    pub(super) fn lose_power(&mut self, random: &mut Random) -> Medium {
        let mut candidates: BTreeMap<usize, Vec<Content>> = BTreeMap::new();
        for (&sector, versions) in &self.medium.versions {
            let contents = versions.iter().map(|version| version.content.clone());
            candidates.entry(sector).or_default().extend(contents);
        }
        for airborne in self.airborne.values() {
            for (index, content) in airborne.content.iter().enumerate() {
                candidates.entry((airborne.at / SECTOR) as usize + index).or_default().push(content.clone());
            }
        }
        let (mood, unit) = (random.below(4), self.tear.sectors());
        let mut last = None;
        for (sector, mut contents) in candidates {
            let count = contents.len() as u64;
            let kept = match (mood, last) {
                (0, _) => 0,
                (1, _) => count,
                (_, Some((before, of, kept))) if before == sector / unit => {
                    assert_eq!(of, count, "what is stored whole is written whole");
                    kept
                }
                _ => random.below(count + 1),
            };
            last = Some((sector / unit, count, kept));
            if kept > 0 {
                self.medium.bad.remove(&sector);
                let content = contents.swap_remove(kept as usize - 1);
                let torn = self.tear == Tear::Words && mood > 1;
                let content = if torn { self.torn(sector, &content, random) } else { content };
                self.medium.set_durable(sector, content);
            }
        }
        self.medium.versions.clear();
        self.airborne.clear();
        if random.below(2) == 0 {
            self.medium.lose_length();
        }
        self.medium.keep_length(u64::MAX);
        self.medium.clone()
    }

    /// Some words of `content`, the others as they were.
    fn torn(&self, sector: usize, content: &Content, random: &mut Random) -> Content {
        let mut torn = **self.medium.durable(sector);
        for (into, from) in torn.chunks_exact_mut(WORD).zip(content.chunks_exact(WORD)) {
            if random.below(2) == 0 {
                into.copy_from_slice(from);
            }
        }
        Arc::new(torn)
    }

    /// What is left once nobody uses it, while it keeps its power: calls that are under way are carried out, or not.
    pub(super) fn keep_power(&mut self, random: &mut Random) -> Medium {
        for airborne in std::mem::take(&mut self.airborne).into_values() {
            let (whole, unit) = (random.below(2) == 0, self.tear.sectors());
            for (unit_index, contents) in airborne.content.chunks(unit).enumerate() {
                if whole || random.below(2) == 0 {
                    let first = (airborne.at / SECTOR) as usize + unit_index * unit;
                    let stored = (first..).zip(contents);
                    stored.for_each(|(sector, content)| self.store(sector, content.clone(), false));
                }
            }
        }
        self.medium.clone()
    }
}

fn sectors(bytes: &[u8]) -> Vec<Content> {
    bytes.chunks_exact(LEN).map(|chunk| Arc::new(chunk.try_into().expect("a whole sector"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cache: &Cache, sector: u64) -> u8 {
        let mut bytes = [0; LEN];
        cache.read(sector * SECTOR, &mut bytes);
        bytes[0]
    }

    fn after_cuts(cache: impl Fn() -> Cache, sector: usize) -> Vec<u8> {
        let mut seen: Vec<u8> =
            (0..200).map(|seed| cache().lose_power(&mut Random(seed)).durable(sector)[0]).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn a_cut_keeps_any_version_since_the_sync() {
        let cache = || {
            let mut cache = Cache::new(Medium::new(2 * SECTOR));
            cache.write(0, &[1; LEN], false);
            let covered = cache.newest();
            cache.write(0, &[2; LEN], false);
            cache.sync(covered);
            cache.write(0, &[3; LEN], false);
            cache.take_off(0, &[4; LEN]);
            cache
        };
        assert_eq!(read(&cache(), 0), 3);
        assert_eq!(after_cuts(cache, 0), [1, 2, 3, 4]);
        assert_eq!(after_cuts(cache, 1), [0]);
    }

    #[test]
    fn what_a_failed_sync_forgot_no_later_one_makes_durable() {
        let cache = || {
            let mut cache = Cache::new(Medium::new(2 * SECTOR));
            cache.write(0, &[1; 2 * LEN], false);
            cache.forget(cache.newest());
            cache.write(SECTOR, &[2; LEN], false);
            cache.sync(cache.newest());
            cache
        };
        assert_eq!(read(&cache(), 0), 1, "it is still seen");
        assert_eq!(after_cuts(cache, 0), [0, 1]);
        assert_eq!(after_cuts(cache, 1), [2]);
    }

    #[test]
    fn a_durable_write_survives_any_cut() {
        let cache = || {
            let mut cache = Cache::new(Medium::new(SECTOR));
            cache.write(0, &[1; LEN], false);
            cache.write(0, &[2; LEN], true);
            cache
        };
        assert_eq!(after_cuts(cache, 0), [2]);
    }

    #[test]
    fn memory_is_torn_between_words() {
        let mut cache = Cache::new(Medium::new(SECTOR));
        cache.set_tear(Tear::Words);
        cache.write(0, &[1; LEN], false);
        let left = (0..200).map(|seed| {
            let mut cache =
                Cache { medium: cache.medium.clone(), airborne: BTreeMap::new(), tear: Tear::Words };
            cache.lose_power(&mut Random(seed)).durable(0).to_vec()
        });
        let words = |sector: &Vec<u8>| sector.chunks(WORD).all(|word| word == [0; WORD] || word == [1; WORD]);
        let left: Vec<_> = left.collect();
        assert!(left.iter().all(words) && left.iter().any(|sector| sector[..8] != sector[8..16]));
    }

    #[test]
    fn larger_sectors_are_torn_nowhere() {
        let left = |tear| {
            let cut = |seed| {
                let (mut cache, mut random) = (Cache::new(Medium::new(32 * SECTOR)), Random(seed));
                cache.set_tear(tear);
                cache.write(0, &[1; 16 * LEN], false);
                cache.write(8 * SECTOR, &[2; 8 * LEN], false);
                cache.take_off(0, &[3; 32 * LEN]);
                let medium =
                    if seed % 2 == 0 { cache.lose_power(&mut random) } else { cache.keep_power(&mut random) };
                (0..32).map(|sector| medium.visible(sector)[0]).collect::<Vec<_>>()
            };
            (0..200).map(cut).collect::<Vec<_>>()
        };
        let whole = |left: &Vec<u8>| left.chunks(8).all(|block| block.iter().all(|&byte| byte == block[0]));
        let (blocks, sectors) = (left(Tear::Blocks), left(Tear::Sectors));
        assert!(blocks.iter().all(whole) && !sectors.iter().all(whole));
        assert!(blocks.iter().any(|left| left[0] != left[31]), "it is torn between them");
    }

    #[test]
    fn ghosts_come_late_or_never() {
        let outcomes: Vec<_> = (0..20)
            .map(|seed| {
                let (mut cache, mut random) = (Cache::new(Medium::new(SECTOR)), Random(seed));
                let number = cache.take_off(0, &[7; LEN]);
                cache.haunt(number);
                (0..10).for_each(|_| cache.ghosts_pass(&mut random));
                read(&cache, 0)
            })
            .collect();
        assert!(outcomes.contains(&0) && outcomes.contains(&7), "{outcomes:?}");
    }
}
