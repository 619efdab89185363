//! Devices on their way into a server: those of its plan, and those that are added while it runs.

use std::path::{Path, PathBuf};

use spillway_core::{Aligned, Charge, Error, Kind};
use spillway_export::control::added_name;
use spillway_export::{Export, Exports, nbd};
use spillway_io::Listener;
use spillway_layers::stack::Stack;

use crate::address::Address;
use crate::device::{Changes, Device};
use crate::listening;
use crate::opening::StackOpener;
use crate::place::file_below;
use crate::plan::DevicePlan;
use crate::runtime_folder::RuntimeFolder;

/// Connections to the NBD socket of a device that is added; the others have what the server keeps for connections.
pub(crate) const ADDED_CONNECTIONS_MAX: usize = 16;

/// Numbers that are tried for a device.
const NUMBERS_MAX: u32 = 1024;

/// A device that is built but not reachable yet.
pub(crate) struct Built {
    pub(crate) name: String,
    read_only: bool,
    stack: Stack,
    aligned: Aligned,
    file: Option<PathBuf>,
}

impl Built {
    /// Builds a device, which is also a file where `mount` is one. The room `kept` is for what it takes above its stack.
    pub(crate) fn new(
        plan: DevicePlan,
        mount: Option<&Path>,
        opening: &StackOpener,
        kept: Option<Charge>,
    ) -> Result<Self, Error> {
        let stack = opening.stack(&plan.name, &plan.stack, plan.names)?;
        stack.limit(&plan.limits)?;
        drop(kept);
        let aligned = opening.aligned(&stack, mount.is_some())?;
        let file = mount.map(|mount| file_below(mount, &plan.name));
        Ok(Self { name: plan.name, read_only: plan.read_only, stack, aligned, file })
    }

    /// Lets clients of `exports` find it.
    pub(crate) fn enter(self, exports: &Exports, address: Address) -> Result<Device, Error> {
        let export = Export::new(self.name, self.aligned)?;
        let export = export.with_description(self.stack.describe())?.with_read_only(self.read_only);
        let export = exports.add(export)?;
        let (stack, file) = (self.stack, self.file);
        Ok(Device { stack, changes: Changes::new(), export, address, file, _connections: None })
    }
}

/// A device that is added, with its sockets.
pub(crate) struct Arrival {
    pub(crate) number: u32,
    pub(crate) built: Built,
    pub(crate) control: Listener,
    /// The NBD socket and what its connections take, where devices have their own.
    pub(crate) own: Option<(Listener, Charge)>,
}

/// What it takes to build a device while the server runs.
#[derive(Clone)]
pub(crate) struct Arrivals {
    pub(crate) folder: RuntimeFolder,
    pub(crate) opening: StackOpener,
    pub(crate) mount: Option<PathBuf>,
    /// Whether each device has its own NBD socket.
    pub(crate) own_sockets: bool,
}

impl Arrivals {
    /// Builds a compressed RAM disk without a size, under the first number that no device of this user has. Waits for it.
    pub(crate) fn build(&self) -> Result<Arrival, Error> {
        let (number, control) = self.claim()?;
        let name = added_name(number);
        let own = self.own_sockets.then(|| self.own(&name)).transpose()?;
        let built = Built::new(DevicePlan::added(name), self.mount.as_deref(), &self.opening, None);
        Ok(Arrival { number, built: built.map_err(no_memory)?, control, own })
    }

    /// The first number that is free, by the control socket of its name.
    fn claim(&self) -> Result<(u32, Listener), Error> {
        for number in 0..NUMBERS_MAX {
            let name = added_name(number);
            let path = self.folder.control_socket(&name);
            match listening::at_once(&self.folder, &path) {
                Err(error) if error.kind == Kind::Busy && path.exists() => {}
                Ok(_) if self.folder.taken_elsewhere(&name).is_some() => {}
                outcome => return outcome.map(|listener| (number, listener)),
            }
        }
        let last = added_name(NUMBERS_MAX - 1);
        Err(Error::new(Kind::NoSpace, format!("all names up to {last} are taken: stop a device")))
    }

    fn own(&self, name: &str) -> Result<(Listener, Charge), Error> {
        let bytes = ADDED_CONNECTIONS_MAX as u64 * nbd::CONNECTION_BYTES;
        let charge = self.opening.budget().hold(bytes).map_err(|kind| {
            no_memory(Error::new(kind, "the memory budget has no room for connections to another device"))
        })?;
        Ok((listening::at_once(&self.folder, &self.folder.nbd_socket(name))?, charge))
    }
}

/// As the kernel says it: what is short is not room on a device.
fn no_memory(error: Error) -> Error {
    match error.kind {
        Kind::NoSpace => Error::new(Kind::OutOfMemory, error.message()),
        _ => error,
    }
}
