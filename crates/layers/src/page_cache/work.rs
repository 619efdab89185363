//! What steps of the cache cost, in units of a slice ([`crate::slice`]).

use spillway_core::work::BYTES_COPIED;

/// Units for a folio that is found, looked at or changed.
pub(super) const FOLIO: u32 = 2;

/// Units for a folio that is looked at for one that can leave.
pub(super) const LOOK: u32 = 2;

/// Units for a region, whatever it has.
pub(super) const REGION: u32 = 1;

/// Units for bytes that are copied.
#[inline(always)]
pub(super) fn copied(bytes: u64) -> u32 {
    (bytes / BYTES_COPIED as u64) as u32
}
