//! What a server answers to a control client, whatever the protocol between them.

use std::sync::Arc;

use spillway_core::session::Peer;
use spillway_core::{Answer, Error, Kind, Registry};

use super::message::{Operation, ServerVersion};
use super::rows::{AttributeRow, DeviceRow, Shown};

/// Name of a device that was added while its server ran, by its number.
pub fn added_name(number: u32) -> String {
    format!("ram{number}")
}

/// Changes of the devices of a server. Each may take long and is answered later.
pub trait DeviceChanges: Send + Sync {
    /// Carries out an operation that changes something; the answer comes when it is complete. An error says in words why it was refused,
    /// or how far it came.
    fn change(&self, operation: Operation) -> Answer<Result<(), Error>>;

    /// Adds a compressed RAM disk without a size, and answers with its number; [`added_name`] is its name.
    /// [`spillway_core::Kind::NoSpace`] where the server has as many devices as it may, [`spillway_core::Kind::OutOfMemory`] where its memory
    /// does not suffice.
    fn hot_add(&self) -> Answer<Result<u32, Error>>;

    /// Removes the device of this number; [`spillway_core::Kind::Busy`] where it has a client, or is the last one.
    fn hot_remove(&self, number: u32) -> Answer<Result<(), Error>>;
}

/// The devices of a server, for those who look and those who change. Looking answers at once and may be called from any thread.
pub trait Catalog: DeviceChanges {
    /// What answers.
    fn version(&self) -> ServerVersion;

    /// Attributes of the server itself, with their values.
    fn server(&self) -> Vec<(AttributeRow, Shown)>;

    /// Every device, in the order in which they were configured or added.
    fn devices(&self) -> Vec<DeviceRow>;

    /// The declarations of the attributes of a device; [`spillway_core::Kind::NotFound`] where there is none of this name.
    fn attributes(&self, device: &str) -> Result<Vec<AttributeRow>, Error>;

    /// The value of an attribute; of lines those from `from` on, which is 0 or [`Shown::next`]. [`spillway_core::Kind::NotFound`] where there
    /// is none of this name, and [`spillway_core::Kind::Denied`] where it can only be written.
    fn get(&self, device: &str, attribute: &str, from: u64) -> Result<Shown, Error>;

    /// The long work of its devices; without it there is none.
    fn registry(&self) -> Option<&Arc<Registry>> {
        None
    }

    /// Keeps a device for a client of before, which `peer` brings back; with the device to itself where `alone`.
    /// [`spillway_core::Kind::Busy`] while it has clients. Without this none comes back.
    fn keep(&self, device: &str, _peer: Peer, _alone: bool) -> Result<(), Error> {
        Err(Error::new(Kind::NotSupported, format!("no client of {device} comes back")))
    }
}
