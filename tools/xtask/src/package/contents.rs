//! The table of all files in a package. What is not in it is in no package.

use super::release::Release;
use super::texts;

/// What is made of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A Debian package.
    Debian,
    /// An archive for any distribution.
    Archive,
}

/// From where a file comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The program, without names and lines of code.
    Program,
    /// The man pages.
    Pages,
    /// The script that `spillway completions` prints for this shell.
    Completions(&'static str),
    /// A file of the repository.
    File(&'static str),
    /// The files that a folder of the repository holds, with its folders.
    Folder(&'static str),
    /// The licences of the program and of all that is linked into it.
    Licences,
    /// The notices of Rust's standard library.
    RustNotices,
    /// A text that depends on the release.
    Text(fn(&Release) -> String),
}

/// A file of a package, or the files of a folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) source: Source,
    /// Its place below `/usr`; a folder ends with a slash. A file whose name ends with `.gz` is compressed, and so are man pages.
    pub(super) place: &'static str,
    /// The form that has it; both where absent.
    form: Option<Form>,
}

impl Entry {
    /// The entries of a form of package.
    pub(super) fn all_of(form: Form) -> impl Iterator<Item = &'static Self> {
        CONTENTS.iter().filter(move |entry| entry.form.is_none_or(|only| only == form))
    }
}

const fn both(source: Source, place: &'static str) -> Entry {
    Entry { source, place, form: None }
}

const fn only(form: Form, source: Source, place: &'static str) -> Entry {
    Entry { source, place, form: Some(form) }
}

use Form::{Archive, Debian};
use Source::{Completions, File, Folder, Licences, Pages, Program, RustNotices, Text};

/// Documents keep their places beside each other, so that their links work.
#[rustfmt::skip]
const CONTENTS: &[Entry] = &[
    both(Program, "bin/spillway"),
    both(Pages, "share/man/man1/"),
    both(Completions("bash"), "share/bash-completion/completions/spillway"),
    both(Completions("fish"), "share/fish/vendor_completions.d/spillway.fish"),
    only(Debian, Completions("zsh"), "share/zsh/vendor-completions/_spillway"),
    only(Archive, Completions("zsh"), "share/zsh/site-functions/_spillway"),

    both(File("tools/packaging/spillway@.service"), "lib/systemd/system/spillway@.service"),
    both(File("tools/packaging/spillway-ram@.service"), "lib/systemd/system/spillway-ram@.service"),
    both(File("tools/packaging/spillway-swap@.service"), "lib/systemd/system/spillway-swap@.service"),
    both(File("tools/packaging/spillway.sysusers"), "lib/sysusers.d/spillway.conf"),

    both(File("README.md"), "share/doc/spillway/README.md"),
    both(File("SEMANTICS.md"), "share/doc/spillway/SEMANTICS.md"),
    both(File("ARCHITECTURE.md"), "share/doc/spillway/ARCHITECTURE.md"),
    // With the example for serve, the rules for alerts and the dashboard.
    both(Folder("docs"), "share/doc/spillway/docs/"),

    both(Licences, "share/doc/spillway/copyright"),
    both(RustNotices, "share/doc/spillway/rust-library.html.gz"),
    only(Debian, Text(texts::changelog), "share/doc/spillway/changelog.Debian.gz"),
    only(Archive, File("LICENSE-MIT"), "share/doc/spillway/LICENSE-MIT"),
    only(Archive, File("LICENSE-APACHE"), "share/doc/spillway/LICENSE-APACHE"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn files_exist_and_each_has_a_place_of_its_own() {
        let root = crate::root();
        for form in [Debian, Archive] {
            let mut places = BTreeSet::new();
            for entry in Entry::all_of(form) {
                assert!(places.insert(entry.place), "{} twice", entry.place);
                match entry.source {
                    File(path) => assert!(root.join(path).is_file(), "{path}"),
                    Folder(path) => assert!(root.join(path).is_dir() && entry.place.ends_with('/'), "{path}"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn units_start_the_program_where_it_is_put() {
        let program = CONTENTS.iter().find(|entry| matches!(entry.source, Program)).unwrap();
        let start = format!("\nExecStart=/usr/{} ", program.place);
        let units = CONTENTS.iter().filter(|entry| entry.place.ends_with(".service"));
        for entry in units {
            let File(path) = entry.source else { panic!("{} is no file", entry.place) };
            let unit = fs::read_to_string(crate::root().join(path)).unwrap();
            assert!(unit.contains(&start), "{path} has no {start}");
        }
    }

    #[test]
    fn every_file_for_services_and_every_document_of_the_root_is_packaged() {
        let named =
            |path: &str| CONTENTS.iter().any(|entry| matches!(entry.source, File(file) if file == path));
        for entry in fs::read_dir(crate::root().join("tools/packaging")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            assert!(entry.path().is_dir() || named(&format!("tools/packaging/{name}")), "{name}");
        }
        assert!(["README.md", "LICENSE-MIT", "LICENSE-APACHE"].iter().all(|path| named(path)));
    }
}
