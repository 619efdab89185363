//! What tasks run on: the driver, workers with a pool of their own each, timers, memory, and threads for calls that block.

pub(crate) mod driver;
pub(crate) mod env;
pub(crate) mod local;
pub mod memory;
pub(crate) mod thread;
pub(crate) mod workers;

pub(crate) mod blocking;
pub(crate) mod clock;
pub(crate) mod nodes;
pub(crate) mod number;
pub(crate) mod op;
pub(crate) mod pool;
pub(crate) mod turns;
pub(crate) mod waits;

mod idle_backoff;
