//! How compressed pages are packed, moved and spilled.

pub mod allowance;
pub mod compaction;
pub mod size_classes;
pub mod spill;
