//! Marks that unfinished or unportable work leaves in files, and words that are not plain.

use crate::tidy::finding::Finding;
use crate::tidy::tokens;
use crate::tidy::tree::Tree;

/// First folders of absolute paths that exist on one machine only.
const HOMES: &[&str] = &["root", "home", "Users", "work", "workspace", "workspaces"];

/// Words with which people mark work left to do; in pieces, so that this file does not mark itself.
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")];

/// Vague words, and what to write instead; in pieces, too.
const VAGUE: &[(&str, &str)] = &[
    (concat!("who", "ever"), "name who"),
    (concat!("some", "body"), "name who"),
    (concat!("in", " hand"), "in flight, or held"),
];

/// Macros for work left to do.
const GAPS: &[&str] = &["todo !", "unimplemented !"];

/// Rule: nothing committed depends on where a machine keeps its files.
pub(crate) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    in_lines(tree, |line| {
        machine_path(line).map(|path| ("machine-path", format!("a path of one machine: {path}")))
    })
}

/// Rule: no work is left to do in committed files.
pub(crate) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let message = |what: &str| format!("`{what}`: finish it, or open an issue");
    let mut found = in_lines(tree, |line| {
        let mark = MARKS.iter().find(|mark| has_word(line, mark))?;
        Some(("unfinished", message(mark)))
    });
    for source in &tree.sources {
        for gap in GAPS {
            let lines = tokens::find(&source.tokens, gap);
            found.extend(
                lines.iter().map(|line| Finding::new("unfinished", &source.path, *line, message(gap))),
            );
        }
    }
    found
}

/// Rule: prose names who does what, with the field's terms.
pub(crate) fn plain_words(tree: &Tree) -> Vec<Finding> {
    in_lines(tree, |line| {
        let line = line.to_lowercase();
        let (word, plain) = VAGUE.iter().find(|(word, _)| has_word(&line, word))?;
        Some(("plain-words", format!("`{word}`: {plain}")))
    })
}

fn in_lines(tree: &Tree, check: impl Fn(&str) -> Option<(&'static str, String)>) -> Vec<Finding> {
    let mut found = Vec::new();
    for text in &tree.texts {
        for (index, line) in text.text.lines().enumerate() {
            if let Some((rule, message)) = check(line) {
                found.push(Finding::new(rule, &text.path, index + 1, message));
            }
        }
    }
    found
}

/// The first absolute path below one of [`HOMES`] in `line`.
fn machine_path(line: &str) -> Option<&str> {
    let starts = line.match_indices('/').map(|(at, _)| at);
    let stands_alone =
        |at: &usize| !line[..*at].ends_with(|c: char| c.is_alphanumeric() || "/._-~})$>:".contains(c));
    let is_home = |at: &usize| {
        let (first, rest) = line[at + 1..].split_once('/').unwrap_or(("", ""));
        HOMES.contains(&first) && rest.starts_with(|c: char| c.is_alphanumeric() || c == '.' || c == '_')
    };
    let at = starts.filter(stands_alone).find(is_home)?;
    let end =
        line[at..].find(|c: char| c.is_whitespace() || "\"'`)>,;".contains(c)).map_or(line.len(), |n| at + n);
    Some(&line[at..end])
}

fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_letter) && !line[at + word.len()..].starts_with(is_letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: crate::tidy::Rule, path: &str, text: &str) -> usize {
        rule(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn machine_paths_are_found_in_any_file() {
        for home in HOMES {
            let path = format!("/{home}/someone/x");
            for text in [format!("cd {path}"), format!("\"{path}\""), format!("key={path}"), path.clone()] {
                assert_eq!(count(machine_paths, "docs/a.md", &text), 1, "{text}");
            }
        }
    }

    #[test]
    fn paths_that_exist_everywhere_or_nowhere_are_free() {
        for text in [
            "/usr/bin/fio",
            "~/work/x",
            "src/work/queue.rs",
            "$HOME/home/x",
            "https://a.org/home/x",
            "/root cause",
        ] {
            assert_eq!(count(machine_paths, "docs/a.md", text), 0, "{text}");
        }
    }

    #[test]
    fn marks_are_found_as_whole_words() {
        for mark in MARKS {
            assert_eq!(count(unfinished, "a.sh", &format!("# {mark}: later")), 1);
            assert_eq!(count(unfinished, "a.sh", &format!("mktemp x.{mark}{mark}")), 0);
        }
    }

    #[test]
    fn vague_words_are_found_in_any_prose() {
        for (word, _) in VAGUE {
            for text in [format!("{word} writes"), format!("/// Is {}.", word.to_uppercase())] {
                assert_eq!(count(plain_words, "docs/a.md", &text), 1, "{text}");
            }
            assert_eq!(count(plain_words, "docs/a.md", &format!("{word}s")), 0, "another word");
        }
    }

    #[test]
    fn gaps_are_found_in_code_only() {
        for gap in GAPS {
            let call = format!("fn a() {{ {}(\"\") }}", gap.replace(' ', ""));
            assert_eq!(count(unfinished, "crates/a/src/a.rs", &call), 1);
            assert_eq!(count(unfinished, "crates/a/src/a.rs", &format!("// {call}")), 0);
        }
    }
}
