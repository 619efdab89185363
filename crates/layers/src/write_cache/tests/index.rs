//! The index alone, between the steps of a commit.

use super::super::block::Victim;
use super::super::index::{InRange, Index, LOOKS};
use super::super::sweep::Next;

/// Writes block 0 and commits it up to the superblock; returns the seq_count that the device has then.
fn write_to_the_superblock(index: &mut Index) -> (Vec<u32>, u64) {
    let reserved = index.reserve(1).expect("there is room");
    index.publish(reserved, 0);
    let sealed = index.seal();
    let mut taken = Vec::new();
    let mut from = Some(0);
    while let Some(at) = from {
        from = index.take_fresh(sealed, at, &mut taken);
    }
    index.superblock_written(sealed + 1);
    (taken, sealed + 1)
}

/// A zeroing of the block fails after the commit of a newer version has passed over the older one, and before it has ended.
#[test]
fn a_version_given_back_in_the_middle_of_a_commit_does_not_stay_below_the_newer_one() {
    let mut index = Index::new(8);
    let (taken, seq_count) = write_to_the_superblock(&mut index);
    index.drop_replaced(&taken, seq_count);
    index.commit(seq_count);
    let InRange::Taken(victims, _) = index.take_range(0, 1, seq_count) else { panic!("nothing is copied") };
    assert_eq!(victims.len(), 1);
    let (taken, seq_count) = write_to_the_superblock(&mut index);
    index.drop_replaced(&taken, seq_count);
    index.end_write_back(&victims, false);
    index.commit(seq_count);
    let InRange::Taken(victims, _) = index.take_range(0, 1, seq_count) else { panic!("nothing is copied") };
    assert_eq!(victims.len(), 1, "the newer version may leave");
    assert_eq!(index.to_be_cleared(), 1, "the older one is stale");
}

/// Writes `count` blocks from `origin` on and commits them.
fn commit_blocks(index: &mut Index, origin: u32, count: u32) {
    let reserved = index.reserve(count).expect("there is room");
    index.publish(reserved, origin);
    let sealed = index.seal();
    let (mut taken, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        from = index.take_fresh(sealed, at, &mut taken);
    }
    index.superblock_written(sealed + 1);
    index.drop_replaced(&taken, sealed + 1);
    index.commit(sealed + 1);
}

/// What laps take until one of them finds nothing.
fn taken_in_laps(index: &mut Index, before: u64) -> Vec<Victim> {
    let mut taken = Vec::new();
    loop {
        match index.take_next(1, before) {
            Next::Victims(victims) => taken.extend(victims),
            Next::Later => {}
            Next::Nothing { .. } => return taken,
        }
    }
}

/// Ages rise while a lap is between two of its slices: what it has passed by then is of the higher age.
#[test]
fn a_limit_that_rises_in_the_middle_of_a_lap_leaves_nothing_behind() {
    let count = 3 * LOOKS as u32;
    let mut index = Index::new(2 * count);
    commit_blocks(&mut index, 0, 1);
    let young = index.epoch;
    commit_blocks(&mut index, 1, count);
    taken_in_laps(&mut index, 0);
    assert!(matches!(index.take_next(1, 0), Next::Later), "the first slice of a lap");
    assert!(index.sweep.at > 0);
    assert_eq!(taken_in_laps(&mut index, young).len(), 1);
}
