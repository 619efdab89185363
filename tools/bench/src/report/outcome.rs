//! The outcome of a part: kept as JSON, so that a report that was interrupted goes on behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::origin::Origin;
use super::parts::Mode;
use crate::measure::flame::Flame;
use crate::measure::results::Record;
use crate::measure::svg::Picture;
use crate::measure::table::Table;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) part: String,
    pub(super) mode: Mode,
    pub(super) origin: Origin,
    pub(super) date: String,
    pub(super) seconds: f64,
    /// Why it did not end well; tables until then are there.
    pub(super) failure: Option<String>,
    pub(super) tables: Vec<Table>,
    pub(super) pictures: Vec<Picture>,
    pub(super) flames: Vec<Flame>,
    /// Peers and load generators, with their arguments.
    pub(super) commands: BTreeSet<String>,
    /// Sets of pages by name: bytes, and how well lz4 compresses them.
    pub(super) sets: BTreeMap<String, (usize, f64)>,
}

impl Outcome {
    /// With nothing in it.
    pub(super) fn new(part: &str, mode: Mode, origin: &Origin, date: &str) -> Self {
        Self {
            part: part.into(),
            mode,
            origin: origin.clone(),
            date: date.into(),
            seconds: 0.0,
            failure: None,
            tables: Vec::new(),
            pictures: Vec::new(),
            flames: Vec::new(),
            commands: BTreeSet::new(),
            sets: BTreeMap::new(),
        }
    }

    /// Takes what the benchmark has recorded, a record a line.
    pub(super) fn take(&mut self, lines: &str) -> Result<()> {
        for line in lines.lines() {
            match serde_json::from_str(line).with_context(|| format!("no record: {line}"))? {
                Record::Table(table) => self.tables.push(table),
                Record::Picture(picture) => self.pictures.push(picture),
                Record::Flame(flame) => self.flames.push(flame),
                Record::Command(command) => _ = self.commands.insert(command),
                Record::Set { name, bytes, ratio } => {
                    let largest = self.sets.entry(name).or_default();
                    if largest.0 < bytes {
                        *largest = (bytes, ratio);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a run at `origin` would measure the same again. A tree with uncommitted changes is never the same for sure.
    pub(super) fn stands_for(&self, origin: &Origin) -> bool {
        self.failure.is_none() && !origin.uncommitted && self.origin == *origin
    }

    /// That of the last run. None too if it is of a form that is no longer read.
    pub(super) fn load(folder: &Path, part: &str) -> Option<Self> {
        let text = fs::read_to_string(file(folder, part)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// In one step, so that no half of it is ever found.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let (path, text) = (file(folder, &self.part), serde_json::to_string(self)?);
        let half = path.with_extension("new");
        let saved = fs::write(&half, text).and_then(|()| fs::rename(&half, &path));
        saved.with_context(|| path.display().to_string())
    }
}

fn file(folder: &Path, part: &str) -> std::path::PathBuf {
    folder.join(format!("{part}.json"))
}
