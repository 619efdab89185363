//! Files of a crate that import each other in a circle, and folders that do.
//!
//! A file imports another where it names a path into it, `use` declarations and paths in code alike. A name that a module
//! only passes on belongs to the file behind it, so that the face of a folder ties nothing together. Methods are not seen:
//! a call of one names no path.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use syn::spanned::Spanned;
use syn::{Item, UseTree, Visibility};

use crate::tidy::finding::Finding;
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;

/// A module as its path from the root of the crate.
type Module = Vec<String>;

/// A file's imports: the file below `files` and the first line that names it.
type Arrows = BTreeMap<usize, usize>;

/// Rule: no circle of files within a crate, nor of what lies side by side in a folder: files, and folders with all they hold.
pub(crate) fn between_files(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| !source.is_test) {
        if let Some((root, _)) = source.path.split_once("/src/") {
            crates.entry(root).or_default().push(source);
        }
    }
    crates.values().flat_map(|files| House::new(files).circles()).collect()
}

/// The files of a crate.
struct House<'a> {
    files: &'a [&'a Source],
    modules: BTreeMap<Module, usize>,
    /// What the modules import under which name.
    names: BTreeMap<(Module, String), Module>,
}

impl<'a> House<'a> {
    fn new(files: &'a [&'a Source]) -> Self {
        let modules: BTreeMap<_, _> =
            files.iter().enumerate().map(|(index, file)| (module_of(&file.path), index)).collect();
        let mut house = Self { files, modules, names: BTreeMap::new() };
        for file in files {
            let module = module_of(&file.path);
            for (name, path) in imported(&file.text) {
                if let Some(target) = house.absolute(&module, &path) {
                    house.names.insert((module.clone(), name), target);
                }
            }
        }
        house
    }

    /// A path as one from the root of the crate, or `None` where it leads out of it.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            _ => {
                let child: Module = module.iter().chain([first]).cloned().collect();
                return self.modules.contains_key(&child).then(|| [child, rest.to_vec()].concat());
            }
        };
        for part in rest {
            match part.as_str() {
                "super" => drop(base.pop()?),
                _ => base.push(part.clone()),
            }
        }
        Some(base)
    }

    /// The file in which the end of an absolute path lies, behind modules that only pass its name on.
    fn home(&self, path: &Module) -> Option<usize> {
        let mut path = path.clone();
        // A chain of imports is never longer than this, except where it runs in a circle itself.
        for _ in 0..16 {
            let module = (0..=path.len()).rev().find(|len| self.modules.contains_key(&path[..*len]))?;
            let passed_on = path.get(module).and_then(|name| {
                let target = self.names.get(&(path[..module].to_vec(), name.clone()))?;
                Some([target.clone(), path[module + 1..].to_vec()].concat())
            });
            match passed_on {
                Some(target) => path = target,
                None => return self.modules.get(&path[..module]).copied(),
            }
        }
        None
    }

    fn arrows(&self, index: usize) -> Arrows {
        let file = self.files[index];
        let module = module_of(&file.path);
        let mut arrows = Arrows::new();
        let passed_on = passed_on(&file.text);
        let counts =
            |line: usize| !file.is_test_line(line) && !passed_on.iter().any(|lines| lines.contains(&line));
        // A word alone names a module (`mod a;`, `pub(crate)`) and nothing in it.
        for path in file.paths.iter().filter(|path| path.parts.len() > 1 && counts(path.line)) {
            let home = self.absolute(&module, &path.parts).and_then(|path| self.home(&path));
            if let Some(home) = home.filter(|home| *home != index) {
                arrows.entry(home).or_insert(path.line);
            }
        }
        arrows
    }

    fn circles(&self) -> Vec<Finding> {
        let arrows: Vec<Arrows> = (0..self.files.len()).map(|index| self.arrows(index)).collect();
        let reach: Vec<BTreeSet<usize>> = (0..arrows.len()).map(|from| reached(&arrows, from)).collect();
        let mut found = Vec::new();
        for (from, targets) in arrows.iter().enumerate() {
            for (&to, &line) in targets.iter().filter(|(to, _)| reach[**to].contains(&from)) {
                let message = format!("imports {}, which leads back to it", self.files[to].path);
                found.push(Finding::new("circle", &self.files[from].path, line, message));
            }
        }
        let between_rooms = self.circles_of_rooms(&arrows).into_iter();
        found.extend(
            between_rooms.filter(|tie| !reach[tie.to].contains(&tie.from)).map(|tie| self.back_arrow(&tie)),
        );
        found
    }

    /// The arrows that tie rooms together in a circle.
    fn circles_of_rooms(&self, arrows: &[Arrows]) -> Vec<Tie> {
        let modules: Vec<Module> = self.files.iter().map(|file| module_of(&file.path)).collect();
        let (mut numbers, mut ties) = (BTreeMap::new(), Vec::new());
        for (from, targets) in arrows.iter().enumerate() {
            for (&to, &line) in targets {
                let rooms = rooms(&modules[from], &modules[to]).map(|rooms| {
                    rooms.map(|room| {
                        let next = numbers.len();
                        *numbers.entry(room).or_insert(next)
                    })
                });
                ties.extend(rooms.map(|rooms| Tie { rooms, from, to, line }));
            }
        }
        let mut between = vec![Arrows::new(); numbers.len()];
        ties.iter()
            .for_each(|Tie { rooms: [here, there], line, .. }| _ = between[*here].insert(*there, *line));
        ties.retain(|Tie { rooms: [here, there], .. }| reached(&between, *there).contains(here));
        ties
    }

    fn back_arrow(&self, tie: &Tie) -> Finding {
        let message = format!("imports {}, whose folder leads back to this one's", self.files[tie.to].path);
        Finding::new("circle", &self.files[tie.from].path, tie.line, message)
    }
}

/// An arrow between two files, and the rooms that it ties together, by number.
struct Tie {
    rooms: [usize; 2],
    from: usize,
    to: usize,
    line: usize,
}

/// Where the ways from the root to two files part: files or folders that lie side by side. None where one file is above the other.
fn rooms(from: &Module, to: &Module) -> Option<[Module; 2]> {
    let common = from.iter().zip(to).take_while(|(here, there)| here == there).count();
    let room = |module: &Module| module.get(..=common).map(<[String]>::to_vec);
    Some([room(from)?, room(to)?])
}

/// Every file that `from` leads to.
fn reached(arrows: &[Arrows], from: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        open.extend(arrows[file].keys().copied().filter(|next| seen.insert(*next)));
    }
    seen
}

/// The module of a file below a `src` folder.
fn module_of(path: &str) -> Module {
    let (_, inside) = path.split_once("/src/").expect("only files below src are asked for");
    let mut module: Module = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        module.pop();
    }
    module
}

/// Lines of the declarations by which a file only passes names on.
fn passed_on(text: &str) -> Vec<RangeInclusive<usize>> {
    let file = syn::parse_file(text).expect("the tree keeps files that were parsed");
    let lines = |item: &Item| match item {
        Item::Use(item) if !matches!(item.vis, Visibility::Inherited) => {
            Some(item.span().start().line..=item.span().end().line)
        }
        _ => None,
    };
    file.items.iter().filter_map(lines).collect()
}

/// What the `use` declarations of a file bring in: name here, path as written.
fn imported(text: &str) -> Vec<(String, Vec<String>)> {
    let file = syn::parse_file(text).expect("the tree keeps files that were parsed");
    let mut found = Vec::new();
    for item in &file.items {
        if let Item::Use(item) = item {
            follow(&item.tree, &mut Vec::new(), &mut found);
        }
    }
    found
}

fn follow(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            follow(&part.tree, path, found);
            path.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = path.last().cloned().unwrap_or_default();
            found.push((last, path.clone()));
        }
        UseTree::Name(name) => {
            found.push((name.ident.to_string(), [path.clone(), vec![name.ident.to_string()]].concat()));
        }
        UseTree::Rename(name) => {
            found.push((name.rename.to_string(), [path.clone(), vec![name.ident.to_string()]].concat()));
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| follow(tree, path, found)),
        UseTree::Glob(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (format!("crates/c/src/{name}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        between_files(&Tree::of(&files)).iter().map(|f| format!("{}:{}", f.path, f.line)).collect()
    }

    #[test]
    fn two_files_that_import_each_other_are_both_named() {
        let lines = found(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
            ("b.rs", "pub struct B;\nfn f(_: crate::a::A) {}\n"),
        ]);
        assert_eq!(lines, ["crates/c/src/a.rs:1", "crates/c/src/b.rs:2"]);
    }

    #[test]
    fn a_circle_may_be_long() {
        let lines = found(&[
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use super::c::{C, D};\n"),
            ("c.rs", "\nuse crate::a;\n"),
            ("d.rs", "use crate::a;\n"),
        ]);
        assert_eq!(lines, ["crates/c/src/a.rs:1", "crates/c/src/b.rs:1", "crates/c/src/c.rs:2"]);
    }

    #[test]
    fn a_child_that_needs_its_parent_is_a_circle_where_the_parent_needs_it() {
        let child = ("a/child.rs", "use super::Central;\n");
        assert_eq!(found(&[("a/mod.rs", "mod child;\nstruct Central;\n"), child]), [""; 0]);
        let parent = ("a/mod.rs", "mod child;\nstruct Central(child::Part);\n");
        assert_eq!(found(&[parent, child]), ["crates/c/src/a/mod.rs:2", "crates/c/src/a/child.rs:1"]);
    }

    #[test]
    fn folders_that_lead_back_to_each_other_are_a_circle_though_no_files_are() {
        let files = [
            ("a/one.rs", "use crate::b::One;\n"),
            ("a/two.rs", "pub struct Two;\n"),
            ("b.rs", "pub struct One;\n"),
            ("b/child.rs", "\nuse crate::a::two::Two;\n"),
        ];
        assert_eq!(found(&files), ["crates/c/src/a/one.rs:1", "crates/c/src/b/child.rs:2"]);
        assert_eq!(found(&files[..3]), [""; 0], "one leads to the other");
        let deep: Vec<_> = files
            .iter()
            .map(|(path, text)| (format!("deep/{path}"), text.replace("crate::", "crate::deep::")))
            .collect();
        let deep: Vec<_> = deep.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        assert_eq!(found(&deep).len(), 2, "in a folder as at the top");
    }

    #[test]
    fn a_name_that_is_passed_on_belongs_to_the_file_behind() {
        let face = ("a/mod.rs", "mod one;\nmod two;\npub use one::One;\npub use two::Two as Second;\n");
        let one = ("a/one.rs", "use super::Second;\npub struct One(Second);\n");
        assert_eq!(found(&[face, one, ("a/two.rs", "pub struct Two;\n")]), [""; 0]);
        let two = ("a/two.rs", "pub struct Two(crate::a::One);\n");
        assert_eq!(found(&[face, one, two]), ["crates/c/src/a/one.rs:1", "crates/c/src/a/two.rs:1"]);
    }

    #[test]
    fn tests_and_other_crates_tie_nothing() {
        let tests = "use crate::b::B;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
        let lines =
            found(&[("a.rs", &tests[17..]), ("b.rs", "use crate::a::A;\nuse std::a::B;\nuse c::a::B;\n")]);
        assert_eq!(lines, [""; 0]);
    }
}
