//! Mounting without the right to: `fusermount3` has it, and hands the descriptor over a socket.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use spillway_core::{Error, Kind};

use crate::runtime::driver::kind_of;

const PROGRAM: &str = "fusermount3";

/// Names the descriptor of the socket for the program.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts at `place`; what comes back is the mount's descriptor.
pub(super) fn mount(place: &Path, options: &str) -> Result<OwnedFd, Error> {
    let (ours, theirs) = UnixStream::pair().map_err(|why| failed(place, &why.to_string(), kind_of(&why)))?;
    let inherited = fcntl_setfd(&theirs, FdFlags::empty());
    inherited.map_err(|why| failed(place, &why.to_string(), Kind::of_errno(why.raw_os_error())))?;
    let mut command = Command::new(PROGRAM);
    command.env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string()).arg("-o").arg(options).arg("--").arg(place);
    let outcome = run(&mut command, place);
    drop(theirs);
    outcome?;
    receive(&ours).map_err(|why| failed(place, &why.to_string(), kind_of(&why)))
}

/// Unmounts `place`: now, or where `lazily`, out of sight now and for good once nobody uses it.
pub(super) fn unmount(place: &Path, lazily: bool) -> Result<(), Error> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if lazily {
        command.arg("-z");
    }
    run(command.arg("--").arg(place), place)
}

fn run(command: &mut Command, place: &Path) -> Result<(), Error> {
    let output =
        command.stdin(Stdio::null()).stdout(Stdio::null()).output().map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => {
                let text =
                    "fusermount3 is missing, and only root can mount without it: apt-get install fuse3";
                Error::new(Kind::NotSupported, text)
            }
            _ => failed(place, &format!("{PROGRAM} cannot be run: {why}"), kind_of(&why)),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let kind = if words.contains("busy") { Kind::Busy } else { Kind::Denied };
    Err(failed(place, words.trim(), kind))
}

fn failed(place: &Path, why: &str, kind: Kind) -> Error {
    Error::new(kind, format!("{}: {why}", place.display()))
}

/// Receives a descriptor.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::Error::other(format!("{PROGRAM} handed nothing over")))
}

/// Whether the program can be found.
pub(super) fn is_present() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(OsStr::new(&path)).any(|folder| folder.join(PROGRAM).is_file())
}
