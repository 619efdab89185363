//! The command line.

use std::str::FromStr;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use spillway_simulate::stacks::row::Row;
use spillway_simulate::stacks::{self, STACKS};

/// Run the stacks that ship in the simulated world, by seed
///
/// Say what to run with one of --check, --seed, --crashes, --sequences, --failures and --mutants. What breaks a promise is shortened
/// and printed with the options that run it again. docs/simulation.md describes the world.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim", arg_required_else_help = true)]
#[command(group = clap::ArgGroup::new("what"))]
#[command(
    after_help = "cargo xtask sim --release ... builds for release: twice as fast, without debug assertions."
)]
pub(crate) struct Options {
    /// Stacks to run, separated by commas; all by default
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = stack(), hide_possible_values = true)]
    #[arg(long_help = stack_help())]
    stack: Vec<&'static Row>,

    /// Story to run, or the first of several
    #[arg(long, value_name = "N", required_unless_present = "what")]
    pub(crate) seed: Option<u64>,

    /// Stories to run, from --seed on
    #[arg(long, value_name = "N", requires = "seed", conflicts_with = "what", default_value_t = 1)]
    pub(crate) runs: u64,

    /// Run stories until there were so many power cuts and broken connections, with as much time for each stack that comes back after a cut;
    /// --seed is drawn unless given
    #[arg(long, value_name = "N", group = "what")]
    pub(crate) crashes: Option<u64>,

    /// Run every sequence of LEN operations, the power cut at every boundary
    #[arg(long, value_name = "LEN", group = "what", conflicts_with = "seed")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4))]
    pub(crate) sequences: Option<u32>,

    /// Run one sequence again
    #[arg(long, value_name = "LEN:INDEX", group = "what", conflicts_with = "seed", requires = "stack")]
    pub(crate) sequence: Option<Sequence>,

    /// Run so many workloads in which every call to a disk fails in turn
    #[arg(long, value_name = "N", group = "what", conflicts_with = "seed")]
    pub(crate) failures: Option<u64>,

    /// Run one of these workloads again
    #[arg(long, value_name = "INDEX", group = "what", conflicts_with = "seed", requires = "stack")]
    pub(crate) failure: Option<u64>,

    /// Find every deliberate defect, or those with TEXT in their names, or fail; --seed is drawn unless given
    #[arg(long, value_name = "TEXT", group = "what", num_args = 0..=1, default_missing_value = "")]
    pub(crate) mutants: Option<String>,

    /// Print what happens in the story, shortened if it breaks a promise: requests, calls to the disks, warnings of the layers
    #[arg(long, requires = "stack", conflicts_with_all = ["runs", "crashes", "sequences", "failures", "mutants", "check"])]
    pub(crate) log: bool,

    /// Run what CI runs: some of everything, on all stacks; --seed is that of the commit unless given
    #[arg(long, group = "what", conflicts_with_all = ["stack"])]
    pub(crate) check: bool,
}

/// A sequence of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// How many operations.
    pub(crate) len: u32,
    /// Which of all sequences of that length.
    pub(crate) index: u64,
}

impl FromStr for Sequence {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (len, index) = text.split_once(':').ok_or("two numbers with a colon between are wanted")?;
        let whole = "a whole number is wanted on each side of the colon";
        Ok(Self { len: len.parse().map_err(|_| whole)?, index: index.parse().map_err(|_| whole)? })
    }
}

impl Options {
    /// The stacks to run.
    pub(crate) fn rows(&self) -> Vec<&'static Row> {
        if self.stack.is_empty() { STACKS.iter().collect() } else { self.stack.clone() }
    }
}

fn stack() -> impl TypedValueParser<Value = &'static Row> {
    PossibleValuesParser::new(STACKS.iter().map(|row| row.name))
        .map(|name| stacks::find(&name).expect("only names of the table are possible"))
}

fn stack_help() -> String {
    let names: Vec<_> = STACKS.iter().map(|row| row.name).collect();
    format!("Stacks to run, separated by commas; all by default. There are: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words = std::iter::once("sim").chain(line.split_whitespace());
        Options::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn what_the_documentation_shows_is_understood() {
        let names = |line: &str| parse(line).unwrap().rows().iter().map(|row| row.name).collect::<Vec<_>>();
        assert_eq!(names("--stack file --seed 7"), ["file"]);
        assert_eq!(names("--stack zram,file --crashes 7"), ["zram", "file"]);
        assert_eq!(names("--seed 1 --runs 1000").len(), STACKS.len());
        assert_eq!(parse("--seed 1").unwrap().runs, 1);
        assert_eq!(parse("--crashes 10 --seed 3").unwrap().seed, Some(3));
        assert_eq!(parse("--crashes 10").unwrap().seed, None);
        assert_eq!(parse("--stack zram --mutants").unwrap().mutants.as_deref(), Some(""));
        assert_eq!(parse("--mutants leaf --seed 3").unwrap().mutants.as_deref(), Some("leaf"));
        let again = parse("--stack file --sequence 3:7").unwrap();
        assert_eq!(again.sequence, Some(Sequence { len: 3, index: 7 }));
        assert_eq!(parse("--stack file --failure 7").unwrap().failure, Some(7));
        assert!(parse("--check").unwrap().check);
        assert_eq!(parse("--check --seed 3").unwrap().seed, Some(3));
        assert!(parse("--stack file --seed 7 --log").unwrap().log);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        for (line, words) in [
            ("", "Usage: cargo xtask sim"),
            ("--help", "Usage: cargo xtask sim"),
            ("--stack file", "--seed <N>"),
            ("--stack nowhere --seed 1", "[possible values: file, file-512"),
            ("--seed x", "invalid digit"),
            ("--seed 1 --rums 2", "a similar argument exists: '--runs'"),
            ("--check --mutants", "cannot be used with '--mutants"),
            ("--check --stack file", "cannot be used with '--stack <NAMES>'"),
            ("--sequences 9", "not in 1..=4"),
            ("--stack file --sequence 3", "a colon between"),
            ("--failure 3", "--stack <NAMES>"),
            ("--runs 3", "--seed <N>"),
            ("--seed 3 --log", "--stack <NAMES>"),
            ("--stack file --crashes 9 --log", "cannot be used with '--log'"),
        ] {
            let found = parse(line).unwrap_err();
            assert!(found.contains(words), "{line}: {found}");
        }
    }
}
