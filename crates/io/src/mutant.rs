//! Deliberate defects of a whole program: each leaves out one system call, what a command does, or a rule of an image's client.
//!
//! They are like those of [`spillway_core::mutant`], which the simulator runs in one thread of many. Only builds with this crate's feature
//! `mutants` have them. The feature is this crate's own, so that such a build compiles it and the program anew, and no layer.

#[cfg(feature = "mutants")]
static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Turns the mutant `name` on for this process. The first choice counts.
#[cfg(feature = "mutants")]
pub fn choose(name: String) {
    CHOSEN.get_or_init(|| name);
}

/// Whether this process runs the mutant `name`.
#[cfg(feature = "mutants")]
pub fn on(name: &str) -> bool {
    CHOSEN.get().is_some_and(|chosen| chosen == name)
}

/// Whether this process runs the mutant `name`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}
