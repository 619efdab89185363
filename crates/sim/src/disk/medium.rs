//! What a disk holds from one start to the next: what is durable, and what it has in its cache as long as it has power.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use spillway_core::SECTOR;

pub(super) const LEN: usize = SECTOR as usize;

/// Sectors that are shared between copies of a medium until one of them changes.
const CHUNK: usize = 64;

pub(super) type Content = Arc<[u8; LEN]>;

/// A version of a sector that is not known to be durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Version {
    pub(super) number: u64,
    pub(super) content: Content,
    /// A sync that failed was to cover it.
    pub(super) forgotten: bool,
}

/// A disk while nobody uses it. Copies are cheap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Medium {
    durable: Vec<Arc<Vec<Content>>>,
    sectors: usize,
    /// Versions since, in their order. Empty after a power cut.
    pub(super) versions: BTreeMap<usize, Vec<Version>>,
    /// The number of the next version.
    pub(super) next: u64,
    /// Sectors that cannot be read until they are written.
    pub(super) bad: BTreeSet<usize>,
}

impl Medium {
    /// A medium of `bytes` zeroes, a multiple of 512.
    pub fn new(bytes: u64) -> Self {
        let zero: Content = Arc::new([0; LEN]);
        Self::filled(bytes, |_| zero.clone())
    }

    /// A medium of `bytes` bytes that holds `bytes_of` each sector.
    pub fn of(bytes: u64, bytes_of: impl Fn(u64) -> [u8; 512]) -> Self {
        Self::filled(bytes, |sector| Arc::new(bytes_of(sector)))
    }

    fn filled(bytes: u64, content: impl Fn(u64) -> Content) -> Self {
        assert!(bytes.is_multiple_of(SECTOR));
        let all: Vec<Content> = (0..bytes / SECTOR).map(content).collect();
        Self {
            durable: all.chunks(CHUNK).map(|chunk| Arc::new(chunk.to_vec())).collect(),
            sectors: all.len(),
            versions: BTreeMap::new(),
            next: 0,
            bad: BTreeSet::new(),
        }
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors as u64 * SECTOR
    }

    /// Adds zeroes behind the end, up to `bytes` in all, a multiple of 512.
    pub fn enlarge(&mut self, bytes: u64) {
        assert!(bytes.is_multiple_of(SECTOR) && bytes >= self.bytes());
        let zero: Content = Arc::new([0; LEN]);
        while self.bytes() < bytes {
            match self.durable.last_mut().filter(|chunk| chunk.len() < CHUNK) {
                Some(chunk) => Arc::make_mut(chunk).push(zero.clone()),
                None => self.durable.push(Arc::new(vec![zero.clone()])),
            }
            self.sectors += 1;
        }
    }

    /// What is durable from byte `at` on, whole sectors.
    pub fn read_durable(&self, at: u64, into: &mut [u8]) {
        for (index, chunk) in into.chunks_exact_mut(LEN).enumerate() {
            chunk.copy_from_slice(&self.durable((at / SECTOR) as usize + index)[..]);
        }
    }

    pub(super) fn durable(&self, sector: usize) -> &Content {
        &self.durable[sector / CHUNK][sector % CHUNK]
    }

    pub(super) fn set_durable(&mut self, sector: usize, content: Content) {
        Arc::make_mut(&mut self.durable[sector / CHUNK])[sector % CHUNK] = content;
    }

    pub(super) fn visible(&self, sector: usize) -> &Content {
        let newest = self.versions.get(&sector).and_then(|versions| versions.last());
        newest.map_or_else(|| self.durable(sector), |version| &version.content)
    }

    /// Whether some sectors cannot be read.
    pub fn has_bad_sectors(&self) -> bool {
        !self.bad.is_empty()
    }
}
