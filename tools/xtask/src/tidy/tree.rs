//! The files of the repository, as git sees them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::finding::Finding;
use super::source::Source;

const ROOT_ENTRIES_MAX: usize = 12;

/// A text file with its path from the root.
pub(super) struct Text {
    pub(super) path: String,
    pub(super) text: String,
}

/// Everything that rules look at.
pub(super) struct Tree {
    /// All files that are text.
    pub(super) texts: Vec<Text>,
    /// Rust files that could be parsed.
    pub(super) sources: Vec<Source>,
    /// All paths, also of files that are not text.
    paths: Vec<String>,
    broken: Vec<Finding>,
}

impl Tree {
    /// Reads what git tracks, and what it would track if added.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let paths = listed(root)?;
        let mut texts = Vec::new();
        for path in &paths {
            let bytes = std::fs::read(root.join(path)).with_context(|| format!("cannot read {path}"))?;
            texts.extend(String::from_utf8(bytes).ok().map(|text| Text { path: path.clone(), text }));
        }
        Ok(Self::new(paths, texts))
    }

    fn new(paths: Vec<String>, texts: Vec<Text>) -> Self {
        let mut tree = Self { texts, sources: Vec::new(), paths, broken: Vec::new() };
        for Text { path, text } in tree.texts.iter().filter(|text| text.path.ends_with(".rs")) {
            match Source::parse(path, text) {
                Ok(source) => tree.sources.push(source),
                Err(error) => {
                    let line = error.span().start().line;
                    tree.broken.push(Finding::new("parse", path, line, error.to_string()));
                }
            }
        }
        tree.mark_test_modules();
        tree
    }

    /// Marks the files of modules that are declared for tests only in another file.
    fn mark_test_modules(&mut self) {
        let places = |source: &Source| {
            source.test_modules.iter().flat_map(|name| source.module_places(name)).collect::<Vec<_>>()
        };
        let places: Vec<String> = self.sources.iter().flat_map(places).collect();
        for source in &mut self.sources {
            let lies_in = |place: &String| {
                source.path == *place || place.ends_with('/') && source.path.starts_with(place)
            };
            source.is_test |= places.iter().any(lies_in);
        }
    }

    /// The text at `path`, empty where there is none.
    pub(super) fn text(&self, path: &str) -> &str {
        self.texts.iter().find(|text| text.path == path).map_or("", |text| &text.text)
    }

    /// Rust files below a folder whose path ends with `/`.
    pub(super) fn sources_in<'a>(&'a self, folders: &'a [&str]) -> impl Iterator<Item = &'a Source> {
        self.sources.iter().filter(|source| folders.iter().any(|folder| source.path.starts_with(folder)))
    }
}

#[cfg(test)]
impl Tree {
    /// A tree made of snippets.
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| Text { path: (*path).into(), text: (*text).into() });
        Self::new(files.iter().map(|(path, _)| (*path).into()).collect(), texts.collect())
    }
}

fn listed(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().context("cannot start git, which lists the files to check")?;
    ensure!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let paths: BTreeSet<&str> = text.split('\0').filter(|path| root.join(path).is_file()).collect();
    Ok(paths.into_iter().map(String::from).collect())
}

/// Rule: every Rust file can be parsed, or nothing else said about it would be true.
pub(super) fn parses(tree: &Tree) -> Vec<Finding> {
    tree.broken.clone()
}

/// Rule: a person sees the whole root at a glance.
pub(super) fn root_is_small(tree: &Tree) -> Vec<Finding> {
    let first = |path: &String| path.split('/').next().map(String::from);
    let entries: BTreeSet<String> =
        tree.paths.iter().filter_map(first).filter(|e| !e.starts_with('.')).collect();
    if entries.len() <= ROOT_ENTRIES_MAX {
        return Vec::new();
    }
    let names = entries.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let message = format!("{} entries where {ROOT_ENTRIES_MAX} are allowed: {names}", entries.len());
    vec![Finding::new("root", ".", 1, message)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_rust_is_found() {
        let tree = Tree::of(&[("crates/a/src/lib.rs", "//! A.\n\nfn {\n")]);
        let found = parses(&tree);
        assert_eq!((found.len(), found[0].line), (1, 3));
    }

    #[test]
    fn thirteen_entries_are_too_many_and_dot_files_do_not_count() {
        let names: Vec<String> = (0..13).map(|n| format!("d{n}/a.txt")).collect();
        let mut files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        files.push((".ci/run", ""));
        assert_eq!(root_is_small(&Tree::of(&files)).len(), 1);
        assert!(root_is_small(&Tree::of(&files[1..])).is_empty());
    }

    #[test]
    fn modules_for_tests_in_files_of_their_own_are_marked() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "//! A.\n#[cfg(test)]\nmod model;\nmod real;\n"),
            ("crates/a/src/model.rs", ""),
            ("crates/a/src/model/part.rs", ""),
            ("crates/a/src/real.rs", ""),
        ]);
        let marked: Vec<_> = tree.sources.iter().map(|source| source.is_test).collect();
        assert_eq!(marked, [false, true, true, false]);
    }
}
