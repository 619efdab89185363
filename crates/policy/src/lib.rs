//! Pure decisions: no I/O, no clock, no randomness, no state shared between threads. What is decided here is tested by
//! exhausting small worlds.
//!
//! | module | decides |
//! | --- | --- |
//! | [`size_classes`] | how objects of any length are packed into spans of pages |
//! | [`compaction`] | when moving objects is worth it, and which |
//! | [`free_runs`] | which free blocks of a cache a write takes, so that they follow each other |
#![forbid(unsafe_code)]

pub mod compaction;
pub mod free_runs;
pub mod size_classes;
