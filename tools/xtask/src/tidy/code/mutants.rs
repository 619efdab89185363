//! Deliberate defects: none that nothing looks for.

use crate::tidy::finding::Finding;
use crate::tidy::tree::Tree;

/// How code asks for a defect.
const ASKED: &str = "mutant::on(\"";

/// Rule: each deliberate defect is named where it is hunted: in the simulator's list or in a test.
pub(crate) fn hunted(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.sources_in(&["crates/"]) {
        for (line, text) in (1..).zip(source.text.lines()) {
            let names = text.split(ASKED).skip(1).filter_map(|rest| rest.split('"').next());
            for name in names.filter(|name| !is_hunted(tree, name)) {
                let message = format!("nothing hunts {name:?}: list it for the simulator, or test for it");
                found.push(Finding::new("mutant", &source.path, line, message));
            }
        }
    }
    found
}

/// Whether some code names it otherwise than to ask for it.
fn is_hunted(tree: &Tree, name: &str) -> bool {
    let named = format!("\"{name}\"");
    let count =
        |what: &str| tree.sources.iter().map(|source| source.text.matches(what).count()).sum::<usize>();
    count(&named) > count(&format!("mutant::on({named}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_that_is_asked_for_alone_is_found() {
        let code = ("crates/a/src/lib.rs", "fn a() {\n    mutant::on(\"a: b\") || mutant::on(\"a: c\")\n}\n");
        let again = ("crates/b/src/lib.rs", "fn a() { mutant::on(\"a: b\") }\n");
        let list = ("tools/sim/src/list.rs", "const A: &str = \"a: c\";\n");
        let lines = |files: &[(&str, &str)]| {
            hunted(&Tree::of(files)).iter().map(|found| (found.path.clone(), found.line)).collect::<Vec<_>>()
        };
        let (a, b) = (("crates/a/src/lib.rs".to_owned(), 2), ("crates/b/src/lib.rs".to_owned(), 1));
        assert_eq!(lines(&[code, again, list]), [a.clone(), b]);
        assert_eq!(lines(&[code]), [a.clone(), a]);
        let test = ("tests/src/a.rs", "fn a() { choose(\"a: b\") }\n");
        assert!(lines(&[code, again, list, test]).is_empty());
    }
}
