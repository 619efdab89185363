//! A folder for one test, removed with everything in it when the test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The folder. Its path is short: the path of a unix socket has at most 107 bytes.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty folder that nobody else uses.
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// The same on tmpfs.
    pub fn on_tmpfs() -> Self {
        Self::below(Path::new("/dev/shm"))
    }

    fn below(folder: &Path) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("spw-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|why| panic!("cannot create {}: {why}", path.display()));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of `name` in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, bytes).unwrap_or_else(|why| panic!("cannot write {}: {why}", path.display()));
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A path as a word of a command.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}
