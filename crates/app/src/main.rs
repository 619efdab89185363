//! The `spillway` binary.
#![forbid(unsafe_code)]
fn main() {}
