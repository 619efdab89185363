//! What is asked of an opening.

use std::path::PathBuf;

/// Whether to go around the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where it works; otherwise a note says that it does not.
    #[default]
    Auto,
    /// Or fail.
    On,
    /// No.
    Off,
}

/// What to open, and how.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// A file or block device.
    pub path: PathBuf,
    /// Opens for reading, and shares the lock with other readers.
    pub read_only: bool,
    /// O_DIRECT.
    pub direct: Direct,
    /// Reaches it through a mapping instead, without the kernel's help; see the module `mapped`.
    pub mapped: bool,
    /// Where nothing is at the path, makes a sparse file of that many bytes, mode 0600; an empty file gets that length. Anything else stays as
    /// it is, and so does everything that is opened for reading only.
    pub create: Option<u64>,
}
