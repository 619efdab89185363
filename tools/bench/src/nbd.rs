//! fio over NBD: Spillway beside nbdkit and qemu-nbd, on unix sockets, with the same jobs in turn.
//!
//! Also beside the kernel's zram, driven by fio's io_uring engine on its block device; and the server's processor time for
//! a request at depth 64, held against what compressing and decompressing alone cost here.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::kernel_zram::KernelZram;
use crate::lz4::{lz4, unlz4};
use crate::pages::{self, PAGE};
use crate::report::{at_least, median, ratio, table};

const SIZE: u64 = 1 << 30;
const JOB_BYTES: u64 = 256 << 20;
const SECONDS: u64 = 3;

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

/// At least these ratios, by job count and direction: (2 writes, 2 reads, 1 write, 1 read).
const WANTED: [(&str, [f64; 4]); 4] = [
    ("nbdkit memory, zstd", [20.0, 3.0, 15.0, 1.7]),
    ("nbdkit memory", [1.2, 2.0, 0.9, 1.1]),
    ("qemu-nbd on tmpfs", [2.5, 3.5, 1.4, 2.0]),
    ("kernel zram, io_uring", [0.7, 0.8, 0.7, 0.8]),
];

const CASES: [(&str, usize); 4] = [("randwrite", 2), ("randread", 2), ("randwrite", 1), ("randread", 1)];

pub(crate) fn run(rounds: usize) -> Result<()> {
    let folder = Folder::new()?;
    let peer = KernelZram::new(SIZE);
    if let Err(why) = &peer {
        println!("No comparison with the kernel's zram: {why:#}");
    }
    let contenders = start(&folder.0, peer.as_ref().ok())?;
    for contender in &contenders {
        fio(contender, "write", 2, 16, &format!("--io_size={JOB_BYTES}"))?;
    }
    let mut rates = vec![vec![Vec::new(); CASES.len()]; contenders.len()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (case, (direction, jobs)) in CASES.iter().enumerate() {
            for (contender, rates) in contenders.iter().zip(&mut rates) {
                rates[case].push(timed(contender, direction, *jobs, 16)?.requests / SECONDS as f64);
            }
        }
    }
    show(&contenders, &rates, rounds);
    processor_time(&contenders[0], rounds)
}

fn show(contenders: &[Contender], rates: &[Vec<Vec<f64>>], rounds: usize) {
    let thousands =
        |rates: &[Vec<f64>]| rates.iter().map(|r| format!("{:.1}", median(r) / 1e3)).collect::<Vec<_>>();
    let mut rows = vec![[vec![contenders[0].name.to_string()], thousands(&rates[0])].concat()];
    let mut bounds = Vec::new();
    for (contender, their) in contenders.iter().zip(rates).skip(1) {
        rows.push([vec![contender.name.to_string()], thousands(their)].concat());
        let wanted =
            WANTED.iter().find(|(name, _)| *name == contender.name).map_or([0.0; 4], |(_, wanted)| *wanted);
        let ratios =
            (0..CASES.len()).map(|case| at_least(ratio(&rates[0][case], &their[case]), wanted[case]));
        bounds.push(std::iter::once(contender.name.to_string()).chain(ratios).collect());
    }
    let head = |first| [first, "2 jobs, writes", "2 jobs, reads", "1 job, writes", "1 job, reads"];
    let title = format!(
        "fio, 4 KiB, depth 16, 50 % compressible, {rounds} rounds of {SECONDS} s, thousand requests a second"
    );
    table(&title, &head("server"), &rows);
    table("Spillway's ratio to each, median over rounds", &head("to"), &bounds);
}

/// Server time for a request at depth 64, and the codec's part of it.
fn processor_time(server: &Contender, rounds: usize) -> Result<()> {
    let (compress, decompress) = codec_micros(rounds);
    let mut rows = Vec::new();
    let costs = [("randwrite", compress), ("randread", decompress)];
    for (jobs, (direction, codec)) in [1, 2].into_iter().flat_map(|jobs| costs.map(|cost| (jobs, cost))) {
        let mut beyond = Vec::new();
        let mut whole = Vec::new();
        for _ in 0..rounds {
            let done = timed(server, direction, jobs, 64)?;
            let micros = done.server.as_secs_f64() * 1e6 / done.requests;
            whole.push(micros);
            beyond.push(micros - codec);
        }
        let verdict = if median(&beyond) <= 3.5 { "<= 3.5" } else { "MISSED, wanted 3.5" };
        rows.push(vec![
            format!("{direction}, {}", if jobs == 1 { "1 job" } else { "2 jobs" }),
            format!("{:.2}", median(&whole)),
            format!("{codec:.2}"),
            format!("{:.2} ({verdict})", median(&beyond)),
        ]);
    }
    table("Server processor time at depth 64, us a request", &["", "in all", "codec alone", "beyond"], &rows);
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

fn timed(contender: &Contender, direction: &str, jobs: usize, depth: usize) -> Result<Done> {
    let before = server_time(contender)?;
    let limits = format!("--time_based --runtime={SECONDS}");
    let requests = fio(contender, direction, jobs, depth, &limits)?;
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
fn fio(contender: &Contender, direction: &str, jobs: usize, depth: usize, limits: &str) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=job", "--bs=4k", "--group_reporting", "--refill_buffers", "--minimal", "--thread"]);
    command.args(["--buffer_compress_percentage=50", "--norandommap", "--randrepeat=0"]);
    command.args([format!("--rw={direction}"), format!("--numjobs={jobs}"), format!("--iodepth={depth}")]);
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
    Ok(kib / 4.0)
}

fn start(folder: &Path, peer: Option<&KernelZram>) -> Result<Vec<Contender>> {
    let image = folder.join("image");
    fs::File::create(&image)?.set_len(SIZE)?;
    let size = SIZE.to_string();
    let spillway = binary()?.to_string_lossy().into_owned();
    let image = image.to_string_lossy().into_owned();
    let mut all = vec![
        server("spillway", folder, "ram0", &[&spillway, "ram", "--size", &size, "--socket", "SOCKET"])?,
        server(
            "nbdkit memory, zstd",
            folder,
            "",
            &["nbdkit", "-f", "-U", "SOCKET", "memory", &size, "allocator=zstd"],
        )?,
        server("nbdkit memory", folder, "", &["nbdkit", "-f", "-U", "SOCKET", "memory", &size])?,
        server(
            "qemu-nbd on tmpfs",
            folder,
            "",
            &["qemu-nbd", "-t", "-e", "16", "-f", "raw", "-k", "SOCKET", &image],
        )?,
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
