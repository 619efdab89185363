//! Deliberate defects, to see that the tests bite.
//!
//! A mutant is a named place where the code does the wrong thing if [`on`] says so. Only builds with the feature `mutants`
//! have them; in every other build [`on`] is a constant `false` and nothing of them is left. The simulator lists and runs
//! them: `cargo xtask sim --mutants`.

#[cfg(feature = "mutants")]
mod chosen {
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<&'static str> = const { Cell::new("") };
    }

    /// Turns the mutant `name` on for this thread; an empty name turns all off.
    pub fn choose(name: &'static str) {
        CHOSEN.set(name);
    }

    /// Whether this thread runs the mutant `name`.
    pub fn on(name: &str) -> bool {
        CHOSEN.get() == name
    }
}

#[cfg(feature = "mutants")]
pub use chosen::{choose, on};

/// Whether this thread runs the mutant `name`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}
