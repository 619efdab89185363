//! Expressions of licences by the names of SPDX, such as `MIT OR Apache-2.0`, and which of them are allowed.

use anyhow::{Context, Result, ensure};

/// Licences whose crates may be linked: they ask for no more than their text beside the program.
const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Fails unless the choices that an expression leaves include licences that are allowed.
pub(super) fn expect_allowed(expression: &str) -> Result<()> {
    let mut words = words(expression).into_iter().peekable();
    let allowed = any(&mut words).with_context(|| format!("{expression:?} is no expression of licences"))?;
    ensure!(words.next().is_none(), "{expression:?} is no expression of licences");
    ensure!(allowed, "{expression} is not allowed; allowed are {}", ALLOWED.join(", "));
    Ok(())
}

/// An expression as Debian writes it.
pub(super) fn in_debian(expression: &str) -> String {
    let debian = |word: String| match &word[..] {
        "OR" | "AND" | "WITH" => word.to_lowercase(),
        _ => word,
    };
    let text = words(expression).into_iter().map(debian).collect::<Vec<_>>().join(" ");
    text.replace("( ", "(").replace(" )", ")")
}

/// Names, operators and parentheses. Older crates have a slash in place of OR.
fn words(expression: &str) -> Vec<String> {
    let apart = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    apart.split_whitespace().map(str::to_owned).collect()
}

type Words = std::iter::Peekable<std::vec::IntoIter<String>>;

/// Whether one of the licences between OR is allowed; `None` where the words are no expression.
fn any(words: &mut Words) -> Option<bool> {
    let mut allowed = all(words)?;
    while words.next_if(|word| word == "OR").is_some() {
        allowed |= all(words)?;
    }
    Some(allowed)
}

/// Whether each of the licences between AND is allowed.
fn all(words: &mut Words) -> Option<bool> {
    let mut allowed = one(words)?;
    while words.next_if(|word| word == "AND").is_some() {
        allowed &= one(words)?;
    }
    Some(allowed)
}

fn one(words: &mut Words) -> Option<bool> {
    let mut name = words.next()?;
    if name == "(" {
        let allowed = any(words)?;
        return words.next_if(|word| word == ")").map(|_| allowed);
    }
    if words.next_if(|word| word == "WITH").is_some() {
        name = format!("{name} WITH {}", words.next()?);
    }
    let is_name = !["OR", "AND", "WITH", ")"].contains(&&name[..]);
    is_name.then(|| ALLOWED.contains(&&name[..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_needs_one_allowed_licence_and_a_sum_all() {
        for (expression, allowed) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-2.0/MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND MPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH other-exception", false),
        ] {
            assert_eq!(expect_allowed(expression).is_ok(), allowed, "{expression}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for expression in ["", "MIT OR", "MIT MIT", "(MIT", "MIT)", "AND", "MIT WITH"] {
            let error = expect_allowed(expression).unwrap_err().to_string();
            assert!(error.contains("is no expression"), "{expression}: {error}");
        }
    }

    #[test]
    fn debian_writes_operators_in_small_letters() {
        assert_eq!(in_debian("MIT/Apache-2.0"), "MIT or Apache-2.0");
        assert_eq!(in_debian("(MIT OR ISC) AND Zlib"), "(MIT or ISC) and Zlib");
    }
}
