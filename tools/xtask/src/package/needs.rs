//! The Debian packages that a program needs: by dpkg-shlibdeps, or by the versions of the symbols that it imports.
//!
//! dpkg-shlibdeps (package dpkg-dev) knows every library of the system. Without it, those in [`LIBRARIES`] are known.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::folder;
use crate::cargo::printed;
use crate::tools;

/// Libraries of a program in Rust, the Debian package of each, and how the versions of its symbols begin.
const LIBRARIES: &[(&str, &str, &str)] = &[
    ("libc.so.", "libc6", "GLIBC_"),
    ("libm.so.", "libc6", "GLIBC_"),
    ("ld-linux", "libc6", "GLIBC_"),
    ("libgcc_s.so.", "libgcc-s1", "GCC_"),
];

/// What dpkg-shlibdeps reads of a source package.
const SOURCE: &str = "Source: spillway\n\nPackage: spillway\nArchitecture: any\n";

/// The field `Depends` of a package with `program`; `scratch` is a folder for what lasts no longer than this call.
pub(super) fn packages(program: &Path, scratch: &Path) -> Result<String> {
    if tools::works(&["dpkg-shlibdeps", "--version"]) {
        by_shlibdeps(program, scratch)
    } else {
        by_symbols(program)
    }
}

fn by_shlibdeps(program: &Path, scratch: &Path) -> Result<String> {
    const FIELD: &str = "shlibs:Depends=";
    folder::empty(&scratch.join("debian"))?;
    fs::write(scratch.join("debian/control"), SOURCE)?;
    let mut shlibdeps = Command::new("dpkg-shlibdeps");
    let said = printed(shlibdeps.current_dir(scratch).arg("-O").arg("-e").arg(program))?;
    fs::remove_dir_all(scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    let depends = said.lines().find_map(|line| line.strip_prefix(FIELD));
    depends.map(str::to_owned).with_context(|| format!("dpkg-shlibdeps printed no {FIELD}: {said}"))
}

fn by_symbols(program: &Path) -> Result<String> {
    let mut readelf = Command::new("readelf");
    readelf.env("LC_ALL", "C").args(["--wide", "--version-info"]).arg(program);
    of_versions(&printed(&mut readelf)?)
}

/// The packages of what readelf lists: `File:` and a library, then `Name:` and a version for each of its versions.
fn of_versions(listed: &str) -> Result<String> {
    let mut needs: Vec<(&str, Version)> = Vec::new();
    let mut library = None;
    for line in listed.lines() {
        if let Some(file) = word_after(line, "File:") {
            let known = LIBRARIES.iter().find(|(name, ..)| file.starts_with(name));
            let (_, package, prefix) =
                known.with_context(|| format!("{file} is of no known package: install dpkg-dev"))?;
            library = Some((*package, *prefix));
        } else if let (Some((package, prefix)), Some(name)) = (library, word_after(line, "Name:")) {
            let Some(version) = name.strip_prefix(prefix).and_then(Version::of) else {
                bail!("{name} is no version of {package} that is known: install dpkg-dev");
            };
            match needs.iter_mut().find(|(needed, _)| *needed == package) {
                Some((_, highest)) => *highest = version.max(std::mem::take(highest)),
                None => needs.push((package, version)),
            }
        }
    }
    needs.sort();
    let needs = needs.iter().map(|(package, version)| format!("{package} (>= {})", version.text()));
    Ok(needs.collect::<Vec<_>>().join(", "))
}

fn word_after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.split_once(mark)?.1.split_whitespace().next()
}

/// Numbers with points between, in their order.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Version(Vec<u32>);

impl Version {
    fn of(text: &str) -> Option<Self> {
        text.split('.').map(|number| number.parse().ok()).collect::<Option<_>>().map(Self)
    }

    /// As Debian writes it: without zeroes at the end.
    fn text(&self) -> String {
        let significant = self.0.iter().rposition(|number| *number != 0).map_or(1, |last| last + 1);
        self.0[..significant].iter().map(u32::to_string).collect::<Vec<_>>().join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "\
Version symbols section '.gnu.version' contains 2 entries:
  000:   0 (*local*)       2 (GLIBC_2.34)
Version needs section '.gnu.version_r' contains 3 entries:
  000000: Version: 1  File: libgcc_s.so.1  Cnt: 2
  0x0050:   Name: GCC_4.2.0  Flags: none  Version: 14
  0x0040:   Name: GCC_3.0  Flags: none  Version: 5
  0x0020: Version: 1  File: libc.so.6  Cnt: 2
  0x0080:   Name: GLIBC_2.34  Flags: none  Version: 3
  0x0080:   Name: GLIBC_2.9  Flags: none  Version: 3
  0x0030: Version: 1  File: ld-linux-x86-64.so.2  Cnt: 1
  0x0180:   Name: GLIBC_2.3  Flags: none  Version: 8
";

    #[test]
    fn the_highest_version_of_each_package_is_needed() {
        assert_eq!(of_versions(LISTED).unwrap(), "libc6 (>= 2.34), libgcc-s1 (>= 4.2)");
    }

    #[test]
    fn a_library_or_version_that_is_not_known_is_an_error() {
        for (known, unknown) in [("libc.so.6", "libz.so.1"), ("GLIBC_2.9", "GLIBC_PRIVATE")] {
            let error = of_versions(&LISTED.replace(known, unknown)).unwrap_err().to_string();
            assert!(error.contains(unknown) && error.contains("dpkg-dev"), "{error}");
        }
    }

    /// Of a program in Rust that is there: this one.
    #[test]
    fn both_ways_agree() {
        let program = std::env::current_exe().unwrap();
        let symbols = by_symbols(&program).unwrap();
        assert!(symbols.contains("libc6 (>= 2."), "{symbols}");
        if tools::works(&["dpkg-shlibdeps", "--version"]) {
            let scratch = std::env::temp_dir().join(format!("spillway-needs-{}", std::process::id()));
            assert_eq!(by_shlibdeps(&program, &scratch).unwrap(), symbols);
            assert!(!scratch.exists());
        }
    }
}
