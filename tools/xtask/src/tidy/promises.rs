//! The tests that prove a promise exist, run, and can fail.

use std::collections::BTreeSet;

use super::bodies::{Body, failing};
use super::finding::Finding;
use super::tree::Tree;

/// The file whose paragraphs end with the tests that prove them.
const PROMISES: &str = "SEMANTICS.md";

/// What stands behind a module in place of all its tests.
const ALL: &str = "*";

/// Rule: each test that a promise names is there, runs, and can fail; of a module, by `module::*`, at least one.
pub(super) fn proofs(tree: &Tree) -> Vec<Finding> {
    let parsed: Vec<_> =
        tree.sources.iter().map(|source| (&*source.path, Body::all(&source.tokens))).collect();
    let bodies: Vec<&Body> = parsed.iter().flat_map(|(_, bodies)| bodies).collect();
    let failing = failing(&bodies);
    let homes: Vec<Home> =
        parsed.iter().filter_map(|(path, bodies)| Home::of(path, bodies, &failing)).collect();
    let lines = tree.text(PROMISES).lines().zip(1..);
    let names = lines.flat_map(|(line, number)| names(line).map(move |name| (name, number)));
    let wrong = names.filter_map(|(name, line)| Some((message(name, &homes)?, line)));
    wrong.map(|(message, line)| Finding::new("promise", PROMISES, line, message)).collect()
}

/// What is wrong with a name.
fn message(name: &str, homes: &[Home]) -> Option<String> {
    let (module, last) = name.rsplit_once("::").expect("names have parts");
    let (path, whole) = if last == ALL { (module, true) } else { (name, false) };
    let tests: Vec<&Test> = homes.iter().flat_map(|home| home.tests_of(path)).collect();
    let exact = tests.iter().find(|test| test.path.last() == Some(&last));
    match exact {
        _ if whole && tests.iter().any(|test| test.proves()) => None,
        _ if whole && !tests.is_empty() => Some(format!("no test of `{module}` runs and can fail")),
        Some(test) if test.is_ignored => Some(format!("`{name}` is ignored: name a test that runs")),
        Some(test) if !test.can_fail => {
            Some(format!("`{name}` cannot fail: name a test that asserts something"))
        }
        Some(_) => None,
        None if !tests.is_empty() => {
            Some(format!("`{name}` is a module: name its tests, or all of them by `{name}::*`"))
        }
        None => Some(elsewhere(name, last, homes)),
    }
}

fn elsewhere(name: &str, last: &str, homes: &[Home]) -> String {
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

/// A test of a file.
struct Test<'a> {
    /// Within the file.
    path: &'a [&'a str],
    is_ignored: bool,
    can_fail: bool,
}

impl Test<'_> {
    fn proves(&self) -> bool {
        !self.is_ignored && self.can_fail
    }
}

/// A file with tests, and the path of its module as promises write it.
struct Home<'a> {
    path: &'a str,
    module: Vec<&'a str>,
    tests: Vec<Test<'a>>,
}

impl<'a> Home<'a> {
    fn of(path: &'a str, bodies: &'a [Body<'a>], failing: &BTreeSet<&str>) -> Option<Self> {
        let test = |body: &'a Body<'a>| Test {
            path: &body.path,
            is_ignored: body.is_ignored,
            can_fail: body.can_fail(failing),
        };
        let tests: Vec<Test> = bodies.iter().filter(|body| body.is_test).map(test).collect();
        let module = module_of(path)?;
        (!tests.is_empty()).then_some(Self { path, module, tests })
    }

    /// The test of that name, or those of the module.
    fn tests_of(&self, name: &str) -> Vec<&Test<'a>> {
        let parts: Vec<&str> = name.split("::").collect();
        let inside = parts.strip_prefix(&self.module[..]);
        self.tests.iter().filter(|test| inside.is_some_and(|inside| test.path.starts_with(inside))).collect()
    }

    fn has(&self, function: &str) -> bool {
        self.tests.iter().any(|test| test.path.last() == Some(&function))
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

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &[(&str, &str)] = &[
        (
            "crates/a/src/b/mod.rs",
            "fn plain() {}\n#[cfg(test)]\nmod tests {\n #[test]\n fn holds() { assert!(x) }\n fn sets_up() {}\n \
             #[test]\n #[ignore]\n fn sleeps() { assert!(x) }\n #[test]\n fn yes() { assert!(true); go() }\n \
             #[test]\n fn calls() { checks(1) }\n fn checks(_: [u8; 2]) { found().unwrap() }\n}\n",
        ),
        (
            "crates/a/src/c.rs",
            "mod tests {\n m! {\n  #[test]\n  fn in_a_macro(x in 0..9u8) { assert_eq!(x, 1) }\n }\n}\n",
        ),
        ("crates/a/src/d.rs", "mod tests {\n #[test]\n fn says_yes() { assert!(true, \"yes\") }\n}\n"),
        ("crates/a/src/empty.rs", "fn plain() {}\n"),
        ("crates/a/tests/whole.rs", "#[rt::test]\nasync fn lasts() { go().await? }\n"),
        ("tests/tests/client.rs", "#[test]\nfn connects() { panic!() }\n"),
    ];

    fn missing(text: &str) -> Vec<String> {
        let files: Vec<_> = TESTS.iter().copied().chain([(PROMISES, text)]).collect();
        proofs(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tests_and_modules_of_tests_are_found_wherever_they_lie() {
        for name in [
            "a::b::tests::holds",
            "a::b::tests::*",
            "a::b::tests::calls",
            "a::c::tests::in_a_macro",
            "a::whole::lasts",
            "a::whole::*",
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
            "a::b::tests::sleeps",
            "a::b::tests::yes",
            "a::b::tests",
            "a::d::tests::*",
            "a::d::*",
            "a::b::holds",
            "a::b::other::holds",
            "a::c::tests::holds",
            "a::empty",
            "b::tests::holds",
            "tests::connects",
        ] {
            assert_eq!(missing(&format!("**It holds.**\n`a::whole::*`, `{name}`\n")).len(), 1, "{name}");
        }
    }

    #[test]
    fn the_message_says_where_a_test_of_that_name_is() {
        for (name, words) in [
            ("a::b::tests::sleeps", "is ignored"),
            ("a::b::tests::yes", "cannot fail"),
            ("a::b::tests", "is a module: name its tests, or all of them by `a::b::tests::*`"),
            ("a::d::tests::*", "no test of `a::d::tests` runs and can fail"),
        ] {
            assert!(missing(&format!("`{name}`"))[0].contains(words), "{name}");
        }
        assert_eq!(
            missing("`x::y`\n`a::c::tests::holds`"),
            [
                "SEMANTICS.md:1: promise: there is no test `x::y`: name the one that proves this, or write it",
                "SEMANTICS.md:2: promise: there is no test `a::c::tests::holds`, but one called `holds` in crates/a/src/b/mod.rs",
            ]
        );
    }
}
