//! Blocks that may be unsaved, and what is charged for that: each of them may be the only one of its region, which then has its place among the
//! dirty regions.

use std::sync::Arc;

use spillway_core::size::human;
use spillway_core::sync::Mutex;
use spillway_core::{Budget, Charge};
use spillway_policy::dirty_regions::DirtyRegions;

/// Blocks that may be unsaved at `percent` of so many units, where that is no less than [`unsaved_min`].
pub(crate) fn unsaved_blocks(units: u64, unit_blocks: u32, percent: u64) -> u64 {
    units * u64::from(unit_blocks) * percent / 100
}

/// Blocks that may be unsaved whatever the limit: those of two folios.
pub(crate) fn unsaved_min(folio_blocks: u32) -> u64 {
    2 * u64::from(folio_blocks)
}

/// What the cache has charged, and for how many dirty regions.
pub(crate) struct Dirtiable {
    budget: Arc<Budget>,
    charged: Mutex<Charged>,
}

struct Charged {
    regions: u64,
    /// When it was opened, and each time that more regions may be dirty than ever before.
    charges: Vec<Charge>,
}

impl Dirtiable {
    /// All of the cache is charged, with so many dirty regions.
    pub(crate) fn new(budget: Arc<Budget>, regions: u64, charge: Charge) -> Self {
        Self { budget, charged: Mutex::new(Charged { regions, charges: vec![charge] }) }
    }

    /// Charges what so many dirty regions take; for how many there is a charge afterwards. It is kept, as the limit may be raised again.
    pub(crate) fn charge(&self, regions: u64) -> u64 {
        let mut charged = self.charged.lock();
        if regions > charged.regions {
            let bytes = (regions - charged.regions) * DirtyRegions::BYTES_A_REGION;
            match self.budget.hold(bytes) {
                Ok(charge) => {
                    charged.regions = regions;
                    charged.charges.push(charge);
                }
                Err(_) => tracing::warn!(
                    "page cache: dirty_ratio needs {} more of the memory budget, of which {} are left: less may be dirty",
                    human(bytes),
                    human(self.budget.room())
                ),
            }
        }
        charged.regions
    }
}
