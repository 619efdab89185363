//! A deterministic world for layers: memory that runs out, a virtual clock and an executor on one thread.
#![forbid(unsafe_code)]

pub mod campaign;
pub mod disk;
pub mod memory;
pub mod model;
pub mod mutants;
pub mod payload;
pub mod preset;
pub mod room;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod stacks;
pub mod workload;
pub mod world;
