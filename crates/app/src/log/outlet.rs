//! Where the lines of the log go: standard error or a file, which can be opened again, and may be bounded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, stderr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use spillway_io::patient::write_some;

/// Bytes of a bounded file from which on a new one is begun. One older file is kept.
pub(super) const KEPT_BYTES_MAX: u64 = 256 << 10;

/// Access mode of a bounded file: its user only.
const KEPT_MODE: u32 = 0o600;

/// Where lines go.
pub(super) enum Outlet {
    /// Standard error.
    Stderr,
    /// The file at a path, appended to.
    File(PathBuf, File),
    /// The same, of bounded size, with the bytes that it has.
    Kept(PathBuf, File, u64),
}

impl Outlet {
    /// The file at `path`, which others may write to as well.
    pub(super) fn file(path: PathBuf) -> io::Result<Self> {
        let file = open(&path, 0o666)?;
        Ok(Self::File(path, file))
    }

    /// The file at `path`, which is this process's own and does not grow beyond a bound.
    pub(super) fn kept(path: PathBuf) -> io::Result<Self> {
        let file = open(&path, KEPT_MODE)?;
        let len = file.metadata()?.len();
        Ok(Self::Kept(path, file, len))
    }

    /// Opens the file again by its path. Where that fails the one that is open stays.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        *self = match self {
            Self::Stderr => return Ok(()),
            Self::File(path, _) => Self::file(path.clone())?,
            Self::Kept(path, ..) => Self::kept(path.clone())?,
        };
        Ok(())
    }

    /// The path of the file, if it is one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Stderr => None,
            Self::File(path, _) | Self::Kept(path, ..) => Some(path),
        }
    }

    /// Makes room for a line where the size is bounded.
    pub(super) fn make_room(&mut self, line_bytes: usize) -> io::Result<()> {
        match self {
            Self::Kept(path, _, len) if *len > 0 && *len + line_bytes as u64 > KEPT_BYTES_MAX => {
                match fs::rename(&*path, older(path)) {
                    Err(why) if why.kind() != ErrorKind::NotFound => Err(why),
                    _ => self.reopen(),
                }
            }
            _ => Ok(()),
        }
    }

    /// Writes a beginning of `bytes`, and returns how many that is; [`ErrorKind::TimedOut`] where nobody takes one within `patience`.
    pub(super) fn write(&mut self, bytes: &[u8], patience: Duration) -> io::Result<usize> {
        match self {
            Self::Stderr => write_some(stderr(), bytes, patience),
            Self::File(_, file) => write_some(file, bytes, patience),
            Self::Kept(_, file, len) => {
                let count = write_some(file, bytes, patience)?;
                *len += count as u64;
                Ok(count)
            }
        }
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
