//! How large the code is: a table for people who make it smaller.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::ops::AddAssign;

use super::code::asserts::ASSERTS;
use super::source::Source;
use super::tree::Tree;
use super::words::repeated;

/// Definitions of types that other crates see.
const PUBLIC_TYPES: &[&str] = &["pub struct", "pub enum", "pub trait", "pub type"];

/// What is counted of code that is not for tests.
#[derive(Default)]
struct Figures {
    /// Neither blank nor comments.
    lines: usize,
    files: usize,
    longest_file: usize,
    public_types: usize,
    asserts: usize,
    /// Lines of each function, from `fn` to the closing brace.
    functions: Vec<usize>,
}

impl Figures {
    fn of(source: &Source) -> Self {
        let functions =
            source.functions.iter().filter(|function| !source.is_test_line(*function.lines.start()));
        Self {
            lines: source.code_lines().count(),
            files: usize::from(!source.is_test),
            longest_file: if source.is_test { 0 } else { source.text.lines().count() },
            public_types: source.count(PUBLIC_TYPES),
            asserts: source.count(ASSERTS),
            functions: functions.map(|function| function.lines.clone().count()).collect(),
        }
    }
}

impl AddAssign<&Figures> for Figures {
    fn add_assign(&mut self, other: &Figures) {
        self.lines += other.lines;
        self.files += other.files;
        self.longest_file = self.longest_file.max(other.longest_file);
        self.public_types += other.public_types;
        self.asserts += other.asserts;
        self.functions.extend(&other.functions);
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut functions = self.functions.clone();
        functions.sort_unstable();
        let median = functions.get(functions.len() / 2).unwrap_or(&0);
        let longest = functions.last().unwrap_or(&0);
        let Self { lines, files, longest_file, public_types, .. } = self;
        let asserts = self.asserts as f64 * 1000.0 / (*lines).max(1) as f64;
        write!(
            f,
            "{lines:>8} {files:>6} {longest_file:>8} {:>10} {median:>7} {longest:>8} {public_types:>13} {asserts:>16.1}",
            functions.len()
        )
    }
}

/// A line for each crate, and one for all; and the names of types that are defined more than once.
pub(super) fn table(tree: &Tree) -> String {
    let mut crates: BTreeMap<&str, Figures> = BTreeMap::new();
    let mut all = Figures::default();
    for source in tree.sources_in(&["crates/"]) {
        let figures = Figures::of(source);
        let name = source.path.split('/').nth(1).expect("it lies below crates/");
        all += &figures;
        *crates.entry(name).or_default() += &figures;
    }
    let head = "            lines  files  longest  functions  median  longest  public types  asserts in 1000  names twice";
    let twice = repeated::names(tree, "crates/");
    let of_crate = |name: &str| repeated::names(tree, &format!("crates/{name}/")).len();
    let rows = crates.iter().map(|(name, figures)| (*name, figures, of_crate(name)));
    let rows = rows.chain([("all", &all, twice.len())]);
    let rows = rows.map(|(name, figures, names)| format!("{name:<8} {figures} {names:>12}\n"));
    let names = twice.iter().map(|(name, files)| format!("{name} {}", files.len()));
    let rows: String = rows.collect();
    format!("{head}\n{rows}\nnames twice: {}", names.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_counted_by_crate_and_tests_are_not() {
        let text = "//! Words.\n\npub struct A;\n\nfn a() {\n    // Why.\n    assert!(true);\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn long() {\n\n\n\n\n    }\n}\n";
        let files = [
            ("crates/a/src/lib.rs", text),
            ("crates/b/src/lib.rs", "fn b() {}\n"),
            ("crates/c/src/lib.rs", "pub struct A;\n"),
            ("crates/b/tests/c.rs", text),
            ("tools/t/src/lib.rs", text),
        ];
        let table = table(&Tree::of(&files));
        let (rows, names) = table.split_once("\n\n").expect("names below the rows");
        let rows: Vec<Vec<&str>> = rows.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        let wanted = [
            ["a", "4", "1", "18", "1", "4", "4", "1", "250.0", "0"],
            ["b", "1", "1", "1", "1", "1", "1", "0", "0.0", "0"],
            ["c", "1", "1", "1", "0", "0", "0", "1", "0.0", "0"],
            ["all", "6", "3", "18", "2", "4", "4", "2", "166.7", "1"],
        ];
        assert_eq!(rows, wanted);
        assert_eq!(names, "names twice: A 2");
    }
}
