//! `spillway drain`: starts to empty a write cache, once it has what a page cache over it had, shows how far that is, and waits for its end.
//! `spillway hand-over` does that, and stops the device: the cache stays empty in between.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use spillway_export::control::{Operation, Reply};

use super::connection::{Connection, print, unexpected};
use super::progress::beside;
use super::stop_one;
use crate::exit::{Exit, Failure};
use crate::runtime_folder::RuntimeFolder;

/// How often the server is asked.
const EVERY: Duration = Duration::from_millis(200);

/// The attribute that says whether a drain runs.
const STATE: &str = "drain_state";

/// See the head of this file.
pub(crate) fn drain(folder: &RuntimeFolder, device: String) -> Result<()> {
    let mut connection = Connection::to_device(folder, &device)?;
    if !has_cache(&mut connection, &device)? {
        let message = format!("device {device} has no write cache: there is nothing to drain");
        return Err(Failure::new(Exit::Missing, message).into());
    }
    run(folder, connection, &device)
}

/// See the head of this file.
pub(crate) fn hand_over(folder: &RuntimeFolder, device: String) -> Result<()> {
    let mut connection = Connection::to_device(folder, &device)?;
    if has_cache(&mut connection, &device)? {
        run(folder, connection, &device)?;
    }
    beside(&[(folder.clone(), device.clone())], || stop_one(folder, &device))
}

fn run(folder: &RuntimeFolder, mut connection: Connection, device: &str) -> Result<()> {
    beside(&[(folder.clone(), device.to_owned())], || drained(&mut connection, device))?;
    print(&format!("{device}: origin is complete, the cache may be removed\n"))
}

/// Drains a device, and waits for the end.
fn drained(connection: &mut Connection, device: &str) -> Result<()> {
    begin(connection, device)?;
    loop {
        let state = connection.get(device, STATE)?;
        match state.as_str() {
            Some("running") => sleep(EVERY),
            Some("complete") => return Ok(()),
            _ => {
                let message = format!(
                    "the drain of {device} has ended ({state}): see spillway get {device} error, restart its server, drain again"
                );
                return Err(Failure::new(Exit::Failed, message).into());
            }
        }
    }
}

fn has_cache(connection: &mut Connection, device: &str) -> Result<bool> {
    match connection.ask(&Operation::Attributes { device: device.to_owned() })? {
        Reply::Attributes(rows) => Ok(rows.iter().any(|row| row.name == STATE)),
        other => Err(unexpected(&other)),
    }
}

fn begin(connection: &mut Connection, device: &str) -> Result<()> {
    let attribute = "drain".to_owned();
    match connection.ask(&Operation::Set { device: device.to_owned(), attribute, value: 1.into() })? {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
