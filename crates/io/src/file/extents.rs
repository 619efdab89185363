//! What a file holds: data and holes, by the file system's own account.

use std::os::fd::OwnedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use spillway_core::{ByteRange, Extent};

/// Consecutive extents from the start of `range`, at most `count_max`. A block that is data in part is data. Blocks.
pub(super) fn find(fd: &OwnedFd, range: ByteRange, block: u64, count_max: usize) -> Vec<Extent> {
    let mut found = Vec::new();
    let end = range.offset + range.len;
    let mut at = range.offset;
    while at < end {
        let extent = next(fd, at, end, block);
        assert!(0 < extent.len && extent.len <= end - at, "{} bytes from {at} on to {end}", extent.len);
        at += extent.len;
        let before = found.len();
        extent.append_to(&mut found);
        if before == count_max && found.len() > count_max {
            found.pop();
            break;
        }
    }
    found
}

/// The extent that begins at `at`, cut at `end`; never empty.
fn next(fd: &OwnedFd, at: u64, end: u64, block: u64) -> Extent {
    let data = match seek(fd, SeekFrom::Data(at)) {
        Ok(data) => data / block * block,
        Err(Errno::NXIO) => end,
        Err(_) => at,
    };
    if data > at {
        return Extent::hole(data.min(end) - at);
    }
    let hole = seek(fd, SeekFrom::Hole(at)).ok().and_then(|hole| hole.checked_next_multiple_of(block));
    match hole.filter(|&hole| hole > at) {
        Some(hole) => Extent::stored(hole.min(end) - at),
        None => Extent::stored(end - at),
    }
}
