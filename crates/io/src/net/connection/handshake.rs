//! A connection until its session is established: its place may be wanted for another.

use std::task::Context;
use std::time::Duration;

use spillway_core::LocalFuture;

use crate::net::control::{Admission, Control};
use crate::runtime::clock::Clock;

/// How long a connection that is asked to give way looks for what has come: until its worker has asked the driver once more.
const LOOK: Duration = Duration::from_millis(1);

pub(super) struct Handshake {
    complete: bool,
    /// When something was received from the peer, or sent to it, until the handshake is complete.
    served: Duration,
    /// [`LOOK`], since it was asked to give way.
    look: Option<LocalFuture<()>>,
    admission: Box<dyn Admission>,
}

impl Handshake {
    pub(super) fn new(admission: Box<dyn Admission>, clock: &Clock) -> Self {
        Self { complete: false, served: clock.now(), look: None, admission }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// The session is established.
    pub(super) fn complete(&mut self) {
        assert!(!self.complete, "a handshake ends that has ended before");
        self.complete = true;
        self.admission.establish();
    }

    /// Something was received or sent.
    pub(super) fn progress(&mut self, clock: &Clock) {
        if !self.complete {
            self.served = clock.now();
        }
    }

    /// Whether it gives way, once it is asked and has looked for what has come meanwhile.
    pub(super) fn gives_way(&mut self, control: &Control, clock: &Clock, context: &mut Context<'_>) -> bool {
        if self.complete || !control.is_asked() {
            return false;
        }
        let look = self.look.get_or_insert_with(|| Box::pin(compio::time::sleep(LOOK)));
        if look.as_mut().poll(context).is_pending() {
            return false;
        }
        self.look = None;
        control.hear();
        self.admission.gives_way(clock.now().saturating_sub(self.served))
    }
}
