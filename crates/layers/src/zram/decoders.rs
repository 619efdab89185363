//! Decompressors for codecs that need state.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use spillway_core::stats::lane;
use spillway_core::sync::Mutex;
use spillway_core::{Budget, Charge, Kind};

use super::codec::{CODECS, CodecIndex, Decompressor};
use super::page::PAGE;
use super::work;

const LANES: usize = 16;

type Lane = Mutex<Option<(CodecIndex, Box<dyn Decompressor>)>>;

/// Decompressors, one for each lane of threads, made when first needed and charged when their codec is chosen.
pub(super) struct Decoders {
    lanes: Box<[CachePadded<Lane>]>,
    charge: Mutex<Option<Charge>>,
}

impl Default for Decoders {
    fn default() -> Self {
        Self { lanes: (0..LANES).map(|_| CachePadded::default()).collect(), charge: Mutex::new(None) }
    }
}

impl Decoders {
    /// Charges the decompressors of `codec` to `budget` and drops those of another. No reader is at work.
    pub(super) fn choose(&self, codec: usize, budget: &Arc<Budget>) -> Result<(), Kind> {
        let charge = budget.hold(LANES as u64 * CODECS[codec].decompressor_bytes)?;
        self.lanes.iter().for_each(|lane| *lane.lock() = None);
        *self.charge.lock() = Some(charge);
        Ok(())
    }

    /// Fills `page` from the object `bytes`.
    pub(super) fn decompress(&self, codec: CodecIndex, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        assert!(page.len() == PAGE && bytes.len() <= PAGE, "{} bytes to {}", bytes.len(), page.len());
        let known = codec.codec();
        work::note(known.decompress_units);
        spillway_core::work::spend(known.decompress_units);
        let first = lane() % LANES;
        let mut order = (first..LANES).chain(0..first);
        let free = order.find_map(|index| self.lanes[index].try_lock());
        let mut lane = free.unwrap_or_else(|| self.lanes[first].lock());
        if lane.as_ref().is_none_or(|(last, _)| *last != codec) {
            *lane = Some((codec, (known.decompressor)()));
        }
        let (_, decompressor) = lane.as_mut().expect("made above");
        decompressor.decompress(bytes, page)
    }
}
