//! Changes of one device, and what stands in their way: clients.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use spillway_core::{Attributes, Env, Error, Kind, Value};
use spillway_export::Reserved;

use crate::device::Device;
use crate::mounting::Mounting;
use crate::occupants;

/// How long a reset or a stop waits for clients that are leaving: the kernel says later that a file was closed, and lets go of its mount later
/// still.
pub(crate) const LEAVING: Duration = Duration::from_millis(200);

/// Stores a value in an attribute.
pub(crate) async fn set(device: &Device, env: &dyn Env, attribute: &str, value: Value) -> Result<(), Error> {
    // A reset takes the data from under connected clients, by whatever name it is asked for.
    let resets = device.stack.find(attribute)?.1 == "reset";
    let _reserved = if resets { Some(reserve(device, env).await?) } else { None };
    device.stack.set(attribute, value).await
}

/// [`Kind::NotSupported`] where a device has nothing that it could forget.
pub(crate) fn can_be_reset(device: &Device) -> Result<(), Error> {
    if device.stack.find("reset").is_ok() {
        return Ok(());
    }
    let (name, stack) = (device.name(), device.stack.describe());
    Err(Error::new(Kind::NotSupported, format!("device {name} ({stack}) cannot be reset: only zram can")))
}

/// Keeps clients away, or says who they are. One that has left a moment ago may still be counted: the kernel says later that a
/// file was closed.
async fn reserve(device: &Device, env: &dyn Env) -> Result<Reserved, Error> {
    let (mut empty, mut late) = (pin!(device.export.emptied()), env.sleep(LEAVING));
    poll_fn(|context| match empty.as_mut().poll(context) {
        Poll::Pending => late.as_mut().poll(context),
        ready => ready,
    })
    .await;
    device.export.reserve().map_err(|kind| occupants::refusal(device, kind, "disconnect them before a reset"))
}

/// Gives a device to its one client, or to the thread that opened its file below `mounting`. [`Kind::Busy`] where it has others.
pub(crate) fn hold(device: &Device, mounting: Option<&Mounting>, opener: Option<u32>) -> Result<(), Error> {
    let name = device.name();
    let held = match (opener, mounting) {
        (None, _) => device.export.hold(),
        (Some(_), None) => Err(Kind::NotFound),
        (Some(thread), Some(mounting)) => mounting.hold(name, thread),
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

/// Keeps clients away from a device that is to be removed; [`Kind::Busy`] while it has any.
pub(crate) fn expect_unused(device: &Device) -> Result<Reserved, Error> {
    device
        .export
        .reserve()
        .map_err(|kind| occupants::refusal(device, kind, "disconnect them before it is removed"))
}
