//! Which crate may depend on which, read from the manifests.
//!
//! Dependencies of tests are free, with one exception: layers never see io, so that what passes in the simulator is what
//! ships.

use toml::{Table, Value};

use crate::tidy::finding::Finding;
use crate::tidy::tree::{Text, Tree};

/// Folder below `crates/` and what it may depend on. A crate that is not listed may depend on nothing of ours.
const ARROWS: &[(&str, &[&str])] = &[
    ("app", &["spillway-export", "spillway-io", "spillway-layers", "spillway-core"]),
    ("capi", &["spillway-export", "spillway-io", "spillway-layers", "spillway-core"]),
    ("core", &[]),
    ("export", &["spillway-core"]),
    ("io", &["spillway-core"]),
    ("layers", &["spillway-policy", "spillway-core"]),
    ("policy", &[]),
    ("sim", &["spillway-core"]),
];

/// The asynchronous runtime, and the folder of the crate that hides it.
const RUNTIME: &str = "compio";
const RUNTIME_HOME: &str = "crates/io/";

/// A dependency as a manifest states it.
pub(super) struct Dependency {
    /// What it is called here.
    pub(super) key: String,
    /// The package, whatever it is called locally.
    package: String,
    pub(super) line: usize,
    for_tests: bool,
}

/// Rule: arrows between our crates.
pub(crate) fn between_crates(tree: &Tree) -> Vec<Finding> {
    let ours = packages(tree);
    let mut found = Vec::new();
    for manifest in manifests(tree).filter(|manifest| manifest.path.starts_with("crates/")) {
        let folder = manifest.path.split('/').nth(1).expect("the path begins with crates/");
        let allowed =
            ARROWS.iter().find(|(name, _)| *name == folder).map_or(&[] as &[&str], |(_, allowed)| allowed);
        for dependency in dependencies(tree, manifest).iter().filter(|d| ours.contains(&d.package)) {
            if !is_allowed(folder, allowed, dependency) {
                let message = format!("crate {folder} must not depend on {}", dependency.package);
                found.push(Finding::new("arrow", &manifest.path, dependency.line, message));
            }
        }
    }
    found
}

fn is_allowed(folder: &str, allowed: &[&str], dependency: &Dependency) -> bool {
    let package = dependency.package.as_str();
    let free = dependency.for_tests && !(folder == "layers" && package == "spillway-io");
    free || allowed.contains(&package)
}

/// Rule: one crate names the runtime.
pub(crate) fn one_runtime(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for manifest in manifests(tree).filter(|manifest| !manifest.path.starts_with(RUNTIME_HOME)) {
        for dependency in dependencies(tree, manifest).iter().filter(|d| d.package.starts_with(RUNTIME)) {
            let message = format!("{} belongs to crate io alone", dependency.package);
            found.push(Finding::new("runtime", &manifest.path, dependency.line, message));
        }
    }
    for source in tree.sources.iter().filter(|source| !source.path.starts_with(RUNTIME_HOME)) {
        for token in source.tokens.iter().filter(|token| token.text == RUNTIME) {
            found.push(Finding::new(
                "runtime",
                &source.path,
                token.line,
                format!("only crate io names {RUNTIME}"),
            ));
        }
    }
    found
}

pub(super) fn manifests(tree: &Tree) -> impl Iterator<Item = &Text> {
    tree.texts.iter().filter(|text| text.path == "Cargo.toml" || text.path.ends_with("/Cargo.toml"))
}

/// Names of all packages of the repository.
fn packages(tree: &Tree) -> Vec<String> {
    let name = |text: &Text| Some(parsed(&text.text).get("package")?.get("name")?.as_str()?.to_string());
    manifests(tree).filter_map(name).collect()
}

/// A manifest that does not parse stops cargo itself: here it is as good as empty.
pub(super) fn parsed(text: &str) -> Table {
    text.parse().unwrap_or_default()
}

pub(super) fn dependencies(tree: &Tree, manifest: &Text) -> Vec<Dependency> {
    let table = parsed(&manifest.text);
    let targets = table.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(Value::as_table));
    let shared = parsed(tree.text("Cargo.toml"));
    let shared = shared.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let mut found = Vec::new();
    for table in std::iter::once(&table).chain(targets) {
        for (section, for_tests) in
            [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
        {
            for (key, value) in table.get(section).and_then(Value::as_table).into_iter().flatten() {
                let (package, line) = (package(key, value, shared), line_of(&manifest.text, section, key));
                found.push(Dependency { key: key.clone(), package, line, for_tests });
            }
        }
    }
    found
}

/// The package behind `key`, which may be renamed here or in the workspace's table.
fn package(key: &str, value: &Value, shared: Option<&Value>) -> String {
    let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
    let entry = if inherited { shared.and_then(|shared| shared.get(key)) } else { Some(value) };
    let renamed = entry.and_then(|entry| entry.get("package")).and_then(Value::as_str);
    renamed.unwrap_or(key).to_string()
}

/// The first line that names `key` below the header of `section`.
pub(super) fn line_of(text: &str, section: &str, key: &str) -> usize {
    let header = |line: &str| line.starts_with('[') && line.contains(section);
    let start = text.lines().position(header).unwrap_or(0);
    let place = text.lines().skip(start).position(|line| line.contains(key)).unwrap_or(0);
    start + place + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const IO: (&str, &str) = ("crates/io/Cargo.toml", "[package]\nname = \"spillway-io\"\n");
    const CORE: (&str, &str) = ("crates/core/Cargo.toml", "[package]\nname = \"spillway-core\"\n");

    fn arrows(folder: &str, manifest: &str) -> Vec<String> {
        let path = format!("crates/{folder}/Cargo.toml");
        let shared =
            "[workspace.dependencies]\nsystem = { package = \"spillway-io\", path = \"crates/io\" }\n";
        let tree = Tree::of(&[IO, CORE, ("Cargo.toml", shared), (&path, manifest)]);
        between_crates(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_layer_on_io_is_forbidden_even_for_tests() {
        let found = arrows("layers", "[dev-dependencies]\nspillway-io.workspace = true\n");
        assert_eq!(found, ["crates/layers/Cargo.toml:2: arrow: crate layers must not depend on spillway-io"]);
        assert_eq!(arrows("layers", "[dependencies]\nspillway-io = { path = \"../io\" }\n").len(), 1);
        assert!(arrows("layers", "[dependencies]\nspillway-core.workspace = true\n").is_empty());
    }

    #[test]
    fn other_arrows_for_tests_are_free() {
        assert!(arrows("export", "[dev-dependencies]\nspillway-io.workspace = true\n").is_empty());
        assert_eq!(arrows("export", "[dependencies]\nspillway-io.workspace = true\n").len(), 1);
    }

    #[test]
    fn a_rename_a_target_and_a_build_script_hide_nothing() {
        assert_eq!(arrows("sim", "[dependencies]\nsystem.workspace = true\n").len(), 1);
        assert_eq!(
            arrows("sim", "[dependencies]\nx = { package = \"spillway-io\", path = \"../io\" }\n").len(),
            1
        );
        assert_eq!(
            arrows("sim", "[target.'cfg(unix)'.dependencies]\nspillway-io.workspace = true\n").len(),
            1
        );
        assert_eq!(arrows("sim", "[build-dependencies]\nspillway-io.workspace = true\n").len(), 1);
    }

    #[test]
    fn a_crate_that_is_not_listed_has_no_arrows() {
        assert_eq!(arrows("extra", "[dependencies]\nspillway-core.workspace = true\n").len(), 1);
        assert!(arrows("app", "[dependencies]\nspillway-core.workspace = true\nserde = \"1\"\n").is_empty());
    }

    #[test]
    fn the_runtime_stays_in_io() {
        let bad = Tree::of(&[
            ("crates/app/Cargo.toml", "[dependencies]\ncompio-net = \"1\"\n"),
            ("crates/app/src/main.rs", "// compio\nuse compio::runtime;\n"),
            ("crates/io/Cargo.toml", "[dependencies]\ncompio = \"1\"\n"),
            ("crates/io/src/lib.rs", "use compio::runtime;\n"),
        ]);
        let lines: Vec<_> = one_runtime(&bad).iter().map(|f| (f.path.clone(), f.line)).collect();
        assert_eq!(lines, [("crates/app/Cargo.toml".into(), 2), ("crates/app/src/main.rs".into(), 2)]);
    }
}
