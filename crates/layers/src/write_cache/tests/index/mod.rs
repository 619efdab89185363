//! Index, space and journal together, without I/O, against a plain model: every version that was written has a value, and whatever
//! happens, the newest one that was acknowledged is what is read.

mod world;

use std::cell::Cell;
use std::sync::Arc;

use crate::write_cache::index::block::{Blocks, CacheBlock, Epoch, OriginBlock};
use crate::write_cache::index::chains::Limit;
use crate::write_cache::index::victims::InRange;
use crate::write_cache::index::{Index, LOOKS};
use world::World;

#[test]
fn the_newest_version_is_read_whatever_happens() {
    for seed in 1..400 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
            world.check();
        }
    }
}

/// Versions that replaced each other while the oldest was being written back are stale together: two steps clear them.
#[test]
fn however_many_versions_of_a_block_are_stale_two_steps_clear_them() {
    let mut world = World::sized(1, 80, 16);
    world.write_now(5);
    let commit = |world: &mut World| (0..2).for_each(|_| world.commit());
    commit(&mut world);
    let committed = world.journal.committed();
    world.victims = world.index.take_next(0, 1, Limit::newest(committed), |_| false).victims;
    let held = std::mem::take(&mut world.victims);
    assert_eq!(held.len(), 1);
    for _ in 0..60 {
        world.write_now(5);
        commit(&mut world);
    }
    let visible = || world.journal.visible();
    world.index.end_write_back(&held, true, visible, |stale| world.journal.mark_stale(stale));
    world.below.insert(5, (world.entries[&held[0].block.0].1, 0));
    assert_eq!(world.journal.stale(), 60, "all but the newest");
    (0..2).for_each(|_| world.clear());
    assert_eq!(world.journal.stale(), 0);
    let limit = Limit::newest(world.journal.committed());
    world.victims = world.index.take_next(0, 1, limit, |_| false).victims;
    assert_eq!((world.victims.len(), world.index.held()), (1, 1));
}

/// A look of a lap ends after so many blocks, also where groups are large and nothing in them may leave.
#[test]
fn a_look_is_bounded_by_blocks() {
    const SMALL: u64 = 512;
    let (n_blocks, region) = (4 * LOOKS as u32, 2048);
    let blocks = Arc::new(Blocks::new(n_blocks));
    let index = Index::new(blocks, u64::from(n_blocks) * 32 * region, SMALL);
    for block in 0..n_blocks {
        index.recover(CacheBlock(block), OriginBlock(block), Epoch(0), false);
    }
    assert_eq!(index.end_recovery().map(|_| index.held()), Ok(n_blocks));
    let (mut from, mut ends) = (0, false);
    while !ends {
        let looks = Cell::new(0);
        let busy = |_| {
            looks.set(looks.get() + 1);
            true
        };
        let found = index.take_next(from, 10, Limit::newest(Epoch(1)), busy);
        assert!(looks.get() <= 2 * LOOKS && found.victims.is_empty(), "{} blocks", looks.get());
        (from, ends) = (found.next, found.at_end);
    }
    assert_eq!(from, u64::from(n_blocks));
}

/// Everything leaves in the end: nothing is forgotten in a chain, a mark or a count.
#[test]
fn everything_can_leave() {
    for seed in 1..400 {
        let mut world = World::new(seed);
        (0..300).for_each(|_| world.step());
        while !world.writes.is_empty() {
            world.end_write(0);
        }
        for round in 0..10_000 {
            assert!(round < 9_999, "seed {seed}: {} blocks stay", world.index.held());
            if world.index.held() == 0 && world.journal.stale() == 0 {
                break;
            }
            world.commit();
            world.take();
            let limit = Limit::newest(world.journal.committed());
            let found = world.index.take_next(0, 1000, limit, |_| false);
            world.victims.extend(found.victims);
            while !world.victims.is_empty() {
                let some = world.victims.len();
                world.end_victims();
                if some == world.victims.len() {
                    break;
                }
            }
            world.clear();
        }
        world.check();
        assert_eq!(world.index.verify() + world.space.count(), world.index.blocks_count());
    }
}

/// A zeroing of the block fails after the commit of a newer version has passed over the older one, and before it has ended.
#[test]
fn a_version_given_back_in_the_middle_of_a_commit_does_not_stay_below_the_newer_one() {
    let mut world = World::new(1);
    world.write_now(0);
    (0..2).for_each(|_| world.commit());
    let InRange::Taken(victims, _) = world.index.take_range(OriginBlock(0), 1, world.journal.committed())
    else {
        panic!("nothing is written back")
    };
    assert_eq!(victims.len(), 1);
    world.write_now(0);
    let sealed = world.journal.seal();
    world.journal.superblock_written(sealed.next());
    let stale = |block: CacheBlock| world.journal.mark_stale(block);
    while let Some(block) = world.journal.next_of(sealed, 0) {
        world.index.drop_replaced(block, sealed.next(), stale);
        world.journal.forget(sealed, block);
    }
    world.index.end_write_back(&victims, false, || world.journal.visible(), stale);
    world.journal.end_commit(sealed);
    let range = world.index.take_range(OriginBlock(0), 1, world.journal.committed());
    let InRange::Taken(victims, _) = range else { panic!("nothing is written back") };
    assert_eq!(victims.len(), 1, "the newer version may leave");
    assert_eq!(world.journal.stale(), 1, "the older one is stale");
}
