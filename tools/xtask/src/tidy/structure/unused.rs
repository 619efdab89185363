//! Dependencies that nobody uses.

use std::collections::BTreeSet;

use toml::Value;

use super::arrows::{dependencies, line_of, manifests, parsed};
use crate::tidy::finding::Finding;
use crate::tidy::tree::{Text, Tree};

const ROOT: &str = "Cargo.toml";

/// Rule: a package names its dependencies in its sources, and those of the workspace stand in the manifest of a package.
pub(crate) fn no_dependencies(tree: &Tree) -> Vec<Finding> {
    let (mut found, mut wanted) = (Vec::new(), BTreeSet::new());
    for manifest in manifests(tree).filter(|manifest| manifest.path != ROOT) {
        for dependency in dependencies(tree, manifest) {
            if !is_named(tree, manifest, &dependency.key.replace('-', "_")) {
                found.push(finding(&manifest.path, dependency.line, &dependency.key));
            }
            wanted.insert(dependency.key);
        }
    }
    let root = tree.text(ROOT);
    let shared = shared(root).into_iter().filter(|key| !wanted.contains(key));
    found.extend(shared.map(|key| finding(ROOT, line_of(root, "workspace.dependencies", &key), &key)));
    found
}

/// Whether a source below the folder of `manifest` names the crate.
fn is_named(tree: &Tree, manifest: &Text, name: &str) -> bool {
    let folder = manifest.path.strip_suffix(ROOT).expect("it is a manifest");
    tree.sources_in(&[folder]).any(|source| source.tokens.iter().any(|token| token.text == name))
}

/// The dependencies of the workspace.
fn shared(root: &str) -> Vec<String> {
    let table = parsed(root);
    let shared = table.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    shared.and_then(Value::as_table).into_iter().flat_map(|table| table.keys().cloned()).collect()
}

fn finding(path: &str, line: usize, key: &str) -> Finding {
    Finding::new("unused", path, line, format!("nobody uses {key}: take it out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_names_is_found() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.dependencies]\nserde-json = \"1\"\ntoml = \"1\"\n"),
            ("tools/a/Cargo.toml", "[dependencies]\nserde-json.workspace = true\nlibc = \"1\"\n"),
            ("tools/a/src/lib.rs", "//! Words.\nuse serde_json::Value;\n"),
            ("tools/b/src/lib.rs", "//! Words.\nuse libc::c_int;\n"),
        ]);
        let found: Vec<_> = no_dependencies(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "tools/a/Cargo.toml:3: unused: nobody uses libc: take it out",
                "Cargo.toml:3: unused: nobody uses toml: take it out"
            ]
        );
    }
}
