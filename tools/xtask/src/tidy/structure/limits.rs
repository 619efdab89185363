//! Sizes of functions, files and folders, and the list of reasons for exceptions.

use std::collections::BTreeMap;

use crate::tidy::finding::Finding;
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 800;

/// Rust files of a folder that lie in it, and not in one of its folders.
const FOLDER_FILES_MAX: usize = 16;

/// Lines from which on a file is long, and how many may be.
const LONG_FILE_LINES: usize = 400;
const LONG_FILES_MAX: usize = 5;

const REASONS: &str = "tools/xtask/reasons.txt";

/// One line of the list.
struct Entry<'a> {
    line: usize,
    subject: &'a str,
    reason: &'a str,
}

/// Something too large, named as the list names it.
struct Excess {
    subject: String,
    finding: Finding,
}

/// Rule: few files are long, so that each that becomes so is asked for its seam.
pub(crate) fn long_files(tree: &Tree) -> Vec<Finding> {
    let lines = |source: &Source| source.text.lines().count();
    let long: Vec<_> = tree.sources.iter().filter(|source| lines(source) > LONG_FILE_LINES).collect();
    let message = |source: &Source| {
        let (lines, count) = (lines(source), long.len());
        format!(
            "{lines} lines; {count} files have more than {LONG_FILE_LINES} where {LONG_FILES_MAX} may: split one"
        )
    };
    let many = long.iter().filter(|_| long.len() > LONG_FILES_MAX);
    many.map(|source| Finding::new("long-files", &source.path, 1, message(source))).collect()
}

/// Rule: nothing is over its size without a listed reason, and no reason outlives its excess.
pub(crate) fn sizes(tree: &Tree) -> Vec<Finding> {
    let entries = entries(tree.text(REASONS));
    let excesses = excesses(tree);
    let is_listed = |excess: &Excess| entries.iter().any(|entry| entry.subject == excess.subject);
    let is_stale = |entry: &&Entry| !excesses.iter().any(|excess| excess.subject == entry.subject);
    let stale =
        entries.iter().filter(is_stale).map(|entry| complaint(entry, "nothing here is over its size"));
    let empty = entries.iter().filter(|entry| entry.reason.is_empty());
    let mut found: Vec<_> =
        stale.chain(empty.map(|entry| complaint(entry, "an entry needs a reason"))).collect();
    found.extend(excesses.iter().filter(|excess| !is_listed(excess)).map(|excess| excess.finding.clone()));
    found
}

fn complaint(entry: &Entry<'_>, what: &str) -> Finding {
    Finding::new("reasons", REASONS, entry.line, format!("{what}: {}", entry.subject))
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(line, text)| {
            let (subject, reason) = text.split_once('=').unwrap_or((text, ""));
            Entry { line, subject: subject.trim(), reason: reason.trim() }
        })
        .collect()
}

fn excesses(tree: &Tree) -> Vec<Excess> {
    let mut found = full_folders(tree);
    for source in &tree.sources {
        let path = &source.path;
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            let message = format!("{lines} lines where {FILE_LINES_MAX} are allowed");
            found
                .push(Excess { subject: path.clone(), finding: Finding::new("file-size", path, 1, message) });
        }
        for function in &source.functions {
            let lines = function.lines.clone().count();
            if lines > FUNCTION_LINES_MAX {
                let message =
                    format!("fn {}: {lines} lines where {FUNCTION_LINES_MAX} are allowed", function.name);
                let finding = Finding::new("function-size", path, *function.lines.start(), message);
                found.push(Excess { subject: format!("{path} fn {}", function.name), finding });
            }
        }
    }
    found
}

/// Tests end to end are a list, and lie elsewhere.
fn full_folders(tree: &Tree) -> Vec<Excess> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for source in tree.sources_in(&["crates/", "tools/"]) {
        let (folder, _) = source.path.rsplit_once('/').expect("it lies in a folder");
        *folders.entry(folder).or_default() += 1;
    }
    let full = folders.into_iter().filter(|(_, files)| *files > FOLDER_FILES_MAX);
    full.map(|(folder, files)| {
        let message = format!(
            "{files} Rust files where {FOLDER_FILES_MAX} are allowed: put what belongs together in folders"
        );
        Excess { subject: folder.into(), finding: Finding::new("folder-size", folder, 1, message) }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/core/src/long.rs";

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    fn rules(files: &[(&str, &str)]) -> Vec<&'static str> {
        sizes(&Tree::of(files)).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn seventy_one_lines_are_too_many_for_a_function() {
        assert!(rules(&[(PATH, &function(70))]).is_empty());
        assert_eq!(rules(&[(PATH, &function(71))]), ["function-size"]);
        let method = format!("impl A {{\n{}}}\n", function(71));
        assert_eq!(rules(&[(PATH, &method)]), ["function-size"]);
        let default = format!("trait A {{\n{}}}\n", function(71));
        assert_eq!(rules(&[(PATH, &default)]), ["function-size"]);
    }

    #[test]
    fn eight_hundred_and_one_lines_are_too_many_for_a_file() {
        assert!(rules(&[(PATH, &"//\n".repeat(800))]).is_empty());
        assert_eq!(rules(&[(PATH, &"//\n".repeat(801))]), ["file-size"]);
    }

    #[test]
    fn seventeen_files_are_too_many_for_a_folder() {
        let found = |folder: &str, count: usize, more: &[(&str, &str)]| {
            let paths: Vec<String> = (0..count).map(|at| format!("{folder}/file{at}.rs")).collect();
            let others = ["below/file.rs", "words.txt"].map(|name| format!("{folder}/{name}"));
            let files = paths.iter().chain(&others).map(|path| (path.as_str(), "//! Words.\n"));
            rules(&files.chain(more.iter().copied()).collect::<Vec<_>>())
        };
        for folder in ["crates/core/src", "crates/core/src/sync/tests", "tools/sim/src"] {
            assert_eq!(found(folder, 16, &[]), [""; 0], "{folder}");
            assert_eq!(found(folder, 17, &[]), ["folder-size"], "{folder}");
        }
        assert_eq!(found("tests/tests/e2e", 17, &[]), [""; 0], "a list");
        let reason = [(REASONS, "crates/core/src = a list too\n")];
        assert_eq!(found("crates/core/src", 17, &reason), [""; 0]);
        assert_eq!(found("crates/core/src", 16, &reason), ["reasons"]);
    }

    #[test]
    fn five_files_may_be_long_and_six_are_all_named() {
        let long = "//\n".repeat(401);
        let paths: Vec<String> = (0..6).map(|at| format!("crates/core/src/long{at}.rs")).collect();
        let found = |count: usize, text: &str| {
            let short = ("crates/core/src/short.rs", "//\n");
            let files: Vec<_> =
                paths[..count].iter().map(|path| (path.as_str(), text)).chain([short]).collect();
            long_files(&Tree::of(&files)).len()
        };
        assert_eq!((found(5, &long), found(6, &long)), (0, 6));
        assert_eq!(found(6, &long[3..]), 0, "four hundred lines are not long");
    }

    #[test]
    fn a_reason_excuses_exactly_what_it_names() {
        let text = function(71);
        let listed = format!("# why\n{PATH} fn long = a table that reads best whole\n");
        assert!(rules(&[(PATH, &text), (REASONS, &listed)]).is_empty());
        let other = format!("{PATH} fn short = no such thing\n");
        assert_eq!(rules(&[(PATH, &text), (REASONS, &other)]), ["reasons", "function-size"]);
    }

    #[test]
    fn an_entry_without_a_reason_is_found() {
        let listed = format!("{PATH} fn long =\n");
        assert_eq!(rules(&[(PATH, &function(71)), (REASONS, &listed)]), ["reasons"]);
    }
}
