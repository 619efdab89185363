//! Packages for users: a Debian package, or an archive with a static program. Both hold one tree, to be unpacked at `/usr`.
//!
//! | file | holds |
//! | --- | --- |
//! | `contents` | the table of all files in a package, and from where each comes |
//! | `release` | version, time and maintainer: what identifies a package |
//! | `build` | the release build that is packaged |
//! | `tree`, `folder` | writes the tree; makes and lists folders |
//! | `licences` | the licences of the program, and of the crates that are linked into it |
//! | `texts` | files of the package that are no files of the repository |
//! | `debian`, `needs` | the Debian package; the packages that its program needs |
//! | `archive` | the archive |
//!
//! Promises: the same commit, program and tools give the same bytes. Needs Debian's dpkg, binutils and gzip.

mod archive;
mod build;
mod contents;
mod debian;
mod folder;
mod licences;
mod needs;
mod release;
mod texts;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::tools;
use contents::Form;
use release::Release;

/// Options of `cargo xtask package`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Make an archive with a static program instead, linked with musl
    #[arg(long)]
    musl: bool,

    /// Package what cargo has built in this folder, such as target/debug, instead of a release build: spillway and examples/pages
    #[arg(long, value_name = "FOLDER")]
    built: Option<PathBuf>,

    /// Folder for the package
    #[arg(long, value_name = "FOLDER", default_value = build::FOLDER)]
    into: PathBuf,
}

/// Builds the program and its man pages, makes the package and prints its path.
pub(crate) fn make(root: &Path, options: &Options) -> Result<()> {
    tools::require(tools::PACKAGE)?;
    let form = if options.musl { Form::Archive } else { Form::Debian };
    let built = match &options.built {
        Some(folder) => root.join(folder),
        None => build::release(root, form)?,
    };
    let release = Release::of_commit(root)?;
    let into = root.join(&options.into);
    fs::create_dir_all(&into).with_context(|| format!("cannot create {}", into.display()))?;
    let package = match form {
        Form::Debian => debian::make(root, &built, &release, &into)?,
        Form::Archive => archive::make(root, &built, &release, &into)?,
    };
    println!("{}", package.display());
    Ok(())
}
