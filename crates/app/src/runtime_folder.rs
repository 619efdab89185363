//! Where servers keep their sockets and clients find them.
//!
//! One rule, by the user's id alone, so that all shells, services and terminals of a user mean the same: `/run/user/UID/spillway` where
//! the folder above it is that user's, and `/tmp/spillway-UID`. Servers are made in the first, and looked for in both, because the system
//! makes and removes `/run/user/UID` as users come and go. For root asked through sudo, those of who asks come after its own. Where
//! `SPILLWAY_RUNTIME_DIR` is set, `spillway` in it is the only place, and servers there are those of the folder's owner.
//!
//! Anybody may create names in `/tmp`, so what is found there is used only if it is a real folder, of that user, and closed to others. A
//! device `NAME` has `NAME.sock` (NBD) and `NAME.ctl` (control), a server in the background `NAME.log` and `NAME.log.1` by its
//! first device.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::iter::once;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail, ensure};
use spillway_export::fuse::CLASS;
use spillway_io::fuse::User;
use spillway_io::is_listening;

use crate::exit::Failure;

/// Names the one folder in which servers are, for tests and for sets of servers that are to know nothing of each other.
const OVERRIDE: &str = "SPILLWAY_RUNTIME_DIR";

/// Longest path of a unix socket in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Longest device name in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A folder for sockets, and the others in which servers are looked for.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeFolder {
    path: PathBuf,
    owner: u32,
    beside: Vec<RuntimeFolder>,
}

impl RuntimeFolder {
    /// Where this user makes servers, which may not exist yet, and where they are looked for besides.
    pub(crate) fn locate() -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        if let Some(folder) = std::env::var_os(OVERRIDE) {
            return Self::only(folder.into(), uid);
        }
        let caller = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        let caller = caller.filter(|&caller| uid == 0 && caller != 0);
        let folders = |uid| Self::of_user(Path::new("/run/user"), Path::new("/tmp"), uid);
        Ok(Self::first(folders(uid).into_iter().chain(caller.into_iter().flat_map(folders))))
    }

    /// Root may name the folder of another user, such as that of a service: it finds that user's servers there, and makes none.
    fn only(folder: PathBuf, user: u32) -> Result<Self> {
        let found = fs::metadata(&folder).ok().filter(|found| folder.is_absolute() && found.is_dir());
        let owner = found.map(|found| found.uid()).filter(|&owner| owner == user || user == 0);
        if let Some(owner) = owner {
            return Ok(Self { path: folder.join("spillway"), owner, beside: Vec::new() });
        }
        Err(not_yours(&folder))
    }

    /// The folders of a user, that for new servers first.
    fn of_user(sessions: &Path, temporary: &Path, owner: u32) -> Vec<Self> {
        let session = Some(sessions.join(owner.to_string())).filter(|session| is_folder_of(session, owner));
        let session = session.map(|session| session.join("spillway"));
        let folders = session.into_iter().chain([temporary.join(format!("spillway-{owner}"))]);
        folders.map(|path| Self { path, owner, beside: Vec::new() }).collect()
    }

    fn first(folders: impl IntoIterator<Item = Self>) -> Self {
        let mut folders = folders.into_iter();
        let first = folders.next().expect("a user has a folder at least");
        Self { beside: folders.collect(), ..first }
    }

    /// The folder where a living server has `device`; this one where none has.
    pub(crate) fn of_device(mut self, device: &str) -> Self {
        let has =
            |folder: &Self| folder.expect_ours().is_ok() && is_listening(&folder.control_socket(device));
        if check_name(device).is_ok()
            && !has(&self)
            && let Some(index) = self.beside.iter().position(has)
        {
            let found = self.beside.remove(index);
            let beside = std::mem::take(&mut self.beside);
            return Self::first([found, self].into_iter().chain(beside));
        }
        self
    }

    /// This folder, and those besides that others cannot reach into.
    pub(crate) fn everywhere(&self) -> impl Iterator<Item = &Self> {
        once(self).chain(self.beside.iter().filter(|folder| folder.expect_ours().is_ok()))
    }

    /// A living server of this user that has `device` in another folder: its socket.
    pub(crate) fn taken_elsewhere(&self, device: &str) -> Option<PathBuf> {
        let others = self.everywhere().skip(1).filter(|folder| folder.owner == self.owner);
        others.map(|folder| folder.control_socket(device)).find(|socket| is_listening(socket))
    }

    /// The user whose servers it is for.
    pub(crate) fn user(&self) -> u32 {
        self.owner
    }

    /// User and group that it belongs to.
    pub(crate) fn owner(&self) -> Result<User> {
        let found = fs::symlink_metadata(&self.path);
        let gid = found.with_context(|| self.path.display().to_string())?.gid();
        Ok(User { uid: self.owner, gid })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), owner: rustix::process::geteuid().as_raw(), beside: Vec::new() }
    }

    /// Creates the folder where it is missing and checks that nobody else can reach into it.
    pub(crate) fn create(&self) -> Result<()> {
        if self.owner != rustix::process::geteuid().as_raw() {
            return Err(not_yours(&self.path));
        }
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
            "the folder {path} for sockets belongs to user {}: set {OVERRIDE} to a folder of your own",
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

    /// The name by which the kernel's NBD client knows a block device of `spillway attach`, its backend identifier: the control socket, by a path
    /// without links, and the machine-id(5), which few containers share. No server can name another one's.
    pub(crate) fn backend(&self, device: &str) -> String {
        let real = self.path.parent().and_then(|folder| fs::canonicalize(folder).ok());
        let path = real.zip(self.path.file_name()).map_or(self.path.clone(), |(real, name)| real.join(name));
        format!(
            "{}/{device}.ctl {}",
            path.display(),
            fs::read_to_string("/etc/machine-id").unwrap_or_default().trim()
        )
    }

    /// The log of a server in the background whose first device this is.
    pub(crate) fn log(&self, device: &str) -> PathBuf {
        self.path.join(format!("{device}.log"))
    }

    /// Names of the devices that have a control socket, dead or alive, in order. Other names are no device's.
    pub(crate) fn devices(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot list {}", self.path.display()))?,
        };
        self.check()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let devices = names.filter_map(|name| Some(name.strip_suffix(".ctl")?.to_owned()));
        let mut devices: Vec<_> = devices.filter(|name| check_name(name).is_ok()).collect();
        devices.sort();
        Ok(devices)
    }
}

fn not_yours(folder: &Path) -> Error {
    let text = format!("{OVERRIDE}: not a folder of yours ({folder:?}); name one, or unset it");
    Failure::usage(text).into()
}

fn is_folder_of(path: &Path, owner: u32) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == owner)
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
         or a shorter {OVERRIDE}",
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

    fn places(folder: &RuntimeFolder) -> Vec<&Path> {
        folder.everywhere().map(RuntimeFolder::path).collect()
    }

    /// What the system has made for sessions decides, and nothing of the environment.
    #[test]
    fn servers_are_made_in_one_folder_and_looked_for_in_all() {
        let scratch = Scratch::new("rule");
        let (sessions, temporary) = (scratch.path().join("run"), scratch.path().join("tmp"));
        let locate = |owner| RuntimeFolder::first(RuntimeFolder::of_user(&sessions, &temporary, owner));
        let (session, own) =
            (sessions.join(uid().to_string()), temporary.join(format!("spillway-{}", uid())));
        assert_eq!(places(&locate(uid())), [&own], "no session");
        fs::create_dir_all(&session).unwrap();
        assert_eq!(places(&locate(uid())), [&session.join("spillway"), &own]);
        let other = uid() + 1;
        std::os::unix::fs::symlink(&session, sessions.join(other.to_string())).unwrap();
        assert_eq!(locate(other).path(), temporary.join(format!("spillway-{other}")), "it is not theirs");
        fs::create_dir_all(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(places(&locate(uid())), [&session.join("spillway")], "others can reach into it");
    }

    #[test]
    fn a_folder_that_is_asked_for_is_the_only_one_or_refused() {
        let scratch = Scratch::new("asked");
        let asked = RuntimeFolder::only(scratch.path().into(), uid()).unwrap();
        assert_eq!(places(&asked), [&scratch.path().join("spillway")]);
        scratch.write("file", "");
        for (unusable, owner) in
            [("", uid()), ("relative", uid()), ("/does/not/exist", uid()), ("/", uid() + 1)]
                .map(|(path, owner)| (PathBuf::from(path), owner))
        {
            let refused = RuntimeFolder::only(unusable.clone(), owner).unwrap_err().to_string();
            assert!(refused.contains("not a folder of yours"), "{}: {refused}", unusable.display());
        }
        assert!(RuntimeFolder::only(scratch.path().join("file"), uid()).is_err());
    }

    #[test]
    fn a_block_device_is_known_by_one_name_whatever_links_lead_to_the_folder() {
        let scratch = Scratch::new("linked");
        fs::create_dir(scratch.path().join("real")).unwrap();
        symlink(scratch.path().join("real"), scratch.path().join("link")).unwrap();
        let [link, real] =
            ["link", "real"].map(|name| RuntimeFolder::only(scratch.path().join(name), uid()).unwrap());
        assert_eq!(link.backend("d"), real.backend("d"));
    }

    /// As that of a service, whose devices root attaches.
    #[test]
    fn root_finds_servers_in_the_folder_of_another_user_and_makes_none_there() {
        let scratch = Scratch::new("service");
        std::os::unix::fs::chown(scratch.path(), Some(65534), Some(65534)).unwrap();
        let found = RuntimeFolder::only(scratch.path().into(), 0).unwrap();
        assert_eq!(found.user(), 65534);
        assert!(found.create().unwrap_err().to_string().contains("not a folder of yours"));
        assert!(fs::read_dir(scratch.path()).unwrap().next().is_none(), "nothing was made");
        assert!(RuntimeFolder::only(scratch.path().into(), 65533).is_err());
    }

    #[test]
    fn a_device_is_found_where_its_server_lives_and_its_name_is_taken_there() {
        let scratch = Scratch::new("found");
        let at = |name: &str| RuntimeFolder::at(&scratch.path().join(name));
        let all = RuntimeFolder::first([at("a"), at("b"), at("c")]);
        all.everywhere().for_each(|folder| folder.create().unwrap());
        let listen =
            |name: &str| std::os::unix::net::UnixListener::bind(at(name).control_socket("ram0")).unwrap();
        assert_eq!(all.clone().of_device("ram0").path(), at("a").path(), "nobody has it");
        // The socket of a dead server stays.
        drop(listen("a"));
        let living = listen("b");
        let found = all.clone().of_device("ram0");
        assert_eq!(places(&found), [&at("b"), &at("a"), &at("c")].map(|folder| folder.path.clone()));
        assert_eq!(all.taken_elsewhere("ram0"), Some(at("b").control_socket("ram0")));
        assert_eq!((all.taken_elsewhere("ram1"), found.taken_elsewhere("ram0")), (None, None));
        fs::set_permissions(at("b").path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(all.clone().of_device("ram0").path(), at("a").path(), "anybody may answer there");
        assert_eq!(all.taken_elsewhere("ram0"), None);
        drop(living);
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
