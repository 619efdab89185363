//! Names of types that are defined more than once, so that a reader has to know which one is meant.
//!
//! A name counts once two files of `crates/` define it and others may see both: `pub`, `pub(crate)` and `pub(super)` alike. A type that is
//! private to its file confuses nobody outside it, and tests are apart.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::finding::Finding;
use crate::tidy::source::Source;
use crate::tidy::tokens::{Token, is_word};
use crate::tidy::tree::Tree;

/// Names that may be defined more than once. It only falls: who takes one away lowers it.
const NAMES_MAX: usize = 28;

/// What each layer has under the same name, and the locks, which are there for threads and for models of them.
const BY_DESIGN: &[&str] = &["Config", "Core", "Count", "Counts", "Mutex", "RwLock", "Settings"];

const KINDS: &[&str] = &["struct", "enum", "union", "trait", "type"];

/// Rule: no more names are defined more than once than were.
pub(crate) fn few(tree: &Tree) -> Vec<Finding> {
    let count = names(tree, "crates/").len();
    let message = format!(
        "{count} names of types are defined more than once where {NAMES_MAX} may: `cargo xtask figures` lists them"
    );
    (count > NAMES_MAX).then(|| Finding::new("repeated", "crates/", 1, message)).into_iter().collect()
}

/// Names of types that are defined more than once below `folder`, each with its files.
pub(crate) fn names<'a>(tree: &'a Tree, folder: &str) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| source.path.starts_with(folder)) {
        for name in shared_types(source) {
            names.entry(name).or_default().insert(&source.path);
        }
    }
    names.retain(|name, files| files.len() > 1 && !BY_DESIGN.contains(name));
    names
}

/// Names of the types that code of a file defines for others.
fn shared_types(source: &Source) -> impl Iterator<Item = &str> {
    let names = (0..source.tokens.len()).filter_map(move |at| shared_type(&source.tokens[at..]));
    names.filter(move |name| !source.is_test_line(name.line)).map(|name| name.text.as_str())
}

/// The name of a type that is not private, where its definition begins with these `tokens`.
fn shared_type(tokens: &[Token]) -> Option<&Token> {
    let (_, mut rest) = tokens.split_first().filter(|(first, _)| first.text == "pub")?;
    if rest.first()?.text == "(" {
        let end = rest.iter().position(|token| token.text == ")")?;
        rest = &rest[end + 1..];
    }
    let [kind, name, ..] = rest else { return None };
    (KINDS.contains(&kind.text.as_str()) && is_word(&name.text)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files);
        names(&tree, "crates/").keys().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_name_counts_that_two_files_define_for_others() {
        let text =
            "pub struct A;\npub(crate) enum B {}\npub(in crate::x) trait C {}\npub(super) type D = A;\n";
        let others = ["crates/a/src/b.rs", "crates/b/src/a.rs"];
        for other in others {
            assert_eq!(found(&[("crates/a/src/a.rs", text), (other, text)]), ["A", "B", "C", "D"], "{other}");
        }
        assert_eq!(found(&[("crates/a/src/a.rs", &text.repeat(2))]), [""; 0], "one file");
        assert_eq!(found(&[("crates/a/src/a.rs", text), ("tools/a/src/a.rs", text)]), [""; 0], "a tool");
    }

    #[test]
    fn what_a_macro_defines_counts_too() {
        let text = "options! {\n    /// Words.\n    pub struct Knobs;\n}\n\
                    macro_rules! made { ($name:ident) => { pub struct $name; } }\n";
        assert_eq!(found(&[("crates/a/src/a.rs", text), ("crates/a/src/b.rs", text)]), ["Knobs"]);
    }

    #[test]
    fn private_types_tests_fields_and_names_by_design_do_not_count() {
        let text = "struct A(pub B, pub (C, D));\npub fn e() {}\npub use x::F;\npub struct Config;\n\
                    #[cfg(test)]\nmod tests {\n    pub struct G;\n}\n";
        assert_eq!(found(&[("crates/a/src/a.rs", text), ("crates/a/src/b.rs", text)]), [""; 0]);
        let shared = "pub struct A;\n";
        assert_eq!(found(&[("crates/a/src/a.rs", shared), ("crates/a/src/b.rs", "struct A;\n")]), [""; 0]);
        assert_eq!(found(&[("crates/a/src/a.rs", shared), ("crates/a/tests/b.rs", shared)]), [""; 0]);
    }

    #[test]
    fn a_name_too_many_is_found() {
        let defined = |count: usize| (0..count).map(|at| format!("pub struct A{at};\n")).collect::<String>();
        let findings = |count: usize| {
            let text = defined(count);
            few(&Tree::of(&[("crates/a/src/a.rs", &text), ("crates/b/src/b.rs", &text)])).len()
        };
        assert_eq!((findings(NAMES_MAX), findings(NAMES_MAX + 1)), (0, 1));
    }
}
