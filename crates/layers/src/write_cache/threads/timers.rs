//! Models for the checker of threads: a timer ends while something comes for which it is to run.

use std::time::Duration;

use spillway_core::models::{every_order, finds};
use spillway_core::sync::shuttle::future::{block_on, yield_now};
use spillway_core::sync::shuttle::thread;

use super::{House, Speed, flush, set, write};
use crate::write_cache::WriteCache;

/// Waits until the cache holds nothing.
fn until_empty(cache: &WriteCache) {
    block_on(async {
        loop {
            let seen = cache.core.changes.current();
            if cache.core.index.held() == 0 {
                return;
            }
            cache.core.changed_since(seen).await.expect("nothing fails");
        }
    });
}

/// The timer of commits ends beside a write for which it is to run.
#[test]
fn every_write_is_committed_in_time() {
    every_order(8000, || {
        let house = House::new(8);
        let cache = house.open(100);
        *house.cache.speed.lock() = Speed::AtOnce;
        write(&cache, 0, 1);
        flush(&cache);
        assert!(!cache.core.commit_timer.is_idle(), "the first write has set it");
        set(&cache, "autocommit_time", "0");
        let core = cache.core.clone();
        let timer = thread::spawn(move || core.commit_in_time(Duration::ZERO));
        write(&cache, 1, 1);
        assert_eq!(timer.join().expect("it ends"), None);
        let journal = &cache.core.journal;
        block_on(journal.committed.reached(journal.covering()));
        assert_eq!(journal.uncommitted(), 0);
    });
}

/// The timer of ages ends beside a commit for which it is to run.
#[test]
fn every_block_becomes_too_old() {
    every_order(8000, || {
        let house = House::new(8);
        let cache = house.open(0);
        set(&cache, "max_age", "1000");
        write(&cache, 0, 1);
        flush(&cache);
        until_empty(&cache);
        set(&cache, "high_watermark", "100");
        *house.cache.speed.lock() = Speed::AtOnce;
        assert!(!cache.core.age_timer.is_idle(), "the first commit has set it");
        let core = cache.core.clone();
        let timer = thread::spawn(move || core.age(Duration::ZERO));
        write(&cache, 1, 1);
        flush(&cache);
        timer.join().expect("it ends");
        while !cache.core.journal.work.is_idle() {
            block_on(yield_now());
        }
        assert_eq!(cache.core.index.held(), 1);
        assert!(!cache.core.age_timer.is_idle(), "nobody looks at its age");
    });
}

#[test]
fn the_checker_finds_a_look_before_the_timer_of_commits_ends() {
    finds(
        "write_cache: look for uncommitted blocks before the timer ends",
        "write_cache::threads::timers::every_write_is_committed_in_time",
    );
}

#[test]
fn the_checker_finds_a_look_before_the_timer_of_ages_ends() {
    finds(
        "write_cache: look for held blocks before the timer ends",
        "write_cache::threads::timers::every_block_becomes_too_old",
    );
}
