//! The report: every part from one commit on one host, as a page and as docs/performance.md.
//!
//! Outcomes lie in `target/report/MODE/PART.json`, what a part said beside them. A part whose outcome is there for the same commit,
//! host and mode is not run again. Without a whole run of all parts on a clean tree nothing is written outside `target/report`.

mod content;
#[cfg(test)]
mod fixture;
mod html;
mod judgement;
mod markdown;
mod origin;
mod outcome;
mod parts;
mod runs;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::measure::results::PICTURES;
use crate::peers::servers::binary;
use content::Report;
use judgement::Judgement;
use origin::Origin;
use outcome::Outcome;
use parts::{Mode, Part, SECTIONS};
use runs::Runs;

/// Seen from the root of the repository.
const FOLDER: &str = "target/report";
const DOCUMENT: &str = "docs/performance.md";

/// What of a report is wanted.
struct Options {
    mode: Mode,
    check: bool,
    fresh: bool,
    /// Parts whose names begin so; all where it is empty.
    only: String,
}

impl Options {
    fn parse(words: &[&str], quick: bool) -> Result<Self> {
        let mode = if quick { Mode::Quick } else { Mode::Whole };
        let mut options = Self { mode, check: false, fresh: false, only: String::new() };
        for word in words {
            match *word {
                "--check" => options.check = true,
                "--fresh" => options.fresh = true,
                word if SECTIONS
                    .iter()
                    .flat_map(|section| section.parts)
                    .any(|part| part.name.starts_with(word)) =>
                {
                    options.only = word.into();
                }
                _ => bail!(
                    "report: unknown argument ({word}); --quick, --check, --fresh, or the beginning of a part's name"
                ),
            }
        }
        Ok(options)
    }
}

/// Runs the parts that are not there yet, and writes the report.
pub(crate) fn run(words: &[&str], quick: bool) -> Result<()> {
    let options = Options::parse(words, quick)?;
    let (folder, origin) = (Path::new(FOLDER), Origin::here()?);
    let runs =
        Runs { folder: folder.join(options.mode.name()), mode: options.mode, origin, fresh: options.fresh };
    let parts = SECTIONS.iter().flat_map(|section| section.parts);
    let parts = parts.filter(|part| part.is_in(options.mode));
    let wanted: Vec<&Part> = parts.filter(|part| part.name.starts_with(&options.only)).collect();
    ensure!(!wanted.is_empty(), "a quick report has no part whose name begins with {}", options.only);
    // Before any part, so that none waits for its build.
    binary()?;
    runs.all(&wanted, |part| runs.execute(part))?;
    let report = recorded(&runs)?;
    save(&report, folder, Path::new("."))?;
    eprintln!("{FOLDER}/index.html");
    if options.check { check(&report) } else { Ok(()) }
}

/// What is there of the same origin, also from an earlier run that was asked for other parts.
fn recorded(runs: &Runs) -> Result<Report> {
    let parts = SECTIONS.iter().flat_map(|section| section.parts);
    let outcomes = parts.filter_map(|part| Outcome::load(&runs.folder, part.name));
    let outcomes = outcomes.filter(|outcome| outcome.origin == runs.origin).collect();
    Ok(Report { mode: runs.mode, origin: runs.origin.clone(), outcomes })
}

/// Into `folder`; that of a whole run of all parts and of a clean tree also where `root` keeps its documents.
fn save(report: &Report, folder: &Path, root: &Path) -> Result<()> {
    let write = |path: &Path, text: &str| fs::write(path, text).with_context(|| path.display().to_string());
    write(&folder.join("index.html"), &html::page(report))?;
    let document = markdown::page(report)?;
    write(&folder.join("performance.md"), &document)?;
    if report.mode == Mode::Quick || report.origin.uncommitted || !report.has_all_parts() {
        return Ok(());
    }
    markdown::check(&document)?;
    write(&root.join(DOCUMENT), &document)?;
    let mut pictures = report.outcomes.iter().flat_map(|outcome| &outcome.pictures);
    pictures.try_for_each(|picture| picture.save(&root.join(PICTURES)))
}

/// Fails with a list if a bound was missed or a part has failed.
fn check(report: &Report) -> Result<()> {
    let judgement = Judgement::of(&report.outcomes);
    let failed = report
        .outcomes
        .iter()
        .filter_map(|outcome| Some(format!("{}: {}", outcome.part, outcome.failure.as_ref()?)));
    let missed = judgement.missed();
    let missed = missed.iter().map(|missed| {
        format!(
            "{}, {}: {}, wanted {}",
            missed.section.title,
            missed.full_name(),
            missed.shown(),
            missed.wanted()
        )
    });
    let wrong: Vec<String> = failed.chain(missed).collect();
    ensure!(wrong.is_empty(), "{} bounds are missed or parts failed:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::fixture::{Scratch, origin, outcome, outcomes};
    use super::*;

    fn report(mode: Mode, uncommitted: bool) -> Report {
        Report { mode, origin: Origin { uncommitted, ..origin() }, outcomes: outcomes() }
    }

    #[test]
    fn only_a_whole_report_of_a_clean_tree_is_written_into_the_documents() {
        for (mode, uncommitted, documents) in
            [(Mode::Whole, false, true), (Mode::Quick, false, false), (Mode::Whole, true, false)]
        {
            let scratch = Scratch::new("written");
            fs::create_dir(scratch.0.join("docs")).unwrap();
            // As many rows as machines have, not as many as this fixture makes.
            let mut report = report(mode, uncommitted);
            report
                .outcomes
                .iter_mut()
                .for_each(|outcome| outcome.tables.iter_mut().for_each(|table| table.rows.truncate(1)));
            save(&report, &scratch.0, &scratch.0).unwrap();
            let is_there = |path: &str| scratch.0.join(path).exists();
            assert!(is_there("index.html") && is_there("performance.md"));
            assert_eq!(
                [is_there(DOCUMENT), is_there("docs/pictures/p.svg")],
                [documents; 2],
                "{mode:?} {uncommitted}"
            );
        }
    }

    #[test]
    fn a_check_fails_with_every_missed_bound_and_every_failed_part() {
        let mut report = report(Mode::Whole, false);
        report.outcomes.truncate(1);
        assert!(!report.has_all_parts());
        let error = check(&report).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1 + report.outcomes[0].tables.len(), "{error}");
        assert!(
            error.contains("Spilling (E1), spill: spill missed: y: 2.00 [1.90, 2.20], wanted >= 2.5"),
            "{error}"
        );
        report.outcomes[0].tables.clear();
        check(&report).unwrap();
        report.outcomes[0].failure = Some("broken".into());
        assert!(check(&report).unwrap_err().to_string().ends_with("spill: broken"));
    }

    /// Recorded parts become a report without a run; those of another commit are no part of it.
    #[test]
    fn recorded_parts_of_one_origin_become_a_report() {
        let scratch = Scratch::new("recorded");
        let runs = Runs { folder: scratch.0.clone(), mode: Mode::Quick, origin: origin(), fresh: false };
        let mut other = outcomes();
        other[0].origin.commit = "of another day".into();
        other.iter().try_for_each(|outcome| outcome.save(&scratch.0)).unwrap();
        let report = recorded(&runs).unwrap();
        assert_eq!(report.outcomes[..], other[1..]);
        save(&report, &scratch.0, &scratch.0).unwrap();
        let read = |name: &str| fs::read_to_string(scratch.0.join(name)).unwrap();
        let (page, document) = (read("index.html"), read("performance.md"));
        assert!(page.contains("spill-soak missed: y") && !page.contains("spill: spill missed: y"));
        assert!(document.contains("| spill 1 | it was not run |") && document.contains("A try"));
    }

    #[test]
    fn results_are_read_back_as_they_were_recorded() {
        let scratch = Scratch::new("read");
        for outcome in outcomes() {
            outcome.save(&scratch.0).unwrap();
            assert_eq!(Outcome::load(&scratch.0, &outcome.part), Some(outcome));
        }
        fs::write(scratch.0.join("nbd.json"), "{}").unwrap();
        assert_eq!(Outcome::load(&scratch.0, "nbd"), None, "another form");
        let records = r#"{"Command":"fio -x"}
{"Set":{"name":"a","bytes":9,"ratio":1.5}}
{"Set":{"name":"a","bytes":4,"ratio":2.5}}
{"Table":{"title":"t","command":"nbd 5","rounds":null,"head":["a"],"rows":[[{"Text":"b"}]],"notes":[]}}"#;
        let mut outcome = outcome("nbd", Vec::new());
        outcome.take(records).unwrap();
        assert_eq!((outcome.tables.len(), outcome.sets["a"]), (1, (9, 1.5)));
        assert!(outcome.commands.contains("fio -x"));
        assert!(outcome.take("sausage").unwrap_err().to_string().contains("sausage"));
    }

    #[test]
    fn arguments_are_options_or_the_beginning_of_a_part() {
        let options = Options::parse(&["--check", "folio"], true).unwrap();
        assert!(options.check && !options.fresh && options.only == "folio" && options.mode == Mode::Quick);
        assert!(
            Options::parse(&["--sausage"], false)
                .is_err_and(|error| error.to_string().contains("(--sausage)"))
        );
    }
}
