//! The crates of others that are linked into the program, and the texts of their licences.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value as Json;

use super::expression::expect_allowed;
use crate::cargo::{command, printed};
use crate::package::folder;

/// How the names of files begin that hold licences, and notices that belong to them.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Crates under the MIT licence that have no file with it, and who holds their copyright.
const WITHOUT_FILE: &[(&str, &str)] = &[
    ("compio", "2023 Berrysoft"),
    ("compio-buf", "2023 Berrysoft"),
    ("compio-driver", "2023 Berrysoft"),
    ("compio-executor", "2023 Berrysoft"),
    ("compio-log", "2023 Berrysoft"),
    ("compio-runtime", "2023 Berrysoft"),
    ("mod_use", "the authors of mod_use"),
    ("synchrony", "the authors of synchrony"),
];

/// A crate of others.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// Its licence, as an expression by the names of SPDX.
    pub(super) expression: String,
    /// Who holds its copyright, a line each.
    pub(super) holders: Vec<String>,
    /// Texts by the path of their file; none of one that has no file, whose licence is MIT.
    pub(super) texts: Vec<(String, String)>,
}

/// The crates in the program for a target, by name. Each has a licence that is allowed, and its text is known.
pub(super) fn linked(root: &Path, triple: &str) -> Result<Vec<Crate>> {
    let names = names(root, triple)?;
    let mut metadata = command(root);
    metadata.args(["metadata", "--locked", "--format-version=1", "--filter-platform", triple]);
    let metadata: Json = serde_json::from_str(&printed(&mut metadata)?).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut crates = Vec::new();
    for package in packages.iter().filter(|package| !package["source"].is_null()) {
        if names.contains(&(text(package, "name")?, text(package, "version")?)) {
            crates.push(examined(package).with_context(|| format!("crate {}", package["name"]))?);
        }
    }
    crates.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    Ok(crates)
}

/// Name and version of each crate that is linked: without those that only builds run.
fn names(root: &Path, triple: &str) -> Result<BTreeSet<(String, String)>> {
    let mut tree = command(root);
    tree.args(["tree", "--locked", "--package", "spillway", "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "none", "--format", "{p}", "--target", triple]);
    let listed = printed(&mut tree)?;
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.trim_start_matches('v').to_owned()))
    };
    Ok(listed.lines().filter_map(name).collect())
}

fn text(package: &Json, field: &str) -> Result<String> {
    package[field].as_str().map(str::to_owned).with_context(|| format!("it has no field {field}"))
}

fn examined(package: &Json) -> Result<Crate> {
    let (name, version, expression) =
        (text(package, "name")?, text(package, "version")?, text(package, "license")?);
    expect_allowed(&expression)?;
    let manifest = PathBuf::from(text(package, "manifest_path")?);
    let texts = texts_in(manifest.parent().context("its manifest lies in no folder")?)?;
    let known = WITHOUT_FILE.iter().find(|(known, _)| *known == name);
    let holders = match (&texts[..], known) {
        ([], None) => bail!("it has no file with its licence; name its holder in {}", file!()),
        ([], Some((_, holder))) => {
            ensure!(expression == "MIT", "it has no file with its licence, {expression}");
            vec![(*holder).to_owned()]
        }
        (_, Some(_)) => bail!("it has a file with its licence; remove it from the list in {}", file!()),
        (texts, None) => holders(texts, package),
    };
    Ok(Crate { name, version, expression, holders, texts })
}

/// The texts in the folder of a crate. Those of the GPL are for tools and tests that come with C libraries, or one licence to choose of two.
fn texts_in(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for path in folder::files(folder)?.iter().filter(|path| is_licence(path)) {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let upper = text.to_uppercase();
        if !upper.contains("GNU GENERAL PUBLIC LICENSE") && !upper.contains("GPL-2") {
            let place = path.strip_prefix(folder).expect("it lies in the folder");
            texts.push((place.display().to_string(), text));
        }
    }
    Ok(texts)
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
    let is_source = [".RS", ".C", ".H", ".TOML"].iter().any(|end| name.ends_with(end));
    !is_source && NAMES.iter().any(|begin| name.starts_with(begin))
}

/// Who holds the copyright: by the texts, otherwise by the manifest.
fn holders(texts: &[(String, String)], package: &Json) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let lines = texts.iter().flat_map(|(_, text)| text.lines());
    for holder in lines.filter_map(|line| holder(line.trim())) {
        if !found.contains(&holder) {
            found.push(holder);
        }
    }
    if found.is_empty() {
        let authors = package["authors"].as_array().into_iter().flatten();
        found.extend(authors.filter_map(Json::as_str).map(str::to_owned));
    }
    if found.is_empty() {
        found.push(format!("the authors of {}", package["name"].as_str().expect("it has a name")));
    }
    found
}

/// The holder in a line such as `Copyright (c) 2020 A B`; a line of a form to fill in has none.
fn holder(line: &str) -> Option<String> {
    let rest = line.strip_prefix("Copyright")?.trim_start();
    let unmarked = ["(c)", "(C)", "©"].iter().find_map(|mark| rest.strip_prefix(mark));
    let holder = unmarked.unwrap_or(rest).trim();
    let is_holder = unmarked.is_some() || holder.starts_with(|first: char| first.is_ascii_digit());
    (is_holder && !holder.is_empty() && !holder.contains(['[', '{'])).then(|| holder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn holders_are_named_by_the_texts_or_the_manifest() {
        for (line, found) in [
            ("Copyright (c) 2020 A B", Some("2020 A B")),
            ("Copyright 2016 C", Some("2016 C")),
            ("Copyright © D", Some("D")),
            ("Copyright [yyyy] [name of copyright owner]", None),
            ("Copyright notice and this list", None),
            ("copyright 2020", None),
        ] {
            assert_eq!(holder(line).as_deref(), found, "{line}");
        }
        let texts = |text: &str| [("LICENSE".to_owned(), text.to_owned())];
        let package = json!({ "name": "x", "authors": ["E"] });
        assert_eq!(holders(&texts("Copyright 1 A\n x\nCopyright 1 A\n"), &package), ["1 A"]);
        assert_eq!(holders(&texts("MIT"), &package), ["E"]);
        assert_eq!(holders(&texts("MIT"), &json!({ "name": "x" })), ["the authors of x"]);
    }

    #[test]
    fn a_crate_without_a_text_or_under_another_licence_is_refused() {
        let folder = std::env::temp_dir().join(format!("spillway-licences-{}", std::process::id()));
        folder::empty(&folder).unwrap();
        let package = |name: &str, licence: &str| {
            let manifest = folder.join("Cargo.toml");
            examined(
                &json!({ "name": name, "version": "1.0.0", "license": licence, "manifest_path": manifest }),
            )
        };
        let refused = |outcome: Result<Crate>| format!("{:#}", outcome.expect_err("it is refused"));
        assert!(refused(package("x", "MIT")).contains("no file with its licence"));
        assert_eq!(package("compio", "MIT").unwrap().holders, ["2023 Berrysoft"]);
        assert!(refused(package("compio", "ISC")).contains("no file with its licence, ISC"));
        fs::write(folder.join("COPYING"), "the gnu general public license\n").unwrap();
        assert!(
            refused(package("x", "MIT")).contains("no file with its licence"),
            "the GPL is no text of it"
        );
        fs::write(folder.join("LICENSE-MIT"), "Copyright 2020 A\n").unwrap();
        let found = package("x", "MIT OR GPL-2.0-only").unwrap();
        assert_eq!(found.texts, [("LICENSE-MIT".to_owned(), "Copyright 2020 A\n".to_owned())]);
        assert!(refused(package("x", "GPL-3.0-only")).contains("GPL-3.0-only is not allowed"));
        assert!(refused(package("compio", "MIT")).contains("remove it from the list"));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A crate that is added with another licence, or without its text, fails here.
    #[test]
    fn all_linked_crates_have_a_text_and_an_allowed_licence() {
        let root = crate::root();
        let arch = std::env::consts::ARCH;
        for target in ["gnu", "musl"] {
            let crates = linked(&root, &format!("{arch}-unknown-linux-{target}")).unwrap();
            let names: BTreeSet<_> = crates.iter().map(|found| &found.name[..]).collect();
            assert!(names.len() > 100 && names.contains("rustls") && !names.contains("syn"), "{names:?}");
            assert!(
                WITHOUT_FILE.iter().all(|(name, _)| names.contains(name)),
                "one of the list is not linked"
            );
            let zstd = crates.iter().find(|found| found.name == "zstd-sys").unwrap();
            assert!(zstd.texts.iter().any(|(path, _)| path == "zstd/LICENSE"), "the C library has its own");
        }
    }
}
