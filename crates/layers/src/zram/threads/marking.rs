//! Walks that change the marks of slots beside those who hold the locks of these.

use super::*;
use crate::zram::slots::mark::Mark;

fn mark(zram: &Zram, age: u32, now: u32) {
    zram.core.table.mark_idle(0..4, age, now);
}

/// What is known of slot 0.
fn known(zram: &Zram) -> Option<Mark> {
    let mut known = None;
    zram.core.table.marks(0..1, |_, mark| known = Some(mark));
    known
}

/// A page is marked and swept while it is moved, overwritten and read: nobody's change is lost, and the last access counts.
#[test]
fn a_mark_changes_beside_whoever_holds_its_slot() {
    every_order(2000, || {
        let budget = Budget::new(64 << 20);
        let zram = zram(&budget);
        write(&zram, 0, &page(0));
        let walk = |walk: fn(&Zram)| {
            let zram = zram.clone();
            thread::spawn(move || walk(&zram))
        };
        let walks = [
            walk(|zram| mark(zram, 0, 0)),
            walk(|zram| _ = zram.core.table.sweep(0..4, 0, false, |_, _| true)),
            walk(|zram| pick(zram, true)),
        ];
        write(&zram, 0, &page(1));
        read(&zram, 0, &page(1));
        walks.into_iter().for_each(|thread| thread.join().expect("it ends"));
        read(&zram, 0, &page(1));
        let known_last = known(&zram).expect("it holds a page");
        assert!(!known_last.is_idle() && known_last.is_referenced() && !known_last.is_picked());
        mark(&zram, 0, 0);
        assert!(known(&zram).is_some_and(Mark::is_idle));
        zram.verify();
        discard(&zram, 0);
        mark(&zram, 0, 0);
        assert!(known(&zram).is_none());
        zram.verify();
        drop(zram);
        assert_eq!(budget.used(), 0);
    });
}

#[test]
fn the_checker_finds_a_mark_that_is_changed_under_its_holder() {
    finds("word locks: change what is locked", a_mark_changes_beside_whoever_holds_its_slot);
}
