//! The server behind a mount that shows a device's file and no attributes: nobody asks it.

use spillway_core::{Answer, Error};
use spillway_export::control::{DeviceChanges, Operation};

/// See the head of this file.
pub(crate) struct Unasked;

impl DeviceChanges for Unasked {
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
