//! Rules on what code may do where: asserts, locks and time, deliberate defects, `unsafe`, `unwrap`.

pub(super) mod asserts;
pub(super) mod doors;
pub(super) mod mutants;
pub(super) mod unsafety;
pub(super) mod unwraps;
