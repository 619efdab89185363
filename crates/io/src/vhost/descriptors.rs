//! Messages on a unix socket that carry descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use spillway_core::shared_memory::MessageResponse;
use spillway_core::{Phase, Shutdown};

use crate::runtime::op::{Awaited, Readiness, shortage_passes};
use crate::runtime::waits::is_shortage;

/// Descriptors that one message carries at most.
const DESCRIPTORS_MAX: usize = 8;

/// The other side is gone, or the server stops.
pub(super) struct Gone;

/// A socket, and what ends the wait for it.
pub(super) struct Wire {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) shutdown: Arc<Shutdown>,
}

impl Wire {
    /// Waits for an event, unless the server stops.
    async fn ready(&self, event: Readiness) -> Result<(), Gone> {
        let awaited = Awaited::new(&self.socket, event);
        self.shutdown.unless(Phase::Draining, awaited).await.ok_or(Gone)
    }

    /// What to do after a call that failed so.
    async fn after(&self, errno: Errno, event: Readiness) -> Result<(), Gone> {
        match errno {
            Errno::INTR => Ok(()),
            Errno::AGAIN => self.ready(event).await,
            errno if is_shortage(&errno.into()) => {
                shortage_passes().await;
                Ok(())
            }
            _ => Err(Gone),
        }
    }

    /// Fills `bytes`, and takes the descriptors that come with them.
    pub(super) async fn receive(
        &self,
        mut bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(), Gone> {
        while !bytes.is_empty() {
            match receive_now(&self.socket, bytes, descriptors) {
                Ok(0) => return Err(Gone),
                Ok(len) => bytes = &mut bytes[len..],
                Err(errno) => self.after(errno, Readiness::Readable).await?,
            }
        }
        Ok(())
    }

    /// Sends a message whole.
    pub(super) async fn send(
        &self,
        MessageResponse { bytes, mut descriptor }: MessageResponse,
    ) -> Result<(), Gone> {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match send_now(&self.socket, rest, descriptor.as_ref()) {
                Ok(len) => {
                    rest = &rest[len..];
                    descriptor = None;
                }
                Err(errno) => self.after(errno, Readiness::Writable).await?,
            }
        }
        Ok(())
    }
}

fn receive_now(
    socket: &OwnedFd,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            descriptors.extend(given.take(DESCRIPTORS_MAX.saturating_sub(descriptors.len())));
        }
    }
    Ok(got.bytes)
}

/// Sends without waiting what the socket takes.
pub(super) fn send_now(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptor: Option<&OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let given = descriptor.map(|descriptor| [descriptor.as_fd()]);
    if let Some(given) = &given {
        let fits = control.push(SendAncillaryMessage::ScmRights(given));
        assert!(fits, "there is room for one descriptor");
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}
