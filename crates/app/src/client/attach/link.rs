//! A connection to the server of a device for the kernel's NBD client: made and negotiated here, passed on after the handshake.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use spillway_export::control::DeviceRow;
use spillway_io::nbd_device::{Transmitting, is_supported};
use spillway_io::{ServerAddress, connect_within};

use super::row::no_size;
use crate::address::Address;
use crate::client::connection::{CONNECT_PATIENCE, QUESTION_PATIENCE, expect_server_of};
use crate::client::nbd::Nbd;
use crate::runtime_folder::RuntimeFolder;

/// See the head of this file.
pub(super) struct KernelLink {
    socket: UnixStream,
    size: u64,
    flags: u16,
}

/// The address of a device for the kernel; what is missing, and the remedy, where the kernel cannot use one.
pub(super) fn uri_of(row: &DeviceRow) -> Result<String> {
    if row.disksize == 0 {
        bail!(no_size(row));
    }
    let uri = row.exports.iter().find(|export| export.starts_with("nbd+unix:"));
    let uri = uri
        .context("the kernel needs a unix socket without TLS: start the server without --listen and --tls")?;
    is_supported().context("the kernel has no NBD client here: modprobe nbd")?;
    Ok(uri.clone())
}

impl KernelLink {
    /// Connects to a server of the folder's user, and to no other, and chooses an export.
    pub(super) fn open(folder: &RuntimeFolder, uri: &str) -> Result<Self> {
        let (address, export) = Address::parse(uri)?;
        let ServerAddress::Unix(path) = address.place else { bail!("{uri}: no unix socket") };
        let socket = connect_within(&path, CONNECT_PATIENCE)
            .with_context(|| format!("cannot connect to {}", path.display()))?;
        expect_server_of(folder, &socket, &path)?;
        socket.set_read_timeout(Some(QUESTION_PATIENCE))?;
        let (size, flags) = Nbd::negotiate(&socket, &export).context("the device cannot be used")?;
        // In the kernel it would end the connection.
        socket.set_read_timeout(None)?;
        Ok(Self { socket, size, flags })
    }

    /// The same, for the kernel, which waits so long for another one, or as long as before.
    pub(super) fn transmitting(&self, timeout: Option<Duration>) -> Transmitting<'_> {
        Transmitting { socket: self.socket.as_fd(), size: self.size, flags: self.flags, timeout }
    }
}
