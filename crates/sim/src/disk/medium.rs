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
    /// It was made longer: how many sectors it had, and the number of the next version then. A power cut may undo that.
    lengthened: Option<(usize, u64)>,
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
            lengthened: None,
        }
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors as u64 * SECTOR
    }

    /// Adds zeroes behind the end, up to `bytes` in all, a multiple of 512. That is not durable before a sync, or a durable write.
    pub fn enlarge(&mut self, bytes: u64) {
        assert!(bytes.is_multiple_of(SECTOR) && bytes >= self.bytes());
        if bytes > self.bytes() {
            let durable = self.lengthened.map_or(self.sectors, |(sectors, _)| sectors);
            self.lengthened = Some((durable, self.next));
            self.next += 1;
        }
        let zero: Content = Arc::new([0; LEN]);
        while self.bytes() < bytes {
            match self.durable.last_mut().filter(|chunk| chunk.len() < CHUNK) {
                Some(chunk) => Arc::make_mut(chunk).push(zero.clone()),
                None => self.durable.push(Arc::new(vec![zero.clone()])),
            }
            self.sectors += 1;
        }
    }

    /// A sync of all that has a number below `covered` has succeeded: its length is durable if it was made longer before.
    pub(super) fn keep_length(&mut self, covered: u64) {
        self.lengthened = self.lengthened.filter(|(_, number)| *number >= covered);
    }

    /// It is as long as it was when its length was durable.
    pub(super) fn lose_length(&mut self) {
        let Some((sectors, _)) = self.lengthened.take() else { return };
        self.durable.truncate(sectors.div_ceil(CHUNK));
        if let Some(last) = self.durable.last_mut() {
            Arc::make_mut(last).truncate(sectors - (sectors - 1) / CHUNK * CHUNK);
        }
        self.sectors = sectors;
        self.bad.split_off(&sectors);
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
