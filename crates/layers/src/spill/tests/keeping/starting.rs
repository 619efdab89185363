//! What a start reads: it takes time for the segments of a file, not for the pages that the file keeps.

use std::collections::BTreeSet;

use spillway_core::{BlockDevice, ByteRange, Geometry, Op, Request, Submission};

use super::*;
use crate::spill::format::Layout;
use crate::spill::segments::streams::tail_bytes;

/// Segments of 256 KiB: summaries of short records take several units.
const SHIFT: u32 = 18;

/// A file that remembers what was read of it.
struct ReadLog {
    file: File,
    reads: Mutex<Vec<ByteRange>>,
}

impl BlockDevice for ReadLog {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        if request.op == Op::Read {
            self.reads.lock().push(request.range);
        }
        self.file.submit(request)
    }
}

fn large_segments(keep: Keep) -> Settings {
    Settings { segment_shift: SHIFT, ..keeping(keep) }
}

/// A file of so many segments that was stopped, half of it full of pages of `len` bytes; and the segments in which these lie.
fn filled(segments: u64, len: usize) -> (Medium, BTreeSet<u32>) {
    let medium = Medium::new((segments + 1) << SHIFT);
    let (house, _) = open(medium, &large_segments(Keep::IfThere), Plan::default(), 1).expect("it is blank");
    let (count, batch) = ((segments << SHIFT) as usize / 2 / len, (32 << 10) / len);
    for first in (0..count).step_by(batch) {
        let page = |slot: usize| (slot as u32, bytes(slot as u64, len));
        assert_eq!(house.spill((first..first + batch).map(page).collect()), (batch, Ok(())));
    }
    house.stop_whole().expect("the disk is sound");
    let named = house.slots.held.lock().values().map(|held| held.spilled.at.segment).collect();
    (house.cut(), named)
}

/// What a start reads of `medium`.
fn reads_of_start(medium: Medium) -> Vec<ByteRange> {
    let world = World::new(2);
    let disk = Arc::new(Disk::new(world.clone(), medium, BlockSize::PAGE, Plan::default(), 2));
    let log = Arc::new(ReadLog { file: File::new(disk, world.clone()), reads: Mutex::default() });
    let (env, device) = (world.clone(), log.clone());
    let start = async move {
        let (settings, budget) = (large_segments(Keep::Always), Budget::new(64 << 20));
        Store::open(device, &settings, env, &budget, &mut |_| Ok(())).await.map(drop)
    };
    run(&world, start).expect("it is kept");
    log.reads.lock().to_vec()
}

/// With 60 pages a segment or 800, and in a file twice as long: the end of each segment, of one that keeps pages its summary too, the superblocks
/// and the checkpoint; of no page anything.
#[test]
fn a_start_reads_the_ends_of_segments_and_no_page() {
    let tail = tail_bytes(&Layout { shift: SHIFT, segments: 1 }) as u64;
    for (segments, len) in [(12, 4096), (12, 300), (24, 4096), (24, 300)] {
        let (medium, named) = filled(segments, len);
        let reads = reads_of_start(medium);
        let most = segments as usize + 2 * named.len() + 8;
        assert!(named.len() as u64 >= segments / 2, "{} of {segments} keep pages", named.len());
        assert!(reads.len() <= most, "{} reads of {segments} segments, pages of {len} bytes", reads.len());
        for read in reads {
            // In front of the first segment are the superblocks.
            let segment = (read.offset >> SHIFT).checked_sub(1);
            let keeps_pages = segment.is_some_and(|segment| named.contains(&(segment as u32)));
            let is_end = (read.offset + read.len).is_multiple_of(1 << SHIFT) && read.len <= tail;
            assert!(is_end || !keeps_pages, "{read:?}, pages of {len} bytes");
        }
    }
}
