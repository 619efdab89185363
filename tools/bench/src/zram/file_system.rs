//! Uses of a RAM disk: a clone of this repository, an archive that is unpacked, and a build, on ext4 over our zram by a loop device on its
//! mount, on ext4 over the kernel's zram, and on tmpfs, which compresses nothing and is the ceiling. As root.
//!
//! Each use ends when its file system is synced: until then the kernel's page cache alone may have done it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, named, ratio};
use crate::peers::ext4::{Ext4, finish};
use crate::peers::kernel_zram::KernelZram;
use crate::peers::loop_device::LoopDevice;
use crate::peers::mounted::{Server, appears};
use crate::peers::servers::{Folder, binary};

const SIZE: u64 = 2 << 30;

const USES: [&str; 3] = ["git clone", "untar", "cargo build"];

/// Ours is the first.
const NAMES: [&str; 3] = ["spillway ram, mount", "kernel zram", "tmpfs"];

/// Where the uses take place, made anew for each round.
enum Place {
    Device(PathBuf),
    Tmpfs(PathBuf),
}

pub(crate) fn compare(rounds: Rounds) -> Result<()> {
    let folder = Folder::new()?;
    let root = root()?;
    let archive = folder.0.join("sources.tar");
    finish(git(&root).args(["archive", "--format=tar", "--output"]).arg(&archive).arg("HEAD"))?;
    let (_server, ours) = ours(&folder.0)?; // the loop device ends first
    let kernel = KernelZram::if_there(SIZE);
    if let Some(kernel) = &kernel {
        drop(kernel.open()?);
    }
    let places = [
        Some(Place::Device(ours.path.clone())),
        kernel.as_ref().map(|kernel| Place::Device(kernel.path())),
        Some(Place::Tmpfs(folder.0.join("plain"))),
    ];
    let figures = rounds.measure_anew(|round| {
        let mut figures = vec![f64::NAN; NAMES.len() * USES.len()];
        for turn in drawn_order(NAMES.len(), round) {
            if let Some(place) = &places[turn] {
                let seconds = uses(place, &folder.0.join("ext4"), &root, &archive)?;
                figures[turn * USES.len()..][..USES.len()].copy_from_slice(&seconds);
            }
        }
        Ok(figures)
    })?;
    show(&figures, rounds)
}

fn show(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of: Vec<&[Vec<f64>]> = figures.chunks(USES.len()).collect();
    let seconds = |(name, seconds): (&&str, &&[Vec<f64>])| {
        named(name, seconds.iter().map(|seconds| Cell::from(figure(seconds, 2))))
    };
    let mut rows: Vec<Vec<Cell>> = NAMES.iter().zip(&of).map(seconds).collect();
    for peer in 1..NAMES.len() {
        let to_it = (0..USES.len()).map(|number| ratio(&of[0][number], &of[peer][number]));
        rows.push(named(&format!("ours to {}, time", NAMES[peer]), to_it));
    }
    let head: Vec<&str> = std::iter::once("seconds").chain(USES).collect();
    let title = "A RAM disk in use: this repository cloned, its sources unpacked, its crate of policies built; ext4 made anew for each \
                 round, synced after each use";
    rounds.show(title, &head, rows)
}

/// Seconds of each use.
fn uses(place: &Place, mount: &Path, root: &Path, archive: &Path) -> Result<[f64; USES.len()]> {
    match place {
        Place::Device(device) => {
            let ext4 = Ext4::make(device, mount.into())?;
            uses_in(&ext4.place, root, archive)
        }
        Place::Tmpfs(folder) => {
            fs::create_dir(folder)?;
            let seconds = uses_in(folder, root, archive);
            fs::remove_dir_all(folder)?;
            seconds
        }
    }
}

fn uses_in(folder: &Path, root: &Path, archive: &Path) -> Result<[f64; USES.len()]> {
    let (clone, unpacked, built) = (folder.join("clone"), folder.join("sources"), folder.join("target"));
    fs::create_dir(&unpacked)?;
    let mut git = git(root);
    git.args(["clone", "--quiet", "--no-local"]).args([root, &clone]);
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&unpacked);
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--offline", "--package", "spillway-policy", "--target-dir"]).arg(&built);
    cargo.current_dir(&unpacked);
    Ok([timed(&mut git, folder)?, timed(&mut tar, folder)?, timed(&mut cargo, folder)?])
}

/// Seconds of a command, and until its file system is synced.
fn timed(command: &mut Command, folder: &Path) -> Result<f64> {
    results::command(command)?;
    let start = Instant::now();
    finish(command)?;
    finish(Command::new("sync").arg("--file-system").arg(folder))?;
    Ok(start.elapsed().as_secs_f64())
}

/// A clone may belong to another user than the one that runs this.
fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*"]).current_dir(root);
    command
}

/// The root of the repository.
fn root() -> Result<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(package.ancestors().nth(2).context("the package lies in tools/bench")?.into())
}

fn ours(folder: &Path) -> Result<(Server, LoopDevice)> {
    let mount = folder.join("mount");
    fs::create_dir(&mount)?;
    let size = SIZE.to_string();
    let words = ["ram", "--name", "ram0", "--size", &size];
    results::command(Command::new("spillway").args(words).args(["--mount", "DIR"]))?;
    let mut command = Command::new(binary()?);
    command.args(words).arg("--mount").arg(&mount).arg("--socket").arg(folder.join("s"));
    command.env("SPILLWAY_RUNTIME_DIR", folder);
    let server = Server::start(command, mount.clone())?;
    let file = mount.join("ram0/disk");
    appears(&file)?;
    Ok((server, LoopDevice::over(&file)?))
}
