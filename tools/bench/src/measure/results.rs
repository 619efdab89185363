//! Where the results of a benchmark go: to a person in Markdown, and to the report in JSON, one record a line.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{self, Command};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::flame::Flame;
use super::svg::Picture;
use super::table::Table;

/// Names the file that records are appended to, if the report wants them.
pub(crate) const FILE: &str = "SPILLWAY_BENCH_RESULTS";

/// Where pictures go without a report, seen from the root of the repository.
pub(crate) const PICTURES: &str = "docs/pictures";

/// What a benchmark has found or used.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Record {
    Table(Table),
    Picture(Picture),
    Flame(Flame),
    /// A peer or a load generator, with its arguments.
    Command(String),
    /// A set of pages, and how well lz4 compresses it.
    Set {
        name: String,
        bytes: usize,
        ratio: f64,
    },
}

/// Shows a table.
pub(crate) fn show(table: Table) -> Result<()> {
    print!("{table}");
    record(|| Record::Table(table))
}

/// Shows a picture: the report has it; without one it is saved.
pub(crate) fn picture(picture: Picture) -> Result<()> {
    if !is_wanted() {
        picture.save(Path::new(PICTURES))?;
        println!("\n{PICTURES}/{}", picture.name);
    }
    record(|| Record::Picture(picture))
}

/// For the report only: a flame graph is a page by itself.
pub(crate) fn flame(flame: Flame) -> Result<()> {
    record(|| Record::Flame(flame))
}

/// Notes a command that is part of the measurement; without the parts of paths that differ by run.
pub(crate) fn command(command: &Command) -> Result<()> {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args()).map(|word| word.to_string_lossy());
    text(&words.collect::<Vec<_>>().join(" ").replace(&scratch(), "FOLDER"))
}

/// Notes what else is run, such as the script of a guest.
pub(crate) fn text(text: &str) -> Result<()> {
    record(|| Record::Command(text.into()))
}

/// The name of this process's folders for files.
pub(crate) fn scratch() -> String {
    format!("spillway-bench-{}", process::id())
}

/// Notes a set of pages; its `ratio` is only computed if records are wanted.
pub(crate) fn set(name: &str, bytes: usize, ratio: impl FnOnce() -> f64) -> Result<()> {
    record(|| Record::Set { name: name.into(), bytes, ratio: ratio() })
}

fn is_wanted() -> bool {
    env::var_os(FILE).is_some()
}

/// Appends a record, if they are wanted.
fn record(record: impl FnOnce() -> Record) -> Result<()> {
    let Some(path) = env::var_os(FILE) else { return Ok(()) };
    let line = serde_json::to_string(&record())? + "\n";
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let written = file.and_then(|mut file: File| file.write_all(line.as_bytes()));
    written.with_context(|| Path::new(&path).display().to_string())
}
