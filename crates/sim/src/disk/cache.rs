//! What a disk holds: the medium, the versions written since, and the writes on their way.

use std::collections::BTreeMap;
use std::sync::Arc;

use spillway_core::SECTOR;
use spillway_core::contract::Random;

const LEN: usize = SECTOR as usize;

type Content = Arc<[u8; LEN]>;

/// What is durable, sector by sector. Survives power cuts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Medium(Vec<Content>);

impl Medium {
    /// A medium of `bytes` zeroes, a multiple of 512.
    pub fn new(bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(SECTOR));
        let zero: Content = Arc::new([0; LEN]);
        Self((0..bytes / SECTOR).map(|_| zero.clone()).collect())
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64 * SECTOR
    }
}

/// A version of a sector that is not known to be durable.
struct Version {
    number: u64,
    content: Content,
    /// A sync that failed was to cover it.
    forgotten: bool,
}

/// A write that has not ended.
struct Airborne {
    at: u64,
    content: Vec<Content>,
    /// Its future is gone: boundaries until it is carried out.
    ghost: Option<u64>,
}

pub(super) struct Cache {
    medium: Medium,
    versions: BTreeMap<usize, Vec<Version>>,
    airborne: BTreeMap<u64, Airborne>,
    next: u64,
}

impl Cache {
    pub(super) fn new(medium: Medium) -> Self {
        Self { medium, versions: BTreeMap::new(), airborne: BTreeMap::new(), next: 0 }
    }

    fn visible(&self, sector: usize) -> &Content {
        let newest = self.versions.get(&sector).and_then(|versions| versions.last());
        newest.map_or(&self.medium.0[sector], |version| &version.content)
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) {
        for (index, chunk) in into.chunks_exact_mut(LEN).enumerate() {
            chunk.copy_from_slice(&self.visible((at / SECTOR) as usize + index)[..]);
        }
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8], durable: bool) {
        for (index, content) in sectors(bytes).into_iter().enumerate() {
            self.store((at / SECTOR) as usize + index, content, durable);
        }
    }

    fn store(&mut self, sector: usize, content: Content, durable: bool) {
        if durable {
            self.versions.remove(&sector);
            self.medium.0[sector] = content;
            return;
        }
        let version = Version { number: self.next, content, forgotten: false };
        self.next += 1;
        self.versions.entry(sector).or_default().push(version);
    }

    /// The number above all versions so far.
    pub(super) fn newest(&self) -> u64 {
        self.next
    }

    /// Makes durable what has a number below `covered`.
    pub(super) fn sync(&mut self, covered: u64) {
        for (&sector, versions) in &mut self.versions {
            let last = versions.iter().rposition(|version| version.number < covered && !version.forgotten);
            if let Some(last) = last {
                self.medium.0[sector] = versions.drain(..=last).next_back().expect("not empty").content;
            }
        }
        self.versions.retain(|_, versions| !versions.is_empty());
    }

    /// A sync of what is below `covered` failed.
    pub(super) fn forget(&mut self, covered: u64) {
        let all = self.versions.values_mut().flatten();
        all.filter(|version| version.number < covered).for_each(|version| version.forgotten = true);
    }

    pub(super) fn take_off(&mut self, at: u64, bytes: &[u8]) -> u64 {
        let number = self.next;
        self.next += 1;
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
        for (&sector, versions) in &self.versions {
            let contents = versions.iter().map(|version| version.content.clone());
            candidates.entry(sector).or_default().extend(contents);
        }
        for airborne in self.airborne.values() {
            for (index, content) in airborne.content.iter().enumerate() {
                candidates.entry((airborne.at / SECTOR) as usize + index).or_default().push(content.clone());
            }
        }
        let mood = random.below(4);
        for (sector, mut contents) in candidates {
            let kept = match mood {
                0 => 0,
                1 => contents.len() as u64,
                _ => random.below(contents.len() as u64 + 1),
            };
            if kept > 0 {
                self.medium.0[sector] = contents.swap_remove(kept as usize - 1);
            }
        }
        self.versions.clear();
        self.airborne.clear();
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
            (0..200).map(|seed| cache().lose_power(&mut Random(seed)).0[sector][0]).collect();
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
