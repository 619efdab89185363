//! Each promise is proven, and the tests that prove it exist, run, and can fail.

use std::collections::BTreeSet;

use super::bodies::{Body, failing};
use crate::tidy::finding::Finding;
use crate::tidy::tree::Tree;

/// The file whose list items are promises, each with its proofs in brackets at its end.
const PROMISES: &str = "SEMANTICS.md";

/// The table of simulated stacks.
const STACKS: &str = "tools/sim/src/stacks/mod.rs";

/// Rule: behind the first heading each item of the list has a proof, and each proof is there.
pub(crate) fn proofs(tree: &Tree) -> Vec<Finding> {
    let parsed: Vec<_> =
        tree.sources.iter().map(|source| (&*source.path, Body::all(&source.tokens))).collect();
    let bodies: Vec<&Body> = parsed.iter().flat_map(|(_, bodies)| bodies).collect();
    let failing = failing(&bodies);
    let tests: Vec<Test> =
        parsed.iter().flat_map(|(path, bodies)| Test::all_of(path, bodies, &failing)).collect();
    let text = tree.text(PROMISES);
    let words = text.lines().take_while(|line| !line.starts_with("## ")).count();
    let found = promises(text).into_iter().flat_map(|promise| match &promise.proofs[..] {
        [] if promise.line > words => {
            vec![(promise.line, "a promise ends with its proofs in brackets".into())]
        }
        _ => promise.wrong(tree, &tests),
    });
    found.map(|(line, message)| Finding::new("promise", PROMISES, line, message)).collect()
}

/// An item of the list.
struct Promise<'a> {
    line: usize,
    /// With their lines.
    proofs: Vec<(&'a str, usize)>,
}

fn promises(text: &str) -> Vec<Promise<'_>> {
    let mut promises: Vec<Promise> = Vec::new();
    let mut in_brackets = false;
    for (line, number) in text.lines().zip(1..) {
        if line.starts_with("- ") {
            promises.push(Promise { line: number, proofs: Vec::new() });
        }
        let opening = line.rfind("[`");
        in_brackets = opening.is_some() || in_brackets && line.starts_with("  ");
        if let (true, Some(promise)) = (in_brackets, promises.last_mut()) {
            let quoted = line[opening.unwrap_or(0)..].split('`').skip(1).step_by(2);
            promise.proofs.extend(quoted.map(|proof| (proof, number)));
        }
    }
    promises
}

impl Promise<'_> {
    /// Proofs that prove nothing, with their lines. One without a module is of the module of the one before.
    fn wrong(&self, tree: &Tree, tests: &[Test]) -> Vec<(usize, String)> {
        let mut module = "";
        let wrong = self.proofs.iter().filter_map(|(proof, line)| {
            let whole = match proof.rsplit_once("::") {
                Some((path, _)) => {
                    module = path;
                    proof.to_string()
                }
                None if proof.contains(' ') => proof.to_string(),
                None => format!("{module}::{proof}"),
            };
            Some((*line, message(&whole, tree, tests)?))
        });
        wrong.collect()
    }
}

/// What is wrong with a proof.
fn message(proof: &str, tree: &Tree, tests: &[Test]) -> Option<String> {
    let is_there = match proof.split_once(' ') {
        None => return no_proof(proof, tests),
        Some(("cargo", _)) => true,
        Some(("sim", stack)) => {
            let name = stack.strip_suffix('*').map_or(format!("{stack}\""), String::from);
            tree.text(STACKS).contains(&format!("name: \"{name}"))
        }
        Some(("fuzz", target)) => !tree.text(&format!("tools/fuzz/fuzz_targets/{target}.rs")).is_empty(),
        Some(_) => false,
    };
    (!is_there)
        .then(|| format!("there is no `{proof}`: a proof is a test, a stack, a fuzz target or a command"))
}

/// Why the tests that a name means prove nothing: none runs, or one that runs cannot fail.
fn no_proof(name: &str, tests: &[Test]) -> Option<String> {
    let meant: Vec<_> = tests.iter().filter_map(|test| Some((test, test.module_before(name)?))).collect();
    let places: BTreeSet<&str> = meant.iter().map(|(_, place)| *place).collect();
    let mut running = meant.iter().map(|(test, _)| *test).filter(|test| !test.is_ignored).peekable();
    match (meant.len(), places.len(), running.peek()) {
        (0, ..) => Some(elsewhere(name, tests)),
        (_, 2.., _) => {
            Some(format!("`{name}` is in {}: name more modules", Vec::from_iter(places).join(", ")))
        }
        (.., None) => Some(format!("`{name}` is ignored: name a test that runs")),
        _ => {
            let idle = running.find(|test| !test.can_fail)?;
            Some(format!("`{name}` cannot fail: {} asserts nothing", idle.path))
        }
    }
}

fn elsewhere(name: &str, tests: &[Test]) -> String {
    let last = name.rsplit("::").next().expect("a name has a last part");
    let same = tests.iter().filter(|test| test.path.ends_with(&format!("::{last}")));
    let places: Vec<_> = same.map(|test| &*test.path).collect();
    let all = format!("{name}::*");
    match places[..] {
        _ if tests.iter().any(|test| test.module_before(&all).is_some()) => {
            format!("`{name}` is a module: name its tests, or all of them by `{all}`")
        }
        [] => format!("there is no test `{name}`: name the one that proves this, or write it"),
        _ => format!("there is no test `{name}`, but there is {}", places.join(", ")),
    }
}

struct Test {
    /// Modules and name, without modules called `tests`: `layers::zram::pool::fills`, `tests::fio::verifies`.
    path: String,
    is_ignored: bool,
    can_fail: bool,
}

impl Test {
    fn all_of<'a>(path: &str, bodies: &'a [Body<'a>], failing: &BTreeSet<&str>) -> Vec<Self> {
        let Some(module) = module_of(path) else { return Vec::new() };
        let test = |body: &'a Body<'a>| {
            let inside = module[1..].iter().chain(&body.path).filter(|part| **part != "tests");
            Self {
                path: module[..1].iter().chain(inside).copied().collect::<Vec<_>>().join("::"),
                is_ignored: body.is_ignored,
                can_fail: body.can_fail(failing),
            }
        };
        bodies.iter().filter(|body| body.is_test).map(test).collect()
    }

    /// The modules that `name` leaves out before its own, if it means this test; it ends with `*` for any ending.
    fn module_before(&self, name: &str) -> Option<&str> {
        let (start, is_open) = name.strip_suffix('*').map_or((name, false), |start| (start, true));
        let ends = |at: usize| is_open || at + start.len() == self.path.len();
        let begins = |before: &str| before.is_empty() || before.ends_with("::");
        let mut befores = self.path.match_indices(start).map(|(at, _)| &self.path[..at]);
        befores.find(|before| begins(before) && ends(before.len()))
    }
}

/// `layers::zram::pool` for `crates/layers/src/zram/pool/mod.rs`, `layers::contract` for `crates/layers/tests/contract.rs`; the folder of a
/// program of many tests has no part in it: `tests::fio` for `tests/tests/e2e/fio.rs`.
fn module_of(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.strip_suffix(".rs")?.split('/').collect();
    let (home, inside) = match &parts[..] {
        ["crates", home, "tests", _, inside @ ..] | [home @ "tests", "tests", _, inside @ ..]
            if !inside.is_empty() =>
        {
            (home, inside)
        }
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

    const FILES: &[(&str, &str)] = &[
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
        ("crates/a/src/e.rs", "#[test]\nfn runs() { panic!() }\n#[test]\n#[ignore]\nfn is_run_by_it() {}\n"),
        ("crates/a/src/empty.rs", "fn plain() {}\n"),
        ("crates/a/tests/whole.rs", "#[rt::test]\nasync fn lasts() { go().await? }\n"),
        ("crates/a/tests/many/part.rs", "#[test]\nfn ends() { panic!() }\n"),
        (
            "tests/tests/e2e/client.rs",
            "#[test]\nfn connects() { panic!() }\n#[test]\nfn holds() { panic!() }\n",
        ),
        ("tools/sim/src/stacks/mod.rs", "const A: Row = Row { name: \"ram-spill\" };\n"),
        ("tools/fuzz/fuzz_targets/bytes.rs", "fn fuzz() {}\n"),
    ];

    fn missing(text: &str) -> Vec<String> {
        let files: Vec<_> = FILES.iter().copied().chain([(PROMISES, text)]).collect();
        proofs(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    fn promised(proofs: &str) -> Vec<String> {
        missing(&format!("## A\n\n- **It holds**, `so::to` [say].\n  [{proofs}]\n"))
    }

    #[test]
    fn tests_are_found_by_as_many_modules_as_tell_them_apart() {
        for proofs in [
            "`a::b::holds`",
            "`b::holds`, `calls`",
            "`client::holds`",
            "`tests::client::holds`, `connects`",
            "`c::*`",
            "`b::cal*`, `hold*`",
            "`e::*`",
            "`c::in_a_macro`",
            "`a::whole::lasts`",
            "`whole::*`",
            "`a::part::ends`",
            "`sim ram-spill`, `sim ram*`, `sim *`",
            "`fuzz bytes`, `cargo xtask kernel`",
            "`whole::lasts`,\n  `c::*`, `sim *`,\n  `in_a_macro`",
        ] {
            assert_eq!(promised(proofs), [""; 0], "{proofs}");
        }
    }

    #[test]
    fn a_name_that_proves_nothing_is_a_violation() {
        for proof in [
            "a::b::tests::holds",
            "b::hold",
            "b::sets_up",
            "b::plain",
            "b::sleeps",
            "b::yes",
            "a::b",
            "b::*",
            "b::sl*",
            "d::*",
            "a::holds",
            "other::holds",
            "c::holds",
            "holds",
            "olds",
            "ent::holds",
            "empty::*",
            "a::connects",
            "e2e::client::connects",
            "many::part::ends",
            "sim ram",
            "sim disk*",
            "fuzz words",
            "some words",
        ] {
            assert_eq!(promised(&format!("`whole::*`, `{proof}`")).len(), 1, "{proof}");
        }
    }

    #[test]
    fn a_name_that_two_modules_have_is_a_violation() {
        let two = [
            ("crates/a/src/f.rs", "mod b {\n #[test]\n fn holds() { panic!() }\n}\n"),
            (PROMISES, "## A\n- **It holds.** [`b::ho*`, `a::b::holds`, `f::b::holds`]\n"),
        ];
        let files: Vec<_> = FILES.iter().copied().chain(two).collect();
        let found = proofs(&Tree::of(&files));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("`b::ho*` is in a::, a::f::: name more modules"), "{}", found[0]);
    }

    #[test]
    fn a_promise_without_a_proof_is_a_violation_and_a_word_is_not() {
        let text = "- **Word**: `a::b`.\n\n## A\n\n- **It holds.** See `whole::*`.\n- **So.** [`whole::*`]\n\n`b::no`\n";
        assert_eq!(missing(text), ["SEMANTICS.md:5: promise: a promise ends with its proofs in brackets"]);
    }

    #[test]
    fn the_message_says_where_a_test_of_that_name_is() {
        for (name, words) in [
            ("b::sleeps", "is ignored"),
            ("b::yes", "cannot fail"),
            ("a::b", "is a module: name its tests, or all of them by `a::b::*`"),
            ("d::*", "cannot fail: a::d::says_yes asserts nothing"),
        ] {
            assert!(promised(&format!("`{name}`"))[0].contains(words), "{name}");
        }
        assert_eq!(
            promised("`x::y`,\n  `c::holds`"),
            [
                "SEMANTICS.md:4: promise: there is no test `x::y`: name the one that proves this, or write it",
                "SEMANTICS.md:5: promise: there is no test `c::holds`, but there is a::b::holds, tests::client::holds",
            ]
        );
    }
}
