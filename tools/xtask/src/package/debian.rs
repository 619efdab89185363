//! The Debian package: the tree below `/usr`, what apt must know of it, and scripts that run when it is installed or removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::contents::Form;
use super::release::Release;
use super::{folder, needs, tree};
use crate::cargo::{printed, succeed};

/// Scripts of the package, in this folder of the repository.
const SCRIPTS: (&str, &[&str]) = ("tools/packaging/debian", &["postinst", "prerm", "postrm"]);

const DESCRIPTION: &str = "\
userspace write-back block storage engine
 Serves block devices over NBD, FUSE and vhost-user, without root and without
 a kernel module: RAM disks that compress their pages as zram does and spill
 cold ones to a file, disks with a page cache in memory, and disks with a
 crash-safe write cache on a faster disk, in the format of dm-writecache.
 .
 One budget limits the memory of a server. Units for systemd confine it; none
 is enabled by the installation.";

/// Makes the package in `into`; its path.
pub(super) fn make(root: &Path, built: &Path, release: &Release, into: &Path) -> Result<PathBuf> {
    let stage = into.join("debian");
    folder::empty(&stage)?;
    let usr = stage.join("usr");
    tree::write(root, built, release, Form::Debian, &usr)?;
    let architecture = printed(Command::new("dpkg").arg("--print-architecture"))?;
    write_control(root, release, architecture.trim(), &stage)?;
    let package = into.join(format!("spillway_{}_{}.deb", release.debian_version(), architecture.trim()));
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", release.time.to_string()).args(["--root-owner-group", "-Zxz", "--build"]);
    succeed(build.arg(&stage).arg(&package).stdout(Stdio::null()))?;
    Ok(package)
}

/// Writes what is about the package and not of it.
fn write_control(root: &Path, release: &Release, architecture: &str, stage: &Path) -> Result<()> {
    let (folder, files) = (stage.join("DEBIAN"), folder::files(&stage.join("usr"))?);
    fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let depends = needs::packages(&stage.join("usr/bin/spillway"), &stage.join("shlibdeps"))?;
    let control = control(release, architecture, &depends, kibibytes(&files)?);
    fs::write(folder.join("control"), control)?;
    let names = files.iter().map(|file| file.strip_prefix(stage).expect("it is in the stage"));
    fs::write(folder.join("md5sums"), printed(Command::new("md5sum").current_dir(stage).args(names))?)?;
    for script in SCRIPTS.1 {
        let from = root.join(SCRIPTS.0).join(script);
        fs::copy(&from, folder.join(script)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    succeed(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(&folder))?;
    succeed(Command::new("chmod").arg("0755").args(SCRIPTS.1.iter().map(|script| folder.join(script))))
}

/// The space that the files take, each rounded up.
fn kibibytes(files: &[PathBuf]) -> Result<u64> {
    files.iter().map(|file| Ok(fs::metadata(file)?.len().div_ceil(1024))).sum()
}

fn control(release: &Release, architecture: &str, depends: &str, kibibytes: u64) -> String {
    format!(
        "Package: spillway\nVersion: {}\nArchitecture: {architecture}\nMaintainer: {}\n\
         Installed-Size: {kibibytes}\nDepends: {depends}\nRecommends: fuse3\nSuggests: qemu-utils, librbd1\n\
         Section: admin\nPriority: optional\nDescription: {DESCRIPTION}\n",
        release.debian_version(),
        release.maintainer,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_has_a_field_a_line_and_a_description_of_indented_lines() {
        let text = control(&Release::example(), "amd64", "libc6 (>= 2.34)", 12);
        let (fields, description) = text.split_once("Description: ").unwrap();
        assert!(fields.lines().all(|line| line.contains(": ")), "{fields}");
        assert!(fields.contains("\nVersion: 1.2.3-1\n") && fields.contains("\nDepends: libc6 (>= 2.34)\n"));
        assert!(description.lines().skip(1).all(|line| line.starts_with(' ') && line.len() <= 80));
    }
}
