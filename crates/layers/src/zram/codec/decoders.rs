//! Decompressors for codecs that need state.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use spillway_core::stats::lane;
use spillway_core::sync::Mutex;
use spillway_core::{Budget, Charge, Kind};

use crate::zram::codec::{CODECS, Decompressor};
use crate::zram::page::PAGE;
use crate::zram::work;

const LANES: usize = 16;

type Lane = Mutex<[Option<Box<dyn Decompressor>>; CODECS.len()]>;

/// Decompressors, one of each codec in use for each lane of threads, made when first needed and charged when their codec is chosen.
pub(crate) struct Decoders {
    lanes: Box<[CachePadded<Lane>]>,
    charge: Mutex<Option<Charge>>,
}

impl Default for Decoders {
    fn default() -> Self {
        Self { lanes: (0..LANES).map(|_| CachePadded::default()).collect(), charge: Mutex::new(None) }
    }
}

impl Decoders {
    /// What the decompressors of `codecs`, numbers in [`CODECS`], take of `budget`.
    pub(crate) fn charge(codecs: &[usize], budget: &Arc<Budget>) -> Result<Charge, Kind> {
        let in_use = |codec: &usize| codecs.contains(codec);
        let bytes: u64 = (0..CODECS.len()).filter(in_use).map(|codec| CODECS[codec].decompressor_bytes).sum();
        budget.hold(LANES as u64 * bytes)
    }

    /// From now on they are those that were charged so; others are dropped. No reader is at work.
    pub(crate) fn choose(&self, charge: Charge) {
        self.lanes.iter().for_each(|lane| *lane.lock() = Default::default());
        *self.charge.lock() = Some(charge);
    }

    /// Fills `page` from the object `bytes`, which the codec of that number has made.
    pub(crate) fn decompress(&self, codec: usize, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        assert!(page.len() == PAGE && bytes.len() <= PAGE, "{} bytes to {}", bytes.len(), page.len());
        let known = &CODECS[codec];
        work::note(known.decompress_units);
        spillway_core::work::spend(known.decompress_units);
        let first = lane() % LANES;
        let mut order = (first..LANES).chain(0..first);
        let free = order.find_map(|index| self.lanes[index].try_lock());
        let mut lane = free.unwrap_or_else(|| self.lanes[first].lock());
        lane[codec].get_or_insert_with(known.decompressor).decompress(bytes, page)
    }
}
