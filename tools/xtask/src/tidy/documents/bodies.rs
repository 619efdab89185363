//! Functions as flat tokens have them, also within macros: where they lie, whether they are tests that run, and whether they can fail.

use std::collections::BTreeSet;

use crate::tidy::tokens::Token;

/// A function with a body.
pub(super) struct Body<'a> {
    /// Modules of the file around it, and its name.
    pub(super) path: Vec<&'a str>,
    /// It has an attribute that ends with the word `test`.
    pub(super) is_test: bool,
    pub(super) is_ignored: bool,
    words: Vec<&'a str>,
}

/// Macros and methods that end a test where something is wrong.
const MACROS: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "panic",
    "unreachable",
    "prop_assert",
    "prop_assert_eq",
    "prop_assert_ne",
];
const METHODS: &[&str] = &["unwrap", "unwrap_err", "expect", "expect_err"];

impl<'a> Body<'a> {
    /// The functions of a file.
    pub(super) fn all(tokens: &'a [Token]) -> Vec<Self> {
        let words: Vec<&str> = tokens.iter().map(|token| &*token.text).collect();
        let (mut found, mut marks) = (Vec::new(), (false, false));
        let (mut depth, mut modules) = (0, Vec::<(usize, &str)>::new());
        for (at, window) in words.windows(3).enumerate() {
            match window {
                ["[" | ":", "test", "]"] => marks.0 = true,
                ["[", "ignore", "]" | "="] => marks.1 = true,
                ["mod", name, "{"] => modules.push((depth, *name)),
                ["fn", name, _] => {
                    let path = modules.iter().map(|(_, module)| *module).chain([*name]).collect();
                    let (is_test, is_ignored) = std::mem::take(&mut marks);
                    found.push(Self { path, is_test, is_ignored, words: body(&words[at..]).to_vec() });
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

    /// Whether something in it may end a test, or it calls one of those in `failing`.
    pub(super) fn can_fail(&self, failing: &BTreeSet<&str>) -> bool {
        let words = &self.words[..];
        (0..words.len()).any(|at| match &words[at..] {
            ["assert", "!", "(", "true", ")" | ",", ..] => false,
            ["?", ..] => true,
            [".", method, "(", ..] if METHODS.contains(method) => true,
            [name, "!", ..] if MACROS.contains(name) => true,
            [name, ..] => failing.contains(name),
            [] => false,
        })
    }
}

/// What stands between the braces behind a signature; nothing where there are none.
fn body<'a, 'b>(words: &'b [&'a str]) -> &'b [&'a str] {
    let mut nested = 0;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "(" | "[" => nested += 1,
            ")" | "]" => nested -= 1,
            ";" if nested == 0 => return &[],
            "{" if nested == 0 => return within(&words[at + 1..]),
            _ => {}
        }
    }
    &[]
}

/// Up to the brace that closes one that was opened before.
fn within<'a, 'b>(words: &'b [&'a str]) -> &'b [&'a str] {
    let mut open = 1;
    let end = words.iter().position(|word| {
        open += i32::from(*word == "{") - i32::from(*word == "}");
        open == 0
    });
    &words[..end.unwrap_or(words.len())]
}

/// Names of the functions that can fail, by themselves or by what they call.
pub(super) fn failing<'a>(bodies: &[&Body<'a>]) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    loop {
        let fail = bodies.iter().filter(|body| body.can_fail(&names));
        let more: BTreeSet<&str> = fail.filter_map(|body| body.path.last().copied()).collect();
        if more.len() == names.len() {
            return names;
        }
        names = more;
    }
}
