//! The root of the guest: a minimal Debian in an image, with the package of this build beside it.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tool::{finish, run};
use crate::{binary, text};
use spillway_fixture::emulated::System;

/// Packages of the guest besides the essential ones.
const PACKAGES: &str = "systemd-sysv,dbus,kmod,e2fsprogs,libnbd-bin,curl";

/// Bytes of the image, most of which take no room.
const SIZE: u64 = 1 << 30;

/// Any that is fixed: systemd takes a machine without one for new, and enables units.
const MACHINE_ID: &str = "11111111111111111111111111111111\n";

/// See the head of this file.
pub struct Root(PathBuf);

impl Root {
    /// Makes it, as root; the Debian is made where that was not done before.
    pub fn make(system: &System) -> Self {
        let folder = system.folder();
        let tree = folder.join("root");
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir(&tree).expect("the target folder is ours");
        run("tar", &["--extract", "--file", text(&debian(folder)), "--directory", text(&tree)]).well();
        furnish(system, &tree);
        let image = folder.join("root.img");
        File::create(&image).and_then(|file| file.set_len(SIZE)).expect("the target folder is ours");
        run("/usr/sbin/mke2fs", &["-q", "-F", "-t", "ext4", "-d", text(&tree), text(&image)]).well();
        fs::remove_dir_all(&tree).expect("the folder is ours");
        Self(image)
    }

    /// As an argument of QEMU.
    pub(super) fn drive(&self) -> String {
        format!("file={},if=virtio,format=raw", self.0.display())
    }
}

/// An archive of a Debian with nothing of ours.
fn debian(folder: &Path) -> PathBuf {
    let (archive, partial) = (folder.join("debian.tar"), folder.join("debian.partial.tar"));
    if !archive.exists() {
        let release = run("sh", &["-c", ". /etc/os-release && echo $VERSION_CODENAME"]).well().out;
        let release = release.trim();
        let codename = format!("Codename: {release}");
        let words =
            ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", &codename];
        let mirrors = run("apt-get", &words).well().out;
        let mirror =
            mirrors.lines().next().unwrap_or_else(|| panic!("apt has no mirror of Debian {release}"));
        let include = format!("--include={PACKAGES}");
        run("mmdebstrap", &["--quiet", "--variant=minbase", &include, release, text(&partial), mirror])
            .well();
        fs::rename(partial, &archive).expect("the target folder is ours");
    }
    archive
}

/// Adds the kernel's modules, the package and the service that checks it.
fn furnish(system: &System, tree: &Path) {
    let write = |path: &str, content: &str| {
        fs::write(tree.join(path), content).unwrap_or_else(|why| panic!("{path}: {why}"));
    };
    let modules = system.modules();
    run("cp", &["--recursive", text(&modules), text(&tree.join("usr/lib/modules"))]).well();
    write("etc/machine-id", MACHINE_ID);
    write("etc/fstab", "/dev/vda / ext4 defaults 0 1\n");
    write("check.sh", include_str!("check.sh"));
    write("etc/systemd/system/check.service", include_str!("check.service"));
    let wants = tree.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).expect("the folder is ours");
    symlink("/etc/systemd/system/check.service", wants.join("check.service")).expect("the folder is ours");
    let package = package(tree.parent().expect("the tree lies in a folder"));
    fs::copy(package, tree.join("spillway.deb")).expect("the folder is ours");
}

/// The package of the program under test.
fn package(folder: &Path) -> PathBuf {
    let built = binary::to_package();
    let into = folder.join("package");
    let mut xtask = Command::new(built.join("xtask"));
    let said = finish(xtask.args(["package", "--built"]).arg(built).arg("--into").arg(into)).well();
    said.out.lines().last().expect("it prints the path").into()
}
