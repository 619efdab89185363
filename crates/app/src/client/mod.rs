//! The commands that talk to running servers: `ls`, `top`, `get`, `why`, `set`, `reset`, `resize`, `drain`, `hand-over`, `save`, `load`, `attach`, `detach`, `stop`.

mod again;
mod attach;
mod connection;
mod copying;
mod drain;
mod image;
mod listing;
mod ls;
mod nbd;
mod program;
mod progress;
mod qcow2;
mod resize;
#[cfg(feature = "top")]
mod screen;
mod top;
mod why;

use std::thread;

use anyhow::{Error, Result};
use serde_json::{Map, Value as Json};
use spillway_export::control::{AttributeRow, ColumnRow, Operation, Shown};

use crate::cli::{GetOptions, SetOptions, StopOptions};
use crate::exit::{Exit, code_of};
use crate::runtime_folder::RuntimeFolder;
use connection::{Connection, QUESTION_PATIENCE, change, is_read};
use progress::beside;

pub(crate) use attach::{attach, detach};
pub(crate) use connection::print;
pub(crate) use drain::{drain, hand_over};
pub(crate) use image::{load, save};
pub(crate) use ls::list;
pub(crate) use resize::resize;
pub(crate) use top::top;
pub(crate) use why::why;

/// `spillway get`.
pub(crate) fn get(folder: &RuntimeFolder, options: GetOptions) -> Result<()> {
    let mut connection = Connection::to_device(folder, &options.device)?;
    connection.wait_at_most(QUESTION_PATIENCE);
    if options.describe {
        let rows = connection.attributes(&options.device)?;
        return print(&if options.json { json(&rows)? } else { descriptions(&rows) });
    }
    let mut from = None;
    loop {
        let (device, attribute) = (options.device.clone(), options.attribute.clone());
        let values = connection.values(&Operation::Get { device, attribute, from })?;
        from = values.first().and_then(|first| first.next);
        if !is_read(&shown(&options, &values)?)? || from.is_none() {
            return Ok(());
        }
    }
}

fn shown(options: &GetOptions, values: &[Shown]) -> Result<String> {
    Ok(match values {
        values if options.json => json(&object(values))?,
        [only] if options.attribute.is_some() && only.text.is_empty() => String::new(),
        [only] if options.attribute.is_some() => format!("{}\n", only.text),
        values => listed(values),
    })
}

/// As a script reads it.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(value)?))
}

fn object(values: &[Shown]) -> Map<String, Json> {
    values.iter().map(|shown| (shown.name.clone(), shown.value.clone())).collect()
}

/// Name and value in two columns; the further lines of a value stand below its first.
fn listed(values: &[Shown]) -> String {
    let width = values.iter().map(|shown| shown.name.len()).max().unwrap_or(0);
    let indent = format!("\n{:width$}  ", "");
    let line = |shown: &Shown| format!("{:width$}  {}\n", shown.name, shown.text.replace('\n', &indent));
    values.iter().map(line).collect()
}

fn descriptions(rows: &[AttributeRow]) -> String {
    rows.iter().map(description).collect()
}

/// Name, what is known about the value in brackets, and what it is.
fn description(row: &AttributeRow) -> String {
    let access = match (row.readable, row.writable) {
        (true, true) => "read, write",
        (true, false) => "read only",
        _ => "write only",
    };
    let of = |prefix: &str, text: &Option<String>| text.as_ref().map(|text| format!("{prefix}{text}"));
    let facts = [
        Some(row.role.clone()),
        Some(row.unit.clone()).filter(|unit| !unit.is_empty()),
        Some(access.to_owned()),
        of("", &row.allowed),
        of("default: ", &row.default),
        of("set ", &row.when),
    ];
    let facts: Vec<_> = facts.into_iter().flatten().collect();
    let column =
        |column: &ColumnRow| format!("    {} {}", column.name, column.unit).trim_end().to_owned() + "\n";
    let columns: String = row.columns.iter().map(column).collect();
    format!("{} ({})\n    {}\n{columns}", row.name, facts.join("; "), row.help)
}

/// `spillway set`.
pub(crate) fn set(folder: &RuntimeFolder, options: SetOptions) -> Result<()> {
    let SetOptions { device, attribute, value } = options;
    let set = Operation::Set { device: device.clone(), attribute, value: value.into() };
    beside(&[(folder.clone(), device.clone())], || change(folder, &device, &set))
}

/// `spillway reset`.
pub(crate) fn reset(folder: &RuntimeFolder, device: String) -> Result<()> {
    change(folder, &device.clone(), &Operation::Reset { device })
}

/// `spillway stop`. The first failure is returned; the log has the others.
pub(crate) fn stop(folder: &RuntimeFolder, options: &StopOptions) -> Result<()> {
    let mut devices = Vec::new();
    for device in &options.devices {
        devices.push((folder.clone().of_device(device), device.clone()));
    }
    for folder in folder.everywhere().filter(|_| options.all) {
        devices.extend(folder.devices()?.into_iter().map(|device| (folder.clone(), device)));
    }
    let stop_all = || {
        thread::scope(|scope| {
            let stopping: Vec<_> =
                devices.iter().map(|(folder, device)| scope.spawn(|| stop_one(folder, device))).collect();
            stopping.into_iter().map(|one| one.join().expect("a panic ends the program")).collect()
        })
    };
    let outcomes: Vec<_> = beside(&devices, stop_all);
    // Of all those that are found some may end meanwhile, or have left a socket.
    let is_gone = |error: &Error| options.all && code_of(error) == Exit::Missing;
    let mut failures = outcomes.into_iter().filter_map(Result::err).filter(|error| !is_gone(error));
    let first = failures.next();
    failures.for_each(|error| tracing::error!("{error:#}"));
    first.map_or(Ok(()), Err)
}

fn stop_one(folder: &RuntimeFolder, device: &str) -> Result<()> {
    change(folder, device, &Operation::Stop { device: device.to_owned() })
}

#[cfg(test)]
mod tests;
