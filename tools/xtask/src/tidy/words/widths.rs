//! The width of prose.

use crate::tidy::finding::Finding;
use crate::tidy::tree::{Text, Tree};

const COLUMNS_MAX: usize = 100;

/// Rule: prose in Markdown fits its columns. Tables, code and the targets of links may be wider.
pub(crate) fn prose(tree: &Tree) -> Vec<Finding> {
    tree.texts.iter().filter(|text| text.path.ends_with(".md")).flat_map(in_document).collect()
}

fn in_document(document: &Text) -> Vec<Finding> {
    let (mut fenced, mut found) = (false, Vec::new());
    for (index, line) in document.text.lines().enumerate() {
        fenced ^= is_fence(line);
        let columns = columns(line);
        let is_prose = !fenced && !line.starts_with('|') && !line.starts_with("    ");
        if is_prose && columns > COLUMNS_MAX {
            let message = format!("{columns} columns; wrap the paragraph at {COLUMNS_MAX}");
            found.push(Finding::new("width", &document.path, index + 1, message));
        }
    }
    found
}

fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Characters of a line, without the targets of its links.
fn columns(line: &str) -> usize {
    let beside_target = |(number, piece): (usize, &str)| match piece.split_once(')') {
        Some((_, rest)) if number > 0 => rest.chars().count(),
        _ => piece.chars().count(),
    };
    line.split("](").enumerate().map(beside_target).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_found(path: &str, text: &str) -> Vec<usize> {
        prose(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn wide_prose_is_found() {
        let (fits, wide) = ("ä".repeat(COLUMNS_MAX), "a".repeat(COLUMNS_MAX + 1));
        assert_eq!(lines_found("docs/a.md", &format!("{fits}\n{wide}\n\n- {fits}\n")), [2, 4]);
        assert!(lines_found("docs/a.txt", &wide).is_empty());
    }

    #[test]
    fn tables_and_code_may_be_wide_and_end() {
        let wide = "a ".repeat(COLUMNS_MAX);
        let text = format!("| {wide} |\n    {wide}\n```sh\n{wide}\n```\n{wide}\n");
        assert_eq!(lines_found("README.md", &text), [6]);
    }

    #[test]
    fn targets_of_links_do_not_count_and_the_text_beside_them_does() {
        let (target, text) = ("t".repeat(COLUMNS_MAX), "a".repeat(COLUMNS_MAX - 3));
        assert_eq!(lines_found("a.md", &format!("[b]({target}){text}")), [0; 0]);
        assert_eq!(lines_found("a.md", &format!("[b]({target}){text} c")), [1]);
        assert_eq!(lines_found("a.md", &format!("{text} c) ([b]({target})")), [1], "a bracket is no target");
    }
}
