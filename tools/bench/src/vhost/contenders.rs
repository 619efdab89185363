//! What takes part: our server by each of its ways, and its peers, all of the same size and filled.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::calls::Calls;
use super::cases::{Case, SIZE};
use super::client::Client;
use super::generator::{Done, Generator, Transport, lasting};
use super::guest::Guest;
use super::ring::Ring;
use crate::peers::fio::{self, server_time};
use crate::peers::kernel_zram::KernelZram;
use crate::peers::servers::{Folder, await_listener, binary, server, socket_of};

pub(super) const GUEST: &str = "vhost-user";
pub(super) const TWO_QUEUES: &str = "vhost-user, 2 queues";
pub(super) const SLEEPING: &str = "vhost-user, --poll-us 0";
pub(super) const NBD: &str = "our NBD";
pub(super) const KERNEL: &str = "kernel zram, io_uring";
pub(super) const KERNEL_CALLS: &str = "kernel zram, pread";
pub(super) const QEMU_TMPFS: &str = "qemu-storage-daemon on tmpfs";
pub(super) const QEMU_DISK: &str = "qemu-storage-daemon on the disk";
/// The faster of both.
pub(super) const QEMU: &str = "qemu-storage-daemon";

/// Sequential writes that fill a device.
const FILL: Case = Case::large("", true, 16);

/// How a device is reached.
pub(super) enum Way {
    /// By vhost-user, with so many queues.
    Guest { socket: PathBuf, queues: usize },
    /// By NBD.
    Client { socket: PathBuf, export: &'static str },
    /// As a block device of this kernel, or a file.
    Ring(File),
    /// The same by a system call for each request.
    Calls(File),
}

impl Way {
    fn open(&self, case: Case) -> Result<Box<dyn Transport>> {
        Ok(match self {
            Way::Guest { socket, queues } => Box::new(Guest::connect(socket, case, *queues)?),
            Way::Client { socket, export } => Box::new(Client::connect(socket, export, case)?),
            Way::Ring(device) => Box::new(Ring::new(device, case)?),
            Way::Calls(device) => Box::new(Calls::new(device, case)?),
        })
    }

    /// A generator whose offsets `seed` decides.
    pub(super) fn generator(&self, case: Case, seed: u64) -> Result<Generator> {
        let queues = if let Way::Guest { queues, .. } = self { *queues } else { 1 };
        Generator::new(self.open(case)?, case, queues * case.depth, seed)
    }

    /// Writes the whole device once.
    fn fill(&self) -> Result<()> {
        let all = SIZE as usize / FILL.bytes;
        self.generator(FILL, 0)?.drive(|requests| requests < all)?;
        Ok(())
    }
}

/// A way to a device, and the cases that it takes part in.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) way: Way,
    /// The number of its server.
    server: Option<usize>,
    /// What its server stores into, where writes reach that later.
    image: Option<PathBuf>,
    pub(super) takes: fn(&Case) -> bool,
}

/// All of them, and what has to stay for so long.
pub(super) struct Field {
    pub(super) contenders: Vec<Contender>,
    servers: Vec<fio::Contender>,
    _peer: Option<KernelZram>,
    _folders: [Folder; 2],
    seed: Cell<u64>,
}

impl Field {
    /// Starts servers, makes devices and fills them. A peer that is not to be had here is left out, with a
    /// line that says why.
    pub(super) fn new() -> Result<Self> {
        let (tmpfs, disk) = (Folder::new()?, Folder::on_disk()?);
        let (mut contenders, mut servers) = ours(&tmpfs.0)?;
        for (name, folder) in [(QEMU_TMPFS, &tmpfs), (QEMU_DISK, &disk)] {
            match qemu(name, &tmpfs.0, &folder.0.join("image"), servers.len()) {
                Ok((contender, server)) => {
                    contenders.push(contender);
                    servers.push(server);
                }
                Err(why) => println!("No comparison with {name}: {why:#}"),
            }
        }
        let peer = KernelZram::new(SIZE).and_then(|peer| {
            for (name, way) in [(KERNEL, Way::Ring(peer.open()?)), (KERNEL_CALLS, Way::Calls(peer.open()?))] {
                contenders.push(Contender { name, way, server: None, image: None, takes: |_| true });
            }
            Ok(peer)
        });
        if let Err(why) = &peer {
            println!("No comparison with the kernel's zram: {why:#}");
        }
        // The other ways of the first server and of the kernel's zram lead to the same device.
        let is_another_device =
            |contender: &&Contender| ![TWO_QUEUES, NBD, KERNEL_CALLS].contains(&contender.name);
        for contender in contenders.iter().filter(is_another_device) {
            contender.way.fill().with_context(|| format!("filling {}", contender.name))?;
        }
        let folders = [tmpfs, disk];
        Ok(Self { contenders, servers, _peer: peer.ok(), _folders: folders, seed: Cell::new(0) })
    }

    /// Runs a case for so long. Also the microseconds of its server for each 4 KiB; not a number without a
    /// server.
    pub(super) fn timed(&self, contender: &Contender, case: Case, millis: u64) -> Result<(Done, f64)> {
        self.seed.set(self.seed.get() + 1);
        let server = contender.server.map(|number| &self.servers[number]);
        let time = || Ok::<_, anyhow::Error>(server.map(server_time).transpose()?.flatten());
        let generator = contender.way.generator(case, self.seed.get())?;
        let before = time()?;
        let done = generator.drive(lasting(Duration::from_millis(millis)));
        let done = done.with_context(|| format!("{} of {}", case.name, contender.name))?;
        let spent = time()?.zip(before).map(|(after, before)| (after - before).as_secs_f64() * 1e6);
        if let Some(image) = &contender.image {
            File::open(image)?.sync_all()?;
        }
        let pages = done.requests * case.bytes as f64 / 4096.0;
        Ok((done, spent.map_or(f64::NAN, |spent| spent / pages)))
    }
}

/// Starts a server of ours that is reached in both ways.
pub(super) fn start_ours(folder: &Path, export: &'static str, more: &[&str]) -> Result<fio::Contender> {
    let (spillway, size) = (binary()?.to_string_lossy().into_owned(), SIZE.to_string());
    let socket = guest_socket(folder, export);
    let guest = socket.to_string_lossy().into_owned();
    let words = [&spillway, "ram", "--size", &size, "--algorithm", "lz4", "--name", export];
    let sockets = ["--vhost-user", &guest, "--socket", "SOCKET"];
    let server = server(export, folder, export, &[&words[..], &sockets, more].concat())?;
    await_listener(&socket, export)?;
    Ok(server)
}

/// Where such a server is reached by vhost-user.
fn guest_socket(folder: &Path, export: &str) -> PathBuf {
    folder.join(format!("{export}-guest.sock"))
}

/// By vhost-user, to a server of ours.
pub(super) fn as_guest(folder: &Path, export: &str, queues: usize) -> Way {
    Way::Guest { socket: guest_socket(folder, export), queues }
}

/// By NBD, to a server of ours.
pub(super) fn as_client(folder: &Path, export: &'static str) -> Way {
    Way::Client { socket: socket_of(folder, export), export }
}

/// By a file of its mount.
pub(super) fn as_file(path: &Path) -> Result<Way> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(path);
    file.map(Way::Ring).with_context(|| path.display().to_string())
}

/// Fills the device of a server of ours.
pub(super) fn fill_ours(folder: &Path, export: &str) -> Result<()> {
    as_guest(folder, export, 1).fill()
}

fn ours(folder: &Path) -> Result<(Vec<Contender>, Vec<fio::Contender>)> {
    let servers = vec![start_ours(folder, "lz4", &[])?, start_ours(folder, "sleeping", &["--poll-us", "0"])?];
    let contender = |name, way, server, takes: fn(&Case) -> bool| Contender {
        name,
        way,
        server: Some(server),
        image: None,
        takes,
    };
    let contenders = vec![
        contender(GUEST, as_guest(folder, "lz4", 1), 0, |_| true),
        contender(TWO_QUEUES, as_guest(folder, "lz4", 2), 0, |case| case.is_small() && case.depth > 1),
        contender(SLEEPING, as_guest(folder, "sleeping", 1), 1, |case| case.depth == 1 || case.depth == 64),
        contender(NBD, as_client(folder, "lz4"), 0, |_| true),
    ];
    Ok((contenders, servers))
}

/// qemu-storage-daemon over the file `image`, which is made; it is the server of this `number`. Its own
/// io_uring makes it two to three times as fast as its threads do at depth 64; in an iothread it polls, as it does not in its main loop.
fn qemu(
    name: &'static str,
    folder: &Path,
    image: &Path,
    number: usize,
) -> Result<(Contender, fio::Contender)> {
    File::create(image)?.set_len(SIZE)?;
    let socket = socket_of(folder, name);
    let disk = format!("driver=file,node-name=disk,aio=io_uring,filename={}", image.display());
    let export = format!(
        "type=vhost-user-blk,id=disk,node-name=disk,writable=on,iothread=thread,addr.type=unix,addr.path={}",
        socket.display()
    );
    let thread = ["--object", "iothread,id=thread"];
    let words = [&["qemu-storage-daemon"], &thread[..], &["--blockdev", &disk, "--export", &export]];
    let server = server(name, folder, "", &words.concat())?;
    let way = Way::Guest { socket, queues: 1 };
    let image = Some(image.to_owned());
    Ok((Contender { name, way, server: Some(number), image, takes: |_| true }, server))
}
