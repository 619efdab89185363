//! Programs and libraries of others that single commands and options need.

use std::path::PathBuf;

use spillway_core::Error;

use super::finding::Finding;

/// Folders with programs of root, which are not in the PATH of every user. Root has them, by sudo too.
const OF_ROOT: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where programs are looked for.
pub(super) struct Programs(Vec<PathBuf>);

impl Programs {
    /// Those of this process.
    pub(super) fn of_path() -> Self {
        Self(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect())
    }

    /// The same, and those of root.
    pub(super) fn with_those_of_root(self) -> Self {
        Self(self.0.into_iter().chain(OF_ROOT.map(PathBuf::from)).collect())
    }

    #[cfg(test)]
    pub(super) fn within(folder: &std::path::Path) -> Self {
        Self(vec![folder.to_owned()])
    }

    /// The first one of that name.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }

    /// Of programs with the packages of Debian that have them: those that are there, and the packages of those that are not.
    fn missing<'a>(&self, wanted: &[(&'a str, &'a str)]) -> (Vec<&'a str>, Vec<&'a str>) {
        let (there, missing): (Vec<_>, Vec<_>) =
            wanted.iter().partition(|(name, _)| self.find(name).is_some());
        let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
        packages.dedup();
        (there.iter().map(|(name, _)| *name).collect(), packages)
    }
}

/// What `spillway attach` and `detach` run, as root.
pub(super) fn attach(programs: &Programs) -> Finding {
    let tools = [("mount", "mount"), ("blkid", "util-linux"), ("blockdev", "util-linux")];
    let kinds = [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("mkfs.btrfs", "btrfs-progs")];
    let (there, missing) = programs.missing(&tools);
    let (can_make, _) = programs.missing(&kinds);
    let none = can_make.is_empty().then_some(kinds[0].1);
    let packages: Vec<_> = missing.into_iter().chain(none).collect();
    let all: Vec<_> = there.into_iter().chain(can_make).collect();
    let found =
        if all.is_empty() { "none of mount, blkid, blockdev, mkfs".to_owned() } else { all.join(", ") };
    let remedy =
        format!("Only for spillway attach --mkfs and detach: apt-get install {}.", packages.join(" "));
    Finding::new("attach", found, (!packages.is_empty()).then_some(remedy))
}

/// What images in qcow2 need.
pub(super) fn qemu_img(programs: &Programs) -> Finding {
    match programs.find("qemu-img") {
        Some(path) => Finding::ok("qemu-img", path.display().to_string()),
        None => Finding::note(
            "qemu-img",
            "missing",
            "Only for spillway save and load of qcow2 images: apt-get install qemu-utils.",
        ),
    }
}

/// What origins on Ceph need.
pub(super) fn librbd(loaded: &Result<(), Error>) -> Finding {
    match loaded {
        Ok(()) => Finding::ok("librbd", "can be loaded"),
        Err(error) => {
            let (found, remedy) =
                error.message().rsplit_once(": ").unwrap_or((error.message(), "install librbd1"));
            let remedy = format!("Only for origins rbd:POOL/IMAGE, with Ceph 14 or later: {remedy}.");
            Finding::note("librbd", found.trim_start_matches("rbd: "), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;
    use crate::scratch::Scratch;
    use spillway_core::Kind;

    #[test]
    fn missing_programs_are_named_by_their_packages_each_once() {
        let scratch = Scratch::new("programs");
        let programs = Programs::within(scratch.path());
        let finding = attach(&programs);
        assert!(finding.remedy.expect("a note").ends_with("apt-get install mount util-linux e2fsprogs."));
        ["mount", "blkid", "mkfs.xfs"].iter().for_each(|name| scratch.write(name, ""));
        let finding = attach(&programs);
        assert_eq!((finding.status, finding.found.as_str()), (Status::Note, "mount, blkid, mkfs.xfs"));
        assert!(finding.remedy.expect("a note").ends_with("apt-get install util-linux."));
        scratch.write("blockdev", "");
        assert_eq!(attach(&programs), Finding::ok("attach", "mount, blkid, blockdev, mkfs.xfs"));
        assert_eq!(qemu_img(&programs).status, Status::Note);
        scratch.write("qemu-img", "");
        assert_eq!(qemu_img(&programs).status, Status::Ok);
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        let error =
            Error::new(Kind::NotFound, "rbd: needs librbd.so.1, which cannot be loaded: install librbd1");
        let finding = librbd(&Err(error));
        assert_eq!(finding.found, "needs librbd.so.1, which cannot be loaded");
        assert!(finding.remedy.expect("a note").ends_with(": install librbd1."));
        assert_eq!(librbd(&Ok(())).status, Status::Ok);
    }
}
