//! Where servers keep their sockets and clients find them.
//!
//! `$XDG_RUNTIME_DIR/spillway`, or where that variable is unset or names no folder of ours, `spillway-UID` below the
//! temporary folder. Anybody may create names in a temporary folder, so what is found there is used only if it is a real
//! folder, ours, and closed to others. A device `NAME` has `NAME.sock` (NBD) and `NAME.ctl` (control), a server in the
//! background `NAME.log` and `NAME.log.1` by its first device.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use spillway_export::fuse::CLASS;

use crate::exit::Failure;

/// Longest path of a unix socket in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Longest device name in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The folder for sockets.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeFolder {
    path: PathBuf,
    owner: u32,
}

impl RuntimeFolder {
    /// The folder of this user, which may not exist yet.
    pub(crate) fn locate() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { path: choose(std::env::var_os("XDG_RUNTIME_DIR"), &std::env::temp_dir(), uid), owner: uid }
    }

    /// Whether it is that of this user.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == rustix::process::geteuid().as_raw()
    }

    /// User and group that it belongs to.
    pub(crate) fn owner(&self) -> Result<(u32, u32)> {
        let found = fs::symlink_metadata(&self.path);
        Ok((self.owner, found.with_context(|| self.path.display().to_string())?.gid()))
    }

    /// The folder where `device` is: that of this user, or, where root is asked through sudo and has no such device, of who asks.
    pub(crate) fn of_device(device: &str) -> Self {
        let ours = Self::locate();
        let caller = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        match caller.filter(|_| rustix::process::geteuid().is_root()) {
            Some(uid) if !ours.control_socket(device).exists() => {
                let runtime = format!("/run/user/{uid}").into();
                Self { path: choose(Some(runtime), &std::env::temp_dir(), uid), owner: uid }
            }
            _ => ours,
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), owner: rustix::process::geteuid().as_raw() }
    }

    /// Creates the folder where it is missing and checks that nobody else can reach into it.
    pub(crate) fn create(&self) -> Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => Err(why)
                .with_context(|| format!("cannot create the folder {} for sockets", self.path.display())),
            _ => self.check(),
        }
    }

    /// Checks an existing folder.
    fn check(&self) -> Result<()> {
        let path = self.path.display();
        let found = fs::symlink_metadata(&self.path).with_context(|| format!("cannot look at {path}"))?;
        ensure!(found.is_dir(), "{path} must be a folder for sockets but is something else: remove it");
        ensure!(
            found.uid() == self.owner,
            "the folder {path} for sockets belongs to user {}: set XDG_RUNTIME_DIR to a folder of your own",
            found.uid()
        );
        ensure!(
            found.mode() & 0o077 == 0,
            "the folder {path} for sockets is open to others (mode {:o}): run chmod 700 {path}",
            found.mode() & 0o777
        );
        Ok(())
    }

    /// The NBD socket of a device.
    pub(crate) fn nbd_socket(&self, device: &str) -> PathBuf {
        self.path.join(format!("{device}.sock"))
    }

    /// Refuses a folder that others can reach into: what answers in it may be anybody. One that does not exist is sound.
    pub(crate) fn expect_ours(&self) -> Result<()> {
        match fs::symlink_metadata(&self.path) {
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(()),
            _ => self.check(),
        }
    }

    /// The control socket of a device.
    pub(crate) fn control_socket(&self, device: &str) -> PathBuf {
        self.path.join(format!("{device}.ctl"))
    }

    /// The log of a server in the background whose first device this is.
    pub(crate) fn log(&self, device: &str) -> PathBuf {
        self.path.join(format!("{device}.log"))
    }

    /// A name for something of a command, which is no socket of a device.
    pub(crate) fn private(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{}.tmp", std::process::id()))
    }

    /// Names of the devices that have a control socket, dead or alive, in order.
    pub(crate) fn devices(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot list {}", self.path.display()))?,
        };
        self.check()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut devices: Vec<_> =
            names.filter_map(|name| Some(name.strip_suffix(".ctl")?.to_owned())).collect();
        devices.sort();
        Ok(devices)
    }
}

fn choose(runtime: Option<OsString>, temporary: &Path, uid: u32) -> PathBuf {
    let ours = |path: &PathBuf| {
        let folder: Option<Metadata> = fs::metadata(path).ok();
        path.is_absolute() && folder.is_some_and(|found| found.is_dir() && found.uid() == uid)
    };
    match runtime.map(PathBuf::from).filter(ours) {
        Some(runtime) => runtime.join("spillway"),
        None => temporary.join(format!("spillway-{uid}")),
    }
}

/// Refuses what cannot be the name of a device: it becomes part of file names, URIs and tables.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let sound = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(allowed);
    if name == CLASS {
        bail!(Failure::usage(format!(
            "device name {name} is not allowed: a mount has a folder of that name"
        )));
    }
    if sound {
        return Ok(());
    }
    bail!(Failure::usage(format!(
        "device name {name:?} is not allowed: give 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-', \
         beginning with a letter or digit"
    )))
}

/// Refuses a path that the system cannot bind a socket to.
pub(crate) fn check_socket_path(path: &Path) -> Result<()> {
    let len = path.as_os_str().len();
    if len <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    bail!(Failure::usage(format!(
        "the socket path {} has {len} bytes, {SOCKET_PATH_BYTES_MAX} are allowed: give a shorter --socket or --name, \
         or a shorter XDG_RUNTIME_DIR",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn the_runtime_folder_of_the_session_comes_first() {
        let scratch = Scratch::new("runtime");
        let here = scratch.path();
        assert_eq!(choose(Some(here.into()), here, uid()), here.join("spillway"));
        let own = here.join(format!("spillway-{}", uid()));
        assert_eq!(choose(None, here, uid()), own);
        for unusable in ["", "relative", "/does/not/exist"] {
            assert_eq!(choose(Some(unusable.into()), here, uid()), own, "{unusable:?}");
        }
        let other = uid() + 1;
        assert_eq!(choose(Some(here.into()), here, other), here.join(format!("spillway-{other}")));
    }

    #[test]
    fn it_is_created_closed_and_accepted_again() {
        let scratch = Scratch::new("create");
        let folder = RuntimeFolder::at(&scratch.path().join("new"));
        folder.create().unwrap();
        folder.create().unwrap();
        assert_eq!(fs::metadata(&folder.path).unwrap().mode() & 0o777, 0o700);
        fs::write(folder.control_socket("b1"), "").unwrap();
        fs::write(folder.control_socket("a0"), "").unwrap();
        fs::write(folder.nbd_socket("a0"), "").unwrap();
        assert_eq!(folder.devices().unwrap(), ["a0", "b1"]);
    }

    #[test]
    fn links_files_and_open_folders_are_refused() {
        let scratch = Scratch::new("refuse");
        let real = scratch.path().join("real");
        RuntimeFolder::at(&real).create().unwrap();
        let link = scratch.path().join("link");
        symlink(&real, &link).unwrap();
        assert!(RuntimeFolder::at(&link).create().unwrap_err().to_string().contains("something else"));
        scratch.write("file", "");
        assert!(RuntimeFolder::at(&scratch.path().join("file")).create().is_err());
        fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
        let error = RuntimeFolder::at(&real).expect_ours().unwrap_err().to_string();
        assert!(error.contains("mode 755"), "{error}");
        let error = RuntimeFolder::at(&real).create().unwrap_err().to_string();
        assert!(error.contains("mode 755") && error.contains("chmod 700"), "{error}");
    }

    #[test]
    fn a_folder_that_does_not_exist_has_no_devices() {
        let folder = RuntimeFolder::at(Path::new("/does/not/exist"));
        assert!(folder.expect_ours().is_ok() && folder.devices().unwrap().is_empty());
    }

    #[test]
    fn names_that_would_leave_the_folder_are_refused() {
        for good in ["ram0", "a", "My.disk_2-x", "0"] {
            check_name(good).unwrap();
        }
        for bad in [CLASS, "", ".", "..", "../x", "a/b", "a b", "-x", ".x", "é", "a\n", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_socket_path(Path::new(&"x".repeat(108))).is_err());
    }
}
