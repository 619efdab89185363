//! `spillway attach` and `detach`: the steps that need root, in order, and undone in order.
//!
//! A device that a server shows as a file becomes a loop device, which may get a file system and be mounted. The server is asked to
//! give the device to the loop device alone; it does so until the file is closed, so that nothing is left of that after a crash.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use spillway_export::control::Operation;
use spillway_io::fuse::{LoopDevice, MountPoint, ShownFile, backing_file};

use super::connection::{change, print};
use super::listing::{no_device, row_of};
use super::program::run;
use crate::cli::AttachOptions;
use crate::exit::{Exit, Failure};
use crate::runtime_folder::{RuntimeFolder, check_name};
use crate::server::occupants;

/// How long the kernel may take to write back and to let go of a loop device, and the pause between two looks.
const QUIET_PATIENCE: Duration = Duration::from_secs(60);
const QUIET_PAUSE: Duration = Duration::from_millis(20);

/// Exit code of blkid where it recognises nothing.
const NOTHING_FOUND: i32 = 2;

/// Bytes at either end of a device where file systems are recognised.
const PROBED_LEN: u64 = 1 << 20;

/// A loop device that is given up again unless it is kept.
struct Loop(Option<LoopDevice>);

impl Loop {
    fn path(&self) -> &Path {
        self.0.as_ref().expect("it is kept last").path()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(device) = self.0.take() {
            // Why it is given up is worth more words than that it cannot be.
            let _ = give_up(device);
        }
    }
}

/// Ends a loop device, and waits until it has.
fn give_up(device: LoopDevice) -> Result<()> {
    let (path, file) = (device.path().to_owned(), backing_file(device.path()));
    device.give_up().with_context(|| format!("{} cannot be detached", path.display()))?;
    wait_until(&path, "is in use by another program", || backing_file(&path) != file)
}

/// `spillway attach`.
pub(crate) fn attach(folder: &RuntimeFolder, options: &AttachOptions) -> Result<()> {
    let name = &options.device;
    let file = file_of(folder, name)?;
    expect_root("attach")?;
    let shown = ShownFile::at(&file, name, folder.owner()?)?;
    if let Some(device) = shown.loop_devices()?.first() {
        let device = device.path().display();
        let text = format!("{name} is attached as {device}: spillway detach {name} first");
        return Err(Failure::new(Exit::Busy, text).into());
    }
    if let Some(place) = options.mountpoint.as_ref().filter(|place| !place.is_dir()) {
        return Err(Failure::usage(format!("{} is no folder: make it first", place.display())).into());
    }
    let (opener, device) = shown.attach().with_context(|| {
        format!("no loop device can be set up over {}; modprobe loop makes some", file.display())
    })?;
    let mut device = Loop(Some(device));
    if !options.shared {
        let hold = Operation::Hold { device: name.clone(), opener: Some(opener) };
        change(folder, name, &hold)
            .context("the device cannot be held; --shared attaches it all the same")?;
    }
    if let Some(kind) = &options.mkfs {
        make_file_system(kind, device.path(), options.force)?;
    }
    if let Some(place) = &options.mountpoint {
        // Another user writes to what is below, and could put a device or a program of root's there.
        let guards: &[&str] = if shown.is_foreign() { &["-o", "nosuid,nodev"] } else { &[] };
        run(Command::new("mount").args(guards).arg("--").arg(device.path()).arg(place))?;
    }
    let path = device.path().to_owned();
    device.0 = None;
    print(&format!("{}\n", path.display()))
}

/// `spillway detach`.
pub(crate) fn detach(folder: &RuntimeFolder, name: &str) -> Result<()> {
    let file = file_of(folder, name)?;
    expect_root("detach")?;
    let shown = ShownFile::at(&file, name, folder.owner()?)?;
    let devices = shown.loop_devices()?;
    if devices.is_empty() {
        return Err(Failure::new(Exit::Missing, format!("{name} is not attached")).into());
    }
    let mut flushed = Ok(());
    for device in devices {
        for mount in MountPoint::all_of(&device)? {
            mount.unmount().map_err(|error| in_use(mount.place(), &error))?;
        }
        run(Command::new("blockdev").arg("--flushbufs").arg(device.path()))?;
        // The device hands it on to the server.
        flushed = flushed.and(device.flush());
        let path = device.path().to_owned();
        wait_until(&path, "has requests in flight", || is_idle(&path))?;
        give_up(device)?;
    }
    flushed.with_context(|| {
        format!("{name} is detached, but could not be flushed: what was written to it may be lost")
    })
}

/// The file of a device, where its server shows one.
pub(super) fn file_of(folder: &RuntimeFolder, name: &str) -> Result<PathBuf> {
    check_name(name)?;
    folder.expect_ours()?;
    let missing = || Failure::new(Exit::Missing, no_device(name, folder));
    let row = row_of(folder, name).ok_or_else(missing)?;
    let file = row.exports.iter().find(|export| export.starts_with('/'));
    let hidden = || match row.disksize {
        0 => format!("{name} has no size yet: spillway set {name} disksize 4G"),
        _ => format!("{name} is not shown as a file: start its server with --mount DIR"),
    };
    let path = PathBuf::from(file.with_context(hidden)?);
    Ok(path)
}

fn expect_root(what: &str) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    anyhow::ensure!(root, "{what} needs root: sudo spillway {what} NAME");
    Ok(())
}

fn make_file_system(kind: &str, device: &Path, force: bool) -> Result<()> {
    if !force {
        expect_blank(device)?;
    }
    // What was there was looked at: the programs would ask a terminal, or refuse.
    let insist: &[&str] = match kind {
        "ext2" | "ext3" | "ext4" => &["-q", "-F"],
        "xfs" | "btrfs" => &["-q", "-f"],
        _ => &[],
    };
    run(Command::new(format!("mkfs.{kind}")).args(insist).arg(device)).map(drop)
}

fn expect_blank(device: &Path) -> Result<()> {
    // To blkid, what cannot be read is blank.
    expect_readable(device).with_context(|| format!("{} cannot be read", device.display()))?;
    let mut command = Command::new("blkid");
    let probe = command.args(["--probe", "--output", "value", "--match-tag", "TYPE"]).arg(device).output();
    let probe = probe.context("blkid cannot be run")?;
    let found = String::from_utf8_lossy(&probe.stdout).trim().to_owned();
    let what = if found.is_empty() { "something that is recognised" } else { &found };
    let words = String::from_utf8_lossy(&probe.stderr);
    anyhow::ensure!(words.is_empty(), "blkid: {}", words.trim());
    anyhow::ensure!(
        probe.status.code() == Some(NOTHING_FOUND),
        "the device holds {what}: --force makes a file system over it"
    );
    Ok(())
}

/// Reads both ends, where file systems have what they are known by.
fn expect_readable(device: &Path) -> std::io::Result<()> {
    let mut file = File::open(device)?;
    let size = file.seek(SeekFrom::End(0))?;
    let len = size.min(PROBED_LEN);
    let mut end = vec![0; len as usize];
    file.read_exact_at(&mut end, 0)?;
    file.read_exact_at(&mut end, size - len)
}

/// Nothing is on its way to the file.
fn is_idle(device: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    let counts = fs::read_to_string(Path::new("/sys/block").join(name).join("inflight"));
    counts.is_ok_and(|counts| counts.split_whitespace().all(|count| count == "0"))
}

fn wait_until(device: &Path, otherwise: &str, holds: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + QUIET_PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            let users = occupants::in_words(&occupants::below(device));
            let who = if users.is_empty() { users } else { format!(" ({users})") };
            return Err(Failure::new(Exit::Busy, format!("{} {otherwise}{who}", device.display())).into());
        }
        sleep(QUIET_PAUSE);
    }
    Ok(())
}

fn in_use(place: &Path, error: &std::io::Error) -> Failure {
    let users = occupants::in_words(&occupants::below(place));
    let place = place.display();
    let who = match users.as_str() {
        "" => format!("fuser -vm {place} shows who uses it"),
        users => format!("in use ({users}); end that first"),
    };
    Failure::new(Exit::Busy, format!("{place} cannot be unmounted ({error}): {who}"))
}
