//! The index alone, between the steps of a commit.

use super::super::index::{InRange, Index};

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
