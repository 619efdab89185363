//! The memory promise, and the buffers that are charged to it.

pub mod budget;
pub mod buffer;
pub mod reclaim;
pub mod relief;
