//! Where data and holes begin.

use spillway_core::{Aligned, ByteRange};

use super::answer::Found;

/// Extents looked at in one step.
const EXTENTS_MAX: usize = 64;

/// The first byte from `offset` on that is data, or that is not; the end of the device is a hole, and no data.
pub(super) async fn seek(device: Aligned, offset: u64, data: bool) -> Found {
    let size = device.geometry().size;
    let block = device.preferred_block();
    let mut at = block.cover(ByteRange::new(offset, 0)).offset;
    while at < size {
        for extent in device.extents(ByteRange::new(at, size - at), EXTENTS_MAX).await.map_err(Some)? {
            at += extent.len;
            if extent.zero != data && at > offset {
                return Ok((at - extent.len).max(offset));
            }
        }
    }
    if data { Err(None) } else { Ok(size) }
}
