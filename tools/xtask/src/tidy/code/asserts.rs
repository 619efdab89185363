//! Asserts: code says what only a bug can break, often enough that a bug is seen where it is. What bytes from outside or the system can
//! break is no assert, so that crates which mostly talk to these have fewer.

use crate::tidy::finding::Finding;
use crate::tidy::tree::Tree;

/// Crates, and the asserts wanted in a thousand lines of each, on in release.
const CRATES: &[(&str, usize)] = &[
    ("crates/core/src/", 15),
    ("crates/policy/src/", 15),
    ("crates/layers/src/", 15),
    ("crates/io/src/", 5),
    ("crates/export/src/", 5),
    ("crates/app/src/", 5),
];

pub(crate) const ASSERTS: &[&str] = &["assert ! (", "assert_eq ! (", "assert_ne ! ("];

/// Rule: a crate that has a thousand lines of code has so many asserts in them. Tests, comments and blank lines count for nothing.
pub(crate) fn enough(tree: &Tree) -> Vec<Finding> {
    CRATES.iter().filter_map(|(folder, wanted)| in_crate(tree, folder, *wanted)).collect()
}

fn in_crate(tree: &Tree, folder: &'static str, wanted: usize) -> Option<Finding> {
    let folders = [folder];
    let sources: Vec<_> = tree.sources_in(&folders).collect();
    let lines: usize = sources.iter().map(|source| source.code_lines().count()).sum();
    let asserts: usize = sources.iter().map(|source| source.count(ASSERTS)).sum();
    let message = format!("{asserts} asserts in {lines} lines where {wanted} in a thousand are wanted");
    (lines >= 1000 && asserts * 1000 < lines * wanted).then(|| Finding::new("asserts", folder, 1, message))
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
        assert_eq!([31, 30].map(|asserts| findings(PATH, asserts, 1000)), [0, 1], "beyond the last thousand");
        assert_eq!(findings(PATH, 0, 400), 0, "no thousand lines");
        assert_eq!(findings("crates/sim/src/a.rs", 0, 500), 0, "another crate");
    }

    #[test]
    fn each_crate_has_its_own_number() {
        for (folder, wanted) in CRATES {
            let path = format!("{folder}a.rs");
            let found = [*wanted, wanted - 1].map(|asserts| findings(&path, asserts, 500 - asserts));
            assert_eq!(found, [0, 1], "{folder}");
        }
        assert_eq!(findings("crates/io/src/a.rs", 5, 495), findings("crates/core/src/a.rs", 15, 485));
    }
}
