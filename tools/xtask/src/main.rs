//! Errands.
fn main() {}
