//! Origins and layers. A layer sees the world through `spillway_core` only: it can make no system call, so the code that
//! passes in simulation is the code that ships.

pub mod delay;
pub mod fault;
pub mod memory;
pub mod null;
pub mod rate;
pub mod stack;
pub mod trace;
pub mod zram;
