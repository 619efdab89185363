//! Bytes on their way to a server.

use std::sync::Arc;

use spillway_core::IoBuf;
use spillway_core::buffer::Shared;

/// Bytes to be sent, which others may hold as well.
#[derive(Clone)]
pub(super) struct Payload {
    pub(super) bytes: Arc<Shared>,
    /// First byte of it.
    pub(super) start: usize,
}

impl Payload {
    pub(super) fn view(&self, len: usize) -> IoBuf {
        self.bytes.view(self.start, len)
    }
}
