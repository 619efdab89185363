//! Pieces of the guest's memory in a row.

use super::memory::{GuestMemory, NotShared};
use super::ring::{GuestSegments, Segment};

/// Pieces beyond those that each request has room for.
pub(super) fn spare_of(segments: &GuestSegments) -> usize {
    if segments.spilled() { segments.len() } else { 0 }
}

/// Takes bytes from the front of pieces in a row, as many as there are.
pub(super) fn drop_front(segments: &mut GuestSegments, mut len: u64) {
    segments.retain(|segment| {
        let part = len.min(u64::from(segment.len));
        len -= part;
        segment.at = segment.at.wrapping_add(part);
        segment.len -= part as u32;
        segment.len > 0
    });
}

/// Copies what lies in pieces in a row. False where that is less than `to` has room for.
pub(super) fn copy_out(memory: &GuestMemory, segments: &[Segment], to: &mut [u8]) -> Result<bool, NotShared> {
    let mut done = 0;
    for segment in segments {
        let len = (to.len() - done).min(segment.len as usize);
        memory.read(segment.at, &mut to[done..done + len])?;
        done += len;
    }
    Ok(done == to.len())
}

/// Copies to pieces in a row from their byte `at` on.
pub(super) fn copy_in(
    memory: &GuestMemory,
    segments: &[Segment],
    mut at: u64,
    mut from: &[u8],
) -> Result<(), NotShared> {
    for segment in segments {
        let skipped = at.min(u64::from(segment.len));
        at -= skipped;
        let (part, rest) = from.split_at(from.len().min((u64::from(segment.len) - skipped) as usize));
        memory.write(segment.at.checked_add(skipped).ok_or(NotShared)?, part)?;
        from = rest;
    }
    Ok(())
}

/// Keeps the last byte of pieces in a row, which are not empty, and no other.
pub(super) fn keep_last_byte(segments: &mut GuestSegments) -> Result<(), NotShared> {
    let last = segments.iter().rfind(|segment| segment.len > 0).ok_or(NotShared)?;
    let at = last.at.checked_add(u64::from(last.len) - 1).ok_or(NotShared)?;
    *segments = GuestSegments::from_slice(&[Segment { at, len: 1 }]);
    Ok(())
}
