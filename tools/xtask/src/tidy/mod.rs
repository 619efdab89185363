//! What neither the compiler nor clippy checks: arrows between crates, sizes, places, names.
//!
//! A rule is a function from the [`Tree`] of the repository to its [`Finding`]s. The tree can be made of snippets, and
//! each rule has a test with snippets that break it: a check that cannot fail is a defect.
//!
//! | part | holds |
//! | --- | --- |
//! | `tree`, `source`, `tokens` | what rules look at |
//! | `finding` | what they find |
//! | `structure`, `code`, `words`, `documents` | the rules |
//! | `figures` | how large the code is |

mod code;
mod documents;
mod figures;
mod finding;
mod source;
mod structure;
mod tokens;
mod tree;
mod words;

use std::path::Path;

use anyhow::{Result, bail};

use code::{asserts, doors, mutants, unsafety, unwraps};
use documents::{example, lengths, promises};
use finding::Finding;
use structure::{arrows, circles, limits, unused};
use tree::Tree;
use words::{heads, marks, names, repeated, widths};

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    tree::parses,
    tree::root_is_small,
    arrows::between_crates,
    arrows::one_runtime,
    circles::between_files,
    limits::sizes,
    limits::long_files,
    asserts::enough,
    unused::no_dependencies,
    unsafety::places,
    unsafety::forbidden,
    heads::present,
    unwraps::only_in_tests,
    names::words,
    repeated::few,
    promises::proofs,
    lengths::lines,
    marks::machine_paths,
    marks::unfinished,
    marks::plain_words,
    widths::prose,
    doors::locks,
    doors::time,
    mutants::hunted,
];

/// Checks the repository at `root`; prints each violation and fails if there is any.
pub(crate) fn check(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let findings = findings(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => example::applies(root),
        1 => bail!("tidy found a violation"),
        count => bail!("tidy found {count} violations"),
    }
}

/// Shows how large the code below `crates/` is.
pub(crate) fn figures(root: &Path) -> Result<()> {
    println!("{}", figures::table(&Tree::read(root)?));
    Ok(())
}

fn findings(tree: &Tree) -> Vec<Finding> {
    let mut all: Vec<_> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_tree_has_no_findings() {
        let tree = Tree::of(&[
            ("crates/core/Cargo.toml", "[package]\nname = \"spillway-core\"\n"),
            (
                "crates/core/src/lib.rs",
                "//! Words.\n#![forbid(unsafe_code)]\n\npub fn size() -> u32 {\n    4096\n}\n",
            ),
            ("README.md", "Spillway\n"),
        ]);
        assert_eq!(findings(&tree), []);
    }

    #[test]
    fn a_finding_names_file_line_and_rule() {
        let tree =
            Tree::of(&[("crates/core/src/block.rs", "//! Blocks.\npub fn size() {\n    None.unwrap()\n}\n")]);
        let shown: Vec<_> = findings(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 1);
        assert!(shown[0].starts_with("crates/core/src/block.rs:3: unwrap: "), "{}", shown[0]);
    }
}
