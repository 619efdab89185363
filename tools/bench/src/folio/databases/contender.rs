//! An image on the disk with ext4 in it, and each way to reach it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use rustix::fs::{Advice, fadvise};

use crate::measure::results;
use crate::peers::ext4::Ext4;
use crate::peers::loop_device::LoopDevice;
use crate::peers::mounted::{Server, appears};
use crate::peers::servers::{Folder, await_listener, binary};
use crate::spill::write_zeroes;

/// What is below the loop device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ours,
    Qemu,
    Native,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "spillway disk",
            Self::Qemu => "qemu-storage-daemon, nbdfuse",
            Self::Native => "the image itself",
        }
    }
}

/// See the head of this file.
pub(super) struct Contender {
    kind: Kind,
    folder: PathBuf,
    image: PathBuf,
    spillway: PathBuf,
    running: Option<Running>,
}

/// Ends from the top: file system, loop device, servers.
struct Running {
    ext4: Ext4,
    _device: LoopDevice,
    _servers: Vec<Server>,
}

/// On the disk, where an ordinary user may look for the place of a file system.
pub(super) fn folder() -> Result<Folder> {
    let folder = Folder::on_disk()?;
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

impl Contender {
    /// An image of `bytes` in a folder of its own below `disk`, with an empty file system.
    pub(super) fn make(kind: Kind, disk: &Path, bytes: u64) -> Result<Self> {
        let folder = disk.join(kind.name().replace([' ', ','], "-"));
        fs::create_dir(&folder)?;
        let image = folder.join("image");
        write_zeroes(&image, bytes)?;
        let device = LoopDevice::over(&image)?;
        drop(Ext4::make_without_discards(&device.path, folder.join("ext4"))?);
        drop(device);
        Ok(Self { kind, folder, image, spillway: binary()?, running: None })
    }

    /// Starts the server and mounts the file system, with nothing of the image in memory; returns where it is mounted.
    pub(super) fn start(&mut self) -> Result<&Path> {
        let image = File::open(&self.image)?;
        image.sync_all()?;
        fadvise(&image, 0, None, Advice::DontNeed)?;
        let (servers, file) = match self.kind {
            Kind::Ours => self.ours()?,
            Kind::Qemu => self.qemu()?,
            Kind::Native => (Vec::new(), self.image.clone()),
        };
        let device = LoopDevice::over(&file)?;
        let ext4 = Ext4::mount(&device.path, self.folder.join("ext4"))?;
        let running = self.running.insert(Running { ext4, _device: device, _servers: servers });
        Ok(&running.ext4.place)
    }

    /// All that was written is on the disk afterwards.
    pub(super) fn stop(&mut self) -> Result<()> {
        drop(self.running.take());
        Ok(File::open(&self.image)?.sync_all()?)
    }

    fn ours(&self) -> Result<(Vec<Server>, PathBuf)> {
        let mount = self.folder.join("mount");
        fs::create_dir_all(&mount)?;
        results::command(Command::new("spillway").args(["disk", "--origin", "IMAGE", "--mount", "DIR"]))?;
        let mut command = Command::new(&self.spillway);
        command.args(["disk", "--name", "disk0", "--origin"]).arg(&self.image).arg("--mount").arg(&mount);
        command.arg("--socket").arg(self.folder.join("s")).env("SPILLWAY_RUNTIME_DIR", &self.folder);
        let server = Server::start(command, mount.clone())?;
        let file = mount.join("disk0/disk");
        appears(&file)?;
        Ok((vec![server], file))
    }

    /// Its own export by FUSE cannot hold a file system: it reads the next request into the buffer of a write that is in progress
    /// (found in 7.2 by this benchmark: after concurrent writes the image differs from what was written). So it serves NBD, and nbdfuse
    /// makes that a file.
    fn qemu(&self) -> Result<(Vec<Server>, PathBuf)> {
        let (mount, socket) = (self.folder.join("mount"), self.folder.join("s"));
        fs::create_dir_all(&mount)?;
        let disk = |image: &str| format!("driver=file,node-name=disk,aio=io_uring,filename={image}");
        let listen = |socket: &str| format!("addr.type=unix,addr.path={socket}");
        let command = |image: &str, socket: &str| {
            let mut command = Command::new("qemu-storage-daemon");
            command.args(["--object", "iothread,id=thread"]);
            command.args(["--blockdev", &disk(image), "--nbd-server", &listen(socket)]);
            command
                .args(["--export", "type=nbd,id=disk,node-name=disk,name=disk,writable=on,iothread=thread"]);
            command
        };
        results::command(&command("IMAGE", "SOCKET"))?;
        let _ = fs::remove_file(&socket);
        let daemon = command(&self.image.display().to_string(), &socket.display().to_string());
        let daemon = Server::start(daemon, mount.clone())?;
        await_listener(&socket, "qemu-storage-daemon")?;
        results::command(Command::new("nbdfuse").args(["FILE", "nbd+unix:///disk?socket=SOCKET"]))?;
        let mut nbdfuse = Command::new("nbdfuse");
        let file = mount.join("disk");
        nbdfuse.arg(&file).arg(format!("nbd+unix:///disk?socket={}", socket.display()));
        let nbdfuse = Server::start(nbdfuse, mount)?;
        appears(&file)?;
        Ok((vec![nbdfuse, daemon], file))
    }
}
