//! The catalog behind a mount that shows a device's file and no attributes: nobody asks it.

use spillway_core::{Answer, Error};
use spillway_export::control::{AttributeRow, Catalog, DeviceRow, Operation, ServerVersion, Shown};

/// See the head of this file.
pub(crate) struct Unasked;

impl Catalog for Unasked {
    fn version(&self) -> ServerVersion {
        unreachable!("a mount does not ask")
    }

    fn server(&self) -> Vec<(AttributeRow, Shown)> {
        unreachable!("a mount does not ask")
    }

    fn devices(&self) -> Vec<DeviceRow> {
        unreachable!("a mount does not ask")
    }

    fn attributes(&self, _: &str) -> Result<Vec<AttributeRow>, Error> {
        unreachable!("a mount does not ask")
    }

    fn get(&self, _: &str, _: &str, _: u64) -> Result<Shown, Error> {
        unreachable!("a mount does not ask")
    }

    fn change(&self, operation: Operation) -> Answer<Result<(), Error>> {
        unreachable!("no attribute is shown, and {operation:?} asked for")
    }

    fn hot_remove(&self, _: u32) -> Answer<Result<(), Error>> {
        unreachable!("a mount without the folder for it removes nothing")
    }

    fn hot_add(&self) -> Answer<Result<u32, Error>> {
        unreachable!("a mount without the folder for it adds nothing")
    }
}
