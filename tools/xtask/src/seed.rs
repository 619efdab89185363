//! The seed of a check: each commit is tried with one of its own, and any of them can be had again.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Names the seed to use in place of the commit's.
pub(crate) const SEED: &str = "SPILLWAY_SEED";

/// Where there is no commit to take it from.
const FIXED: u64 = 1;

/// The seed that the environment names, or else that of the commit. Says which, and how `errand` is run with it again.
pub(crate) fn of_this_run(root: &Path, errand: &str) -> Result<u64> {
    let named = std::env::var(SEED).ok();
    let (seed, whose) = choose(named.as_deref(), commit(root).as_deref())?;
    println!("seed {seed}, {whose}; again: {}", again(seed, errand));
    Ok(seed)
}

/// The line that runs `errand` with `seed`.
pub(crate) fn again(seed: u64, errand: &str) -> String {
    format!("{SEED}={seed} cargo xtask {errand}")
}

/// The hash of the commit that is checked out.
fn commit(root: &Path) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(["rev-parse", "HEAD"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A seed, and where it is from.
fn choose(named: Option<&str>, commit: Option<&str>) -> Result<(u64, String)> {
    if let Some(named) = named {
        let seed =
            named.parse().with_context(|| format!("{SEED}: not a seed ({named}); give a whole number"))?;
        return Ok((seed, format!("as {SEED} says")));
    }
    // 40 bits: short enough to be typed.
    let of_commit = |hash: &str| u64::from_str_radix(hash.get(..10)?, 16).ok();
    Ok(match commit.and_then(|hash| Some((of_commit(hash)?, hash))) {
        Some((seed, hash)) => (seed, format!("of commit {hash}")),
        None => (FIXED, "always this one, since git tells of no commit here".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_its_seed_and_the_environment_comes_first() {
        let hash = "00000000ff1234567890aaaaaaaaaaaaaaaaaaaa";
        let (seed, whose) = choose(None, Some(hash)).unwrap();
        assert_eq!((seed, whose.contains(hash)), (255, true));
        assert_eq!(choose(Some("7"), Some(hash)).unwrap().0, 7);
        let (seed, whose) = choose(None, None).unwrap();
        assert_eq!((seed, whose.contains("no commit")), (FIXED, true));
        assert!(choose(Some("x"), None).unwrap_err().to_string().contains("not a seed (x)"));
        assert_eq!(again(7, "test"), "SPILLWAY_SEED=7 cargo xtask test");
    }

    #[test]
    fn this_repository_has_a_commit() {
        let hash = commit(&crate::root()).expect("a hash");
        assert!(hash.len() >= 40 && choose(None, Some(&hash)).unwrap().0 != FIXED, "{hash}");
    }
}
