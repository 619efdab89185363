//! Where devices are mounted, and which places are refused.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::exit::Failure;

/// Name of the file of a device, in the device's folder of the mount.
pub(crate) const DISK: &str = "disk";

/// Where the file of a device is in the mount at `place`.
pub(crate) fn file_below(place: &Path, device: &str) -> PathBuf {
    place.join(device).join(DISK)
}

/// Refuses a mount over what the server needs: requests to the storage that its devices stand on would come back to it.
pub(crate) fn check_place<'a>(place: &Path, needed: impl Iterator<Item = &'a Path>) -> Result<()> {
    let below = |path: &&Path| path.starts_with(place) || resolved(path).starts_with(resolved(place));
    let mut needed = needed;
    match needed.find(below) {
        None => Ok(()),
        Some(path) => {
            let (path, place) = (path.display(), place.display());
            let text =
                format!("{path} lies below {place}, where this server is to be mounted: mount it elsewhere");
            Err(Failure::usage(text)).context("--mount")
        }
    }
}

/// `path` without links and `..`, of a file that may be yet to be made.
fn resolved(path: &Path) -> PathBuf {
    let missing = || {
        let whole = std::path::absolute(path).ok()?;
        Some(whole.parent()?.canonicalize().ok()?.join(whole.file_name()?))
    };
    path.canonicalize().ok().or_else(missing).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn storage_below_the_mount_is_refused_by_whatever_path() {
        let scratch = Scratch::new("below");
        let path = |name: &str| scratch.path().join(name);
        fs::create_dir(path("mount")).unwrap();
        fs::write(path("mount/origin"), "").unwrap();
        std::os::unix::fs::symlink("mount/origin", path("link")).unwrap();
        std::os::unix::fs::symlink("mount", path("place")).unwrap();
        fs::write(path("beside"), "").unwrap();
        for (place, storage) in [
            ("mount", "mount/origin"),
            ("mount", "link"),
            ("place", "mount/origin"),
            ("mount", "place/new"),
            ("place", "mount/new"),
            ("mount", "mount/../place/new"),
        ] {
            let error = check_place(&path(place), [path(storage).as_path()].into_iter()).unwrap_err();
            assert!(format!("{error:#}").contains("lies below"), "{error:#}");
        }
        for beside in ["beside", "new", "no-folder/new"] {
            check_place(&path("mount"), [path(beside).as_path()].into_iter()).unwrap();
        }
    }
}
