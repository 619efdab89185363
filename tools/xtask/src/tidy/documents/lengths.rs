//! How long documents may be that are read as a whole.

use crate::tidy::finding::Finding;
use crate::tidy::tree::Tree;

/// Documents, and the lines that each may have.
const LINES_MAX: &[(&str, usize)] =
    &[("ARCHITECTURE.md", 350), ("SEMANTICS.md", 450), ("docs/performance.md", 400)];

/// Rule: documents that all readers begin with stay short.
pub(crate) fn lines(tree: &Tree) -> Vec<Finding> {
    let found = LINES_MAX.iter().filter_map(|(path, most)| {
        let lines = tree.text(path).lines().count();
        let message = format!("{lines} lines where {most} are allowed: replace, do not add");
        (lines > *most).then(|| Finding::new("document-size", path, most + 1, message))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_too_many_is_found() {
        for (path, most) in LINES_MAX {
            let found = |path: &str, count: usize| {
                let text = "Words.\n".repeat(count);
                lines(&Tree::of(&[(path, &text)])).iter().map(|finding| finding.line).collect::<Vec<_>>()
            };
            assert_eq!(found(path, *most), [0; 0], "{path}");
            assert_eq!(found(path, most + 1), [most + 1], "{path}");
            assert_eq!(found("docs/zram.md", most + 1), [0; 0], "another may be long");
        }
    }
}
