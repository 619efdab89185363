//! Each file opens with what it is.

use crate::tidy::finding::Finding;
use crate::tidy::tree::Tree;

/// Rule: every Rust file begins with a `//!` comment.
pub(crate) fn present(tree: &Tree) -> Vec<Finding> {
    let has_head = |text: &str| {
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
        first.strip_prefix("//!").is_some_and(|rest| !rest.trim().is_empty())
    };
    let message = "the file must begin with a //! comment that says what it is";
    tree.sources_in(&["crates/", "tools/", "tests/"])
        .filter(|source| !has_head(&source.text))
        .map(|source| Finding::new("head", &source.path, 1, message))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(text: &str) -> bool {
        present(&Tree::of(&[("crates/core/src/a.rs", text)])).is_empty()
    }

    #[test]
    fn only_a_head_with_words_at_the_top_counts() {
        assert!(passes("//! What it is.\n"));
        assert!(!passes("fn a() {}\n"));
        assert!(!passes(""));
        assert!(!passes("// What it is.\n"));
        assert!(!passes("//!\n//! Late.\n"));
        assert!(!passes("#![forbid(unsafe_code)]\n//! Late.\n"));
    }
}
