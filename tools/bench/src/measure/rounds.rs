//! Rounds in which contenders take turns, and the tables that they end in.

use anyhow::{Result, bail};
use spillway_core::random::Random;

use super::interrupt;
use super::results;
use super::table::{Cell, Table};

/// How often the contenders take turns, and the command that makes them, with its part if that has a name.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) count: usize,
    command: &'static str,
    pub(crate) part: Option<&'static str>,
    /// Runs and sets are short.
    quick: bool,
}

impl Rounds {
    pub(crate) fn new(count: usize, command: &'static str) -> Self {
        Self { count, command, part: None, quick: false }
    }

    pub(crate) fn part(self, part: &'static str) -> Self {
        Self { part: Some(part), ..self }
    }

    pub(crate) fn quick(self, quick: bool) -> Self {
        Self { quick, ..self }
    }

    /// `whole`, or `quick` where runs and sets are short.
    pub(crate) fn pick<T>(self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }

    /// As short as a quick run where `round` is the one that warms up.
    pub(crate) fn at(self, round: usize) -> Self {
        self.quick(self.quick || round == 0)
    }

    /// The parts of `all` that `wanted` names; all of them by default.
    pub(crate) fn parts(self, all: &[&'static str], wanted: Option<&str>) -> Result<Vec<Self>> {
        let named: Vec<_> = all.iter().filter(|part| wanted.is_none_or(|wanted| wanted == **part)).collect();
        match wanted {
            Some(wanted) if named.is_empty() => {
                bail!("there is no part {wanted:?}; there are: {}", all.join(", "))
            }
            None if all.is_empty() => Ok(vec![self]),
            _ => Ok(named.into_iter().map(|part| self.part(part)).collect()),
        }
    }

    /// `count` rounds after one that warms up: it touches memory for the first time and is not counted. A round is given its
    /// number and returns one value for each figure; what comes back is the values of each figure over the rounds.
    pub(crate) fn measure(self, mut round: impl FnMut(usize) -> Result<Vec<f64>>) -> Result<Vec<Vec<f64>>> {
        round(0)?;
        self.measure_anew(round)
    }

    /// The same without a round that warms up, where each round makes anew what it measures.
    pub(crate) fn measure_anew(
        self,
        mut round: impl FnMut(usize) -> Result<Vec<f64>>,
    ) -> Result<Vec<Vec<f64>>> {
        let mut figures: Vec<Vec<f64>> = Vec::new();
        for number in 1..=self.count {
            eprintln!("{} {}: round {number} of {}", self.command, self.part.unwrap_or_default(), self.count);
            let values = round(number)?;
            interrupt::check()?;
            figures.resize_with(values.len().max(figures.len()), Vec::new);
            assert_eq!(values.len(), figures.len(), "every round has the same figures");
            figures.iter_mut().zip(values).for_each(|(figure, value)| figure.push(value));
        }
        Ok(figures)
    }

    /// A table of what was measured in these rounds.
    pub(crate) fn table(self, title: &str, head: &[&str], rows: Vec<Vec<Cell>>) -> Table {
        Table { rounds: Some(self.count), ..self.table_once(title, head, rows) }
    }

    /// The same of what is measured once, because more rounds would not change it.
    pub(crate) fn table_once(self, title: &str, head: &[&str], rows: Vec<Vec<Cell>>) -> Table {
        let Self { count, command, part, .. } = self;
        let part = part.map(|part| format!(" {part}")).unwrap_or_default();
        let quick = self.pick("", " --quick");
        Table {
            title: title.into(),
            command: format!("{command} {count}{part}{quick}"),
            rounds: None,
            head: head.iter().map(|name| (*name).into()).collect(),
            rows,
            notes: Vec::new(),
        }
    }

    pub(crate) fn show(self, title: &str, head: &[&str], rows: Vec<Vec<Cell>>) -> Result<()> {
        results::show(self.table(title, head, rows))
    }

    pub(crate) fn show_once(self, title: &str, head: &[&str], rows: Vec<Vec<Cell>>) -> Result<()> {
        results::show(self.table_once(title, head, rows))
    }
}

/// The numbers below `count` in an order drawn from `seed`.
pub(crate) fn drawn_order(count: usize, seed: usize) -> Vec<usize> {
    let (mut order, mut random): (Vec<usize>, _) = ((0..count).collect(), Random(seed as u64 ^ 0x6f72_6465));
    for index in (1..count).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_round_is_not_counted() {
        let rounds = Rounds::new(2, "nbd");
        let figures = rounds.measure(|number| Ok(vec![number as f64, -1.0])).expect("nothing fails");
        assert_eq!(figures, [[1.0, 2.0], [-1.0, -1.0]]);
    }

    #[test]
    fn a_table_names_its_command() {
        let rounds = Rounds::new(5, "a").part("b");
        assert_eq!(
            (rounds.table("", &[], vec![]).command, rounds.table("", &[], vec![]).rounds),
            ("a 5 b".into(), Some(5))
        );
        let once = rounds.quick(true).table_once("", &[], vec![]);
        assert_eq!((once.command, once.rounds, rounds.pick(1, 2)), ("a 5 b --quick".into(), None, 1));
    }

    #[test]
    fn the_round_that_warms_up_is_as_short_as_a_quick_one() {
        let is_quick = |rounds: Rounds, round| rounds.at(round).pick(false, true);
        let rounds = Rounds::new(5, "a");
        assert_eq!([0, 1].map(|round| is_quick(rounds, round)), [true, false]);
        assert!(is_quick(rounds.quick(true), 1));
    }

    #[test]
    fn a_part_is_one_of_those_that_are_there() {
        let parts = |all, wanted| {
            let parts = Rounds::new(5, "a").parts(all, wanted);
            parts.map(|parts| parts.into_iter().map(|rounds| rounds.part).collect::<Vec<_>>())
        };
        assert_eq!(parts(&["b", "c"], None).unwrap(), [Some("b"), Some("c")]);
        assert_eq!(parts(&["b", "c"], Some("c")).unwrap(), [Some("c")]);
        assert_eq!(parts(&[], None).unwrap(), [None]);
        assert!(parts(&["b"], Some("d")).unwrap_err().to_string().ends_with("there are: b"));
    }

    #[test]
    fn a_drawn_order_has_every_number_once_and_differs_by_seed() {
        let mut order = drawn_order(20, 1);
        assert_ne!(order, drawn_order(20, 2));
        order.sort_unstable();
        assert!(order.into_iter().eq(0..20));
    }
}
