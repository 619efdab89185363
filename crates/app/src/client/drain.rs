//! `spillway drain`: starts to empty the write caches of a device, once they have what a page cache over them had, shows how far that is, and
//! waits until all are empty.
//! `spillway hand-over` does that, and stops the device, which writes back whatever came to a cache in between.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use spillway_export::control::Operation;

use super::connection::{Connection, print};
use super::progress::beside;
use super::stop_one;
use crate::exit::{Exit, Failure, code_of};
use crate::runtime_folder::RuntimeFolder;

/// How often the server is asked.
const EVERY: Duration = Duration::from_millis(200);

/// The attribute that says whether a drain runs.
const STATE: &str = "drain_state";

/// See the head of this file.
pub(crate) fn drain(folder: &RuntimeFolder, device: String) -> Result<()> {
    let mut connection = Connection::to_device(folder, &device)?;
    let caches = caches(&mut connection, &device)?;
    if caches.is_empty() {
        let message = format!("device {device} has no write cache: there is nothing to drain");
        return Err(Failure::new(Exit::Missing, message).into());
    }
    run(folder, &mut connection, &device, &caches)?;
    complete(&device)
}

/// See the head of this file.
pub(crate) fn hand_over(folder: &RuntimeFolder, device: String) -> Result<()> {
    let mut connection = Connection::to_device(folder, &device)?;
    let caches = caches(&mut connection, &device)?;
    if caches.is_empty() {
        return beside(&[(folder.clone(), device.clone())], || stop_one(folder, &device));
    }
    run(folder, &mut connection, &device, &caches)?;
    // Another client may turn cleaner off before the device stops.
    for cache in &caches {
        set(&mut connection, &device, &format!("{cache}.message"), "flush_on_suspend")?;
    }
    let stopped = beside(&[(folder.clone(), device.clone())], || stop_one(folder, &device));
    stopped.map_err(|error| match code_of(&error) {
        Exit::Busy => error.context(format!(
            "{device} is drained, and its cache takes nothing: end what uses it and hand it over again, or use the cache again by spillway set {device} cleaner 0"
        )),
        _ => error,
    })?;
    complete(&device)
}

fn run(folder: &RuntimeFolder, connection: &mut Connection, device: &str, caches: &[String]) -> Result<()> {
    beside(&[(folder.clone(), device.to_owned())], || drained(connection, device, caches))
}

fn complete(device: &str) -> Result<()> {
    print(&format!("{device}: origin is complete, the cache may be removed\n"))
}

/// Drains a device, and waits until all its caches are empty, or the first has failed.
fn drained(connection: &mut Connection, device: &str, caches: &[String]) -> Result<()> {
    set(connection, device, "drain", "1")?;
    while !are_complete(connection, device, caches)? {
        sleep(EVERY);
    }
    Ok(())
}

/// Whether no drain runs any more. Fails where one has ended otherwise than complete.
fn are_complete(connection: &mut Connection, device: &str, caches: &[String]) -> Result<bool> {
    let mut complete = true;
    for cache in caches {
        let state = connection.get(device, &format!("{cache}.{STATE}"))?;
        match state.as_str() {
            Some("running") => complete = false,
            Some("complete") => {}
            _ => {
                let message = format!(
                    "the drain of {device} has ended ({state}): see spillway get {device} {cache}.error, restart its server, drain again"
                );
                return Err(Failure::new(Exit::Failed, message).into());
            }
        }
    }
    Ok(complete)
}

/// The parts of a device that are write caches.
fn caches(connection: &mut Connection, device: &str) -> Result<Vec<String>> {
    let is_state = |name: &str| name.rsplit('.').next() == Some(STATE);
    let rows = connection.attributes(device)?;
    Ok(rows.into_iter().filter(|row| is_state(&row.name)).map(|row| row.part).collect())
}

fn set(connection: &mut Connection, device: &str, attribute: &str, value: &str) -> Result<()> {
    let (device, attribute) = (device.to_owned(), attribute.to_owned());
    connection.change(&Operation::Set { device, attribute, value: value.into() })
}
