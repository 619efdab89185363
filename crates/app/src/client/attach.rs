//! `spillway attach` and `detach`: the steps that need root, in order, and undone in order.
//!
//! A device that a server shows as a file becomes a loop device, which may get a file system and be mounted. The server is asked to
//! give the device to the loop device alone; it does so until the file is closed, so that nothing is left of that after a crash.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use spillway_export::control::Operation;
use spillway_io::fuse::{ShownFile, loop_devices_below, places_of};

use super::connection::{change, no_device, print, row_of};
use super::lending;
use super::program::{finish, run, said};
use crate::cli::AttachOptions;
use crate::exit::{Exit, Failure};
use crate::occupants;
use crate::place::file_below;
use crate::runtime_folder::{RuntimeFolder, check_name};

/// How long the kernel may take to write back and to let go of a loop device, and the pause between two looks.
const QUIET_PATIENCE: Duration = Duration::from_secs(60);
const QUIET_PAUSE: Duration = Duration::from_millis(20);

/// Exit code of blkid where it recognises nothing.
const NOTHING_FOUND: i32 = 2;

/// Bytes at either end of a device where file systems are recognised.
const PROBED_LEN: u64 = 1 << 20;

/// A loop device that is given up again unless it is kept.
struct Loop<'a> {
    path: PathBuf,
    file: &'a Path,
    /// The process that opened the file.
    opener: u32,
    kept: bool,
}

impl<'a> Loop<'a> {
    /// Over the file of a device. That of another user is opened as that user, whatever its server calls its file.
    fn over(file: &'a Path, folder: &RuntimeFolder) -> Result<Self> {
        let (opener, path) = if folder.is_ours() {
            let mut command = Command::new("losetup");
            command.args(["--find", "--show", "--direct-io=on"]).arg(file).stdin(Stdio::null());
            let (opener, output) = finish(&mut command)?;
            (opener, said(&command, output)?.trim().into())
        } else {
            lending::set_up(file, folder).context("the mount of another user")?
        };
        Ok(Self { path, file, opener, kept: false })
    }

    /// Refuses another file than `shown`: `losetup` opens it by a path, whatever has been put there meanwhile.
    fn expect(&self, shown: &ShownFile) -> Result<()> {
        let mut command = Command::new("losetup");
        let listed =
            run(command.args(["--noheadings", "--output", "BACK-MAJ:MIN,BACK-INO"]).arg(&self.path))?;
        let numbers: Vec<&str> = listed.split_whitespace().collect();
        let file = self.file.display();
        anyhow::ensure!(numbers.join(" ") == shown.numbers()?, "{file} was replaced by another file");
        Ok(())
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // Why it is given up is worth more words than that it cannot be.
            let _ = give_up(&self.path, self.file);
        }
    }
}

/// Ends a loop device over `file`, and waits until it has.
fn give_up(device: &Path, file: &Path) -> Result<()> {
    run(Command::new("losetup").arg("--detach").arg(device))?;
    wait_until(device, "is in use", || !is_over(device, file))
}

/// Whether a loop device is over `file`.
fn is_over(device: &Path, file: &Path) -> bool {
    loop_devices_below(file).iter().any(|path| path == device)
}

/// `spillway attach`.
pub(crate) fn attach(folder: &RuntimeFolder, options: &AttachOptions) -> Result<()> {
    let name = &options.device;
    let file = file_of(folder, name)?;
    expect_root("attach")?;
    // The file of another user's server is opened as that user: it can be no other than that user may write.
    let shown = folder.is_ours().then(|| ShownFile::at(&file, name)).transpose()?;
    if let Some(device) = loop_devices_below(&file).first() {
        let text = format!("{name} is attached as {}: spillway detach {name} first", device.display());
        return Err(Failure::new(Exit::Busy, text).into());
    }
    if let Some(place) = options.mountpoint.as_ref().filter(|place| !place.is_dir()) {
        return Err(Failure::usage(format!("{} is no folder: make it first", place.display())).into());
    }
    let mut device = Loop::over(&file, folder)?;
    shown.iter().try_for_each(|shown| device.expect(shown))?;
    if !options.shared {
        let hold = Operation::Hold { device: name.clone(), opener: Some(device.opener) };
        change(folder, name, &hold)
            .context("the device cannot be held; --shared attaches it all the same")?;
    }
    if let Some(kind) = &options.mkfs {
        make_file_system(kind, &device.path, options.force)?;
    }
    if let Some(place) = &options.mountpoint {
        run(Command::new("mount").arg(&device.path).arg(place))?;
    }
    device.kept = true;
    print(&format!("{}\n", device.path.display()))
}

/// `spillway detach`.
pub(crate) fn detach(folder: &RuntimeFolder, name: &str) -> Result<()> {
    let file = file_of(folder, name)?;
    expect_root("detach")?;
    let devices = loop_devices_below(&file);
    if devices.is_empty() {
        return Err(Failure::new(Exit::Missing, format!("{name} is not attached")).into());
    }
    let mut flushed = Ok(());
    for device in &devices {
        for place in places_of(device) {
            run(Command::new("umount").arg(&place)).map_err(|error| in_use(&place, &error))?;
        }
        // One that was given up while it was mounted goes with its mount.
        if !is_over(device, &file) {
            flushed = flushed.and(flush(&file));
            continue;
        }
        run(Command::new("blockdev").arg("--flushbufs").arg(device))?;
        flushed = flushed.and(flush(device));
        wait_until(device, "has requests in flight", || is_idle(device))?;
        give_up(device, &file)?;
    }
    flushed.with_context(|| {
        format!("{name} is detached, but could not be flushed: what was written to it may be lost")
    })
}

/// Sends a flush to the server: by its file, or by a loop device, which hands it on.
fn flush(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
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
    // What another user's server says is believed only as far as it goes: root looks for loop devices over this file.
    anyhow::ensure!(path.ends_with(file_below(Path::new(""), name)), "{} is no device", path.display());
    // The kernel names loop devices' files without links.
    Ok(path.canonicalize().unwrap_or(path))
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

fn in_use(place: &Path, error: &anyhow::Error) -> Failure {
    let users = occupants::in_words(&occupants::below(place));
    let who = match users.as_str() {
        "" => format!("fuser -vm {} shows who uses it", place.display()),
        users => format!("in use ({users}); end that first"),
    };
    Failure::new(Exit::Busy, format!("{error:#}: {who}"))
}
