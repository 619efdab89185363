//! Rounds, medians, ratios and tables.

use anyhow::Result;
use spillway_core::random::Random;

/// Rounds below which a report says that it is a try.
const CONVINCING: usize = 5;

/// How often the contenders take turns, and the command that makes them, with its part if that has a name.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) count: usize,
    pub(crate) command: &'static str,
    part: Option<&'static str>,
}

impl Rounds {
    pub(crate) fn new(count: usize, command: &'static str) -> Self {
        Self { count, command, part: None }
    }

    pub(crate) fn part(self, part: &'static str) -> Self {
        Self { part: Some(part), ..self }
    }

    /// `count` rounds after one that warms up: it touches memory for the first time and is not counted. A round is given its
    /// number and returns one value for each figure; what comes back is the values of each figure over the rounds.
    pub(crate) fn measure(self, mut round: impl FnMut(usize) -> Result<Vec<f64>>) -> Result<Vec<Vec<f64>>> {
        let mut figures = vec![Vec::with_capacity(self.count); round(0)?.len()];
        for number in 1..=self.count {
            let values = round(number)?;
            assert_eq!(values.len(), figures.len(), "every round has the same figures");
            figures.iter_mut().zip(values).for_each(|(figure, value)| figure.push(value));
        }
        Ok(figures)
    }

    /// The title of a table: what it shows, how often it was measured, and how to make it again.
    pub(crate) fn title(self, what: &str) -> String {
        let count = self.count;
        let weight = if count < CONVINCING { " (a try: fewer than 5)" } else { "" };
        self.title_once(&format!("{what}, {count} rounds{weight}"))
    }

    /// The same for what is measured once, because more rounds would not change it.
    pub(crate) fn title_once(self, what: &str) -> String {
        let Self { count, command, part } = self;
        let part = part.map(|part| format!(" {part}")).unwrap_or_default();
        format!("**{what}.** `cargo xtask bench {command} {count}{part}`")
    }
}

/// A figure with so many decimals and its unit, beside what it should at most be.
pub(crate) fn at_most(figure: f64, decimals: usize, unit: &str, wanted: f64) -> String {
    let verdict = if figure <= wanted { "<=" } else { "MISSED, wanted" };
    format!("{figure:.decimals$}{unit} ({verdict} {wanted}{unit})")
}

/// The numbers below `count` in an order drawn from `seed`.
pub(crate) fn drawn_order(count: usize, seed: usize) -> Vec<usize> {
    let (mut order, mut random): (Vec<usize>, _) = ((0..count).collect(), Random(seed as u64 ^ 0x6f72_6465));
    for index in (1..count).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    order
}

/// The median of `values`; the lower of two in the middle. Panics without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

/// The median over rounds of `ours / theirs`.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

/// A ratio beside what it should at least be.
pub(crate) fn at_least(ratio: f64, wanted: f64) -> String {
    format!("{ratio:.2} ({} {wanted})", if ratio >= wanted { ">=" } else { "MISSED, wanted" })
}

/// A ratio, beside its bound where it has one.
pub(crate) fn bounded(ratio: f64, wanted: Option<f64>) -> String {
    wanted.map_or_else(|| format!("{ratio:.2}"), |wanted| at_least(ratio, wanted))
}

/// Prints a table in Markdown.
pub(crate) fn table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    println!("\n{title}\n\n| {} |", head.join(" | "));
    println!("|{}", " --- |".repeat(head.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        assert!((ratio(&[10.0, 40.0, 12.0], &[5.0, 10.0, 6.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[3.0, 1.0]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_first_round_is_not_counted_and_few_rounds_are_a_try() {
        let rounds = Rounds::new(2, "nbd");
        let figures = rounds.measure(|number| Ok(vec![number as f64, -1.0])).expect("nothing fails");
        assert_eq!(figures, [[1.0, 2.0], [-1.0, -1.0]]);
        assert!(rounds.title("x").contains("a try"));
        assert_eq!(Rounds::new(5, "a").part("b").title("x"), "**x, 5 rounds.** `cargo xtask bench a 5 b`");
    }

    #[test]
    fn a_drawn_order_has_every_number_once_and_differs_by_seed() {
        let mut order = drawn_order(20, 1);
        assert_ne!(order, drawn_order(20, 2));
        order.sort_unstable();
        assert!(order.into_iter().eq(0..20));
    }
}
