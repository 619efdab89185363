//! Where the lines of the log go: standard error or a file, which can be opened again, and may be bounded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use spillway_io::patient::write_some;

/// Bytes of a bounded file from which on a new one is begun. One older file is kept.
pub(super) const KEPT_BYTES_MAX: u64 = 256 << 10;

/// Access modes of a bounded file, which is for its user only, and of any other.
const KEPT_MODE: u32 = 0o600;
const MODE: u32 = 0o666;

/// Where lines go.
pub(super) struct LogOutput {
    file: File,
    /// Absent of standard error.
    path: Option<PathBuf>,
    /// Bytes of a file whose size is bounded.
    kept: Option<u64>,
}

impl LogOutput {
    /// Standard error.
    pub(super) fn stderr() -> io::Result<Self> {
        Ok(Self { file: stderr().as_fd().try_clone_to_owned()?.into(), path: None, kept: None })
    }

    /// The file at `path`, appended to, which others may write to as well.
    pub(super) fn file(path: PathBuf) -> io::Result<Self> {
        Ok(Self { file: open(&path, MODE)?, path: Some(path), kept: None })
    }

    /// The file at `path`, which is this process's own and does not grow beyond a bound.
    pub(super) fn kept(path: PathBuf) -> io::Result<Self> {
        let file = open(&path, KEPT_MODE)?;
        let kept = Some(file.metadata()?.len());
        Ok(Self { file, path: Some(path), kept })
    }

    /// Opens the file again by its path. Where that fails the one that is open stays.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        *self = if self.kept.is_some() { Self::kept(path)? } else { Self::file(path)? };
        Ok(())
    }

    /// The path of the file, if it is one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Makes room for a line where the size is bounded.
    pub(super) fn make_room(&mut self, line_bytes: usize) -> io::Result<()> {
        let (Some(path), Some(len)) = (&self.path, self.kept) else { return Ok(()) };
        if len == 0 || len + line_bytes as u64 <= KEPT_BYTES_MAX {
            return Ok(());
        }
        match fs::rename(path, older(path)) {
            Err(why) if why.kind() != ErrorKind::NotFound => Err(why),
            _ => self.reopen(),
        }
    }

    /// Writes a beginning of `bytes`, and returns how many that is; [`ErrorKind::TimedOut`] where nobody takes one within `patience`.
    pub(super) fn write(&mut self, bytes: &[u8], patience: Duration) -> io::Result<usize> {
        let count = write_some(&self.file, bytes, patience)?;
        self.kept = self.kept.map(|len| len + count as u64);
        Ok(count)
    }
}

/// Without waiting for a reader where it is a FIFO: that is an error.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    OpenOptions::new().create(true).append(true).mode(mode).custom_flags(flags).open(path)
}

/// The path of the older one of two bounded files.
pub(super) fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}
