//! The work of requests that carry no payload and may cover much, shared by the protocols.

use spillway_core::work;

/// Bytes that such a request covers in one unit of work.
const BYTES_COVERED: u64 = 64 << 10;

/// Counts the work of a request that covers so many bytes, a turn at most: what it really does beyond that its device counts.
pub(crate) fn spend_for(covered: u64) {
    work::spend((covered / BYTES_COVERED).min(u64::from(work::TURN)) as u32);
}
