//! Asserts: layers and decisions say what only a bug can break, often enough that a bug is seen where it is.

use super::finding::Finding;
use super::source::Source;
use super::tokens;
use super::tree::Tree;

/// Crates that this counts in, and in each the asserts wanted in a thousand lines of code, on in release.
const CRATES: &[&str] = &["crates/layers/src/", "crates/policy/src/"];
const ASSERTS_A_THOUSAND: usize = 15;

const ASSERTS: &[&str] = &["assert ! (", "assert_eq ! (", "assert_ne ! ("];

/// Rule: a crate that has a thousand lines of code has so many asserts in them. Tests, comments and blank lines count for nothing.
pub(super) fn enough(tree: &Tree) -> Vec<Finding> {
    CRATES.iter().filter_map(|folder| in_crate(tree, folder)).collect()
}

fn in_crate(tree: &Tree, folder: &'static str) -> Option<Finding> {
    let (lines, asserts) =
        tree.sources_in(&[folder]).map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let few = asserts < lines / 1000 * ASSERTS_A_THOUSAND;
    let message =
        format!("{asserts} asserts in {lines} lines where {ASSERTS_A_THOUSAND} in a thousand are wanted");
    few.then(|| Finding::new("asserts", folder, 1, message))
}

/// Lines of code, and asserts among them.
fn count(source: &Source) -> (usize, usize) {
    let is_code = |(index, line): &(usize, &str)| {
        let text = line.trim();
        !text.is_empty() && !text.starts_with("//") && !source.is_test_line(index + 1)
    };
    let found = ASSERTS.iter().flat_map(|pattern| tokens::find(&source.tokens, pattern));
    let asserts = found.filter(|line| !source.is_test_line(*line)).count();
    (source.text.lines().enumerate().filter(is_code).count(), asserts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of two lines, some of which assert, with a comment and a test beside them.
    fn findings(path: &str, asserts: usize, others: usize) -> usize {
        let text = "fn a() {\n    assert!(true); }\n".repeat(asserts)
            + &"fn b() {\n    c(); }\n".repeat(others)
            + &"\n// assert!(false)\n".repeat(999)
            + "#[cfg(test)]\nmod tests {\n"
            + &"    fn d() { assert_eq!(1, 1); }\n".repeat(999)
            + "}\n";
        enough(&Tree::of(&[(path, &text)])).len()
    }

    #[test]
    fn asserts_are_counted_in_code_alone() {
        const PATH: &str = "crates/policy/src/a.rs";
        assert_eq!((findings(PATH, 15, 485), findings(PATH, 14, 486)), (0, 1));
        assert_eq!(findings(PATH, 30, 1000), 0, "the end of a thousand lines");
        assert_eq!(findings(PATH, 0, 400), 0, "no thousand lines");
        assert_eq!(findings("crates/io/src/a.rs", 0, 500), 0, "another crate");
    }
}
