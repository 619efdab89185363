//! Locks and time come through one door each: core's `sync`, and `Env`.

use crate::tidy::finding::Finding;
use crate::tidy::tokens::Path;
use crate::tidy::tree::Tree;

/// The module that hands out locks, and its part that counts them.
const LOCK_DOOR: &[&str] =
    &["crates/core/src/sync/primitives/mod.rs", "crates/core/src/sync/primitives/counted.rs"];

/// Crates that run in the simulator, where time is simulated.
const TIMELESS: &[&str] = &["crates/core/", "crates/policy/", "crates/layers/", "crates/sim/"];

/// Rule: only one module names locks of the standard library or another crate.
pub(crate) fn locks(tree: &Tree) -> Vec<Finding> {
    let message = |path: &Path| format!("`{}`: take locks from spillway_core::sync", path.shown());
    let sources = tree.sources_in(&["crates/"]).filter(|source| !LOCK_DOOR.contains(&source.path.as_str()));
    let found = |path: &&Path| is_lock(path);
    sources
        .flat_map(|source| source.paths.iter().filter(found).map(move |path| (source, path)))
        .map(|(source, path)| Finding::new("lock", &source.path, path.line, message(path)))
        .collect()
}

/// A path that names a lock, or brings in the whole module of them.
fn is_lock(path: &Path) -> bool {
    let names = ["Mutex", "RwLock", "Condvar", "*", "self"];
    let of_std = path.starts_with("std::sync");
    let whole = of_std && path.parts.len() == 2;
    path.starts_with("parking_lot") || whole || of_std && names.iter().any(|name| path.parts[2] == *name)
}

/// Rule: what runs in the simulator never asks the real clock and never sleeps on it.
pub(crate) fn time(tree: &Tree) -> Vec<Finding> {
    let message = |path: &Path| format!("`{}`: time comes from Env", path.shown());
    tree.sources_in(TIMELESS)
        .flat_map(|source| source.paths.iter().filter(|path| is_clock(path)).map(move |path| (source, path)))
        .map(|(source, path)| Finding::new("time", &source.path, path.line, message(path)))
        .collect()
}

fn is_clock(path: &Path) -> bool {
    let of_time = path.starts_with("std::time") && (path.ends_with("Instant") || path.ends_with("*"));
    let named = path.parts.iter().any(|part| part == "SystemTime");
    of_time || named || path.ends_with("thread::sleep") || path.ends_with("Instant::now")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: &str = "crates/layers/src/a.rs";

    fn count(rule: crate::tidy::Rule, path: &str, text: &str) -> usize {
        rule(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn every_way_to_name_a_lock_is_found() {
        let ways = [
            "use std::sync::Mutex;",
            "use std::sync::{Arc, RwLock as L};",
            "use std::{fmt, sync::{Condvar, Arc}};",
            "use std::sync::*;",
            "use std::sync;",
            "use std::sync::{self, Arc};",
            "fn a() { m!(std::sync::Mutex::new(1)) }",
            "use parking_lot::Mutex;",
            "type A = parking_lot::RwLock<u8>;",
        ];
        for way in ways {
            assert_eq!(count(locks, LAYER, way), 1, "{way}");
            assert_eq!(count(locks, LOCK_DOOR[0], way), 0, "{way}");
        }
    }

    #[test]
    fn the_door_and_other_parts_of_sync_are_free() {
        for text in [
            "use std::sync::{Arc, OnceLock};",
            "use spillway_core::sync::Mutex;",
            "use std::sync::atomic::*;",
        ] {
            assert_eq!(count(locks, LAYER, text), 0, "{text}");
        }
    }

    #[test]
    fn every_way_to_real_time_is_found() {
        let ways = [
            "fn a() { std::thread::sleep(d) }",
            "use std::thread::{self, sleep};",
            "fn a() { thread::sleep(d) }",
            "fn a() { Instant::now(); }",
            "use std::time::{Duration, Instant};",
            "use std::time::SystemTime;",
            "fn a() { time::SystemTime::now(); }",
        ];
        for way in ways {
            assert_eq!(count(time, LAYER, way), 1, "{way}");
            assert_eq!(count(time, "crates/io/src/a.rs", way), 0, "{way}");
        }
        assert_eq!(count(time, LAYER, "use std::time::Duration;\nfn a() { env.sleep(d); env.now() }"), 0);
    }
}
