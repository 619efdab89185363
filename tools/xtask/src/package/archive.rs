//! The archive with a static program: the tree below one folder, to be unpacked at `/usr` without that folder.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::contents::Form;
use super::release::Release;
use super::{folder, tree};
use crate::cargo::succeed;

/// Makes the archive in `into`; its path.
pub(super) fn make(root: &Path, built: &Path, release: &Release, into: &Path) -> Result<PathBuf> {
    let name = format!("spillway-{}-{}-linux-musl", release.version, env::consts::ARCH);
    let stage = into.join("archive");
    folder::empty(&stage)?;
    tree::write(root, built, release, Form::Archive, &stage.join(&name))?;
    let package = into.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&package).arg("--directory").arg(&stage);
    tar.args(["--sort=name", "--format=gnu", "--owner=root:0", "--group=root:0"]);
    tar.arg(format!("--mtime=@{}", release.time)).arg("--use-compress-program=gzip -9 --no-name").arg(&name);
    succeed(&mut tar)?;
    Ok(package)
}
