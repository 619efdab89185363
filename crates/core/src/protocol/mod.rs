//! A conversation on a byte stream, without the stream, one in whole messages, and one about queues in shared memory.

pub mod exchange;
pub mod session;
pub mod shared_memory;
