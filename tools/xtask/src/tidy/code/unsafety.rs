//! Where `unsafe` may stand, and which crates swear it off.

use crate::tidy::finding::Finding;
use crate::tidy::source::Source;
use crate::tidy::tokens;
use crate::tidy::tree::Tree;

/// Crates whose root file forbids it.
const SAFE_CRATES: &[&str] = &["core", "policy", "sim", "app", "export"];

/// Folders (ending with `/`) and files that may hold it: the operating system; the pool, its pages and its table; the
/// codecs' C functions, also where one is measured alone; the allocator that counts; memory that a front end shares; a
/// benchmark's ring.
const ALLOWED: &[&str] = &[
    "crates/io/",
    "crates/layers/src/zram/codec/lz4.rs",
    "crates/layers/src/zram/slots/locked.rs",
    "crates/layers/src/zram/pool/mod.rs",
    "crates/layers/src/zram/pool/pages/mod.rs",
    "crates/layers/src/zram/pool/tests.rs",
    "tests/counting/src/lib.rs",
    "tests/front-end/src/lib.rs",
    "tools/bench/src/peers/lz4.rs",
    "tools/bench/src/vhost/ring.rs",
];

/// Rule: `unsafe` stands in the listed places only.
pub(crate) fn places(tree: &Tree) -> Vec<Finding> {
    let is_outside = |source: &&Source| {
        !ALLOWED
            .iter()
            .any(|place| source.path == *place || place.ends_with('/') && source.path.starts_with(place))
    };
    tree.sources.iter().filter(is_outside).flat_map(in_source).collect()
}

fn in_source(source: &Source) -> Vec<Finding> {
    let message = "unsafe outside the files that tools/xtask lists for it";
    let lines = tokens::find(&source.tokens, "unsafe").into_iter();
    lines.map(|line| Finding::new("unsafe", &source.path, line, message)).collect()
}

/// Rule: a crate that needs no `unsafe` says so to the compiler.
pub(crate) fn forbidden(tree: &Tree) -> Vec<Finding> {
    let root_of = |name: &str| {
        let roots = [format!("crates/{name}/src/lib.rs"), format!("crates/{name}/src/main.rs")];
        tree.sources.iter().filter(move |source| roots.contains(&source.path))
    };
    let message = "the crate's root must say #![forbid(unsafe_code)]";
    let silent = SAFE_CRATES.iter().flat_map(|name| root_of(name)).filter(|source| !source.forbids_unsafe);
    silent.map(|source| Finding::new("forbid-unsafe", &source.path, 1, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        places(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn every_form_of_it_is_found() {
        let text = "fn a() {\n    unsafe { b() }\n}\nunsafe impl Send for A {}\nunsafe fn b() {}\nmacro_rules! m { () => { unsafe {} } }\n";
        assert_eq!(lines("crates/core/src/a.rs", text), [2, 4, 5, 6]);
        assert_eq!(lines("crates/layers/src/zram/write.rs", text).len(), 4);
        assert_eq!(lines("tools/bench/src/main.rs", text).len(), 4);
    }

    #[test]
    fn talk_about_it_and_listed_places_are_free() {
        assert!(
            lines(
                "crates/core/src/a.rs",
                "//! unsafe\n#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";\n"
            )
            .is_empty()
        );
        for path in [
            "crates/io/src/a/b.rs",
            "crates/layers/src/zram/pool/pages/mod.rs",
            "crates/layers/src/zram/codec/lz4.rs",
        ] {
            assert!(lines(path, "fn a() { unsafe {} }").is_empty(), "{path}");
        }
    }

    #[test]
    fn a_safe_crate_swears_it_off_at_its_root() {
        let tree = Tree::of(&[
            ("crates/core/src/lib.rs", "#![forbid(unsafe_code)]"),
            ("crates/policy/src/lib.rs", "#![deny(unsafe_code)]"),
            ("crates/app/src/main.rs", "// #![forbid(unsafe_code)]"),
            ("crates/io/src/lib.rs", ""),
        ]);
        let paths: Vec<_> = forbidden(&tree).iter().map(|finding| finding.path.clone()).collect();
        assert_eq!(paths, ["crates/policy/src/lib.rs", "crates/app/src/main.rs"]);
    }
}
