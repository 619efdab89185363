//! Models for the checker of threads: a timer ends while something comes for which it is to run.

use std::sync::Arc;

use spillway_core::models::{Passing, every_order, finds};
use spillway_core::sync::shuttle::future::block_on;

use super::{House, Speed, flush, write};
use crate::write_cache::{Config, WriteCache};

/// A cache whose timers have begun, in a world in which time passes.
fn open(max_age: Option<u64>) -> Arc<WriteCache> {
    let house = House::new(8);
    let config = Config { high_watermark: 100, low_watermark: 100, max_age, ..Config::default() };
    let cache = house.open_in(config, Arc::new(Passing::default()));
    *house.cache.speed.lock() = Speed::AtOnce;
    write(&cache, 0, 1);
    cache
}

/// Waits until the cache holds nothing.
fn until_empty(cache: &WriteCache) {
    block_on(cache.core.changes.until(|| (cache.core.index.held() == 0).then_some(())));
}

/// The timer of commits ends beside a write for which it is to run.
#[test]
fn every_write_is_committed_in_time() {
    every_order(40_000, || {
        let cache = open(None);
        write(&cache, 1, 1);
        let journal = &cache.core.journal;
        block_on(journal.committed.reached(journal.covering()));
        assert_eq!(journal.uncommitted(), 0);
    });
}

/// The timer of ages ends beside a commit for which it is to run.
#[test]
fn every_block_becomes_too_old() {
    every_order(80_000, || {
        let cache = open(Some(1));
        flush(&cache);
        until_empty(&cache);
        write(&cache, 1, 1);
        flush(&cache);
        until_empty(&cache);
    });
}

#[test]
fn the_checker_finds_a_look_before_the_timer_of_commits_ends() {
    finds("timer: look before it ends", every_write_is_committed_in_time);
}

#[test]
fn the_checker_finds_a_look_before_the_timer_of_ages_ends() {
    finds("timer: look before it ends", every_block_becomes_too_old);
}
