//! Every bounded figure of a report: met, missed or not measured; the strongest of those that are met.

use super::outcome::Outcome;
use super::parts::{SECTIONS, Section};
use crate::measure::svg::Dot;
use crate::measure::table::{Bound, Cell, Figure, Table};
use crate::streams::WORST;

/// Claims of a report, each of another section.
const CLAIMS: usize = 3;

/// A bounded figure that was measured, and where it stands.
pub(super) struct Judged<'a> {
    pub(super) section: &'static Section,
    part: &'static str,
    /// Row and column.
    name: String,
    pub(super) figure: &'a Figure,
    bound: Bound,
    value: f64,
}

/// What a report comes to.
pub(super) struct Judgement<'a> {
    pub(super) judged: Vec<Judged<'a>>,
    /// Parts that failed, and bounded figures without a value: which, and why.
    pub(super) absent: Vec<(String, String)>,
}

impl<'a> Judgement<'a> {
    pub(super) fn of(outcomes: &'a [Outcome]) -> Self {
        let (mut judged, mut absent) = (Vec::new(), Vec::new());
        for section in SECTIONS {
            for part in section.parts {
                let Some(outcome) = outcomes.iter().find(|outcome| outcome.part == part.name) else {
                    absent.push((part.name.into(), "it was not run".into()));
                    continue;
                };
                absent.extend(outcome.failure.iter().map(|why| (part.name.into(), why.clone())));
                for (name, figure) in outcome.tables.iter().flat_map(figures) {
                    match (figure.bound, figure.value()) {
                        (None, _) => {}
                        (Some(bound), Some(value)) => {
                            judged.push(Judged { section, part: part.name, name, figure, bound, value })
                        }
                        (Some(_), None) => absent
                            .push((format!("{}: {name}", part.name), "no value, here or of the peer".into())),
                    }
                }
            }
        }
        Self { judged, absent }
    }

    /// The furthest first.
    pub(super) fn missed(&self) -> Vec<&Judged<'a>> {
        let mut missed: Vec<_> = self.judged.iter().filter(|judged| judged.figure.is_missed()).collect();
        missed.sort_by(|a, b| a.margin().total_cmp(&b.margin()));
        missed
    }

    /// Of each section the ratio to a peer that most exceeds its bound at the worse end of its interval; the first of these. What was
    /// measured once is none.
    pub(super) fn claims(&self) -> Vec<&Judged<'a>> {
        let sections = SECTIONS.iter().map(|section| section.title);
        let best = sections.filter_map(|title| {
            let of_it = self.judged.iter().filter(|judged| judged.section.title == title);
            let is_claim = |figure: &Figure| figure.is_ratio && !figure.is_of_ours && !figure.is_no_claim;
            let ratios = of_it.filter(|judged| is_claim(judged.figure) && judged.figure.interval().is_some());
            ratios.filter(|judged| judged.worst() > 1.0).max_by(|a, b| a.worst().total_cmp(&b.worst()))
        });
        let mut best: Vec<_> = best.collect();
        best.sort_by(|a, b| b.worst().total_cmp(&a.worst()));
        best.truncate(CLAIMS);
        best
    }
}

impl Judgement<'_> {
    /// Of all figures of a section the one that is farthest below its bound, or nearest to it. What meets a bound of 0 is at no distance.
    pub(super) fn worst_of(&self, title: &str) -> Option<&Judged<'_>> {
        let of_it = self.judged.iter().filter(|judged| judged.section.title == title);
        let far = of_it.filter(|judged| judged.figure.is_missed() || judged.margin() > 0.0);
        far.min_by(|a, b| a.margin().total_cmp(&b.margin()))
    }

    /// A sentence on what a section comes to.
    pub(super) fn verdict(&self, title: &str) -> String {
        let of_it = self.judged.iter().filter(|judged| judged.section.title == title);
        let (missed, met): (Vec<_>, Vec<_>) = of_it.partition(|judged| judged.figure.is_missed());
        let all = missed.len() + met.len();
        let open =
            met.iter().filter(|judged| judged.ends().iter().any(|end| !judged.bound.allows(*end))).count();
        let open = if open > 0 { format!(" (the interval of {open} has the bound)") } else { String::new() };
        match self.worst_of(title) {
            _ if all == 0 => "Nothing here has a bound.".into(),
            Some(worst) if !missed.is_empty() => format!(
                "{} of {all} bounds are met{open}, with those of the page; the farthest miss is {}.",
                met.len(),
                worst.distance()
            ),
            _ => format!("All bounds are met, {all} with those of the page{open}."),
        }
    }
}

impl Judged<'_> {
    /// How many times better than its bound; 0 where the bound is none of a ratio.
    fn margin(&self) -> f64 {
        self.bound.margin(self.value).unwrap_or_default()
    }

    /// Of the interval.
    fn ends(&self) -> [f64; 2] {
        self.figure.interval().unwrap_or([self.value; 2])
    }

    /// The margin at the worse end of the interval.
    fn worst(&self) -> f64 {
        self.ends().iter().map(|end| self.bound.margin(*end).unwrap_or_default()).fold(f64::MAX, f64::min)
    }

    /// Part, row and column.
    pub(super) fn full_name(&self) -> String {
        format!("{}: {}", self.part, self.name)
    }

    /// None where there is no ratio to the bound.
    pub(super) fn dot(&self) -> Option<Dot> {
        let [low, high] = self.ends();
        Some(Dot {
            name: self.full_name(),
            margin: self.bound.margin(self.value)?,
            interval: [self.bound.margin(low)?, self.bound.margin(high)?],
            text: format!("{} ({})", self.shown(), self.wanted()),
            is_missed: self.figure.is_missed(),
        })
    }

    pub(super) fn wanted(&self) -> String {
        let (sign, wanted) = self.bound.parts();
        format!("{sign} {wanted}")
    }

    /// The value with its interval.
    pub(super) fn shown(&self) -> String {
        self.figure.measured()
    }

    /// How far from its bound.
    pub(super) fn distance(&self) -> String {
        let (_, wanted) = self.bound.parts();
        let within = self.ends().iter().any(|end| self.bound.allows(*end));
        let within = if within { ", which the interval has" } else { "" };
        if wanted == 0.0 {
            return format!("{} beyond the bound", self.figure.shown((self.value - wanted).abs()));
        }
        format!("{:.2} of the bound{within}", self.value / wanted)
    }
}

/// Each figure of a table, with its row and its column; not of the row that repeats the worst of others.
fn figures(table: &Table) -> impl Iterator<Item = (String, &Figure)> {
    table.rows.iter().filter(|row| label(row) != WORST).flat_map(move |row| {
        let label = label(row);
        row.iter().zip(&table.head).filter_map(move |(cell, column)| {
            let Cell::Figure(figure) = cell else { return None };
            let words = [label.as_str(), column.as_str()].into_iter().filter(|word| !word.is_empty());
            Some((words.collect::<Vec<_>>().join(": "), figure))
        })
    })
}

/// The one or two texts that a row begins with.
fn label(row: &[Cell]) -> String {
    let texts = row.iter().map_while(|cell| match cell {
        Cell::Text(text) => Some(text.as_str()),
        Cell::Figure(_) => None,
    });
    texts.take(2).filter(|text| *text != "-").collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{outcome, table};
    use super::*;
    use crate::measure::table::{figure, once, ratio, row};

    fn names(judged: &[&Judged<'_>]) -> Vec<String> {
        judged.iter().map(|judged| judged.name.clone()).collect()
    }

    #[test]
    fn missed_bounds_are_listed_from_the_furthest_on_and_nothing_else_is() {
        let rows = vec![
            row!["a", once(9.0, 1).at_least(10.0)],
            row!["b", once(1.0, 1).at_least(10.0)],
            row!["c", once(10.0, 1).at_least(10.0)],
            row!["d", once(5.0, 0).at_most(0.0)],
            row!["e", once(0.0, 0)],
            row!["f", "g", once(20.0, 0).unit(" us").at_most(10.0)],
        ];
        let outcomes = [outcome("nbd", vec![table("t", rows)])];
        let judgement = Judgement::of(&outcomes);
        let missed = judgement.missed();
        assert_eq!(names(&missed), ["d: y", "b: y", "f, g: z", "a: y"]);
        let distances: Vec<_> = missed.iter().map(|judged| judged.distance()).collect();
        assert_eq!(
            distances,
            ["5 beyond the bound", "0.10 of the bound", "2.00 of the bound", "0.90 of the bound"]
        );
        assert_eq!((missed[2].shown(), missed[2].wanted()), ("20 us".into(), "<= 10".into()));
    }

    #[test]
    fn the_worst_of_a_table_is_missed_once_and_equal_figures_of_two_rows_twice() {
        let missed = || ratio(&[0.5], &[1.0]).at_least(1.0);
        let rows = vec![row!["a", missed()], row!["b", missed()], row![WORST, missed()]];
        let outcomes = [outcome("nbd", vec![table("t", rows)])];
        assert_eq!(names(&Judgement::of(&outcomes).missed()), ["a: y", "b: y"]);
    }

    #[test]
    fn a_miss_whose_interval_has_the_bound_says_so() {
        let rows = vec![row!["a", ratio(&[0.9, 1.1, 0.8], &[1.0; 3]).at_least(1.0)]];
        let outcomes = [outcome("nbd", vec![table("t", rows)])];
        let judgement = Judgement::of(&outcomes);
        assert_eq!(judgement.missed()[0].distance(), "0.90 of the bound, which the interval has");
        assert_eq!(judgement.missed()[0].shown(), "0.90 [0.80, 1.10]");
    }

    #[test]
    fn claims_are_ratios_of_different_sections_that_hold_at_their_worse_end() {
        let wide = ratio(&[9.0, 9.0, 0.5], &[1.0; 3]).at_least(1.0);
        let own = ratio(&[99.0], &[1.0]).at_least(1.0).of_ours();
        let other = ratio(&[99.0], &[1.0]).at_least(1.0).no_claim();
        let rows = |name: &str, value: f64| vec![row![name, ratio(&[value; 2], &[1.0; 2]).at_least(1.0)]];
        let once_only = row!["once", ratio(&[99.0], &[1.0]).at_least(1.0)];
        let mut outcomes = [
            outcome("nbd", vec![table("t", rows("nbd", 4.0)), table("t", rows("less", 3.0))]),
            outcome("tls", vec![table("t", vec![once_only])]),
            outcome("spill", vec![table("t", rows("spill", 2.0)), table("t", vec![row!["wide", wide]])]),
            outcome("fuse", vec![table("t", rows("fuse", 5.0))]),
            outcome("scale", vec![table("t", vec![row!["no ratio", once(99.0, 1).at_least(1.0)]])]),
            outcome("zones-store", vec![table("t", vec![row!["own", own], row!["other", other]])]),
            outcome("zram-codec", vec![table("t", rows("missed", 0.9))]),
        ];
        assert_eq!(names(&Judgement::of(&outcomes).claims()), ["fuse: y", "nbd: y", "spill: y"]);
        outcomes[3].tables[0].rows.clear();
        assert_eq!(names(&Judgement::of(&outcomes).claims()), ["nbd: y", "spill: y"]);
    }

    #[test]
    fn a_section_is_judged_by_all_of_its_bounds_and_its_worst_figure() {
        let rows = |values: &[f64]| {
            values.iter().map(|value| row!["a", once(*value, 1).at_least(2.0)]).collect::<Vec<_>>()
        };
        let nbd = [table("t", rows(&[2.0])), table("t", rows(&[1.5, 1.0, 3.0]))];
        let outcomes = [
            outcome("nbd", nbd.to_vec()),
            outcome("fuse", vec![table("t", rows(&[5.0, 4.0]))]),
            outcome("scale", vec![table("t", vec![row!["a", once(1.0, 1)]])]),
        ];
        let judgement = Judgement::of(&outcomes);
        for (section, wanted) in [
            ("NBD", "2 of 4 bounds are met, with those of the page; the farthest miss is 0.50 of the bound."),
            ("Mounts", "All bounds are met, 2 with those of the page."),
            ("Scaling", "Nothing here has a bound."),
        ] {
            assert_eq!(judgement.verdict(section), wanted);
        }
        assert_eq!(judgement.worst_of("Mounts").map(|worst| worst.value), Some(4.0));
        let met = |figure: Figure| row!["met", figure];
        let rows = vec![
            met(once(0.0, 1).at_least(0.0)),
            met(once(-9.0, 1).at_most(2.0)),
            met(ratio(&[1.0, 3.0], &[1.0; 2]).at_least(1.0)),
            met(ratio(&[0.5, 3.0, 3.0], &[1.0; 3]).at_least(1.0)),
        ];
        let outcomes = [outcome("nbd", vec![table("t", rows)])];
        let sentence = "All bounds are met, 4 with those of the page (the interval of 1 has the bound).";
        assert_eq!(Judgement::of(&outcomes).verdict("NBD"), sentence);
        assert_eq!(Judgement::of(&outcomes).worst_of("NBD").map(|worst| worst.value), Some(1.0));
        assert!(judgement.worst_of("Scaling").is_none());
    }

    #[test]
    fn what_failed_or_has_no_value_is_absent_and_not_missed() {
        let rows = vec![row!["a", figure(&[f64::NAN], 1).at_least(10.0)], row!["b", figure(&[], 1)]];
        let mut failed = outcome("fuse", vec![]);
        failed.failure = Some("no loop device".into());
        let outcomes = [outcome("nbd", vec![table("t", rows)]), failed];
        let judgement = Judgement::of(&outcomes);
        assert!(judgement.missed().is_empty());
        let why =
            |name: &str| judgement.absent.iter().find(|(part, _)| part == name).map(|(_, why)| why.as_str());
        assert_eq!(why("nbd: a: y"), Some("no value, here or of the peer"));
        assert_eq!(why("fuse"), Some("no loop device"));
        assert_eq!(why("tls"), Some("it was not run"));
        assert_eq!(why("nbd: b: y"), None);
    }
}
