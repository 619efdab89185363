//! `spillway save` and `load`: a device as an image file, and back.
//!
//! Both are clients of the device over NBD, so that nothing of the server has to know them. An image is written under another name beside
//! its own, made durable, and takes its name last: whatever happens, there is the old image or the new one. A save that was killed leaves
//! the other name, which the next one removes; the lock on it says whether it is still being written.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use spillway_core::size::human;
use spillway_core::{ByteRange, WorkKind};
use spillway_export::control::Operation;
use spillway_io::{end_with_us, lock_file, mutant};

use super::connection::{change, print};
use super::copying::{CopySource, PipeTarget, RawImage, Target, copy, copy_stream};
use super::listing::{expect_row, row_of};
use super::nbd::Nbd;
use super::program::{said, watch};
use super::progress::Reporter;
use super::qcow2::Qcow2;
use crate::cli::{ImageFormat, ImageOptions, LoadOptions, SaveOptions};
use crate::exit::{Exit, Failure, refused};
use crate::runtime_folder::RuntimeFolder;

/// How long a server may take to see that a client is gone, and the pause between two looks.
const FREE_PATIENCE: Duration = Duration::from_secs(5);
const FREE_PAUSE: Duration = Duration::from_millis(2);

/// `spillway save`.
pub(crate) fn save(folder: &RuntimeFolder, options: &SaveOptions) -> Result<()> {
    let ImageOptions { device, file, .. } = &options.image;
    let uri = uri_of(folder, device)?;
    if options.image.is_stream() {
        return save_stream(folder, &uri, &options.image);
    }
    // The file that a link means takes the image, not the link.
    let path = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
    drop(expect_free(&path, options.force)?);
    let new = NewFile::beside(&path)?;
    let words = match options.image.form() {
        ImageFormat::Raw => save_raw(folder, &uri, &options.image, &new)?,
        ImageFormat::Qcow2 => save_qcow2(folder, &uri, device, &new)?,
    };
    let _replaced = expect_free(&path, options.force)?;
    new.take_name(&path)?;
    print(&format!("{device}: {words} saved as {}\n", file.display()))
}

/// The reader of the pipe hears nothing else.
fn save_stream(folder: &RuntimeFolder, uri: &str, image: &ImageOptions) -> Result<()> {
    expect_raw(image.form())?;
    let out = stdout();
    if out.is_terminal() {
        let text = "standard output is a terminal: send the image to a pipe or a file";
        return Err(Failure::usage(text).into());
    }
    let pipe = out.as_fd().try_clone_to_owned().context("standard output")?;
    let mut client = Nbd::connect(uri, image.tls_certificates.as_deref())?;
    save_to(folder, &image.device, &mut client, &mut PipeTarget(pipe.into())).map(drop)
}

fn expect_raw(form: ImageFormat) -> Result<()> {
    match form {
        ImageFormat::Raw => Ok(()),
        ImageFormat::Qcow2 => {
            Err(Failure::usage("qcow2 needs a file that can be read anywhere: - takes raw images").into())
        }
    }
}

/// Copies a device; returns how many bytes of it are not zero, in blocks.
fn save_to(folder: &RuntimeFolder, name: &str, device: &mut Nbd, target: &mut dyn Target) -> Result<u64> {
    let mut reporter = Reporter::begin(folder, name, WorkKind::Save, Some(device.size()));
    copy(device, target, |copied| reporter.reach(copied))
}

fn save_raw(folder: &RuntimeFolder, uri: &str, image: &ImageOptions, new: &NewFile) -> Result<String> {
    let mut device = Nbd::connect(uri, image.tls_certificates.as_deref())?;
    let size = device.size();
    new.file
        .set_len(size)
        .with_context(|| format!("{} cannot become {size} bytes long", new.path.display()))?;
    let stored = save_to(folder, &image.device, &mut device, &mut &new.file)?;
    Ok(format!("{}, {} of it not zero,", human(size), human(stored)))
}

/// The program gets the open file, by a name without a protocol, and not whatever has that name by then.
fn save_qcow2(folder: &RuntimeFolder, uri: &str, device: &str, new: &NewFile) -> Result<String> {
    ensure!(
        !uri.starts_with("nbds"),
        "qemu-img takes no address with TLS: save a raw image, and convert that"
    );
    let size = Nbd::connect(uri, None)?.size();
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-p", "-f", "raw", "-O", "qcow2", uri, "/proc/self/fd/0"]);
    convert.stdin(new.file.try_clone().context("the image's file")?);
    let mut reporter = Reporter::begin(folder, device, WorkKind::Save, Some(size));
    let reach = |printed: &[u8]| {
        let share = share_of(printed);
        share.into_iter().for_each(|share| reporter.reach((size as f64 * share) as u64));
    };
    let output = watch(end_with_us(&mut convert), reach)
        .context("qcow2 images are written by qemu-img, of Debian's package qemu-utils")?;
    said(&convert, output)?;
    Ok("an image".to_owned())
}

/// The share that qemu-img has begun to copy, of the last line in what it printed: `    (12.34/100%)`.
fn share_of(printed: &[u8]) -> Option<f64> {
    let (_, last) = std::str::from_utf8(printed).ok()?.rsplit_once('(')?;
    let percent: f64 = last.split_once('/')?.0.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

/// `spillway load`.
pub(crate) fn load(folder: &RuntimeFolder, options: &LoadOptions) -> Result<()> {
    let ImageOptions { device, file, .. } = &options.image;
    let mut image = open_image(&options.image)?;
    let mut client = Nbd::connect(&uri_of(folder, device)?, options.image.tls_certificates.as_deref())?;
    ensure!(client.is_writable(), "device {device} is read-only");
    let (len, size) = (image.as_ref().map_or(0, |image| image.size()), client.size());
    if len > size {
        let text = format!("the image has {len} bytes and the device {size}: spillway resize {device} {len}");
        return Err(Failure::usage(text).into());
    }
    if !options.shared {
        change(folder, device, &Operation::Hold { device: device.clone(), opener: None })
            .context("the device cannot be held; --shared loads the image all the same")?;
    }
    let total = image.as_ref().map(|image| image.size());
    let mut reporter = Reporter::begin(folder, device, WorkKind::Load, total);
    let copied = |copied| reporter.reach(copied);
    let (len, stored) = match &mut image {
        Some(image) => (len, copy(&mut **image, &mut client, copied)?),
        None => copy_stream(&mut stdin().lock(), size, &mut client, copied)?,
    };
    let end = len.next_multiple_of(spillway_core::SECTOR);
    client.zero(ByteRange::new(end, size - end))?;
    if !mutant::on("load: skip the flush") {
        client.flush().context("what was loaded is not durable")?;
    }
    drop((client, reporter));
    if !options.shared {
        wait_until_free(folder, device);
    }
    let (len, stored) = (human(len), human(stored));
    print(&format!("{device}: {len} loaded from {}, {stored} of it not zero\n", file.display()))
}

/// Others are refused until the server has seen that this client is gone.
fn wait_until_free(folder: &RuntimeFolder, device: &str) {
    let deadline = Instant::now() + FREE_PATIENCE;
    while Instant::now() < deadline && row_of(folder, device).is_some_and(|row| row.clients > 0) {
        sleep(FREE_PAUSE);
    }
}

/// Nothing where it is a stream.
fn open_image(options: &ImageOptions) -> Result<Option<Box<dyn CopySource>>> {
    if options.is_stream() {
        return expect_raw(options.form()).map(|()| None);
    }
    let opened = open_quiet(&options.file)?;
    let image: Result<Box<dyn CopySource>> = match options.form() {
        ImageFormat::Raw => RawImage::new(opened).map(|image| Box::new(image) as _),
        ImageFormat::Qcow2 => Qcow2::new(opened).map(|image| Box::new(image) as _),
    };
    image.map(Some).with_context(|| options.file.display().to_string())
}

/// Where a device is served.
fn uri_of(folder: &RuntimeFolder, name: &str) -> Result<String> {
    let uri = expect_row(folder, name)?.exports.into_iter().find(|export| export.starts_with("nbd"));
    uri.with_context(|| format!("{name} has no size: spillway resize {name} 4G gives it one"))
}

/// Refuses what is neither a file nor a disk, and what a server writes to: the file would say what the device held some time ago.
fn open_quiet(path: &Path) -> Result<File> {
    let opens = || format!("{} cannot be opened", path.display());
    let kind = fs::metadata(path).with_context(opens)?.file_type();
    ensure!(kind.is_file() || kind.is_block_device(), "{} is no file", path.display());
    let file = open_at_once(path).with_context(opens)?;
    lock_file(&file, path, true, ANOTHER).map_err(refused)?;
    Ok(file)
}

/// What to do instead of using a file that is in use.
const ANOTHER: &str = "name another file";

/// Opens what was a file a moment ago. A FIFO in its place is not waited for.
fn open_at_once(path: &Path) -> std::io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Refuses to write over what is no file, over any file unless `force`, and over one that a server uses. The file that will be
/// replaced comes back locked.
fn expect_free(path: &Path, force: bool) -> Result<Option<File>> {
    let found = match fs::symlink_metadata(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        found => found.with_context(|| path.display().to_string())?,
    };
    let kind = found.file_type();
    ensure!(!kind.is_block_device(), "{} is a device: save to a file", path.display());
    ensure!(kind.is_file(), "{} is no file", path.display());
    let file = open_at_once(path).with_context(|| format!("{} cannot be opened", path.display()))?;
    lock_file(&file, path, false, ANOTHER).map_err(refused)?;
    ensure!(force, "{} exists: --force replaces it", path.display());
    Ok(Some(file))
}

/// A file that is removed unless it takes the name that it is meant for.
struct NewFile {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl NewFile {
    /// The file `.NAME.part` beside `NAME`.
    fn beside(wanted: &Path) -> Result<Self> {
        let name = wanted.file_name().with_context(|| format!("{} names no file", wanted.display()))?;
        let mut part = OsString::from(".");
        part.push(name);
        part.push(".part");
        let path = wanted.with_file_name(part);
        remove_abandoned(&path)?;
        let create = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = create.with_context(|| format!("{} cannot be created", path.display()))?;
        let new = Self { path, file, kept: false };
        new.file.try_lock().with_context(|| format!("{} cannot be locked", new.path.display()))?;
        Ok(new)
    }

    /// Makes it durable under its name.
    fn take_name(mut self, name: &Path) -> Result<()> {
        let durable = |outcome: std::io::Result<()>| outcome.context("the image cannot be made durable");
        if !mutant::on("save: take the name before the image is durable") {
            durable(self.file.sync_all())?;
        }
        let (ours, found) = (self.file.metadata()?, fs::symlink_metadata(&self.path));
        let same = found.is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()));
        ensure!(same, "{} was replaced by another file; save to a folder that is yours", self.path.display());
        fs::rename(&self.path, name).with_context(|| format!("{} cannot be renamed", self.path.display()))?;
        self.kept = true;
        if mutant::on("save: leave the folder as it is") {
            return Ok(());
        }
        let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
        durable(File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.kept {
            // Why it is not wanted is worth more words than that it stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what a save that was killed has left.
fn remove_abandoned(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    ensure!(found.is_file(), "{}: no file, where the new image is to be written; remove it", path.display());
    let Ok(file) = open_at_once(path) else { return Ok(()) };
    let busy = || Failure::new(Exit::Busy, format!("another save writes {}", path.display()));
    file.try_lock().map_err(|_| busy())?;
    fs::remove_file(path).with_context(|| format!("{} cannot be removed", path.display()))
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_that_takes_no_name_goes_and_leaves_the_old_one() {
        let scratch = Scratch::new("image");
        scratch.write("a", "old");
        let path = scratch.path().join("a");
        let new = NewFile::beside(&path).unwrap();
        let error = NewFile::beside(&path).err().expect("one at a time");
        assert!(error.to_string().contains("another save"), "{error}");
        drop(new);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
        let new = NewFile::beside(&path).unwrap();
        (&mut &new.file).write(0, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        new.take_name(&path).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read_dir(scratch.path()).unwrap().count()),
            (b"new".into(), 1)
        );
    }

    #[test]
    fn progress_of_another_program_is_understood_or_left_out() {
        let shares: Vec<_> = ["    (0.00/100%)\r", "    (1.00/100%)\r    (25.00/100%)\r"]
            .map(|printed| share_of(printed.as_bytes()))
            .into();
        assert_eq!(shares, [Some(0.0), Some(0.25)]);
        for other in ["", "\r", "50 %", "(", "(5", "(x/100%)", "(101/100%)", "(NaN/100%)", "(-1/100%)"] {
            assert_eq!(share_of(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn what_a_killed_save_left_is_removed_by_the_next() {
        let scratch = Scratch::new("abandoned");
        scratch.write(".a.part", "half");
        let path = scratch.path().join("a");
        NewFile::beside(&path).unwrap().take_name(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    /// Others may put a name there in a folder that they share: none of these is waited for, followed or removed.
    #[test]
    fn what_is_no_file_in_the_place_of_the_new_image_is_refused() {
        let scratch = Scratch::new("squatted");
        let (path, part) = (scratch.path().join("a"), scratch.path().join(".a.part"));
        let refused = || {
            let refused = NewFile::beside(&path).err().expect("it is no file").to_string();
            assert!(refused.contains(".a.part: no file"), "{refused}");
            assert!(part.symlink_metadata().is_ok(), "it is not ours");
            part.as_path()
        };
        rustix::fs::mkfifoat(rustix::fs::CWD, &part, Mode::RUSR | Mode::WUSR).unwrap();
        fs::remove_file(refused()).unwrap();
        scratch.write("other", "precious");
        std::os::unix::fs::symlink("other", &part).unwrap();
        fs::remove_file(refused()).unwrap();
        fs::create_dir(&part).unwrap();
        fs::remove_dir(refused()).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&part).unwrap());
        refused();
        assert_eq!(fs::read(scratch.path().join("other")).unwrap(), b"precious");
    }

    #[test]
    fn a_file_that_became_a_fifo_is_not_waited_for() {
        let scratch = Scratch::new("fifo");
        let path = scratch.path().join("a");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        open_at_once(&path).unwrap();
    }

    #[test]
    fn only_files_are_replaced_and_only_by_force() {
        let scratch = Scratch::new("free");
        scratch.write("a", "old");
        let path = |name: &str| scratch.path().join(name);
        expect_free(&path("b"), false).unwrap();
        assert!(expect_free(&path("a"), false).unwrap_err().to_string().contains("--force"));
        expect_free(&path("a"), true).unwrap();
        assert!(expect_free(scratch.path(), true).unwrap_err().to_string().contains("no file"));
    }
}
