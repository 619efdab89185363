//! Rounds in which contenders take turns (`rounds`), until a signal ends them (`interrupt`); medians and how much they vary
//! (`statistics`), tables that judge (`table`) and pictures (`svg`, `flame`); and how a person or the report gets them (`results`).
//! `allocator` counts the memory of this program.
//!
//! It needs no contender.

pub(crate) mod allocator;
pub(crate) mod flame;
pub(crate) mod interrupt;
pub(crate) mod results;
pub(crate) mod rounds;
pub(crate) mod statistics;
pub(crate) mod svg;
pub(crate) mod table;
