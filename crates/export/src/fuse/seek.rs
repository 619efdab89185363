//! Where data and holes begin.

use std::future::poll_fn;
use std::task::Poll;

use spillway_core::{Aligned, ByteRange, Kind, work};

use crate::covered::spend_for;

/// Extents looked at in one step.
const EXTENTS_MAX: usize = 64;

/// The first byte from `offset` on that is data, or that is not, if there is one; the end of the device is a hole, and no data. Others have
/// their turn as often as this one is spent.
pub(super) async fn seek(device: Aligned, offset: u64, data: bool) -> Result<Option<u64>, Kind> {
    let size = device.geometry().size;
    let block = device.preferred_block();
    let mut at = block.cover(ByteRange::new(offset, 0)).offset;
    while at < size {
        let before = at;
        for extent in device.extents(ByteRange::new(at, size - at), EXTENTS_MAX).await? {
            at += extent.len;
            if extent.zero != data && at > offset {
                return Ok(Some((at - extent.len).max(offset)));
            }
        }
        spend_for(at - before);
        give_way().await;
    }
    Ok((!data).then_some(size))
}

/// Leaves the rest for the next turn, where this one is spent.
async fn give_way() {
    let mut spent = work::spent();
    poll_fn(|context| {
        if std::mem::take(&mut spent) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}
