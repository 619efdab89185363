//! Whether a device that is about to be used for something holds nothing: read at both ends, where everything that is known has its
//! signature.

use std::ops::Range;

use spillway_core::{Kind, Request, Seam, Workspace};

use crate::signatures::{Scan, WINDOW};

/// Bytes that are read at once.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;

/// The two ends of a device of `size` bytes, in whole blocks of `block` bytes.
pub(crate) fn ends(size: u64, block: u64) -> [Range<u64>; 2] {
    let head = 0..WINDOW.min(size);
    let tail = (size.saturating_sub(WINDOW) / block * block).max(head.end)..size;
    [head, tail]
}

/// Has `scan` look at a range of whole blocks.
pub(crate) async fn look(
    device: &Seam,
    buffers: &Workspace,
    scan: &mut Scan,
    range: Range<u64>,
) -> Result<(), Kind> {
    let mut at = range.start;
    while at < range.end {
        let len = PIECE_BYTES.min(range.end - at);
        let reply = device.submit(Request::read(at, buffers.take(len as usize).await)).await;
        reply.result?;
        scan.take(at, &reply.buf);
        at += len;
    }
    Ok(())
}
