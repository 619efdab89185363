//! The report as docs/performance.md: a template with the prose, filled with tables.
//!
//! A line of the template may be a marker: `{{facts}}`, `{{claims}}`, `{{missed}}`, `{{absent}}`, or `{{PART NUMBER}}` for a table of a
//! part, counted from 1; `{{PART NUMBER LAST}}` has only so many of its last rows. These become tables, whose lines may be wider than prose;
//! `{{verdict}}` becomes a line on the section that it stands in.

use anyhow::{Context, Result, bail, ensure};

use super::content::Report;
use super::judgement::{Judged, Judgement};
use super::parts::{NOT_TRIED, SECTIONS, STREAMS};
use crate::measure::table::Table;

const TEMPLATE: &str = include_str!("performance.md");

/// Of the document.
const LINES_MAX: usize = 400;

/// Of a line of prose.
const WIDTH_MAX: usize = 100;

pub(super) fn page(report: &Report) -> Result<String> {
    filled(report, TEMPLATE)
}

/// Refuses a page that is too long for the documents.
pub(super) fn check(page: &str) -> Result<()> {
    let count = page.lines().count();
    ensure!(
        count <= LINES_MAX,
        "docs/performance.md would have {count} lines; at most {LINES_MAX}: shorten its template, tools/bench/src/report/performance.md"
    );
    Ok(())
}

fn filled(report: &Report, template: &str) -> Result<String> {
    let judgement = Judgement::of(&report.outcomes);
    let (mut page, mut section) = (String::new(), "");
    for line in template.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        match line.strip_prefix("{{").and_then(|line| line.strip_suffix("}}")) {
            Some("verdict") => page += &wrapped(&format!("**{}**", judgement.verdict(section))),
            Some(marker) => page += &expanded(report, &judgement, marker)?,
            None => page = page + line + "\n",
        }
    }
    Ok(page)
}

/// In two lines at most, which is enough.
fn wrapped(sentence: &str) -> String {
    match sentence.char_indices().nth(WIDTH_MAX) {
        None => format!("{sentence}\n"),
        Some((end, _)) => {
            let (first, rest) = sentence[..=end].rsplit_once(' ').expect("words are short");
            format!("{first}\n{rest}{}\n", &sentence[end + 1..])
        }
    }
}

fn expanded(report: &Report, judgement: &Judgement<'_>, marker: &str) -> Result<String> {
    let head = ["experiment", "figure", "measured", "wanted"];
    let judged = |judged: &&Judged<'_>| {
        [judged.section.title.into(), judged.full_name(), judged.shown(), judged.wanted()].to_vec()
    };
    Ok(match marker {
        "facts" => {
            let labels = report.labels().into_iter().map(|label| vec!["**label**".into(), label]);
            let facts = report.facts().into_iter().map(|(name, value)| vec![name.into(), value]);
            table(&["", ""], labels.chain(facts))
        }
        "claims" => {
            let worst = judgement.worst_of(STREAMS).map(|worst| judged(&worst));
            let worst = worst.map(|row| [vec![format!("{}, its worst", row[0])], row[1..].to_vec()].concat());
            table(&head, judgement.claims().iter().map(judged).chain(worst))
        }
        "missed" => table(&["experiment", "figures"], missed(judgement)),
        "absent" => {
            let absent = judgement.absent.iter().map(|(what, why)| vec![what.clone(), why.clone()]);
            table(&["", ""], absent.chain(NOT_TRIED.iter().map(|text| vec!["always".into(), (*text).into()])))
        }
        _ => of_part(report, marker)?,
    })
}

/// A row for each section: a document of bounded length has all that was missed.
fn missed(judgement: &Judgement<'_>) -> impl Iterator<Item = Vec<String>> {
    let all = judgement.missed();
    SECTIONS.iter().filter_map(move |section| {
        let of_it = all.iter().filter(|missed| missed.section.title == section.title);
        let figure = |missed: &&Judged<'_>| {
            format!("{}: {} ({}), {}", missed.full_name(), missed.shown(), missed.wanted(), missed.distance())
        };
        let figures: Vec<String> = of_it.map(figure).collect();
        (!figures.is_empty()).then(|| vec![section.title.into(), figures.join("; ")])
    })
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "/")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let head = head.iter().map(|name| (*name).into()).collect::<Vec<String>>();
    let marks = format!("|{}\n", " --- |".repeat(head.len()));
    line(head) + &marks + &rows.map(line).collect::<String>()
}

/// A table of a part; the reason, where it is not there.
fn of_part(report: &Report, marker: &str) -> Result<String> {
    let (name, numbers) = marker.split_once(' ').unwrap_or((marker, ""));
    let numbers: Result<Vec<usize>, _> = numbers.split(' ').map(str::parse).collect();
    let (number, last) = match numbers.as_deref() {
        Ok(&[number]) => (number, usize::MAX),
        Ok(&[number, last]) => (number, last),
        _ => bail!("the template has an unknown marker: {marker}"),
    };
    ensure!(Report::has_part(name), "the template names a part that does not exist: {name}");
    let why = |why: &str| table(&["", ""], std::iter::once(vec![marker.into(), why.into()]));
    let Some(outcome) = report.outcome(name) else { return Ok(why("it was not run")) };
    match (outcome.tables.get(number.checked_sub(1).context("tables count from 1")?), &outcome.failure) {
        (Some(table), _) => {
            let rows = table.rows[table.rows.len().saturating_sub(last)..].to_vec();
            Ok(Table { rows, ..table.clone() }.rows_in_markdown(ToString::to_string))
        }
        (None, Some(failure)) => Ok(why(failure)),
        (None, None) => bail!("the template names a table that {name} does not have: {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::super::parts::Mode;
    use super::*;

    fn report() -> Report {
        let outcomes = fixture::outcomes();
        Report { mode: Mode::Whole, origin: fixture::origin(), outcomes }
    }

    #[test]
    fn the_template_is_filled_and_every_missed_bound_is_in_its_list() {
        let report = report();
        let page = filled(&report, TEMPLATE).unwrap();
        assert!(!page.contains("{{") && !page.contains("}}"), "{page}");
        let list = page.split("## Missed").nth(1).unwrap().split("\n## ").next().unwrap();
        let judgement = Judgement::of(&report.outcomes);
        for judged in judgement.missed() {
            assert!(list.contains(&judged.full_name()), "{}", judged.full_name());
        }
        assert_eq!(list.matches(" of the bound").count(), judgement.missed().len());
        assert!(page.contains("0123456789ab") && page.contains("A <fast> & cheap one"), "commit and host");
    }

    #[test]
    fn a_sentence_that_is_too_wide_goes_on_in_the_next_line() {
        let [fits, wide] =
            [WIDTH_MAX, WIDTH_MAX + 1].map(|width| "one ".repeat(width / 4) + &"x".repeat(width % 4));
        let fits = fits.trim_end();
        assert_eq!(wrapped(fits), format!("{fits}\n"));
        let lines = wrapped(&wide);
        assert!(lines.lines().count() == 2 && lines.lines().all(|line| line.len() <= WIDTH_MAX), "{lines}");
        assert_eq!(lines.replace('\n', " ").trim_end(), wide);
    }

    #[test]
    fn a_page_of_more_than_400_lines_is_refused() {
        assert!(check(&"\n".repeat(400)).is_ok());
        assert!(check(&"\n".repeat(401)).unwrap_err().to_string().contains("401 lines"));
    }

    /// Every experiment has a sentence of judgement and a table in the document.
    #[test]
    fn each_section_is_judged_and_has_a_table_in_the_template() {
        for section in SECTIONS {
            let heading = format!("\n## {}\n{{{{verdict}}}}\n", section.title);
            let text = TEMPLATE.split_once(&heading).expect(section.title).1.split("\n## ").next().unwrap();
            let has = |name: &str| text.contains(&format!("{{{{{name} "));
            assert!(section.parts.iter().any(|part| has(part.name)), "{}", section.title);
        }
    }

    #[test]
    fn a_part_that_is_not_there_leaves_its_reason() {
        let mut report = report();
        report.outcomes.retain(|outcome| outcome.part != "tls");
        let fuse = report.outcomes.iter_mut().find(|outcome| outcome.part == "fuse").unwrap();
        (fuse.failure, fuse.tables) = (Some("a | b".into()), Vec::new());
        let part = |marker: &str| filled(&self::report(), marker).unwrap();
        assert!(part("{{nbd 1}}").contains("| nbd met |") && !part("{{nbd 1 1}}").contains("| nbd met |"));
        assert!(part("{{nbd 1 1}}").contains("| nbd missed |"));
        assert!(filled(&report, "{{tls 1}}").unwrap().contains("| tls 1 | it was not run |"));
        assert!(filled(&report, "{{fuse 1}}").unwrap().contains("| fuse 1 | a / b |"));
    }

    #[test]
    fn a_marker_that_means_nothing_is_refused() {
        for (marker, why) in [
            ("{{sausage}}", "unknown marker"),
            ("{{sausage 1}}", "does not exist"),
            ("{{nbd 9}}", "does not have: 9"),
            ("{{nbd 0}}", "count from 1"),
        ] {
            let error = filled(&report(), marker).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
