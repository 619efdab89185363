//! What a queue is made of, and what it shares with its conversation.

use std::sync::Arc;

use spillway_core::sync::{AtomicU32, Mutex};

use super::inflight::{Inflight, Unflushed};
use super::memory::GuestMemory;
use super::ring::RingLayout;
use crate::export::Export;

/// Bytes to charge for each queue besides buffers: its structures, its first pending requests, and the pieces that requests name.
pub const QUEUE_BYTES: u64 = 96 << 10;

/// What a queue and its conversation share.
pub(crate) struct SharedQueueState {
    pub(crate) memory: Mutex<Arc<GuestMemory>>,
    pub(crate) enabled: AtomicU32,
    /// The next request that is not taken, once the queue has stopped.
    pub(crate) base: AtomicU32,
}

/// What a queue is made of.
pub(crate) struct Parts {
    pub(crate) export: Arc<Export>,
    pub(crate) limits: TransferLimits,
    pub(crate) shared: Arc<SharedQueueState>,
    pub(crate) layout: RingLayout,
    pub(crate) event_index: bool,
    pub(crate) base: u16,
    pub(crate) inflight: Option<Inflight>,
    pub(crate) unflushed: Arc<Unflushed>,
    /// Whether writes are durable once they are answered: the driver does not flush.
    pub(crate) write_through: bool,
}

/// Limits of one queue.
#[derive(Clone, Copy, Debug)]
pub struct TransferLimits {
    /// Bytes of the longest read or write; a longer one is refused.
    pub payload_len_max: u32,
    /// Bytes of pending requests from which on no further one is taken.
    pub held_bytes_max: usize,
}
