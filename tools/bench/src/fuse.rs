//! fio on loop devices with direct I/O: over the files of a mount, over nbdfuse on nbdkit, over
//! qemu-storage-daemon's export by FUSE, and over a file on tmpfs.
//!
//! As root: loop devices need it. The file on tmpfs has no server behind it: it is the ceiling for large reads.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Figure, figure, named, ratio, row};
use crate::nbd::millis;
use crate::peers::fio::{Case, Contender, JOB_BYTES, case, fio};
use crate::peers::loop_device::LoopDevice;
use crate::peers::mounted::{Server, appears, has_size, qemu_export};
use crate::peers::servers::{Folder, binary};

const SIZE: u64 = 512 << 20;

const CASES: [Case; 4] = [
    case("4K reads", "randread", 4, 1, 16),
    case("4K writes", "randwrite", 4, 1, 16),
    case("4K reads, depth 1", "randread", 4, 1, 1),
    case("1M reads", "read", 1024, 1, 4),
];
const LARGE: usize = 3;

/// Least ratios of ours to nbdfuse, by case; 0 where none is wanted.
const WANTED: [[f64; CASES.len()]; 2] = [[3.0, 3.0, 0.0, 0.0], [2.5, 2.5, 0.0, 0.0]];

/// Large reads of plain memory: so many GiB a second, or this share of those of the file on tmpfs.
const LARGE_GIB: f64 = 4.0;
const LARGE_SHARE: f64 = 0.8;

const OURS: [usize; 2] = [MEMORY, 1];
const MEMORY: usize = 0;
const NBDFUSE: usize = 2;
const QEMU: usize = 3;
const TMPFS: usize = 4;

/// A loop device over a file, and the server of the file.
struct Peer {
    contender: Contender,
    _device: LoopDevice,
    _server: Option<Server>,
}

impl Peer {
    /// Once the file is there.
    fn over(name: &'static str, file: &Path, server: Option<Server>) -> Result<Self> {
        appears(file)?;
        let device = LoopDevice::over(file)?;
        let filename = format!("--filename={}", device.path.display());
        let target = vec!["--ioengine=libaio".into(), "--direct=1".into(), filename];
        let contender = Contender { name, child: None, target, ceph_conf: None, takes: |_| true };
        Ok(Self { contender, _device: device, _server: server })
    }
}

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let folder = Folder::new()?;
    let peers = start(&folder.0)?;
    let fill = case("fill", "write", 1024, 1, 4);
    for peer in &peers {
        fio(&peer.contender, &fill, &format!("--io_size={JOB_BYTES}"))?;
    }
    let rates = rounds.measure(|round| one_round(&peers, round, rounds))?;
    show(&peers, &rates, rounds)
}

/// Requests a second of every peer in every case, in a drawn order.
fn one_round(peers: &[Peer], round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let mut figures = vec![f64::NAN; peers.len() * CASES.len()];
    let millis = millis(round, rounds);
    for turn in drawn_order(figures.len(), round) {
        let (peer, case) = (&peers[turn / CASES.len()], &CASES[turn % CASES.len()]);
        let requests = fio(&peer.contender, case, &format!("--time_based --runtime={millis}ms"))?;
        figures[turn] = requests * 1e3 / millis as f64;
    }
    Ok(figures)
}

fn show(peers: &[Peer], rates: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of: Vec<&[Vec<f64>]> = rates.chunks(CASES.len()).collect();
    let heads: Vec<&str> = std::iter::once("").chain(CASES.iter().map(|case| case.name)).collect();
    let shown = |(case, rates): (usize, &Vec<f64>)| match case {
        LARGE => gib(rates),
        _ => figure(rates, 1).times(1e-3),
    };
    let row = |(peer, rates): (&Peer, &&[Vec<f64>])| {
        named(peer.contender.name, rates.iter().enumerate().map(shown))
    };
    let title = "fio on loop devices with direct I/O, depth 16 or 1, 4 for 1M, thousand requests a second";
    rounds.show(title, &heads, peers.iter().zip(&of).map(row).collect())?;
    let to = |ours: usize, peer: usize| {
        // qemu-storage-daemon is faster than nbdfuse, and damages what is written.
        let wanted = if peer == NBDFUSE { WANTED[ours] } else { [1.0; CASES.len()] };
        let to_it = |case: usize| ratio(&of[ours][case], &of[peer][case]).wanted(wanted[case]).no_claim();
        let name = format!("{} to {}", peers[ours].contender.name, peers[peer].contender.name);
        named(&name, (0..CASES.len()).map(to_it))
    };
    let rows = [NBDFUSE, QEMU].into_iter().flat_map(|peer| OURS.map(|ours| to(ours, peer)));
    let title =
        "Ratio to nbdfuse over nbdkit, and to qemu-storage-daemon's export by FUSE of a file on tmpfs";
    let note = "Debian's qemu-storage-daemon 7.2 reads the next request into the buffer of a write in progress, so that \
                concurrent writes damage each other: a file system on its export did not survive. Its figures are those of requests.";
    results::show(rounds.table(title, &heads, rows.collect()).note(note))?;
    show_large(&of[MEMORY][LARGE], &of[TMPFS][LARGE], rounds)
}

/// Of requests of a MiB.
fn gib(rates: &[f64]) -> Figure {
    figure(rates, 2).times(1.0 / 1024.0).unit(" GiB/s")
}

/// The least of both bounds is what is wanted.
fn show_large(ours: &[f64], tmpfs: &[f64], rounds: Rounds) -> Result<()> {
    let (rate, share) = (gib(ours).at_least(LARGE_GIB), ratio(ours, tmpfs));
    let verdict = if rate.is_missed() { share.clone().at_least(LARGE_SHARE) } else { rate };
    let rows = vec![row![gib(ours), share, verdict]];
    rounds.show("1M reads of plain memory", &["ours", "share of tmpfs", "wanted"], rows)
}

fn start(folder: &Path) -> Result<Vec<Peer>> {
    let mount = |name: &str| {
        let place = folder.join(name);
        fs::create_dir(&place).map(|()| place)
    };
    let (ours, theirs) = (mount("ours")?, mount("theirs")?);
    let config = folder.join("fuse.toml");
    let device =
        |name: &str, origin: &str| format!("[[device]]\nname = \"{name}\"\norigin = {{ {origin} }}\n");
    let memory = device("memory", &format!("kind = \"memory\", size = {SIZE}"));
    let zram = device("zram", &format!("kind = \"zram\", disksize = {SIZE}"));
    fs::write(&config, format!("memory = \"2G\"\nmount = \"{}\"\n{memory}{zram}", ours.display()))?;
    let mut spillway = Command::new(binary()?);
    spillway
        .arg("serve")
        .arg(&config)
        .arg("--socket")
        .arg(folder.join("s"))
        .env("SPILLWAY_RUNTIME_DIR", folder);
    let file = theirs.join("disk");
    let mut nbdfuse = Command::new("nbdfuse");
    let size = SIZE.to_string();
    let nbdkit = ["[", "nbdkit", "memory", &size, "]"];
    results::command(Command::new("nbdfuse").arg("FILE").args(nbdkit))?;
    nbdfuse.arg(&file).args(nbdkit);
    let image = folder.join("image");
    File::create(&image)?.set_len(SIZE)?;
    // Both devices of the server are detached before it ends.
    let server = Server::start(spillway, ours.clone())?;
    let memory = Peer::over("spillway, memory", &ours.join("memory/disk"), None)?;
    let zram = Peer::over("spillway, zram", &ours.join("zram/disk"), Some(server))?;
    let nbdfuse = Server::start(nbdfuse, theirs)?;
    Ok(vec![
        memory,
        zram,
        Peer::over("nbdfuse, nbdkit memory", &file, Some(nbdfuse))?,
        qemu(folder)?,
        Peer::over("file on tmpfs", &image, None)?,
    ])
}

/// qemu-storage-daemon, which exports a file on tmpfs over FUSE.
fn qemu(folder: &Path) -> Result<Peer> {
    let (image, file) = (folder.join("qemu.image"), folder.join("qemu.export"));
    File::create(&image)?.set_len(SIZE)?;
    let server = Server::start(qemu_export(&image, &file)?, file.clone())?;
    has_size(&file, SIZE)?;
    Peer::over("qemu-storage-daemon, file on tmpfs", &file, Some(server))
}
