//! The buffers of an engine, for who sets their limit and looks at them.

use std::sync::Arc;

use super::pool::{self, BufferOwner, BufferPool};

/// All buffers of an engine, be that a server, a simulated world or a test: their limit, their count, who waits for one. Each thread
/// of the engine enters it at its start. Clones are handles to the same.
#[derive(Clone)]
pub struct Buffers(Arc<BufferOwner>);

/// Without a limit.
impl Default for Buffers {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl Buffers {
    /// Buffers, and [`Reserve`]s, of `limit` bytes together.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(BufferOwner::Pool(BufferPool::new(limit))))
    }

    /// Those of this thread: of the engine that it has entered, else some of its own without a limit.
    pub fn here() -> Self {
        Self(pool::current())
    }

    /// What this thread takes is counted here from now on. Its unused buffers are freed; those in use stay charged to the engine that
    /// they were taken of.
    pub fn enter(&self) {
        pool::enter(self.0.clone());
    }

    /// Bytes taken for buffers and by [`Reserve`]s now, buffers kept for reuse included.
    pub fn bytes_in_use(&self) -> u64 {
        self.0.pool().used()
    }

    /// Bytes of the buffers in use. Exact on the only thread of an engine.
    pub fn bytes_held(&self) -> u64 {
        self.0.pool().held()
    }

    /// Tasks that wait for memory now.
    pub fn waiting(&self) -> usize {
        self.0.pool().waiting()
    }
}

/// Bytes of the limit on buffers that something else than a buffer takes, given back on drop.
pub struct Reserve {
    bytes: u64,
    owner: Arc<BufferOwner>,
}

impl Reserve {
    /// Takes `bytes` of the limit of this thread's engine, or `None` where they are not left.
    pub fn try_new(bytes: u64) -> Option<Self> {
        let owner = pool::current();
        owner.pool().reserve(bytes, true).then(|| Self { bytes, owner })
    }

    /// Takes `bytes` whatever the limit is: for what is held already and changes hands.
    pub fn force(bytes: u64) -> Self {
        let owner = pool::current();
        owner.pool().reserve(bytes, false);
        Self { bytes, owner }
    }

    /// Bytes taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.owner.pool().release(self.bytes);
    }
}
