//! Devices that are being built: those of a server's plan, and those that are added while it runs.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::{Aligned, Charge, Env, Error, Kind};
use spillway_export::control::added_name;
use spillway_export::{Export, Exports};
use spillway_io::nbd_device::NbdDevice;
use spillway_io::{Listener, on_blocking_thread};
use spillway_layers::stack::Stack;

use crate::address::Address;
use crate::cli::naming::Naming;
use crate::cli::place::file_below;
use crate::cli::plan::DevicePlan;
use crate::runtime_folder::RuntimeFolder;
use crate::server::device::{ChangeLock, Device, Guest};
use crate::server::listening;
use crate::system::service::reported;

pub(super) mod opening;
mod remote;

use opening::StackOpener;

/// Connections to the NBD socket of a device that is added; the others have what the server keeps for connections.
pub(crate) const ADDED_CONNECTIONS_MAX: usize = 16;

/// Numbers that are tried for a device.
const NUMBERS_MAX: u32 = 1024;

/// A device that is built but not reachable yet.
pub(crate) struct Built {
    pub(crate) name: String,
    /// What the kernel's NBD client knows it by.
    backend: String,
    naming: Naming,
    read_only: bool,
    stack: Stack,
    aligned: Aligned,
    env: Arc<dyn Env>,
    file: Option<PathBuf>,
    guest: Option<Guest>,
}

impl Built {
    /// Ends what nobody has used.
    pub(crate) async fn end(self) {
        self.stack.end().await;
    }

    /// Lets clients of `exports` find it.
    pub(crate) fn enter(self, exports: &Exports, address: Address) -> Result<Device, Error> {
        let backend = self.backend;
        let export = Export::new(self.name, self.aligned)?.with_hidden(self.naming.hidden);
        let export = export.with_alias(self.naming.alias)?;
        let export = export.with_description(self.stack.describe())?.with_read_only(self.read_only);
        // It could be read at the start. Where it cannot be any more, the client of before may still come back.
        let export = export.kept_while(move || NbdDevice::exists(&backend).unwrap_or(true));
        let export = exports.add(export.timed_by(self.env))?;
        if export.is_kept() {
            let name = export.name();
            let words =
                "refuses other clients until the block device that it was attached as is connected again";
            tracing::warn!(
                "{name} {words} or gone: spillway attach {name} --reconnect, where it has the content of before, or spillway detach \
                 {name} --force"
            );
        }
        let (stack, file, guest) = (self.stack, self.file, self.guest);
        let (changes, end) = (ChangeLock::new(), Arc::default());
        Ok(Device { stack, changes, end, export, address, file, guest, _connections: None })
    }
}

/// The name of a device that is added, and its sockets.
pub(crate) struct DeviceClaim {
    pub(crate) number: u32,
    pub(crate) control: Listener,
    /// The NBD socket and what its connections take, where devices have their own.
    pub(crate) own: Option<(Listener, Charge)>,
}

/// What it takes to build a device, on a background thread.
#[derive(Clone)]
pub(crate) struct Builder {
    pub(crate) folder: RuntimeFolder,
    pub(crate) opening: StackOpener,
    /// Where each device is also a file.
    pub(crate) mount: Option<PathBuf>,
    /// Whether each device has its own NBD socket.
    pub(crate) own_sockets: bool,
    /// Bytes to count for a connection.
    pub(crate) connection_bytes: u64,
    /// Second names of devices, which no device is added by.
    pub(crate) aliases: Vec<String>,
}

impl Builder {
    /// Builds a device. The room `kept` is for what it takes above its stack.
    pub(crate) async fn build(&self, plan: DevicePlan, kept: Option<Charge>) -> Result<Built, Error> {
        let backend = self.folder.backend(&plan.name);
        expect_known(NbdDevice::exists(&backend))?;
        let (env, works) = (self.opening.env(), self.opening.registry().of(&plan.name));
        let opened = self.opening.stack(&plan.name, &plan.stack, plan.names);
        let stack = reported(&*env, &works, opened).await?;
        let limited = stack.limit(&plan.limits);
        drop(kept);
        match limited.and_then(|()| self.opening.aligned(&stack, self.mount.is_some())) {
            Ok(aligned) => {
                let file = self.mount.as_ref().map(|mount| file_below(mount, &plan.name));
                let (buffered, in_memory) = (plan.stack.loses_unflushed(), plan.stack.is_in_memory());
                let guest = plan.guest.map(|plan| Guest { plan, buffered, in_memory });
                let (name, naming, env) = (plan.name, plan.naming, self.opening.env());
                let read_only = plan.read_only;
                Ok(Built { name, backend, naming, read_only, stack, aligned, env, file, guest })
            }
            Err(error) => {
                stack.end().await;
                Err(error)
            }
        }
    }

    /// Builds a compressed RAM disk without a size, under the first number that no device of this user has.
    pub(crate) async fn build_added(&self) -> Result<(DeviceClaim, Built), Error> {
        let builder = self.clone();
        // A lock is waited for, and other servers are looked for.
        let claim = on_blocking_thread(move || builder.claim()).await?;
        let plan = DevicePlan::added(added_name(claim.number));
        Ok((claim, self.build(plan, None).await.map_err(no_memory)?))
    }

    /// The first number that is free, by the control socket of its name.
    fn claim(&self) -> Result<DeviceClaim, Error> {
        for number in 0..NUMBERS_MAX {
            let name = added_name(number);
            if self.aliases.contains(&name) {
                continue;
            }
            let path = self.folder.control_socket(&name);
            match listening::at_once(&self.folder, &path) {
                Err(error) if error.kind == Kind::Busy && path.exists() => {}
                Ok(_) if self.folder.taken_elsewhere(&name).is_some() => {}
                Ok(_) if !NbdDevice::all_of(&self.folder.backend(&name)).is_empty() => {}
                Err(error) => return Err(error),
                Ok(control) => match self.own_sockets.then(|| self.own(&name)).transpose() {
                    // What serves there has another name.
                    Err(error) if error.kind == Kind::Busy && self.folder.nbd_socket(&name).exists() => {}
                    own => return Ok(DeviceClaim { number, control, own: own? }),
                },
            }
        }
        let last = added_name(NUMBERS_MAX - 1);
        Err(Error::new(Kind::NoSpace, format!("all names up to {last} are taken: stop a device")))
    }

    fn own(&self, name: &str) -> Result<(Listener, Charge), Error> {
        let bytes = ADDED_CONNECTIONS_MAX as u64 * self.connection_bytes;
        let charge = self.opening.budget().hold(bytes).map_err(|kind| {
            no_memory(Error::new(kind, "the memory budget has no room for connections to another device"))
        })?;
        Ok((listening::at_once(&self.folder, &self.folder.nbd_socket(name))?, charge))
    }
}

/// Refuses a device of which the kernel does not say whether a block device waits for it: nobody could connect, or attach and detach it.
fn expect_known(exists: io::Result<bool>) -> Result<(), Error> {
    exists.map(drop).map_err(|why| {
        let text = "whether a block device of the kernel waits for this device is not known; let the server read /sys/block";
        Error::new(Kind::Io, format!("{why}: {text}"))
    })
}

/// As the kernel says it: what is short is not room on a device.
fn no_memory(error: Error) -> Error {
    match error.kind {
        Kind::NoSpace => Error::new(Kind::OutOfMemory, error.message()),
        _ => error,
    }
}

/// Devices of a server from which on none is added.
const DEVICES_MAX: usize = 64;

/// [`Kind::NoSpace`] where a server that has or builds so many devices adds none.
pub(crate) fn expect_room(count: usize) -> Result<(), Error> {
    if count < DEVICES_MAX {
        return Ok(());
    }
    let text = format!("a server adds no device to {DEVICES_MAX} that it has: remove one first");
    Err(Error::new(Kind::NoSpace, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_refused_where_nobody_knows_what_waits_for_it() {
        [true, false].into_iter().for_each(|exists| expect_known(Ok(exists)).unwrap());
        let unread = io::Error::new(io::ErrorKind::PermissionDenied, "/sys/block cannot be read (why)");
        let refusal = expect_known(Err(unread)).unwrap_err();
        assert!(refusal.message().starts_with("/sys/block cannot be read (why): "), "{refusal}");
    }
}
