//! The devices of this server as files: `DIR/NAME/disk`.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use spillway_core::exchange::MessageBuffers;
use spillway_core::{Budget, Charge, Error, Kind};
use spillway_export::fuse::{Config, Folder, FuseSession, MESSAGE_FORMAT, Opener, TEXT_BYTES, Tree};
use spillway_io::fuse::{Mount, MountServing, NewExchange, READER_BYTES, READERS_MAX, serve_mount};
use spillway_io::{Workers, program_of};
use spillway_layers::stack::Part;

use crate::cli::place::file_below;
use crate::cli::server_options::ServerConfig;
use crate::exit::refused;
use crate::memory::ServerMemory;
use crate::server::device::Device;
use crate::server::device::occupants::{self, loops_below};
use crate::server::devices::Devices;

/// What a mount takes of the memory budget. It is held before devices are built, of which some take what is left.
pub(crate) struct MountMemory {
    readers: usize,
    buffers: MessageBuffers,
    charge: Charge,
}

impl MountMemory {
    /// For as many readers as `memory` allows and `workers` can serve.
    pub(crate) fn hold(workers: &Workers, budget: &Arc<Budget>, memory: &ServerMemory) -> Result<Self> {
        // A quarter of what requests may take, at 32 MiB of budget two readers.
        let readers = memory.buffers as usize / 4 / MESSAGE_FORMAT.bytes_each();
        let readers = readers.clamp(1, READERS_MAX).min(workers.count());
        let buffers = MessageBuffers::new(MESSAGE_FORMAT, readers, budget).map_err(refused)?;
        let charge = budget.hold(readers as u64 * READER_BYTES + TEXT_BYTES).map_err(|kind| {
            refused(Error::new(kind, "the memory budget has no room for a mount: give --memory more"))
        })?;
        Ok(Self { readers, buffers, charge })
    }
}

/// A mount that is served.
pub(crate) struct Mounting {
    tree: Arc<Tree>,
    serving: MountServing,
    _charge: Charge,
}

impl Mounting {
    /// Mounts `devices`, which take bytes, at the folder that `config` names; where it `adds` devices, with the folder for that.
    pub(crate) fn begin(
        config: &ServerConfig,
        place: &Path,
        devices: &Arc<Devices>,
        workers: &Workers,
        memory: &ServerMemory,
        room: MountMemory,
        adds: bool,
    ) -> Result<Self> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let tree = Tree::new(uid, gid, since);
        let tree = if config.allow_other { tree.shared() } else { tree };
        let tree = Arc::new(if adds { tree.with_class(devices.clone()) } else { tree });
        devices.all().iter().for_each(|device| show(&tree, device, devices));
        let MountMemory { readers, buffers, charge } = room;
        let (mount, note) = Mount::at(place, config.allow_other).map_err(refused)?;
        if let Some(note) = note {
            tracing::warn!("{note}");
        }
        let (shown, config) =
            (tree.clone(), Config { held_bytes_max: memory.session_limits().held_bytes_max });
        let new_exchange: NewExchange = Arc::new(move || Box::new(FuseSession::new(shown.clone(), config)));
        let serving = serve_mount(mount, workers, readers, &new_exchange, &buffers);
        Ok(Self { tree, serving, _charge: charge })
    }

    /// Shows a device of `devices`, which takes bytes.
    pub(crate) fn add(&self, device: &Device, devices: &Arc<Devices>) {
        show(&self.tree, device, devices);
    }

    /// Has the kernel know the size that a device has grown to from `before`.
    pub(crate) fn grew(&self, device: &str, before: u64) {
        if let Some(message) = self.tree.size_message(device, before) {
            self.serving.tell(&message);
        }
    }

    /// Takes the file of a device away; [`Kind::Busy`] with who has it open.
    pub(crate) fn remove(&self, device: &str) -> Result<(), Error> {
        self.tree.remove(device).map_err(|openers| {
            let users = self.users(&openers, Path::new(device));
            let file = file_below(self.serving.place(), device);
            Error::new(Kind::Busy, format!("{} is open: {}", file.display(), in_words(&users)))
        })
    }

    /// Unmounts; [`Kind::Busy`] with who uses what is below.
    pub(crate) fn end(&self) -> Result<(), Error> {
        let openers = || self.tree.volumes().iter().flat_map(|volume| volume.openers()).collect::<Vec<_>>();
        let place = self.serving.place();
        let left = self.serving.unmount(&|| !openers().is_empty()).map_err(|error| match error.kind {
            Kind::Busy => {
                let mut users = self.users(&openers(), Path::new(""));
                let covers = self.serving.covered_by();
                users.extend(covers.iter().map(|place| format!("a mount at {} (umount)", place.display())));
                if users.is_empty() {
                    // A working folder or a program that runs there is no open file that we know of.
                    users = occupants::below(place);
                }
                Error::new(Kind::Busy, format!("{} is in use: {}", place.display(), in_words(&users)))
            }
            _ => error,
        })?;
        for bound in left {
            let place = place.display();
            tracing::warn!(
                "{place} was unmounted, and is still bound to {bound}, where every request fails: umount that too"
            );
        }
        Ok(())
    }

    /// Who uses files below `path` in the mount, wherever that is bound to.
    fn users(&self, openers: &[Opener], path: &Path) -> Vec<String> {
        let elsewhere = self.serving.bound_elsewhere().into_iter().map(|bound| bound.place);
        let places = std::iter::once(self.serving.place().to_owned()).chain(elsewhere);
        let mut loops: Vec<_> = places.flat_map(|place| loops_below(&place.join(path))).collect();
        loops.sort();
        loops.dedup();
        let loops = loops.iter().map(|one| format!("{one} (spillway detach, or losetup --detach)"));
        loops.chain(openers.iter().filter_map(|opener| program_of(opener.thread))).collect()
    }
}

/// Gives a device to its one client, or to the thread that opened its file below `mounting`. [`Kind::Busy`] where it has others.
pub(crate) fn hold(device: &Device, mounting: Option<&Mounting>, opener: Option<u32>) -> Result<(), Error> {
    let name = device.name();
    let held = match (opener, mounting) {
        (None, _) => device.export.hold(),
        (Some(_), None) => Err(Kind::NotFound),
        (Some(thread), Some(mounting)) => mounting.tree.hold(name, thread),
    };
    held.map_err(|kind| match (kind, opener) {
        (Kind::NotFound, Some(thread)) => {
            let text = format!(
                "process {thread} does not have the file of {name} open: another file is in its place"
            );
            Error::new(Kind::Denied, text)
        }
        _ => occupants::refusal(device, kind, "it is held by one client alone: disconnect the others"),
    })
}

/// Who uses something, and what to do.
fn in_words(users: &[String]) -> String {
    match users {
        [] => "perhaps as the working folder of a program; fuser -m names it".to_owned(),
        _ => format!("{}; close it first", occupants::in_words(users)),
    }
}

fn show(tree: &Tree, device: &Device, devices: &Arc<Devices>) {
    tree.add(device.export.clone(), folders(device), devices.clone());
}

/// The parts of a device, from the top to the origin.
fn folders(device: &Device) -> Vec<Folder> {
    let folder = |part: &Part| Folder { name: part.name.clone(), attributes: part.attributes.clone() };
    device.stack.parts.iter().map(folder).collect()
}
