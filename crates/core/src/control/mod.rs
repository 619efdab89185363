//! The control plane: attributes, the numbers that people type, and counters.

pub mod attribute;
pub mod stats;
