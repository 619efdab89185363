//! A deterministic world for layers: memory that runs out, a virtual clock and an executor on one thread.
#![forbid(unsafe_code)]

pub mod disk;
pub mod image;
pub mod memory;
pub mod model;
pub mod mount;
pub mod pace;
pub mod payload;
pub mod rings;
pub mod stream;
pub mod workload;
pub mod world;
