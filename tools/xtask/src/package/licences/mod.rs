//! The licences of the program and of all that is linked into it, in Debian's machine-readable form (copyright-format 1.0).
//!
//! | file | holds |
//! | --- | --- |
//! | `crates` | which crates are linked, and their texts |
//! | `expression` | which licences are allowed |
//!
//! Promises: each linked crate is named with its licence, its holders and its texts, or nothing is made. A text that several crates have
//! stands there once. Notices of Rust's standard library are a file of their own, which comes with the compiler.

mod crates;
mod expression;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::contents::Form;
use crate::cargo::printed;
use crates::Crate;

/// What musl says of itself; it is a part of static programs.
const MUSL: &str = "Files: linked/musl/*\nCopyright: 2005-2020 Rich Felker, et al.\nLicense: MIT\n\n";

/// The file `copyright` of a package for a target.
pub(super) fn copyright(root: &Path, form: Form, triple: &str) -> Result<String> {
    Ok(rendered(form, &crates::linked(root, triple)?))
}

/// The file with the notices of Rust's standard library.
pub(super) fn of_rust() -> Result<PathBuf> {
    let sysroot = printed(Command::new("rustc").args(["--print", "sysroot"]))?;
    let path = Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html");
    ensure!(path.is_file(), "{}: it is missing; install Rust by rustup", path.display());
    Ok(path)
}

fn rendered(form: Form, crates: &[Crate]) -> String {
    let (holder, terms) = own();
    let mut texts = Texts::default();
    let of_crates: String = crates.iter().map(|found| paragraph(found, &mut texts)).collect();
    let musl = if form == Form::Archive { MUSL } else { "" };
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: spillway\n\
         Comment: The program is linked with what is listed below linked/, and with Rust's standard library, whose\n \
         notices are in rust-library.html.gz beside this file.\n\n\
         Files: *\nCopyright: {holder}\nLicense: MIT or Apache-2.0\n\n{musl}{of_crates}\
         License: MIT\n{}\n\
         License: Apache-2.0\n On Debian systems, the full text of the Apache License, Version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0. Elsewhere it is in LICENSE-APACHE beside this file.\n{}",
        indented(terms),
        texts.paragraphs(),
    )
}

/// Who holds the copyright of this program, and the terms of the MIT licence.
fn own() -> (&'static str, &'static str) {
    const MIT: &str = include_str!("../../../../../LICENSE-MIT");
    let (_, after_title) = MIT.split_once("\n\n").expect("a title comes first");
    let (holder, terms) = after_title.split_once("\n\n").expect("the terms follow the holder");
    (holder.trim_start_matches("Copyright (c) "), terms)
}

fn paragraph(found: &Crate, texts: &mut Texts) -> String {
    let Crate { name, version, expression, holders, .. } = found;
    let (holders, licence) = (holders.join("\n "), expression::in_debian(expression));
    let mut text = format!("Files: linked/{name}-{version}/*\nCopyright: {holders}\nLicense: {licence}\n");
    let places: Vec<_> =
        found.texts.iter().map(|(path, text)| format!("{path}: {}", texts.name_of(text))).collect();
    if !places.is_empty() {
        write!(text, "Comment:\n {}\n", places.join("\n ")).expect("writing to a string cannot fail");
    }
    text + "\n"
}

/// Different texts, by the order in which they were met.
#[derive(Default)]
struct Texts(Vec<String>);

impl Texts {
    /// The name of a text. Spaces and breaks of lines make no difference.
    fn name_of(&mut self, text: &str) -> String {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let same = self.0.iter().position(|known| words(known) == words(text));
        let at = same.unwrap_or_else(|| {
            self.0.push(text.to_owned());
            self.0.len() - 1
        });
        format!("Text-{}", at + 1)
    }

    fn paragraphs(&self) -> String {
        let paragraph =
            |(at, text): (usize, &String)| format!("\nLicense: Text-{}\n{}", at + 1, indented(text));
        self.0.iter().enumerate().map(paragraph).collect()
    }
}

/// The lines of a field after its first one.
fn indented(text: &str) -> String {
    let line = |line: &str| match line.trim_end() {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    };
    text.trim_matches('\n').lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(name: &str, texts: &[(&str, &str)]) -> Crate {
        Crate {
            name: name.into(),
            version: "1.0.0".into(),
            expression: "MIT/ISC".into(),
            holders: vec!["2020 A".into(), "2021 B".into()],
            texts: texts.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect(),
        }
    }

    #[test]
    fn a_crate_is_named_with_its_texts_and_each_text_is_there_once() {
        let crates =
            [example("a", &[("LICENSE", "one\n\n two\n")]), example("b", &[("x/COPYING", "one two")])];
        let text = rendered(Form::Debian, &crates);
        for part in [
            "\nFiles: linked/a-1.0.0/*\nCopyright: 2020 A\n 2021 B\nLicense: MIT or ISC\nComment:\n LICENSE: Text-1\n\n",
            "\n x/COPYING: Text-1\n",
            "\n\nLicense: Text-1\n one\n .\n  two\n",
            "\nLicense: MIT or Apache-2.0\n",
            "WITHOUT WARRANTY",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("Text-2") && !text.contains("musl"), "{text}");
        assert!(rendered(Form::Archive, &crates).contains("\nFiles: linked/musl/*\n"));
        let known = |line: &str| line.is_empty() || line.starts_with(' ') || line.contains(':');
        assert!(text.lines().all(known) && !text.contains("\n\n\n"), "{text}");
    }

    #[test]
    fn a_crate_without_a_text_has_that_of_mit() {
        let text = rendered(Form::Debian, &[example("a", &[])]);
        assert!(text.contains("\nLicense: MIT or ISC\n\nLicense: MIT\n Permission is"), "{text}");
    }

    #[test]
    fn the_compiler_comes_with_the_notices_of_its_library() {
        let text = std::fs::read_to_string(of_rust().unwrap()).unwrap();
        assert!(text.contains("Rust Standard Library"));
    }
}
