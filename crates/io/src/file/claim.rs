//! Claiming a path: what is there is opened and locked, or a file is made where nothing is.
//!
//! A file is made exclusively, so that a link to nothing is not followed, and gets its length under its lock. Another server may take the lock
//! between the two: it has an empty file then, as good as its own, and this one is refused. An opening that fails takes back what it made
//! before it gives up the lock. Who waited for that lock finds that its file is no longer at the path, and starts over.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, ftruncate, open, stat, unlink};
use rustix::io::Errno;
use spillway_core::size::human;
use spillway_core::{Error, Kind};

use super::holders;
use super::lock::{failed, lock};
use super::options::FileOptions;

/// Times to start over because the file was made or removed meanwhile.
const CLAIM_TRIES: usize = 100;

/// A path that is open and locked. Dropped, it takes back what it made.
pub(super) struct Claim<'a> {
    pub(super) fd: Arc<OwnedFd>,
    path: &'a Path,
    made: Made,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Nothing,
    /// The file, which was not there.
    File,
    /// The length of a file that was empty.
    Length,
}

impl<'a> Claim<'a> {
    /// Errors as of [`super::open()`].
    pub(super) fn take(options: &'a FileOptions) -> Result<Self, Error> {
        for _ in 0..CLAIM_TRIES {
            if let Some(claim) = Self::attempt(options)? {
                return Ok(claim);
            }
        }
        let path = options.path.display();
        Err(Error::new(Kind::Busy, format!("{path} is made and removed by other programs: stop them")))
    }

    /// `None` where the file was made or removed meanwhile.
    fn attempt(options: &'a FileOptions) -> Result<Option<Self>, Error> {
        let path = options.path.as_path();
        let create = options.create.filter(|_| !options.read_only);
        let (fd, made) = match (open_existing(options)?, create) {
            (Some(fd), _) => (fd, Made::Nothing),
            (None, None) => return Err(refused(options, Errno::NOENT)),
            (None, Some(_)) => match make(path)? {
                Some(fd) => (fd, Made::File),
                None => return Ok(None),
            },
        };
        let mut claim = Self { fd: Arc::new(fd), path, made };
        claim.lock(options)?;
        match create {
            Some(_) if !claim.is_at_path() => return Ok(None),
            Some(size) => claim.complete(size)?,
            None => {}
        }
        Ok(Some(claim))
    }

    /// The same opened once more; its lock is that of the first.
    pub(super) fn again(&self, options: &FileOptions) -> Result<Arc<OwnedFd>, Error> {
        let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let fd = open(self.path, FLAGS | access, Mode::empty()).map_err(|errno| refused(options, errno))?;
        let both =
            fstat(&self.fd).and_then(|first| Ok([first, fstat(&fd)?].map(|stat| (stat.st_dev, stat.st_ino))));
        if both.is_ok_and(|[first, second]| first == second) {
            return Ok(Arc::new(fd));
        }
        let text = format!("{} was replaced while it was opened: start again", self.path.display());
        Err(Error::new(Kind::Busy, text))
    }

    fn lock(&mut self, options: &FileOptions) -> Result<(), Error> {
        let instead = instead(options, "open it read-only in both");
        lock(&self.fd, self.path, options.read_only, instead).inspect_err(|error| {
            if error.kind == Kind::Busy {
                // The holder of the lock has the file.
                self.made = Made::Nothing;
            }
        })
    }

    /// Whether the path still leads to what is open.
    fn is_at_path(&self) -> bool {
        let both = fstat(&self.fd).and_then(|open| Ok((open, stat(self.path)?)));
        both.is_ok_and(|(open, found)| (open.st_dev, open.st_ino) == (found.st_dev, found.st_ino))
    }

    /// Gives a file that was made its mode, whatever the umask took from it, and an empty one its length.
    fn complete(&mut self, size: u64) -> Result<(), Error> {
        if self.made == Made::File {
            fchmod(&self.fd, PRIVATE).map_err(|errno| failed(self.path, NOT_PRIVATE, errno))?;
        }
        let found = fstat(&self.fd).map_err(|errno| failed(self.path, "could not be examined", errno))?;
        if found.st_size > 0 || kind_of(&found) != FileType::RegularFile {
            return Ok(());
        }
        ftruncate(&self.fd, size).map_err(|errno| not_as_long(self.path, size, errno))?;
        if self.made == Made::Nothing {
            self.made = Made::Length;
        }
        Ok(())
    }

    /// Leaves everything as it is now; says what was made, for people.
    pub(super) fn keep(mut self) -> Option<String> {
        let made = std::mem::replace(&mut self.made, Made::Nothing);
        (made == Made::File).then(|| format!("{} was created", self.path.display()))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let undone = match self.made {
            Made::File if self.is_at_path() => unlink(self.path),
            Made::Length => ftruncate(&self.fd, 0),
            Made::File | Made::Nothing => Ok(()),
        };
        if let Err(why) = undone {
            tracing::warn!("{} could not be put back as it was: {why}", self.path.display());
        }
    }
}

const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY);

/// The mode of a file that is made.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

const NOT_PRIVATE: &str = "could not be kept from other users: name a path on a file system with permissions, or \
                           create the file yourself, for example with 'truncate -s 4G PATH'";

/// `None` where nothing is.
fn open_existing(options: &FileOptions) -> Result<Option<OwnedFd>, Error> {
    let path = options.path.as_path();
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let opened = match stat(path) {
        Ok(found) => open(path, FLAGS | access | exclusive(options, &found)?, Mode::empty()),
        Err(errno) => Err(errno),
    };
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(refused(options, errno)),
    }
}

fn exclusive(options: &FileOptions, found: &Stat) -> Result<OFlags, Error> {
    match kind_of(found) {
        FileType::BlockDevice if !options.read_only => Ok(OFlags::EXCL),
        FileType::BlockDevice | FileType::RegularFile => Ok(OFlags::empty()),
        _ => {
            let path = options.path.display();
            let text = format!("{path} is neither a file nor a block device: give one of these");
            Err(Error::new(Kind::NotBlock, text))
        }
    }
}

fn kind_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// What to do instead of opening a file to write it. One that may be made is of no use to its device otherwise.
fn instead(options: &FileOptions, read_only: &'static str) -> &'static str {
    if options.create.is_some() { "name another path" } else { read_only }
}

fn refused(options: &FileOptions, errno: Errno) -> Error {
    let instead = instead(options, "open it read-only");
    let advice = match errno {
        Errno::NOENT => "does not exist: create it first, for example with 'truncate -s 4G PATH'",
        Errno::NOTDIR => "lies below something that is not a folder: correct the path",
        Errno::ACCESS | Errno::PERM | Errno::ROFS if !options.read_only => {
            &format!("may not be written: change its permissions, or {instead}")
        }
        Errno::ACCESS | Errno::PERM => "may not be read: change its permissions",
        Errno::BUSY => return in_use(&options.path, instead),
        _ => "could not be opened",
    };
    failed(&options.path, advice, errno)
}

/// A block device that the system has given away.
fn in_use(path: &Path, instead: &str) -> Error {
    let who = match holders::of_block_device(path).as_slice() {
        [] => "mounted or part of another device".to_owned(),
        holders => holders.join(", "),
    };
    Error::new(Kind::Busy, format!("{}: in use ({who}); end that first, or {instead}", path.display()))
}

/// Makes an empty file. `None` where one is there by now.
fn make(path: &Path) -> Result<Option<OwnedFd>, Error> {
    let folder = folder_of(path);
    if is_among_devices(&folder) {
        let text = "does not exist, and no file is made among devices: name one of them, or a path elsewhere";
        return Err(Error::new(Kind::NotFound, format!("{} {text}", path.display())));
    }
    match open(path, FLAGS | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, PRIVATE) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::EXIST) if path.is_symlink() && !path.exists() => {
            let text = format!("{} links to nothing: remove it, or make what it links to", path.display());
            Err(Error::new(Kind::NotFound, text))
        }
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(not_made(path, &folder, errno)),
    }
}

fn folder_of(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_default();
    whole.parent().map(Path::to_owned).unwrap_or_default()
}

/// Whether a file in `folder` would lie in RAM beside the nodes of devices: a device's name was misspelt.
fn is_among_devices(folder: &Path) -> bool {
    let nodes = Path::new("/dev");
    let file_systems = stat(folder).and_then(|found| Ok((found.st_dev, stat(nodes)?.st_dev)));
    folder.canonicalize().is_ok_and(|folder| folder.starts_with(nodes))
        && file_systems.is_ok_and(|(one, other)| one == other)
}

fn not_made(path: &Path, folder: &Path, errno: Errno) -> Error {
    let folder = folder.display();
    let advice = match errno {
        Errno::NOENT => format!("{folder} does not exist: create it first, for example with 'mkdir -p'"),
        Errno::ACCESS | Errno::PERM => {
            format!("no file may be made in {folder}: change its permissions, or name another")
        }
        Errno::ROFS => format!("the file system of {folder} is read-only: name another"),
        Errno::NOSPC | Errno::DQUOT => {
            format!("the file system of {folder} is full: free room, or name another")
        }
        _ => "correct the path".to_owned(),
    };
    failed(path, format!("cannot be created: {advice}"), errno)
}

fn not_as_long(path: &Path, size: u64, errno: Errno) -> Error {
    let size = human(size);
    match errno {
        Errno::FBIG | Errno::INVAL => {
            let path = path.display();
            let text = "its file system, or the limit of the user (ulimit -f), has no files as large";
            Error::invalid(format!("{path} cannot have {size}: {text}: give a smaller size"))
        }
        _ => failed(path, format!("could not be given {size}"), errno),
    }
}
