//! Servers that listen on unix sockets, ours and peers, and the folders that they have.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use spillway_fixture::{forget_package, patiently};

use super::fio::Contender;
use crate::measure::results;

/// qemu-nbd over a file, with the system's cache. Its own io_uring makes it up to half as fast again as its threads do.
pub(crate) const QEMU_NBD: &[&str] = &[
    "qemu-nbd",
    "-t",
    "-e",
    "16",
    "-f",
    "raw",
    "--aio=io_uring",
    "--cache=writeback",
    "-k",
    "SOCKET",
    "FILE",
];

/// Where a server listens that [`server`] starts.
pub(crate) fn socket_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}.sock", name.replace([' ', ','], "-")))
}

/// Starts a server; the word `SOCKET` stands for the path of its socket.
pub(crate) fn server(name: &'static str, folder: &Path, export: &str, words: &[&str]) -> Result<Contender> {
    let socket = socket_of(folder, name);
    let path = socket.to_string_lossy().into_owned();
    results::command(Command::new(words[0]).args(&words[1..]))?;
    let mut command = Command::new(words[0]);
    command.args(words[1..].iter().map(|word| if *word == "SOCKET" { path.as_str() } else { word }));
    command.env("SPILLWAY_RUNTIME_DIR", folder).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().with_context(|| format!("{} cannot be started: install it", words[0]))?;
    let target = vec!["--ioengine=nbd".into(), format!("--uri=nbd+unix:///{export}?socket={path}")];
    let contender = Contender { name, child: Some(child), target, ceph_conf: None, takes: |_| true };
    await_listener(&socket, name)?;
    Ok(contender)
}

/// Waits until a connection to `socket`, on which the server of this `name` is to listen, succeeds.
pub(crate) fn await_listener(socket: &Path, name: &str) -> Result<()> {
    let connected = patiently(|| UnixStream::connect(socket).ok());
    connected.map(drop).with_context(|| format!("{name} does not listen on {}", socket.display()))
}

/// The server, built for release beside this program when it is first asked for.
pub(crate) fn binary() -> Result<PathBuf> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = BUILT.get() {
        return Ok(path.clone());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--quiet", "--package", "spillway"];
    let status = forget_package(&mut Command::new(cargo)).args(build).status()?;
    ensure!(status.success(), "spillway cannot be built");
    let here = std::env::current_exe()?;
    let path = here.parent().context("a program lies in a folder")?.join("spillway");
    Ok(BUILT.get_or_init(|| path).clone())
}

/// A private folder.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// On tmpfs.
    pub(crate) fn new() -> Result<Self> {
        Self::below(Path::new("/dev/shm"))
    }

    /// On the disk that holds temporary files.
    pub(crate) fn on_disk() -> Result<Self> {
        Self::below(&std::env::temp_dir())
    }

    fn below(place: &Path) -> Result<Self> {
        let path = place.join(results::scratch());
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
