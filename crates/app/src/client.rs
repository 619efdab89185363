//! The commands that talk to running servers: `ls`, `get`, `set`, `reset`, `resize`, `drain`, `hand-over`, `save`, `load`, `attach`, `detach`, `stop`, `why`.

mod attach;
mod connection;
mod copying;
mod drain;
mod image;
mod listing;
mod nbd;
mod program;
mod qcow2;
mod resize;
mod why;

use std::thread;

use anyhow::{Error, Result};
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value as Json};
use spillway_core::size::human;
use spillway_export::control::{AttributeRow, ColumnRow, DeviceRow, Operation, Reply, Shown};

use crate::cli::{GetOptions, LsOptions, SetOptions, StopOptions};
use crate::exit::{Exit, code_of};
use crate::runtime_folder::RuntimeFolder;
use connection::{Connection, QUESTION_PATIENCE, change, is_read, unexpected};
use listing::listing;

pub(crate) use attach::{attach, detach};
pub(crate) use connection::print;
pub(crate) use drain::{drain, hand_over};
pub(crate) use image::{load, save};
pub(crate) use resize::resize;
pub(crate) use why::why;

/// `spillway ls`.
pub(crate) fn list(folder: &RuntimeFolder, options: &LsOptions) -> Result<()> {
    let rows = listing(folder)?;
    if options.json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&rows)?));
    }
    print(&device_table(&rows, if options.bytes { |bytes| bytes.to_string() } else { human }))
}

/// Columns in the manner of zramctl; numbers keep to the right.
fn device_table(rows: &[DeviceRow], size: fn(u64) -> String) -> String {
    use CellAlignment::{Left, Right};
    let head = [
        ("NAME", Left),
        ("STACK", Left),
        ("ALGORITHM", Left),
        ("DISKSIZE", Right),
        ("DATA", Right),
        ("COMPR", Right),
        ("TOTAL", Right),
        ("RATIO", Right),
        ("SPILL", Right),
        ("STREAMS", Right),
        ("EXPORT", Left),
    ];
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(head.map(|(title, _)| title));
    table.add_rows(rows.iter().map(|row| device_cells(row, size)));
    for (column, (_, alignment)) in table.column_iter_mut().zip(head) {
        column.set_padding((0, 1)).set_cell_alignment(alignment);
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn device_cells(row: &DeviceRow, size: fn(u64) -> String) -> [String; 11] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        row.name.clone(),
        row.stack.clone(),
        or_dash(row.algorithm.clone()),
        size(row.disksize),
        or_dash(row.data.map(size)),
        or_dash(row.compr.map(size)),
        or_dash(row.total.map(size)),
        or_dash(row.ratio.map(|ratio| format!("{ratio:.2}"))),
        or_dash(row.spilled.zip(row.spill_size).map(|(held, of)| format!("{}/{}", size(held), size(of)))),
        or_dash(row.streams.map(|streams| streams.to_string())),
        or_dash((!row.exports.is_empty()).then(|| row.exports.join(" "))),
    ]
}

/// `spillway get`.
pub(crate) fn get(folder: &RuntimeFolder, options: GetOptions) -> Result<()> {
    let mut connection = Connection::to_device(folder, &options.device)?;
    connection.wait_at_most(QUESTION_PATIENCE);
    if options.describe {
        let rows = match connection.ask(&Operation::Attributes { device: options.device })? {
            Reply::Attributes(rows) => rows,
            other => return Err(unexpected(&other)),
        };
        return print(&if options.json { json(&rows)? } else { descriptions(&rows) });
    }
    let mut from = None;
    loop {
        let (device, attribute) = (options.device.clone(), options.attribute.clone());
        let values = match connection.ask(&Operation::Get { device, attribute, from })? {
            Reply::Values(values) => values,
            other => return Err(unexpected(&other)),
        };
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

fn json(value: &impl serde::Serialize) -> Result<String> {
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
    change(folder, &device.clone(), &Operation::Set { device, attribute, value: value.into() })
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
    let outcomes: Vec<_> = thread::scope(|scope| {
        let stopping: Vec<_> =
            devices.iter().map(|(folder, device)| scope.spawn(|| stop_one(folder, device))).collect();
        stopping.into_iter().map(|one| one.join().expect("a panic ends the program")).collect()
    });
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
