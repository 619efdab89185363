//! The tests that prove a promise exist.

use super::finding::Finding;
use super::source::Source;
use super::tokens::Token;
use super::tree::Tree;

/// The file whose paragraphs end with the tests that prove them.
const PROMISES: &str = "SEMANTICS.md";

/// Rule: each test, and each module of tests, that a promise names is there.
pub(super) fn proofs(tree: &Tree) -> Vec<Finding> {
    let homes: Vec<Home> = tree.sources.iter().filter_map(Home::of).collect();
    let lines = tree.text(PROMISES).lines().zip(1..);
    let names = lines.flat_map(|(line, number)| names(line).map(move |name| (name, number)));
    let missing = names.filter(|(name, _)| !homes.iter().any(|home| home.proves(name)));
    missing.map(|(name, line)| Finding::new("promise", PROMISES, line, message(name, &homes))).collect()
}

fn message(name: &str, homes: &[Home]) -> String {
    let (_, last) = name.rsplit_once("::").expect("names have parts");
    let elsewhere = homes.iter().filter(|home| home.has(last));
    let places: Vec<_> = elsewhere.map(|home| home.path).collect();
    match places[..] {
        [] => format!("there is no test `{name}`: name the one that proves this, or write it"),
        _ => format!("there is no test `{name}`, but one called `{last}` in {}", places.join(", ")),
    }
}

/// Paths with `::` between backticks.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.contains("::") && !text.contains(char::is_whitespace))
}

/// A file with tests, and the path of its module as promises write it.
struct Home<'a> {
    path: &'a str,
    module: Vec<&'a str>,
    /// Paths within the file.
    tests: Vec<Vec<&'a str>>,
}

impl<'a> Home<'a> {
    fn of(source: &'a Source) -> Option<Self> {
        let (tests, module) = (tests(&source.tokens), module_of(&source.path)?);
        (!tests.is_empty()).then_some(Self { path: &source.path, module, tests })
    }

    /// Whether `name` is a test of this file, the file itself, or a module of tests within it.
    fn proves(&self, name: &str) -> bool {
        let parts: Vec<&str> = name.split("::").collect();
        let inside = parts.strip_prefix(&self.module[..]);
        inside.is_some_and(|inside| self.tests.iter().any(|test| test.starts_with(inside)))
    }

    fn has(&self, function: &str) -> bool {
        self.tests.iter().any(|test| test.last() == Some(&function))
    }
}

/// `layers::zram::pool` for `crates/layers/src/zram/pool.rs`, `layers::contract` for `crates/layers/tests/contract.rs`.
fn module_of(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.strip_suffix(".rs")?.split('/').collect();
    let (home, inside) = match &parts[..] {
        ["crates", home, "src" | "tests", inside @ ..] => (home, inside),
        [home @ "tests", "src" | "tests", inside @ ..] => (home, inside),
        _ => return None,
    };
    let inside = match inside {
        [folders @ .., "lib" | "main" | "mod"] => folders,
        _ => inside,
    };
    Some([&[*home], inside].concat())
}

/// Functions below an attribute that ends with the word `test`, also within macros: each with the modules around it.
fn tests(tokens: &[Token]) -> Vec<Vec<&str>> {
    let (mut found, mut is_test) = (Vec::new(), false);
    let (mut depth, mut modules) = (0, Vec::<(usize, &str)>::new());
    for window in tokens.windows(3) {
        match [&*window[0].text, &*window[1].text, &*window[2].text] {
            ["[" | ":", "test", "]"] => is_test = true,
            ["mod", name, "{"] => modules.push((depth, name)),
            ["fn", name, _] if std::mem::take(&mut is_test) => {
                found.push(modules.iter().map(|(_, module)| *module).chain([name]).collect());
            }
            ["{", ..] => depth += 1,
            ["}", ..] => {
                depth -= 1;
                modules.pop_if(|(outside, _)| *outside == depth);
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &[(&str, &str)] = &[
        (
            "crates/a/src/b/mod.rs",
            "fn plain() {}\n#[cfg(test)]\nmod tests {\n #[test]\n #[ignore]\n fn holds() {}\n fn sets_up() {}\n}\n",
        ),
        ("crates/a/src/c.rs", "mod tests {\n m! {\n  #[test]\n  fn in_a_macro(x in 0..9u8) {}\n }\n}\n"),
        ("crates/a/src/empty.rs", "fn plain() {}\n"),
        ("crates/a/tests/whole.rs", "#[rt::test]\nasync fn lasts() {}\n"),
        ("tests/tests/client.rs", "#[test]\nfn connects() {}\n"),
    ];

    fn missing(text: &str) -> Vec<String> {
        let files: Vec<_> = TESTS.iter().copied().chain([(PROMISES, text)]).collect();
        proofs(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tests_and_modules_of_tests_are_found_wherever_they_lie() {
        for name in [
            "a::b::tests::holds",
            "a::b::tests",
            "a::c::tests::in_a_macro",
            "a::whole::lasts",
            "a::whole",
            "tests::client::connects",
        ] {
            assert_eq!(missing(&format!("**It holds.** `{name}`, `cargo test`\n")), [""; 0], "{name}");
        }
    }

    #[test]
    fn a_name_that_no_test_has_is_a_violation() {
        for name in [
            "a::b::tests::hold",
            "a::b::tests::sets_up",
            "a::b::tests::plain",
            "a::b::holds",
            "a::b::other::holds",
            "a::c::tests::holds",
            "a::empty",
            "b::tests::holds",
            "tests::connects",
        ] {
            assert_eq!(missing(&format!("**It holds.**\n`a::whole`, `{name}`\n")).len(), 1, "{name}");
        }
    }

    #[test]
    fn the_message_says_where_a_test_of_that_name_is() {
        assert_eq!(
            missing("`x::y`\n`a::c::tests::holds`"),
            [
                "SEMANTICS.md:1: promise: there is no test `x::y`: name the one that proves this, or write it",
                "SEMANTICS.md:2: promise: there is no test `a::c::tests::holds`, but one called `holds` in crates/a/src/b/mod.rs",
            ]
        );
    }
}
