//! Recorded results as tests need them: made here, of no machine.

use std::path::PathBuf;

use super::origin::Origin;
use super::outcome::Outcome;
use super::parts::{Mode, SECTIONS};
use crate::measure::svg::{Chart, Line, Picture};
use crate::measure::table::{Cell, Table, ratio, row};

/// A folder that ends with its test.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("spillway-report-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn origin() -> Origin {
    Origin {
        commit: "0123456789ab".into(),
        uncommitted: false,
        processor: "A <fast> & cheap one".into(),
        cores: 2,
        memory_mib: 4096,
        kernel: "6.1.0".into(),
        system: "Debian".into(),
        root: true,
        versions: vec!["fio-3.33".into()],
    }
}

pub(super) fn table(title: &str, rows: Vec<Vec<Cell>>) -> Table {
    Table {
        title: title.into(),
        command: "nbd 5".into(),
        rounds: Some(5),
        head: ["", "y", "z"].map(String::from).into(),
        rows,
        notes: vec!["With a note on `a < b`.".into()],
    }
}

pub(super) fn outcome(part: &str, tables: Vec<Table>) -> Outcome {
    let mut outcome = Outcome::new(part, Mode::Whole, &origin(), "2026-11-28 12:00 UTC");
    outcome.tables = tables;
    outcome.commands.insert("fio --name=job".into());
    outcome.sets.insert("ELF files".into(), (1 << 20, 1.5));
    outcome
}

/// An outcome of each part, with as many tables as the template asks for: a bound that is met, and one that is missed, each by
/// the part's name.
pub(super) fn outcomes() -> Vec<Outcome> {
    let parts = SECTIONS.iter().flat_map(|section| section.parts);
    let of = |name: &str| {
        let rows = || {
            let ours = [2.0, 2.1, 1.9, 2.2, 2.0];
            let [met, missed] = [1.5, 2.5].map(|wanted| ratio(&ours, &[1.0; 5]).at_least(wanted));
            vec![row![format!("{name} met"), met, "-"], row![format!("{name} missed"), missed, "<none>"]]
        };
        let count = match name {
            "nbd" => 5,
            "spill" | "folio-databases" | "fuse" | "network-image" => 3,
            _ => 2,
        };
        outcome(name, (0..count).map(|number| table(&format!("{name}, table {number}"), rows())).collect())
    };
    let mut outcomes: Vec<_> = parts.map(|part| of(part.name)).collect();
    let line = Line { name: "a".into(), colour: "fill".into(), points: vec![(0.0, 1.0), (5.0, 2.0)] };
    let chart = Chart { title: "c".into(), x: "x".into(), y: "y".into(), y_max: 1.0, lines: vec![line] };
    outcomes[0].pictures.push(Picture { name: "p.svg".into(), charts: vec![chart], columns: 1 });
    outcomes
}
