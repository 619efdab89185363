//! Noticing that a peer has gone while nothing is received from it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Context;

use crate::runtime::op::{Awaited, Readiness};
use crate::runtime::turns::is_polling;

/// Waits for a hang-up from the first look on, where the driver can.
pub(super) struct Watch {
    polling_driver: bool,
    hung_up: Option<Awaited>,
}

impl Watch {
    /// On the thread that serves the connection.
    pub(super) fn new() -> Self {
        Self { polling_driver: is_polling(), hung_up: None }
    }

    /// Whether the peer of `socket` has gone. Where not, it wakes the task.
    pub(super) fn sees_hang_up(&mut self, socket: &Arc<OwnedFd>, context: &mut Context<'_>) -> bool {
        if self.polling_driver {
            return false;
        }
        self.hung_up.get_or_insert_with(|| Awaited::new(socket, Readiness::HangUp)).holds(context)
    }
}
