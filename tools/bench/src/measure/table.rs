//! Tables of figures. A figure keeps its value of each round and its bound: here alone it is summed up, judged and put into words.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::statistics::{interval, median};

/// Rounds below which a table is labelled "try".
const CONVINCING: usize = 5;

/// A table, and the command that makes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) command: String,
    /// None where more rounds would not change the figures.
    pub(crate) rounds: Option<usize>,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
    pub(crate) notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Cell {
    Text(String),
    Figure(Figure),
}

/// A figure over the rounds; without values where it was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// One of each round.
    values: Vec<f64>,
    decimals: usize,
    unit: String,
    /// To a peer, or to another of ours.
    pub(crate) is_ratio: bool,
    /// A ratio to another of ours.
    pub(crate) is_of_ours: bool,
    /// A ratio to a peer that promises something else, or is not the fastest of its kind.
    #[serde(default)]
    pub(crate) is_no_claim: bool,
    pub(crate) bound: Option<Bound>,
}

/// What is wanted of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// The median of these values of each round.
pub(crate) fn figure(values: &[f64], decimals: usize) -> Figure {
    let is_measured = values.iter().all(|value| value.is_finite());
    let values = if is_measured { values.to_vec() } else { Vec::new() };
    let [is_ratio, is_of_ours, is_no_claim] = [false; 3];
    Figure { values, decimals, unit: String::new(), is_ratio, is_of_ours, is_no_claim, bound: None }
}

/// A figure that is measured once.
pub(crate) fn once(value: f64, decimals: usize) -> Figure {
    figure(&[value], decimals)
}

/// The median over the rounds of `ours / theirs`.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> Figure {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    Figure { is_ratio: true, ..figure(&ratios, 2) }
}

impl Figure {
    /// With this behind the number, which has its space in front.
    pub(crate) fn unit(self, unit: &str) -> Self {
        Self { unit: unit.into(), ..self }
    }

    pub(crate) fn decimals(self, decimals: usize) -> Self {
        Self { decimals, ..self }
    }

    /// With each value so many times as large.
    pub(crate) fn times(mut self, factor: f64) -> Self {
        self.values.iter_mut().for_each(|value| *value *= factor);
        self
    }

    pub(crate) fn at_least(self, wanted: f64) -> Self {
        Self { bound: Some(Bound::AtLeast(wanted)), ..self }
    }

    pub(crate) fn at_most(self, wanted: f64) -> Self {
        Self { bound: Some(Bound::AtMost(wanted)), ..self }
    }

    /// A ratio not to a peer, but to another of ours.
    pub(crate) fn of_ours(self) -> Self {
        assert!(self.is_ratio, "other figures are to nobody");
        Self { is_of_ours: true, ..self }
    }

    /// The median of the ratios to another figure of the same rounds.
    pub(crate) fn to(&self, other: &Self) -> Self {
        ratio(&self.values, &other.values)
    }

    /// A ratio that is no claim, however large.
    pub(crate) fn no_claim(self) -> Self {
        assert!(self.is_ratio, "claims are ratios");
        Self { is_no_claim: true, ..self }
    }

    /// At least `wanted`, where that is not 0.
    pub(crate) fn wanted(self, wanted: f64) -> Self {
        if wanted > 0.0 { self.at_least(wanted) } else { self }
    }

    /// The median; none where it was not measured.
    pub(crate) fn value(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| median(&self.values))
    }

    /// How sure the median is; none of what was measured once.
    pub(crate) fn interval(&self) -> Option<[f64; 2]> {
        interval(&self.values)
    }

    pub(crate) fn is_missed(&self) -> bool {
        self.value().zip(self.bound).is_some_and(|(value, bound)| !bound.allows(value))
    }

    /// The value and its interval.
    pub(crate) fn measured(&self) -> String {
        let Some(value) = self.value() else { return "-".into() };
        let interval = self
            .interval()
            .map(|[low, high]| format!(" [{low:.*}, {high:.*}]", self.decimals, self.decimals));
        self.shown(value) + &interval.unwrap_or_default()
    }

    /// The same, and its bound with what came of it.
    pub(crate) fn in_full(&self) -> String {
        let Some(bound) = self.bound.filter(|_| self.value().is_some()) else { return self.measured() };
        let (sign, wanted) = bound.parts();
        let verdict = if self.is_missed() { "MISSED, wanted" } else { sign };
        format!("{} ({verdict} {wanted}{})", self.measured(), self.unit)
    }

    /// A number as exact as this figure, with the unit.
    pub(crate) fn shown(&self, number: f64) -> String {
        format!("{number:.*}{}", self.decimals, self.unit)
    }
}

impl Bound {
    pub(crate) fn allows(self, value: f64) -> bool {
        match self {
            Self::AtLeast(wanted) => value >= wanted,
            Self::AtMost(wanted) => value <= wanted,
        }
    }

    /// How many times better than the bound `value` is; below 1 it misses. None where one of both is 0.
    pub(crate) fn margin(self, value: f64) -> Option<f64> {
        let margin = match self {
            Self::AtLeast(wanted) => value / wanted,
            Self::AtMost(wanted) => wanted / value,
        };
        (margin.is_finite() && margin > 0.0).then_some(margin)
    }

    /// Its sign and its number.
    pub(crate) fn parts(self) -> (&'static str, f64) {
        match self {
            Self::AtLeast(wanted) => (">=", wanted),
            Self::AtMost(wanted) => ("<=", wanted),
        }
    }
}

/// In full, but for what is neither a ratio nor bounded: that is a number to look up, not to judge by.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value() {
            Some(value) if !self.is_ratio && self.bound.is_none() => f.write_str(&self.shown(value)),
            _ => f.write_str(&self.in_full()),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Figure(figure) => figure.fmt(f),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Figure> for Cell {
    fn from(figure: Figure) -> Self {
        Self::Figure(figure)
    }
}

/// A row of texts and figures.
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$($crate::measure::table::Cell::from($cell)),*] };
}
pub(crate) use row;

/// A row: a name, and a cell for each of `cells`.
pub(crate) fn named<C: Into<Cell>>(name: &str, cells: impl IntoIterator<Item = C>) -> Vec<Cell> {
    std::iter::once(name.into()).chain(cells.into_iter().map(Into::into)).collect()
}

impl Table {
    /// With a sentence below it.
    pub(crate) fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// What it shows and how often that was measured.
    pub(crate) fn heading(&self) -> String {
        let weight = |count| if count < CONVINCING { " (a try: fewer than 5)" } else { "" };
        let plural = |count| if count == 1 { "" } else { "s" };
        let rounds = self.rounds.map(|count| format!(", {count} round{}{}", plural(count), weight(count)));
        format!("{}{}", self.title, rounds.unwrap_or_default())
    }

    /// In Markdown; `cell` puts a cell into words.
    pub(crate) fn rows_in_markdown(&self, cell: impl Fn(&Cell) -> String) -> String {
        let head = format!("| {} |\n|{}\n", self.head.join(" | "), " --- |".repeat(self.head.len()));
        let row =
            |row: &Vec<Cell>| format!("| {} |\n", row.iter().map(&cell).collect::<Vec<_>>().join(" | "));
        head + &self.rows.iter().map(row).collect::<String>()
    }
}

/// In Markdown, with the command.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows_in_markdown(ToString::to_string);
        write!(f, "\n**{}.** `cargo xtask bench {}`\n\n{rows}", self.heading(), self.command)?;
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        let ratio = ratio(&[10.0, 40.0, 12.0], &[5.0, 10.0, 6.0]);
        assert_eq!((ratio.value(), ratio.interval()), (Some(2.0), Some([2.0, 4.0])));
    }

    #[test]
    fn a_figure_is_judged_by_its_median_and_its_bound() {
        let figure =
            |bound: fn(Figure, f64) -> Figure, wanted| bound(figure(&[1.0, 3.0, 2.0], 1).unit(" s"), wanted);
        for (found, shown) in [
            (figure(Figure::at_least, 2.0), "2.0 s [1.0, 3.0] (>= 2 s)"),
            (figure(Figure::at_least, 2.5), "2.0 s [1.0, 3.0] (MISSED, wanted 2.5 s)"),
            (figure(Figure::at_most, 2.0), "2.0 s [1.0, 3.0] (<= 2 s)"),
            (figure(Figure::at_most, 1.5), "2.0 s [1.0, 3.0] (MISSED, wanted 1.5 s)"),
            (figure(Figure::wanted, 0.0), "2.0 s"),
        ] {
            assert_eq!((found.to_string().as_str(), found.is_missed()), (shown, shown.contains("MISSED")));
        }
        assert_eq!(figure(Figure::wanted, 0.0).in_full(), "2.0 s [1.0, 3.0]", "the page has every interval");
        assert_eq!(once(2.0, 1).in_full(), "2.0");
    }

    #[test]
    fn a_margin_is_above_1_where_the_bound_is_met() {
        let margins =
            [Bound::AtLeast(2.0), Bound::AtMost(2.0), Bound::AtMost(0.0)].map(|bound| bound.margin(4.0));
        assert_eq!(margins, [Some(2.0), Some(0.5), None]);
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        for figure in
            [ratio(&[1.0, f64::NAN], &[1.0, 1.0]).at_least(9.0), ratio(&[1.0], &[0.0]), figure(&[], 1)]
        {
            assert_eq!((figure.to_string().as_str(), figure.value(), figure.is_missed()), ("-", None, false));
        }
    }

    #[test]
    fn a_table_is_markdown_and_few_rounds_are_a_try() {
        let mut table = Table {
            title: "x".into(),
            command: "a 5 b".into(),
            rounds: Some(5),
            head: vec!["".into(), "y".into()],
            rows: vec![row!["one", once(1.25, 2)], named("two", [figure(&[7.0], 0)])],
            notes: Vec::new(),
        };
        let shown = "\n**x, 5 rounds.** `cargo xtask bench a 5 b`\n\n|  | y |\n| --- | --- |\n| one | 1.25 |\n| two | 7 |\n";
        assert_eq!(table.to_string(), shown);
        table.rounds = Some(4);
        assert!(table.heading().ends_with("a try: fewer than 5)"));
        table.rounds = None;
        assert_eq!(table.note("so").to_string().lines().last(), Some("so"));
    }
}
