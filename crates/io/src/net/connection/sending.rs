//! Sending to a socket without waiting, a socket that is full, and the end of one.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use rustix::net::sockopt::socket_linger;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, connect_unspec, sendmsg, shutdown};
use spillway_core::LocalFuture;
use spillway_core::session::Output;

use crate::runtime::op::{Awaited, Readiness, receive_now};

/// Slices in one send: half of what the system allows.
const SLICES_MAX: usize = 512;

/// How long requests are left in their socket while replies do not fit in it. A peer that sends many before it reads gets on
/// after that.
const PATIENCE: Duration = Duration::from_millis(1);

/// Bytes thrown away at the end, so that closing does not reset a peer that still has output to read.
const DISCARD_MAX: usize = 1 << 20;

/// The peer does not take what there is for it.
pub(super) struct Full {
    writable: Awaited,
    /// [`PATIENCE`], while it lasts.
    patience: Option<LocalFuture<()>>,
}

impl Full {
    /// From now on `socket` is waited for, where memory is `short` after a pause.
    pub(super) fn new(socket: &Arc<OwnedFd>, short: bool) -> Self {
        let patience = Box::pin(compio::time::sleep(PATIENCE));
        let writable = if short { Awaited::after_pause } else { Awaited::new };
        Self { writable: writable(socket, Readiness::Writable), patience: Some(patience) }
    }

    /// Whether the socket has room again.
    pub(super) fn has_room(&mut self, context: &mut Context<'_>) -> bool {
        self.writable.holds(context)
    }

    /// Whether the peer is given time to take its replies before more is received from it.
    pub(super) fn is_patient(&mut self, context: &mut Context<'_>) -> bool {
        let lasts = self.patience.as_mut().is_some_and(|time| time.as_mut().poll(context).is_pending());
        if !lasts {
            self.patience = None;
        }
        lasts
    }
}

/// Lingering close: closing with unread bytes resets the connection, and the peer may lose replies: reads what is there first.
pub(super) fn linger(socket: &OwnedFd, buf: &mut [u8]) {
    let _ = shutdown(socket, Shutdown::Write);
    let mut discarded = 0;
    while discarded < DISCARD_MAX {
        match receive_now(socket, buf) {
            Ok(count) if count > 0 => discarded += count,
            _ => return,
        }
    }
}

/// Ends what is under way on the socket, which a receive in flight keeps open for a moment. One that is to be reset is, before its session
/// says that it is over.
pub(super) fn shut(socket: &OwnedFd) {
    if let Ok(Some(_)) = socket_linger(socket) {
        let _ = connect_unspec(socket);
    }
    let _ = shutdown(socket, Shutdown::Both);
}

thread_local! {
    static SLICES: Cell<Vec<IoSlice<'static>>> = const { Cell::new(Vec::new()) };
}

/// Sends the front of `output` without waiting.
pub(super) fn send_now(socket: &OwnedFd, output: &Output) -> io::Result<usize> {
    let mut slices: Vec<IoSlice<'_>> = SLICES.take();
    output.gather(&mut slices, SLICES_MAX);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let result = sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags);
    SLICES.set(emptied(slices));
    Ok(result?)
}

/// The same allocation, without its slices: collecting an empty vector in place keeps its memory.
fn emptied(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'static>> {
    slices.clear();
    slices.into_iter().map(|_| unreachable!("the vector was cleared")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_of_slices_is_used_again() {
        let bytes = [0; 8];
        let mut slices = Vec::with_capacity(64);
        slices.push(IoSlice::new(&bytes));
        let address = slices.as_ptr() as usize;
        let empty = emptied(slices);
        assert_eq!((empty.as_ptr() as usize, empty.len(), empty.capacity()), (address, 0, 64));
    }
}
