//! Small origins (`memory`, `null`) and layers, mostly for tests and measurements. The head of each says what it promises.

pub mod delay;
pub mod fault;
pub mod memory;
pub mod null;
pub mod rate;
pub mod trace;
pub mod volatile;
