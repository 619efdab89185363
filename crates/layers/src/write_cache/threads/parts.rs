//! Models for the checker of threads: index and journal alone, in the moments in which write-back, writers and the committer meet.

use std::sync::Arc;

use spillway_core::ByteRange;
use spillway_core::models::{every_order, finds};
use spillway_core::sync::shuttle::thread;
use spillway_core::sync::{AtomicBool, Ordering};
use spillway_policy::free_runs::Run;

use crate::write_cache::device::bypassed::Bypass;
use crate::write_cache::device::journal::Journal;
use crate::write_cache::index::Index;
use crate::write_cache::index::block::{Blocks, CacheBlock, Epoch, OriginBlock, Stage};
use crate::write_cache::index::chains::Limit;

const X: OriginBlock = OriginBlock(0);

fn publish(index: &Index, journal: &Journal, block: u32) {
    let epoch = journal.enter();
    let (run, free) =
        (Run { start: block, len: 1 }, |_| unreachable!("nothing is replaced within its epoch"));
    index.publish(&[run], epoch, X, journal.committed(), free, |block| journal.note(epoch, block));
    journal.leave(epoch);
}

/// All of a commit but its beginning.
fn complete(index: &Index, journal: &Journal, sealed: Epoch, block: u32) {
    journal.superblock_written(sealed.next());
    index.drop_replaced(CacheBlock(block), sealed.next(), |stale| journal.mark_stale(stale));
    journal.forget(sealed, CacheBlock(block));
    journal.end_commit(sealed);
}

/// A version is written back while the one that replaced it is replaced in a commit.
#[test]
fn what_a_commit_replaces_beside_write_back_is_stale() {
    every_order(4000, || {
        let index = Arc::new(Index::new(Arc::new(Blocks::new(3)), 8, 4096));
        let journal = Arc::new(Journal::new(3, Epoch(1)));
        publish(&index, &journal, 0);
        complete(&index, &journal, journal.seal(), 0);
        let victims = index.take_next(0, 1, Limit::newest(journal.committed()), |_| false).victims;
        assert_eq!(victims.len(), 1);
        publish(&index, &journal, 1);
        complete(&index, &journal, journal.seal(), 1);
        publish(&index, &journal, 2);
        let sealed = journal.seal();
        let committer = {
            let (index, journal) = (index.clone(), journal.clone());
            thread::spawn(move || complete(&index, &journal, sealed, 2))
        };
        index.end_write_back(&victims, true, || journal.visible(), |stale| journal.mark_stale(stale));
        committer.join().expect("it ends");
        let stages = [0, 1, 2].map(|block| index.stage(CacheBlock(block)));
        assert_eq!(stages, [Stage::Stale, Stage::Stale, Stage::Live]);
        assert_eq!(journal.stale(), 2);
    });
}

/// A crash keeps any of what is cleared together: of two versions the older is cleared before the one that hides it.
#[test]
fn what_hides_an_older_version_is_not_cleared_with_it() {
    every_order(2, || {
        let index = Index::new(Arc::new(Blocks::new(2)), 8, 4096);
        let journal = Journal::new(2, Epoch(1));
        for block in [0, 1] {
            publish(&index, &journal, block);
            complete(&index, &journal, journal.seal(), block);
        }
        let victims = index.take_next(0, 1, Limit::newest(journal.committed()), |_| false).victims;
        index.end_write_back(&victims, true, || journal.visible(), |stale| journal.mark_stale(stale));
        let begins = |block| index.begin_clear(CacheBlock(block), journal.committed());
        assert_eq!(journal.stale(), 2);
        assert!(!begins(1) && begins(0) && !begins(1), "both are cleared together");
        assert_eq!(index.end_clear(CacheBlock(0), |_| ()), 1);
        assert!(begins(1), "nothing older has an entry");
    });
}

#[test]
fn the_checker_finds_two_versions_that_are_cleared_together() {
    finds("write_cache: clear all versions at once", what_hides_an_older_version_is_not_cleared_with_it);
}

fn clear_some(journal: &Journal, clear: &[AtomicBool]) {
    let generation = journal.generation_to_clear();
    while let Some(block) = journal.next_stale(generation, 0) {
        clear[block.0 as usize].store(true, Ordering::SeqCst);
        journal.begin_clear(generation, block);
        journal.end_clear(generation, 1);
    }
}

/// What is stale before it is asked that everything be clear is clear once that is so.
#[test]
fn nothing_is_clear_before_its_generation_is() {
    every_order(8000, || {
        let journal = Arc::new(Journal::new(2, Epoch(1)));
        let clear: Arc<[AtomicBool]> = [(); 2].map(|()| AtomicBool::new(false)).into();
        let marker = |block: usize| {
            let (journal, clear) = (journal.clone(), clear.clone());
            thread::spawn(move || {
                journal.mark_stale(CacheBlock(block as u32));
                let all = journal.clearing_all();
                let over = journal.cleared.current() >= all;
                assert!(!over || clear[block].load(Ordering::SeqCst), "generation {all} is not clear");
                all
            })
        };
        let markers = [marker(0), marker(1)];
        (0..3).for_each(|_| clear_some(&journal, &clear));
        let asked = markers.map(|marker| marker.join().expect("it ends"));
        (0..3).for_each(|_| clear_some(&journal, &clear));
        assert_eq!(journal.stale(), 0);
        assert!(asked.iter().all(|&all| journal.cleared.current() >= all), "who waits is answered");
    });
}

/// A block is written back before what bypasses the cache holds its range, or after that has let go of it.
#[test]
fn what_is_being_bypassed_is_not_written_back() {
    every_order(4000, || {
        let (bypass, at_work) = (Arc::new(Bypass::after_another_server()), Arc::new(AtomicBool::new(false)));
        let direct = {
            let (bypass, at_work) = (bypass.clone(), at_work.clone());
            thread::spawn(move || {
                let range = bypass.ranges.hold(ByteRange::new(X.0.into(), 1));
                at_work.store(true, Ordering::SeqCst);
                at_work.store(false, Ordering::SeqCst);
                drop(range);
            })
        };
        let began = at_work.load(Ordering::SeqCst);
        let busy = bypass.is_busy(X);
        assert!(busy || !began || !at_work.load(Ordering::SeqCst), "both are at work");
        direct.join().expect("it ends");
        assert!(!bypass.is_busy(X));
    });
}

#[test]
fn the_checker_finds_write_back_beside_what_bypasses() {
    finds("write_cache: write back what is being bypassed", what_is_being_bypassed_is_not_written_back);
}

/// Write-back passes over a range that is being let go: the one who lets go of it knows.
#[test]
fn who_lets_go_of_a_range_knows_that_it_was_passed_over() {
    every_order(4000, || {
        let bypass = Arc::new(Bypass::after_another_server());
        let range = bypass.ranges.hold(ByteRange::new(X.0.into(), 1));
        let writer = {
            let bypass = bypass.clone();
            thread::spawn(move || {
                drop(range);
                bypass.was_passed_over()
            })
        };
        let passed_over = bypass.is_busy(X);
        let knows = writer.join().expect("it ends");
        assert!(knows || !passed_over, "nobody has it written back");
    });
}

#[test]
fn the_checker_finds_a_range_that_is_passed_over_after_it_was_let_go() {
    finds(
        "write_cache: pass over a range that was let go before the note",
        who_lets_go_of_a_range_knows_that_it_was_passed_over,
    );
}

#[test]
fn the_checker_finds_an_early_look_at_the_superblock() {
    finds(
        "write_cache: ask what is visible before the lock",
        what_a_commit_replaces_beside_write_back_is_stale,
    );
}

#[test]
fn the_checker_finds_a_mark_in_a_generation_that_is_clear() {
    finds(
        "write_cache: mark a block in a generation that may be clear",
        nothing_is_clear_before_its_generation_is,
    );
}
