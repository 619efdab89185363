//! Failures have a name: `unwrap` is for tests.

use crate::tidy::finding::Finding;
use crate::tidy::tokens;
use crate::tidy::tree::Tree;

/// Rule: no `.unwrap()` outside tests, also inside macros.
pub(crate) fn only_in_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in &tree.sources {
        for line in tokens::find(&source.tokens, ". unwrap ( )") {
            if !source.is_test_line(line) {
                let message = "say why it cannot fail with expect, or return the error";
                found.push(Finding::new("unwrap", &source.path, line, message));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        only_in_tests(&Tree::of(&[("crates/core/src/a.rs", text)]))
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn code_and_macros_are_searched_and_tests_are_free() {
        let text = "fn a() {\n    b()\n        .unwrap();\n    assert!(b().unwrap());\n}\n#[cfg(test)]\nmod tests {\n    fn c() { b().unwrap() }\n}\n";
        assert_eq!(lines(text), [3, 4]);
        assert!(lines("// a.unwrap()\nfn a() { b(\".unwrap()\").unwrap_or(1) }\n").is_empty());
    }
}
