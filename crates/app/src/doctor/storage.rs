//! Paths to serve, or to hold a spill file, a cache or an image: what the storage there allows. A file or device that was named is only read.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{Access, AtFlags, CWD, FileType, StatVfsMountFlags, accessat, statvfs};
use spillway_core::SECTOR;
use spillway_core::size::human;
use spillway_io::Survey;
use spillway_io::fuse::file_system_at;

use super::finding::Finding;
use super::host::Host;
use super::queue::QueueFolder;
use super::{file_systems, probe};
use crate::exit::Failure;

/// A path that was named, and what is there.
pub(super) struct NamedPath {
    path: PathBuf,
    kind: FileType,
    /// Number of the device that it is, or that its file system lies on.
    device: u64,
    /// Bytes of a file, and those that it stores.
    len: u64,
    stored: u64,
}

impl NamedPath {
    /// Wrong usage where nothing is there, or something else than a file, a block device or a folder.
    pub(super) fn at(path: &Path) -> Result<Self> {
        let shown = path.display();
        let wrong =
            |what: &str| Failure::usage(format!("{shown}: {what}; give a file, a block device or a folder"));
        let found = fs::metadata(path).map_err(|why| wrong(&why.to_string()))?;
        let kind = FileType::from_raw_mode(found.mode());
        let device = match kind {
            FileType::RegularFile | FileType::Directory => found.dev(),
            FileType::BlockDevice => found.rdev(),
            _ => return Err(wrong("is none of these").into()),
        };
        Ok(Self { path: path.to_owned(), kind, device, len: found.len(), stored: found.blocks() * SECTOR })
    }

    /// What its storage allows.
    pub(super) fn findings(&self, host: &Host) -> Vec<Finding> {
        let queue = QueueFolder::of(host, self.device);
        let mut found = match self.kind {
            FileType::BlockDevice => self.of_device(queue.as_ref()),
            FileType::Directory => [self.of_file_system(), probe::folder(&self.path)].concat(),
            _ => [self.of_file_system(), self.surveyed(false)].concat(),
        };
        found.extend(queue.iter().flat_map(QueueFolder::medium));
        found.into_iter().map(|finding| finding.about(&self.path.display().to_string())).collect()
    }

    fn of_device(&self, queue: Option<&QueueFolder>) -> Vec<Finding> {
        let mut found = self.surveyed(queue.is_some_and(QueueFolder::is_read_only));
        found.extend(queue.iter().flat_map(|queue| queue.device()));
        found
    }

    fn of_file_system(&self) -> Vec<Finding> {
        let kind = file_system_at(&self.path).unwrap_or_else(|| "unknown".to_owned());
        let remedy = file_systems::effect(&kind).map(str::to_owned);
        let mut found = vec![Finding::new("file system", kind, remedy)];
        if let Ok(about) = statvfs(&self.path) {
            let [free, all] =
                [about.f_bavail, about.f_blocks].map(|blocks: u64| blocks.saturating_mul(about.f_frsize));
            found.push(file_systems::room(free, all, self.len.saturating_sub(self.stored)));
            if about.f_flag.contains(StatVfsMountFlags::RDONLY) {
                found.push(Finding::note("mount", "read-only", "Only for --read-only: mount -o remount,rw."));
            }
        }
        found
    }

    /// What a look at the file or device tells.
    fn surveyed(&self, read_only: bool) -> Vec<Finding> {
        let remedy =
            "No server of this user can open it: change its permissions; a container needs --device.";
        match Survey::of(&self.path) {
            Ok(survey) => {
                vec![size(survey.len), probe::direct(&survey), users(&survey.users), self.access(read_only)]
            }
            Err(error) => vec![Finding::note("open", error.message(), remedy)],
        }
    }

    fn access(&self, read_only: bool) -> Finding {
        let writable = accessat(CWD, &self.path, Access::WRITE_OK, AtFlags::EACCESS);
        let why = match writable {
            Ok(()) if read_only => "the device is read-only".to_owned(),
            Ok(()) => return Finding::ok("access", "may be written"),
            Err(why) => io::Error::from(why).to_string(),
        };
        let remedy = "Only for --read-only: change its permissions.";
        Finding::note("access", format!("may not be written ({why})"), remedy)
    }
}

fn size(len: u64) -> Finding {
    let remedy = match len % SECTOR {
        _ if len < SECTOR => {
            "As an origin it is refused: truncate -s 4G. An empty file becomes a spill file.".to_owned()
        }
        0 => return Finding::ok("size", human(len)),
        rest => format!("The last {rest} bytes are not served: truncate -s %{SECTOR}."),
    };
    Finding::note("size", format!("{len} bytes"), remedy)
}

fn users(users: &[String]) -> Finding {
    let remedy = "A server that writes it is refused until that ends.";
    match users {
        [] => Finding::ok("in use", "by nothing that is seen from here"),
        users => Finding::note("in use", users.join(", "), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;
    use crate::exit::{Exit, code_of};
    use crate::scratch::Scratch;

    fn findings(path: &Path) -> Vec<Finding> {
        NamedPath::at(path).unwrap().findings(&Host::at(Path::new("/")))
    }

    fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        findings
            .iter()
            .find(|finding| finding.check == check)
            .unwrap_or_else(|| panic!("{check}: {findings:?}"))
    }

    #[test]
    fn a_folder_is_told_with_what_it_lies_on() {
        let scratch = Scratch::new("folder");
        let found = findings(scratch.path());
        assert_eq!(of(&found, "holes").status, Status::Ok, "CONTRIBUTING.md asks for a TMPDIR with holes");
        assert!(of(&found, "room").found.contains(" of "), "{found:?}");
        assert!(found.iter().all(|finding| finding.path.as_deref() == scratch.path().to_str()));
    }

    #[test]
    fn memory_is_named_as_such() {
        let found = findings(Path::new("/dev/shm"));
        let file_system = of(&found, "file system");
        assert_eq!((file_system.status, file_system.found.as_str()), (Status::Note, "tmpfs"));
    }

    #[test]
    fn a_file_is_read_and_stays_as_it_is() {
        let scratch = Scratch::new("file");
        scratch.write("image", &"x".repeat(5000));
        let path = scratch.path().join("image");
        let before = fs::metadata(&path).unwrap();
        let found = findings(&path);
        assert_eq!((of(&found, "in use").status, of(&found, "access").status), (Status::Ok, Status::Ok));
        assert!(of(&found, "size").remedy.as_ref().expect("a note").contains("last 392 bytes"), "{found:?}");
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.len(), after.blocks()), (before.len(), before.blocks()));
        assert_eq!(after.modified().unwrap(), before.modified().unwrap());
        assert!(found.iter().all(|finding| finding.check != "holes"), "nothing is punched into it");
    }

    #[test]
    fn sizes_that_cannot_be_served_are_notes() {
        assert_eq!(size(4 << 30), Finding::ok("size", "4G"));
        assert!(size(0).remedy.expect("a note").contains("truncate -s 4G"));
        assert!(size(1025).remedy.expect("a note").contains("last 1 bytes"));
    }

    #[test]
    fn a_sparse_file_that_its_file_system_cannot_hold_is_told() {
        let scratch = Scratch::new("sparse");
        let path = scratch.path().join("image");
        fs::File::create(&path).unwrap().set_len(1 << 43).unwrap();
        let found = findings(&path);
        assert!(of(&found, "room").remedy.as_ref().expect("8T do not fit").contains("sparse"), "{found:?}");
    }

    #[test]
    fn what_cannot_be_served_is_wrong_usage_and_named() {
        for (path, words) in [("/does/not/exist", "No such file"), ("/dev/null", "is none of these")] {
            let error = NamedPath::at(Path::new(path)).err().expect("refused");
            let text = error.to_string();
            assert!(
                code_of(&error) == Exit::Usage && text.starts_with(path) && text.contains(words),
                "{text}"
            );
        }
    }

    #[test]
    fn users_keep_a_server_out() {
        let found = users(&["mounted at /srv".to_owned(), "qemu-nbd (pid 7)".to_owned()]);
        assert_eq!((found.status, found.found.as_str()), (Status::Note, "mounted at /srv, qemu-nbd (pid 7)"));
    }
}
