//! The report as a page that needs nothing else: no scripts, no resources from outside.

use std::fmt::Write as _;

use super::content::Report;
use super::judgement::{Judged, Judgement};
use super::outcome::Outcome;
use super::parts::{NOT_TRIED, Part, SECTIONS, STREAMS, Section};
use crate::measure::flame;
use crate::measure::svg::{self, Dot, escaped};
use crate::measure::table::{Cell, Table};

const STYLE: &str = include_str!("style.css");

pub(super) fn page(report: &Report) -> String {
    let judgement = Judgement::of(&report.outcomes);
    let sections: String = SECTIONS.iter().map(|section| section_of(report, &judgement, section)).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>Spillway: performance</title>\n\
         <style>{}{STYLE}{}</style>\n</head>\n<body>\n{}{}{sections}</body>\n</html>\n",
        svg::colours(),
        svg::STYLE,
        head(report),
        summary(&judgement)
    )
}

/// What the figures are of.
fn head(report: &Report) -> String {
    let mut text = String::from("<header>\n<h1>Spillway: performance</h1>\n");
    for label in report.labels() {
        let _ = writeln!(text, "<p class=\"label\">{}</p>", escaped(&label));
    }
    for (name, value) in report.facts() {
        let _ = writeln!(text, "<p class=\"quiet\">{name}: {}</p>", escaped(&value));
    }
    text + "<p class=\"quiet\">A figure is the median over rounds in which all contenders take turns, a ratio the median of the ratios \
            within each round. In square brackets: its interval, by percentile bootstrap over the rounds (of five the least and the greatest, which hold the \
            median with 94 %).</p>\n</header>\n"
}

/// What is claimed, what was missed, what was not tried.
fn summary(judgement: &Judgement<'_>) -> String {
    let (claims, missed) = (judgement.claims(), judgement.missed());
    let mut text = String::from("<section id=\"summary\">\n<h2>What we claim</h2>\n");
    text += &list(&claims, |claim| format!("{} (wanted {})", claim.shown(), claim.wanted()));
    if let Some(worst) = judgement.worst_of(STREAMS) {
        let (name, wanted) = (escaped(&worst.full_name()), escaped(&worst.wanted()));
        let _ = writeln!(text, "<p>{STREAMS}, its worst: {name}: {} (wanted {wanted})</p>", worst.shown());
    }
    let _ = writeln!(text, "<h2>What was missed: {} of {}</h2>", missed.len(), judgement.judged.len());
    text += &list(&missed, |judged| {
        format!("{}, wanted {}: {}", judged.shown(), judged.wanted(), judged.distance())
    });
    text += "<h2>What was not tried</h2>\n<ul>\n";
    for (what, why) in &judgement.absent {
        let _ = writeln!(text, "<li>{}: {}</li>", escaped(what), escaped(why));
    }
    for text_of in NOT_TRIED {
        let _ = writeln!(text, "<li>{}</li>", escaped(text_of));
    }
    text + "</ul>\n</section>\n"
}

fn list(judged: &[&Judged<'_>], figure: impl Fn(&Judged<'_>) -> String) -> String {
    if judged.is_empty() {
        return "<p>Nothing.</p>\n".into();
    }
    let item = |judged: &&Judged<'_>| {
        let class = if judged.figure.is_missed() { "missed" } else { "met" };
        format!(
            "<li>{}, {}: <span class=\"{class}\">{}</span></li>\n",
            judged.section.title,
            escaped(&judged.full_name()),
            escaped(&figure(judged))
        )
    };
    format!("<ul>\n{}</ul>\n", judged.iter().map(item).collect::<String>())
}

fn section_of(report: &Report, judgement: &Judgement<'_>, section: &Section) -> String {
    let mut text = format!("<section>\n<h2>{}</h2>\n", section.title);
    if !section.source.is_empty() {
        let _ = writeln!(text, "<p>The source: {}</p>", escaped(section.source));
    }
    let _ = writeln!(text, "<p>{}</p>", escaped(&judgement.verdict(section.title)));
    text += &plot(judgement, section);
    for part in section.parts {
        match report.outcome(part.name) {
            Some(outcome) => text += &part_of(outcome),
            None => text += &absent(part, "it was not run"),
        }
    }
    text + "</section>\n"
}

fn absent(part: &Part, why: &str) -> String {
    format!("<p class=\"missed\">{}: {}</p>\n", part.name, escaped(why))
}

/// Every bounded figure of a section.
fn plot(judgement: &Judgement<'_>, section: &Section) -> String {
    let judged = judgement.judged.iter().filter(|judged| judged.section.title == section.title);
    let dots: Vec<Dot> = judged.filter_map(Judged::dot).collect();
    if dots.is_empty() { String::new() } else { svg::dots(&dots) }
}

fn part_of(outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(why) = &outcome.failure {
        let _ = writeln!(text, "<p class=\"missed\">{} failed: {}</p>", outcome.part, escaped(why));
    }
    text += &outcome.tables.iter().map(table).collect::<String>();
    text += &outcome.pictures.iter().map(svg::Picture::inline).collect::<String>();
    text += &outcome.flames.iter().map(flame::Flame::inline).collect::<String>();
    let _ = write!(
        text,
        "<details>\n<summary>{}: {:.0} s, {}; sets and commands</summary>\n<ul>\n",
        outcome.part, outcome.seconds, outcome.date
    );
    for (name, (bytes, ratio)) in &outcome.sets {
        let _ = writeln!(
            text,
            "<li>{}, {} MiB, {ratio:.2} times smaller with lz4</li>",
            escaped(name),
            bytes >> 20
        );
    }
    for command in &outcome.commands {
        let _ = writeln!(text, "<li><code>{}</code></li>", escaped(command));
    }
    text + "</ul>\n</details>\n"
}

fn table(table: &Table) -> String {
    let head: String = table.head.iter().map(|name| format!("<th>{}</th>", escaped(name))).collect();
    let mut text = format!(
        "<h3>{}</h3>\n<p class=\"quiet\"><code>cargo xtask bench {}</code></p>\n\
         <div class=\"wide\"><table>\n<tr>{head}</tr>\n",
        escaped(&table.heading()),
        escaped(&table.command)
    );
    for row in &table.rows {
        let _ = writeln!(text, "<tr>{}</tr>", row.iter().map(cell).collect::<String>());
    }
    text += "</table></div>\n";
    for note in &table.notes {
        let _ = writeln!(text, "<p class=\"note\">{}</p>", escaped(note));
    }
    text
}

fn cell(cell: &Cell) -> String {
    let is_missed = matches!(cell, Cell::Figure(figure) if figure.is_missed());
    let class = if is_missed { " class=\"missed\"" } else { "" };
    let text = match cell {
        Cell::Text(text) => text.clone(),
        Cell::Figure(figure) => figure.in_full(),
    };
    format!("<td{class}>{}</td>", escaped(&text))
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    fn report() -> Report {
        let outcomes = fixture::outcomes();
        Report { mode: super::super::parts::Mode::Whole, origin: fixture::origin(), outcomes }
    }

    /// Reads tags as a strict parser does: each that is opened is closed, in order, and no sign stands bare.
    fn elements(page: &str) -> Vec<String> {
        let body = page.strip_prefix("<!DOCTYPE html>").expect("a document type");
        let (mut open, mut all) = (Vec::new(), Vec::new());
        for piece in body.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').expect("a tag ends");
            assert!(
                !text.contains('>') || open.last().is_some_and(|name| name == "style"),
                "a bare sign: {text}"
            );
            let name: String =
                tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
            assert!(!name.is_empty(), "no name: {tag}");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            if tag.starts_with('/') {
                assert_eq!(open.pop().as_ref(), Some(&name), "closed in order");
            } else {
                all.push(name.clone());
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
            for entity in text.split('&').skip(1) {
                assert!(["amp;", "lt;", "gt;"].iter().any(|known| entity.starts_with(known)), "{text}");
            }
        }
        assert_eq!(open, [""; 0], "all are closed");
        all
    }

    #[test]
    fn the_page_is_well_formed_and_needs_nothing_from_outside() {
        let page = page(&report());
        let elements = elements(&page);
        let count = |name: &str| elements.iter().filter(|element| *element == name).count();
        let tables: usize = fixture::outcomes().iter().map(|outcome| outcome.tables.len()).sum();
        assert_eq!((count("section"), count("table")), (SECTIONS.len() + 1, tables));
        assert_eq!(count("svg"), SECTIONS.len() + 1, "a plot of each section, and a picture");
        for word in ["http:", "https:", "url(", "@import", "src=", "href="] {
            assert!(!page.contains(word), "{word}");
        }
        assert_eq!(["script", "link", "img", "iframe", "object"].map(count), [0; 5]);
        assert!(
            page.contains("A &lt;fast&gt; &amp; cheap one") && page.contains("prefers-color-scheme: dark")
        );
    }

    #[test]
    fn every_missed_bound_is_in_the_list_of_the_first_page() {
        let report = report();
        let page = page(&report);
        let summary = page.split("</section>").next().expect("a first section");
        let judgement = Judgement::of(&report.outcomes);
        let missed = judgement.missed();
        let bounds = report.outcomes.iter().map(|outcome| outcome.tables.len()).sum::<usize>();
        assert_eq!((missed.len(), judgement.judged.len()), (bounds, 2 * bounds), "one of two in each table");
        for judged in missed {
            assert!(summary.contains(&escaped(&judged.full_name())), "{}", judged.full_name());
        }
        assert_eq!(summary.matches(" of the bound").count(), bounds);
        assert_eq!(summary.matches("class=\"met\"").count(), 3, "the claims");
    }

    #[test]
    fn what_was_not_run_and_what_failed_is_said() {
        let mut report = report();
        report.outcomes.remove(0);
        report.outcomes[0].failure = Some("no <disk>".into());
        let page = page(&report);
        elements(&page);
        assert!(page.contains("<li>spill: it was not run</li>"));
        assert!(page.contains("<li>spill-soak: no &lt;disk&gt;</li>"));
    }

    #[test]
    fn a_try_and_uncommitted_changes_are_labelled() {
        assert!(!page(&report()).contains("class=\"label\""));
        let mut report = report();
        report.mode = super::super::parts::Mode::Quick;
        report.origin.uncommitted = true;
        let page = page(&report);
        assert_eq!(page.matches("class=\"label\"").count(), 2);
        assert!(page.contains("uncommitted changes") && page.contains("A try"));
    }
}
