//! fio over NBD: Spillway beside nbdkit and qemu-nbd, on unix sockets, the same jobs in a drawn order.
//!
//! Also beside the kernel's zram, driven by fio's io_uring engine on its block device, and beside a server without storage,
//! the ceiling of this transport; and the server's processor time for a request at depth 64, held against what compressing
//! and decompressing alone cost here.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::kernel_zram::KernelZram;
use crate::lz4::{lz4, unlz4};
use crate::pages::{self, PAGE};
use crate::report::{Rounds, bounded, drawn_order, median, ratio, table};

const SIZE: u64 = 1 << 30;
const JOB_BYTES: u64 = 256 << 20;
const SECONDS: u64 = 2;

/// A running server or device, and how fio reaches it.
struct Contender {
    name: &'static str,
    child: Option<Child>,
    target: Vec<String>,
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One job of fio, and how it is named in the tables.
struct Case {
    name: &'static str,
    rw: &'static str,
    kib: u64,
    jobs: usize,
    depth: usize,
}

const fn case(name: &'static str, rw: &'static str, kib: u64, jobs: usize, depth: usize) -> Case {
    Case { name, rw, kib, jobs, depth }
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

/// Least ratios to a peer, by case; 0 where none is wanted.
const WANTED: [(&str, [f64; CASES.len()]); 5] = [
    ("nbdkit memory, zstd", [20.0, 3.0, 15.0, 1.7, 0.0, 0.0, 0.0, 0.0, 1.0]),
    ("nbdkit memory", [1.2, 2.0, 0.9, 1.1, 0.0, 1.1, 1.1, 0.0, 0.8]),
    ("qemu-nbd on tmpfs", [2.5, 3.5, 1.4, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ("kernel zram, io_uring", [0.7, 0.8, 0.7, 0.8, 0.0, 0.0, 0.0, 0.0, 0.95]),
    ("empty server", [0.87, 0.87, 0.87, 0.87, 0.0, 0.0, 0.0, 0.0, 0.0]),
];

pub(crate) fn run(count: usize) -> Result<()> {
    let rounds = Rounds { count, command: "nbd" };
    let folder = Folder::new()?;
    let peer = KernelZram::new(SIZE);
    if let Err(why) = &peer {
        println!("No comparison with the kernel's zram: {why:#}");
    }
    let contenders = start(&folder.0, peer.as_ref().ok())?;
    let fill = case("fill", "write", 128, 2, 16);
    for contender in &contenders {
        fio(contender, &fill, &format!("--io_size={JOB_BYTES}"))?;
    }
    let figures = rounds.measure(|round| {
        eprintln!("round {round} of {count}");
        one_round(&contenders, round)
    })?;
    show(&contenders, &figures, rounds);
    processor_time(&contenders[0], rounds)
}

/// Requests a second of every contender in every case, in a drawn order: what ran before must not decide.
fn one_round(contenders: &[Contender], round: usize) -> Result<Vec<f64>> {
    let mut rates = vec![0.0; contenders.len() * CASES.len()];
    for turn in drawn_order(rates.len(), round) {
        let (contender, case) = (&contenders[turn / CASES.len()], &CASES[turn % CASES.len()]);
        rates[turn] = timed(contender, case)?.requests / SECONDS as f64;
    }
    Ok(rates)
}

fn show(contenders: &[Contender], figures: &[Vec<f64>], rounds: Rounds) {
    let head: Vec<&str> = std::iter::once("").chain(CASES.iter().map(|case| case.name)).collect();
    let of: Vec<&[Vec<f64>]> = figures.chunks(CASES.len()).collect();
    let thousands = |contender: usize| {
        let rates = of[contender].iter().map(|rates| format!("{:.1}", median(rates) / 1e3));
        std::iter::once(contenders[contender].name.to_string()).chain(rates).collect::<Vec<_>>()
    };
    let title = format!(
        "fio, depth 16 or 1, 50 % compressible, one job or two, runs of {SECONDS} s, thousand requests a second"
    );
    table(&rounds.title(&title), &head, &(0..contenders.len()).map(thousands).collect::<Vec<_>>());
    // Ours: lz4, then zstd.
    for ours in 0..2 {
        let ratios = |peer: usize| {
            let wanted = WANTED.iter().find(|(name, _)| ours == 0 && *name == contenders[peer].name);
            let bound = |case: usize| wanted.map(|(_, wanted)| wanted[case]).filter(|wanted| *wanted > 0.0);
            let each =
                (0..CASES.len()).map(|case| bounded(ratio(&of[ours][case], &of[peer][case]), bound(case)));
            std::iter::once(contenders[peer].name.to_string()).chain(each).collect::<Vec<_>>()
        };
        let title = format!("{}: ratio to each, median over the rounds", contenders[ours].name);
        table(&rounds.title(&title), &head, &(2..contenders.len()).map(ratios).collect::<Vec<_>>());
    }
}

/// Server time for a request at depth 64, and the codec's part of it.
fn processor_time(server: &Contender, rounds: Rounds) -> Result<()> {
    let (compress, decompress) = codec_micros(rounds.count);
    let mut rows = Vec::new();
    let costs = [("randwrite", compress), ("randread", decompress)];
    for (jobs, (direction, codec)) in [1, 2].into_iter().flat_map(|jobs| costs.map(|cost| (jobs, cost))) {
        let job = case("", direction, 4, jobs, 64);
        let figures = rounds.measure(|_| {
            let done = timed(server, &job)?;
            let micros = done.server.as_secs_f64() * 1e6 / done.requests;
            Ok(vec![micros, micros - codec])
        })?;
        let [whole, beyond] = &figures[..] else { unreachable!("two figures a round") };
        let verdict = if median(beyond) <= 3.5 { "<= 3.5" } else { "MISSED, wanted 3.5" };
        rows.push(vec![
            format!("{direction}, {}", if jobs == 1 { "1 job" } else { "2 jobs" }),
            format!("{:.2}", median(whole)),
            format!("{codec:.2}"),
            format!("{:.2} ({verdict})", median(beyond)),
        ]);
    }
    let title = rounds.title("Server processor time at depth 64, us a request");
    table(&title, &["", "in all", "codec alone", "beyond"], &rows);
    Ok(())
}

/// Microseconds of compressing and of decompressing a page of fio's kind, outside any server.
fn codec_micros(rounds: usize) -> (f64, f64) {
    let set = pages::half(16 << 20);
    let mut packed = vec![vec![0u8; 2 * PAGE]; set.count()];
    let (mut compress, mut decompress) = (Vec::new(), Vec::new());
    let mut page = vec![0u8; PAGE];
    for _ in 0..rounds {
        let start = Instant::now();
        for (index, packed) in packed.iter_mut().enumerate() {
            packed.resize(2 * PAGE, 0);
            let len = lz4(set.page(index), packed);
            packed.truncate(len as usize);
        }
        compress.push(start.elapsed().as_secs_f64() * 1e6 / set.count() as f64);
        let start = Instant::now();
        packed.iter().for_each(|packed| unlz4(packed, &mut page));
        decompress.push(start.elapsed().as_secs_f64() * 1e6 / set.count() as f64);
    }
    (median(&compress), median(&decompress))
}

struct Done {
    requests: f64,
    server: Duration,
}

fn timed(contender: &Contender, case: &Case) -> Result<Done> {
    let before = server_time(contender)?;
    let requests = fio(contender, case, &format!("--time_based --runtime={SECONDS}"))?;
    Ok(Done { requests, server: server_time(contender)? - before })
}

fn server_time(contender: &Contender) -> Result<Duration> {
    let Some(child) = &contender.child else { return Ok(Duration::ZERO) };
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    let after_name = stat.rsplit_once(')').context("a name in /proc/PID/stat")?.1;
    let ticks: Vec<u64> =
        after_name.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    let a_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_micros(ticks.iter().sum::<u64>() * 1_000_000 / a_second))
}

/// Runs fio and returns how many requests were answered.
fn fio(contender: &Contender, case: &Case, limits: &str) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=job", "--group_reporting", "--refill_buffers", "--minimal", "--thread"]);
    command.args(["--buffer_compress_percentage=50", "--norandommap", "--randrepeat=0", "--rwmixread=70"]);
    command.args([format!("--rw={}", case.rw), format!("--bs={}k", case.kib)]);
    command.args([format!("--numjobs={}", case.jobs), format!("--iodepth={}", case.depth)]);
    command.args([format!("--size={JOB_BYTES}"), format!("--offset_increment={JOB_BYTES}")]);
    command.args(limits.split_whitespace()).args(&contender.target);
    let output = command.stdin(Stdio::null()).output().context("fio cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("3;"));
    let Some(line) = line.filter(|_| output.status.success()) else {
        bail!("fio failed on {}: {text}{}", contender.name, String::from_utf8_lossy(&output.stderr));
    };
    // Columns of fio's terse format, version 3: KiB read and KiB written.
    let columns: Vec<&str> = line.split(';').collect();
    let kib: f64 = columns[5].parse::<f64>()? + columns[46].parse::<f64>()?;
    Ok(kib / case.kib as f64)
}

fn start(folder: &Path, peer: Option<&KernelZram>) -> Result<Vec<Contender>> {
    let image = folder.join("image");
    fs::File::create(&image)?.set_len(SIZE)?;
    let size = SIZE.to_string();
    let spillway = binary()?.to_string_lossy().into_owned();
    let image = image.to_string_lossy().into_owned();
    let ours = |name, algorithm| {
        let words = [&spillway, "ram", "--size", &size, "--algorithm", algorithm, "--name", algorithm];
        server(name, folder, algorithm, &[&words[..], &["--socket", "SOCKET"]].concat())
    };
    let nbdkit = ["nbdkit", "-f", "-U", "SOCKET", "memory", &size];
    let qemu = ["qemu-nbd", "-t", "-e", "16", "-f", "raw", "-k", "SOCKET", &image];
    let here = std::env::current_exe()?.to_string_lossy().into_owned();
    let mut all = vec![
        ours("spillway", "lz4")?,
        ours("spillway, zstd", "zstd")?,
        server("nbdkit memory, zstd", folder, "", &[&nbdkit[..], &["allocator=zstd"]].concat())?,
        server("nbdkit memory", folder, "", &nbdkit)?,
        server("qemu-nbd on tmpfs", folder, "", &qemu)?,
        server("empty server", folder, "", &[&here, "empty", "SOCKET", &size])?,
    ];
    if let Some(peer) = peer {
        drop(peer.open()?);
        let target = vec![
            "--ioengine=io_uring".into(),
            "--direct=1".into(),
            format!("--filename={}", peer.path().display()),
        ];
        all.push(Contender { name: "kernel zram, io_uring", child: None, target });
    }
    Ok(all)
}

/// Starts a server; the word `SOCKET` stands for the path of its socket.
fn server(name: &'static str, folder: &Path, export: &str, words: &[&str]) -> Result<Contender> {
    let socket = folder.join(format!("{}.sock", name.replace([' ', ','], "-")));
    let path = socket.to_string_lossy().into_owned();
    let mut command = Command::new(words[0]);
    command.args(words[1..].iter().map(|word| if *word == "SOCKET" { path.as_str() } else { word }));
    command.env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().with_context(|| format!("{} cannot be started: install it", words[0]))?;
    let target = vec!["--ioengine=nbd".into(), format!("--uri=nbd+unix:///{export}?socket={path}")];
    let contender = Contender { name, child: Some(child), target };
    let start = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        ensure!(start.elapsed() < Duration::from_secs(20), "{name} does not listen on {path}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(contender)
}

/// The server, built for release beside this program.
fn binary() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status =
        Command::new(cargo).args(["build", "--release", "--quiet", "--package", "spillway"]).status()?;
    ensure!(status.success(), "spillway cannot be built");
    let here = std::env::current_exe()?;
    Ok(here.parent().context("a program lies in a folder")?.join("spillway"))
}

/// A private folder on tmpfs.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = PathBuf::from(format!("/dev/shm/spillway-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
