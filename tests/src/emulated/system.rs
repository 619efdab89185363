//! What an emulated machine boots: a Debian kernel, and an initramfs of busybox, what else a check needs, and `spillway-guest`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tool::{finish, run};

/// Names a kernel's package to use in place of the archive's newest.
const PACKAGE: &str = "KERNEL_DEB";

/// The kernels of the archive: small, without drivers for real machines.
const NAMES: &str = r"^linux-image-[0-9.-]+(\+deb[0-9]+)?-cloud-amd64-unsigned$";

/// What a check boots.
#[derive(Clone, Copy)]
pub struct Recipe {
    /// A folder of cargo's target folder, for all that it leaves.
    pub folder: &'static str,
    /// Modules of the kernel.
    pub modules: &'static [&'static str],
    /// Programs besides busybox and `spillway-guest`.
    pub programs: &'static [&'static str],
    /// What the first program does, once the modules are there.
    pub init: &'static str,
}

/// Everything that lies in cargo's target folder for a check.
pub struct System {
    recipe: Recipe,
    folder: PathBuf,
    release: String,
}

impl System {
    /// Downloads and unpacks the kernel where that was not done before, and makes the initramfs.
    pub fn make(recipe: Recipe) -> Self {
        let program = std::env::current_exe().expect("the kernel knows the running program");
        let target = program.ancestors().nth(2).expect("programs lie in TARGET/PROFILE");
        let folder = target.join(recipe.folder);
        fs::create_dir_all(&folder).expect("the target folder is ours");
        let release = unpack(&folder, &package(target));
        let system = Self { recipe, folder, release };
        system.pack(&program.with_file_name("spillway-guest"));
        system
    }

    /// Where all of it lies, and the disks.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The kernel's release.
    pub fn release(&self) -> &str {
        &self.release
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.root().join("boot").join(format!("vmlinuz-{}", self.release))
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs")
    }

    /// All modules of the kernel.
    pub(crate) fn modules(&self) -> PathBuf {
        self.root().join("lib/modules")
    }

    fn root(&self) -> PathBuf {
        self.folder.join("kernel")
    }

    fn pack(&self, guest: &Path) {
        let tree = self.folder.join("tree");
        let _ = fs::remove_dir_all(&tree);
        for folder in ["bin", "dev", "proc", "sys", "modules"] {
            fs::create_dir_all(tree.join(folder)).expect("the folder is ours");
        }
        let init = tree.join("init");
        let script = [include_str!("begin.sh"), self.recipe.init].concat();
        fs::write(&init, script).expect("the folder is ours");
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        let busybox = run("sh", &["-c", "command -v busybox"]).well().out;
        let programs = self.recipe.programs.iter().map(Path::new);
        for program in [Path::new(busybox.trim()), guest].into_iter().chain(programs) {
            copy_program(program, &tree);
        }
        self.copy_modules(&tree.join("modules"));
        let archive = format!("find . | cpio -o -H newc --quiet > '{}'", self.initramfs().display());
        finish(Command::new("sh").args(["-c", &archive]).current_dir(&tree)).well();
    }

    /// With a file that has their order. A module that is part of the kernel has a line "builtin" in place of "insmod".
    fn copy_modules(&self, place: &Path) {
        let root = self.root();
        run("/usr/sbin/depmod", &[OsStr::new("-b"), root.as_os_str(), OsStr::new(&self.release)]).well();
        let mut order: Vec<String> = Vec::new();
        for module in self.recipe.modules {
            let which = ["-S", &self.release, "--show-depends", module].map(OsStr::new);
            let words = [&[OsStr::new("-d"), root.as_os_str()][..], &which].concat();
            let said = run("/usr/sbin/modprobe", &words).well().out;
            for path in said.lines().filter_map(|line| line.strip_prefix("insmod ")).map(str::trim) {
                let name = copied(Path::new(path), place);
                if !order.contains(&name) {
                    order.push(name);
                }
            }
        }
        fs::write(place.join("order"), order.join("\n") + "\n").expect("the folder is ours");
    }
}

/// The path of a kernel's package, downloaded unless that was done before.
fn package(target: &Path) -> PathBuf {
    if let Some(named) = std::env::var_os(PACKAGE) {
        return named.into();
    }
    let found = run("apt-cache", &["search", "--names-only", NAMES]).well().out;
    let names = found.lines().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>().join("\n");
    let newest = run("sh", &["-c", "printf '%s\\n' \"$1\" | sort -V | tail -n 1", "-", &names]).well().out;
    let newest = newest.trim();
    assert!(
        !newest.is_empty(),
        "there is no cloud kernel in the archive: run apt-get update, or set {PACKAGE}"
    );
    let folder = &target.join("kernel-package");
    fs::create_dir_all(folder).expect("the target folder is ours");
    let matching = || {
        let entries = fs::read_dir(folder).expect("the folder is ours").flatten().map(|entry| entry.path());
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&format!("{newest}_")) && name.ends_with(".deb")
        };
        entries.filter(is_it).max()
    };
    matching().unwrap_or_else(|| {
        let words = ["-o", "APT::Sandbox::User=root", "download", "-q", newest];
        finish(Command::new("apt-get").args(words).current_dir(folder)).well();
        matching().expect("apt-get has downloaded it")
    })
}

/// Unpacks it, and gives the kernel's release.
fn unpack(folder: &Path, package: &Path) -> String {
    let root = folder.join("kernel");
    let _ = fs::remove_dir_all(&root);
    run("dpkg-deb", &["-x".as_ref(), package.as_os_str(), root.as_os_str()]).well();
    let boot = fs::read_dir(root.join("boot")).expect("a kernel's package has a folder boot");
    let names = boot.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let release = names.into_iter().find_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned));
    release.expect("a kernel's package has a kernel")
}

/// Copies a program and its libraries.
fn copy_program(program: &Path, tree: &Path) {
    let name = copied(program, &tree.join("bin"));
    // Symbols for debuggers are most of it.
    finish(Command::new("strip").arg(tree.join("bin").join(name))).well();
    let libraries = run("ldd", &[program]).out;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let place = tree.join(library.trim_start_matches('/'));
        let folder = place.parent().expect("libraries lie in folders");
        fs::create_dir_all(folder).expect("the folder is ours");
        fs::copy(library, &place).expect("a library can be read");
    }
}

/// Copies a file into a folder, and gives its name.
fn copied(path: &Path, folder: &Path) -> String {
    let name = path.file_name().expect("it is a file").to_string_lossy().into_owned();
    let done = fs::copy(path, folder.join(&name));
    done.unwrap_or_else(|why| panic!("cannot copy {}: {why}", path.display()));
    name
}
