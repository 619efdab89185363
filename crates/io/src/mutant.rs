//! Deliberate defects of a whole program: each leaves out one system call, or what a command does.
//!
//! They are like those of [`spillway_core::mutant`], which the simulator runs. Only builds with this crate's feature `mutants` have them; in every
//! other build [`on`] is a constant `false`. The feature is this crate's own, so that such a build compiles it and the program anew, and no layer.

#[cfg(feature = "mutants")]
mod chosen {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<String> = OnceLock::new();

    /// Turns the mutant `name` on for this process. The first choice counts.
    pub fn choose(name: String) {
        CHOSEN.get_or_init(|| name);
    }

    /// Whether this process runs the mutant `name`.
    pub fn on(name: &str) -> bool {
        CHOSEN.get().is_some_and(|chosen| chosen == name)
    }
}

#[cfg(feature = "mutants")]
pub use chosen::{choose, on};

/// Whether this process runs the mutant `name`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}
