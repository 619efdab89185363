//! A socket of generic netlink, for one family of commands: a question and its answer at a time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recvfrom, sendto, socket_with,
};

use super::message::{NetlinkAttributes, NetlinkReply, NetlinkRequest, answers};

/// The family that knows all others, its command that looks one up, and attributes of that.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The version of a family's commands that is asked for.
const VERSION: u8 = 1;

/// Longest datagram of the kernel that is taken: its own buffer for one has so many bytes.
const ANSWER_LEN_MAX: usize = 32 << 10;

/// The kernel answers while it is asked; this is for one that does not.
const PATIENCE: Duration = Duration::from_secs(10);

/// A socket of one family.
pub(super) struct Family {
    socket: OwnedFd,
    number: u16,
    sequence: u32,
}

impl Family {
    /// The family of that name. `ENOENT` where the kernel has none, as where its module is not loaded.
    pub(super) fn find(name: &str) -> io::Result<Self> {
        let protocol = Some(netlink::GENERIC);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        let mut family = Self { socket, number: CONTROL, sequence: 0 };
        let number = family.ask(
            GET_FAMILY,
            |request| request.text(FAMILY_NAME, name),
            |found| found.u16(FAMILY_ID),
        )?;
        let unnamed = || io::Error::other("the kernel does not say which number its family has");
        Ok(Self { number: number.ok_or_else(unnamed)?, ..family })
    }

    /// Has the kernel carry a command out; what `read` finds in its answer, before the kernel says that it has. The error is the kernel's.
    pub(super) fn ask<T>(
        &mut self,
        command: u8,
        write: impl FnOnce(NetlinkRequest) -> NetlinkRequest,
        read: impl Fn(NetlinkAttributes<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.sequence += 1;
        let request = write(NetlinkRequest::new(self.number, command, VERSION, self.sequence)).bytes();
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut found = None;
        loop {
            let bytes = self.receive()?;
            for answer in answers(&bytes, self.sequence) {
                match answer {
                    NetlinkReply::Content(attributes) => found = found.or_else(|| read(attributes)),
                    NetlinkReply::Outcome(Ok(())) => return Ok(found),
                    NetlinkReply::Outcome(Err(errno)) => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }

    /// The next datagram of the kernel: other programs may send some, too.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; ANSWER_LEN_MAX];
        loop {
            let (_, len, sender) = recvfrom(&self.socket, &mut bytes[..], RecvFlags::TRUNC)?;
            if len > bytes.len() {
                return Err(io::Error::other(format!("an answer of the kernel is too long ({len} bytes)")));
            }
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            if sender.is_some_and(|sender| sender.pid() == 0) {
                bytes.truncate(len);
                return Ok(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_for_its_families() {
        // Every kernel has the one that was asked.
        let control = Family::find("nlctrl").expect("generic netlink");
        assert_eq!(control.number, CONTROL);
        let missing = Family::find("spillway-none").err().expect("there is none");
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        let mut control = control;
        let refused = control.ask(0xff, |request| request, |_| Some(())).expect_err("no command");
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}
