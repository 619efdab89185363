//! Changes of one device, and what stands in their way: clients.

use std::time::Duration;

use spillway_core::{Attributes, Env, Error, Kind, Value};
use spillway_export::Reserved;

use crate::server::device::Device;
use crate::server::device::occupants;

/// How long clients that are leaving may be in the way: the kernel says later that a file was closed, and lets go of its mount later still;
/// and the pause between two attempts.
const LEAVING: Duration = Duration::from_millis(200);
const LEAVING_PAUSE: Duration = Duration::from_millis(20);

/// Tries again for a moment what clients are in the way of: they may be leaving.
pub(crate) async fn once_left<T>(
    env: &dyn Env,
    mut attempt: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let begin = env.now();
    loop {
        match attempt().await {
            Err(error) if error.kind == Kind::Busy && env.now() - begin < LEAVING => {
                env.sleep(LEAVING_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// Whether an attribute is set at once instead of in turn, also of a device that ends: what is under way may wait for an origin that it has
/// fail.
pub(crate) fn is_at_once(device: &Device, attribute: &str) -> bool {
    device.stack.find(attribute).is_ok_and(|(part, own)| (part.kind, own) == ("file", "timeout"))
}

/// Stores a value in an attribute.
pub(crate) async fn set(device: &Device, env: &dyn Env, attribute: &str, value: Value) -> Result<(), Error> {
    // A reset takes the data from under connected clients, by whatever name it is asked for.
    let resets = device.stack.find(attribute)?.1 == "reset";
    let _reserved = if resets { Some(reserve(device, env).await?) } else { None };
    let outcome = device.stack.set(attribute, value).await;
    // One that fails in the middle has taken some.
    if resets && !outcome.as_ref().is_err_and(|error| error.kind == Kind::Invalid) {
        device.export.begin_era();
    }
    outcome
}

/// Discards all data. [`Kind::NotSupported`] where a device has nothing that it could forget.
pub(crate) async fn reset(device: &Device, env: &dyn Env) -> Result<(), Error> {
    if device.stack.find("reset").is_ok() {
        return set(device, env, "reset", Value::U64(1)).await;
    }
    let (name, stack) = (device.name(), device.stack.describe());
    Err(Error::new(Kind::NotSupported, format!("device {name} ({stack}) cannot be reset: only zram can")))
}

/// Keeps clients away, or says who they are.
async fn reserve(device: &Device, env: &dyn Env) -> Result<Reserved, Error> {
    let reserved =
        once_left(env, async || device.export.reserve().map_err(|kind| Error::new(kind, ""))).await;
    reserved.map_err(|busy| occupants::refusal(device, busy.kind, "disconnect them before a reset"))
}

/// Keeps clients away from a device that is to be removed; [`Kind::Busy`] while it has any.
pub(crate) fn expect_unused(device: &Device) -> Result<Reserved, Error> {
    let reserved = device.export.reserve();
    reserved.map_err(|kind| occupants::refusal(device, kind, "disconnect them before it is removed"))
}
