//! Writes the tree of a package, by the table of its contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::contents::{Entry, Form, Source};
use super::release::Release;
use super::{build, folder, licences};
use crate::cargo::{printed, succeed};

/// Writes the tree into `usr`, which is empty. `built` is cargo's folder with the program and the one for its man pages.
pub(super) fn write(root: &Path, built: &Path, release: &Release, form: Form, usr: &Path) -> Result<()> {
    for entry in Entry::all_of(form) {
        put(root, built, release, form, entry, usr)
            .with_context(|| format!("{} in the package", entry.place))?;
    }
    // Readable by all and writable by the owner, whatever the umask is.
    succeed(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(usr))
}

fn put(root: &Path, built: &Path, release: &Release, form: Form, entry: &Entry, usr: &Path) -> Result<()> {
    let compressed = entry.place.strip_suffix(".gz");
    let path = usr.join(compressed.unwrap_or(entry.place));
    fs::create_dir_all(if entry.place.ends_with('/') {
        &path
    } else {
        path.parent().expect("it is below /usr")
    })?;
    let program = built.join("spillway");
    match entry.source {
        Source::Program => {
            succeed(Command::new("strip").args(["--remove-section=.comment", "-o"]).arg(&path).arg(&program))?
        }
        Source::Pages => {
            succeed(Command::new(built.join("examples/pages")).arg(&path).arg(&release.date))?;
            gzip(&folder::files(&path)?)?;
        }
        Source::Completions(shell) => {
            fs::write(&path, printed(Command::new(&program).args(["completions", shell]))?)?;
        }
        Source::File(file) => copy(&root.join(file), &path)?,
        Source::Folder(folder) => copy_folder(root, folder, &path)?,
        Source::Licences => fs::write(&path, licences::copyright(root, form, &build::triple(form)?)?)?,
        Source::RustNotices => copy(&licences::of_rust()?, &path)?,
        Source::Text(text) => fs::write(&path, text(release))?,
    }
    if compressed.is_some() { gzip(&[path]) } else { Ok(()) }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Copies the files of a folder that are in the repository.
fn copy_folder(root: &Path, folder: &str, to: &Path) -> Result<()> {
    let listed = printed(Command::new("git").current_dir(root.join(folder)).args(["ls-files", "-z"]))?;
    for name in listed.split_terminator('\0') {
        let path = to.join(name);
        fs::create_dir_all(path.parent().expect("it is below the folder"))?;
        copy(&root.join(folder).join(name), &path)?;
    }
    Ok(())
}

/// Compresses files in place, without their times and names.
fn gzip(files: &[PathBuf]) -> Result<()> {
    succeed(Command::new("gzip").args(["-9", "--no-name"]).args(files))
}
