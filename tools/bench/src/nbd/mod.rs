//! fio over NBD: Spillway beside nbdkit and qemu-nbd, on unix sockets, the same jobs in a drawn order.
//!
//! Also beside the kernel's zram, driven by fio on its block device: by io_uring, which passes each request to a thread of the kernel, and
//! by a system call for each request, whatever the depth. And beside a server without storage, the ceiling of this transport. The processor time of every server is measured in the same runs; ours, at depth 64 too, is
//! held against what compressing and decompressing alone cost here.

pub(crate) mod empty;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::statistics::median;
use crate::measure::table::{figure, named, once, ratio, row};
use crate::peers::fio::{Case, Contender, JOB_BYTES, case, fio, timed};
use crate::peers::kernel_zram::KernelZram;
use crate::peers::lz4::{lz4, unlz4};
use crate::peers::pages::{self, PAGE};
use crate::peers::servers::{Folder, binary, server};

const SIZE: u64 = 1 << 30;

/// Of a run; what warms up is shorter.
pub(crate) fn millis(round: usize, rounds: Rounds) -> u64 {
    if round == 0 { 200 } else { rounds.pick(800, 300) }
}

const CASES: [Case; 9] = [
    case("4K writes, 2 jobs", "randwrite", 4, 2, 16),
    case("4K reads, 2 jobs", "randread", 4, 2, 16),
    case("4K writes", "randwrite", 4, 1, 16),
    case("4K reads", "randread", 4, 1, 16),
    case("4K 70/30, 2 jobs", "randrw", 4, 2, 16),
    case("4K writes, depth 1", "randwrite", 4, 1, 1),
    case("4K reads, depth 1", "randread", 4, 1, 1),
    case("128K writes", "write", 128, 1, 16),
    case("128K reads", "read", 128, 1, 16),
];

const QEMU: &str = "qemu-nbd on tmpfs";
const WITH_ZSTD: &str = "nbdkit memory, zstd";

/// Least ratios to a peer, by case; 0 where none is wanted.
const WANTED: [(&str, [f64; CASES.len()]); 5] = [
    (WITH_ZSTD, [20.0, 3.0, 15.0, 1.7, 0.0, 0.0, 0.0, 0.0, 1.0]),
    ("nbdkit memory", [1.2, 2.0, 0.9, 1.1, 0.0, 1.3, 1.3, 0.0, 0.8]),
    (QEMU, [2.5, 3.5, 1.4, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ("kernel zram, io_uring", [0.7, 0.8, 0.7, 0.8, 0.0, 0.0, 0.0, 0.0, 0.95]),
    ("empty server", [0.87, 0.87, 0.87, 0.87, 0.87, 0.0, 0.0, 0.0, 0.0]),
];

/// Beside the figures of its allocator.
const NBDKIT_ZSTD: &str = "nbdkit's zstd compresses pages of 32 KiB behind one lock, and decompresses one before each write of a part of it: \
    with requests of 4 KiB it works on eight times the bytes of the others.";

/// How much faster a lonely request has to be where a worker polls.
const POLL_GAIN: f64 = 1.2;

/// Ours come first: lz4, zstd, and lz4 that never polls.
const LZ4: usize = 0;
const SLEEPING: usize = 2;
const PEERS: usize = 3;

/// Microseconds of the codec alone.
#[derive(Clone, Copy)]
pub(crate) struct Codec {
    pub(crate) compress: f64,
    pub(crate) decompress: f64,
}

impl Codec {
    /// For 4 KiB of a kind of job.
    fn of(self, rw: &str) -> f64 {
        match rw {
            "randwrite" | "write" => self.compress,
            "randrw" => 0.7 * self.decompress + 0.3 * self.compress,
            _ => self.decompress,
        }
    }
}

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let folder = Folder::new()?;
    let peer = KernelZram::if_there(SIZE);
    let contenders = start(&folder.0, peer.as_ref())?;
    let fill = case("fill", "write", 128, 2, 16);
    for contender in &contenders {
        fio(contender, &fill, &format!("--io_size={JOB_BYTES}"))?;
    }
    let figures = rounds.measure(|round| one_round(&contenders, round, rounds))?;
    let (rates, micros) = figures.split_at(contenders.len() * CASES.len());
    let codec = codec_micros(rounds)?;
    show_rates(&contenders, rates, rounds)?;
    show_polling(rates, micros, rounds)?;
    show_processor_time(&contenders, micros, codec, rounds)?;
    at_depth_64(&contenders[LZ4], codec, rounds)
}

/// Requests a second of every contender in every case, then the server's microseconds for each 4 KiB, in a drawn order: what
/// ran before must not decide. Not a number where a contender takes no part or has no server.
fn one_round(contenders: &[Contender], round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let count = contenders.len() * CASES.len();
    let mut figures = vec![f64::NAN; 2 * count];
    for turn in drawn_order(count, round) {
        let (contender, case) = (&contenders[turn / CASES.len()], &CASES[turn % CASES.len()]);
        if !(contender.takes)(case) {
            continue;
        }
        let millis = millis(round, rounds);
        let done = timed(contender, case, millis)?;
        figures[turn] = done.requests * 1e3 / millis as f64;
        if let Some(time) = done.server {
            figures[count + turn] = time.as_secs_f64() * 1e6 / (done.requests * case.kib as f64 / 4.0);
        }
    }
    Ok(figures)
}

fn heads() -> Vec<&'static str> {
    std::iter::once("").chain(CASES.iter().map(|case| case.name)).collect()
}

fn show_rates(contenders: &[Contender], rates: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of: Vec<&[Vec<f64>]> = rates.chunks(CASES.len()).collect();
    let thousands = |(contender, rates): (&Contender, &&[Vec<f64>])| {
        named(contender.name, rates.iter().map(|rates| figure(rates, 1).times(1e-3)))
    };
    let title = format!(
        "fio, depth 16 or 1, 50 % compressible, one job or two, runs of {:.1} s, thousand requests a second",
        millis(1, rounds) as f64 / 1e3
    );
    let rows = contenders.iter().zip(&of).map(thousands).collect();
    results::show(rounds.table(&title, &heads(), rows).note(NBDKIT_ZSTD))?;
    // The document has the last ones: zstd beside zstd, and lz4 beside all.
    let peers = PEERS..contenders.len();
    let zstd = peers.clone().rev().map(|peer| (LZ4 + 1, peer));
    let ratios = zstd.chain(peers.map(|peer| (LZ4, peer))).map(|(ours, peer)| {
        let bounds = WANTED.iter().find(|(name, _)| ours == LZ4 && *name == contenders[peer].name);
        let wanted = |case: usize| bounds.map_or(0.0, |(_, wanted)| wanted[case]);
        // nbdkit's memory is faster; lz4 beside zstd in larger pages is no comparison of servers.
        let is_claim = contenders[peer].name != QEMU && (ours != LZ4 || contenders[peer].name != WITH_ZSTD);
        let to_it = |case: usize| {
            let ratio = ratio(&of[ours][case], &of[peer][case]).wanted(wanted(case));
            if is_claim { ratio } else { ratio.no_claim() }
        };
        let name = format!("{} to {}", contenders[ours].name, contenders[peer].name);
        named(&name, (0..CASES.len()).map(to_it))
    });
    rounds.show("Ratio of ours to each, median over the rounds", &heads(), ratios.collect())
}

/// What polling before sleeping gains and costs.
fn show_polling(rates: &[Vec<f64>], micros: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let rows = (0..CASES.len()).filter(|case| is_lonely(&CASES[*case])).map(|case| {
        let (sleeps, polls) = (SLEEPING * CASES.len() + case, LZ4 * CASES.len() + case);
        row![
            CASES[case].name,
            figure(&rates[sleeps], 1).times(1e-3),
            figure(&rates[polls], 1).times(1e-3),
            ratio(&rates[polls], &rates[sleeps]).at_least(POLL_GAIN).of_ours(),
            figure(&micros[sleeps], 2),
            figure(&micros[polls], 2),
        ]
    });
    let title = "Polling: thousand requests a second, and server processor time, us a request, with `--poll-us 0` and without";
    let head = ["", "sleeps", "polls", "ratio", "time, sleeps", "time, polls"];
    rounds.show(title, &head, rows.collect())
}

/// The cases of which something is wanted of every peer.
fn is_deep_and_small(case: &Case) -> bool {
    case.kib == 4 && case.depth > 1
}

fn is_lonely(case: &Case) -> bool {
    case.depth == 1
}

/// Of every server, in the runs of the first table.
fn show_processor_time(
    contenders: &[Contender],
    micros: &[Vec<f64>],
    codec: Codec,
    rounds: Rounds,
) -> Result<()> {
    let servers =
        contenders.iter().zip(micros.chunks(CASES.len())).filter(|(contender, _)| contender.child.is_some());
    let row = |(contender, micros): (&Contender, &[Vec<f64>])| {
        named(contender.name, micros.iter().map(|micros| figure(micros, 2)))
    };
    let mut rows: Vec<_> = servers.map(row).collect();
    rows.push(named("lz4 alone, without a server", CASES.iter().map(|case| once(codec.of(case.rw), 2))));
    rounds.show("Server processor time, us for each 4 KiB", &heads(), rows)
}

/// Our time for a request at depth 64, and the codec's part of it.
fn at_depth_64(server: &Contender, codec: Codec, rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (jobs, direction) in [(1, "randwrite"), (1, "randread"), (2, "randwrite"), (2, "randread")] {
        let (job, codec) = (case("", direction, 4, jobs, 64), codec.of(direction));
        let figures = rounds.measure(|round| {
            let done = timed(server, &job, millis(round, rounds))?;
            let time = done.server.context("ours is a server")?;
            let micros = time.as_secs_f64() * 1e6 / done.requests;
            Ok(vec![micros, micros - codec])
        })?;
        let [whole, beyond] = &figures[..] else { unreachable!("two figures a round") };
        rows.push(row![
            format!("{direction}, {}", if jobs == 1 { "1 job" } else { "2 jobs" }),
            figure(whole, 2),
            once(codec, 2),
            figure(beyond, 2).at_most(3.5),
        ]);
    }
    rounds.show(
        "Server processor time at depth 64, us a request",
        &["", "in all", "codec alone", "beyond"],
        rows,
    )
}

/// What a page of fio's kind costs outside any server.
pub(crate) fn codec_micros(rounds: Rounds) -> Result<Codec> {
    let set = pages::half(16 << 20)?;
    let mut packed = vec![vec![0u8; 2 * PAGE]; set.count()];
    let mut page = vec![0u8; PAGE];
    let micros = |start: Instant| start.elapsed().as_secs_f64() * 1e6 / set.count() as f64;
    let figures = rounds.measure(|_| {
        let start = Instant::now();
        for (index, packed) in packed.iter_mut().enumerate() {
            packed.resize(2 * PAGE, 0);
            let len = lz4(set.page(index), packed);
            packed.truncate(len as usize);
        }
        let compress = micros(start);
        let start = Instant::now();
        packed.iter().for_each(|packed| unlz4(packed, &mut page));
        Ok(vec![compress, micros(start)])
    })?;
    Ok(Codec { compress: median(&figures[0]), decompress: median(&figures[1]) })
}

fn start(folder: &Path, peer: Option<&KernelZram>) -> Result<Vec<Contender>> {
    let image = folder.join("image");
    fs::File::create(&image)?.set_len(SIZE)?;
    let size = SIZE.to_string();
    let spillway = binary()?.to_string_lossy().into_owned();
    let image = image.to_string_lossy().into_owned();
    let ours = |name, export, algorithm, more: &[&str]| {
        let words = [&spillway, "ram", "--size", &size, "--algorithm", algorithm, "--name", export];
        server(name, folder, export, &[&words[..], more, &["--socket", "SOCKET"]].concat())
    };
    let nbdkit = ["nbdkit", "-f", "-U", "SOCKET", "memory", &size];
    // Its own io_uring makes it up to half as fast again as its threads do.
    let qemu = ["qemu-nbd", "-t", "-e", "16", "-f", "raw", "--aio=io_uring", "-k", "SOCKET", &image];
    let here = std::env::current_exe()?.to_string_lossy().into_owned();
    let mut all = vec![
        ours("spillway", "lz4", "lz4", &[])?,
        ours("spillway, zstd", "zstd", "zstd", &[])?,
        ours("spillway, sleeping", "sleeping", "lz4", &["--poll-us", "0"])?.only(is_lonely),
        server(WITH_ZSTD, folder, "", &[&nbdkit[..], &["allocator=zstd"]].concat())?,
        server("nbdkit memory", folder, "", &nbdkit)?,
        server(QEMU, folder, "", &qemu)?.only(is_deep_and_small),
        server("empty server", folder, "", &[&here, "empty", "SOCKET", &size])?,
    ];
    if let Some(peer) = peer {
        drop(peer.open()?);
        for (name, engine) in [("kernel zram, io_uring", "io_uring"), ("kernel zram, pread", "psync")] {
            let file = format!("--filename={}", peer.path().display());
            let target = vec![format!("--ioengine={engine}"), "--direct=1".into(), file];
            all.push(Contender { name, child: None, target, ceph_conf: None, takes: |_| true });
        }
    }
    Ok(all)
}
