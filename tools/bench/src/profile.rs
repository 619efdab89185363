//! Where the server's time goes: perf's samples of it under five loads, as flame graphs, and the functions that most of them end in.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::measure::flame::{Flame, Frame};
use crate::measure::results;
use crate::measure::rounds::Rounds;
use crate::measure::table::{Cell, Table, once, row};
use crate::peers::fio::{Case, Contender, JOB_BYTES, case, fio, timed};
use crate::peers::servers::{Folder, binary, server};
use crate::spill::write_zeroes;

/// A load: how its server is started, what is done before it, and what fio does. `FILE` and `OTHER` are files on the disk.
struct Load {
    name: &'static str,
    words: &'static [&'static str],
    before: &'static [&'static str],
    case: Case,
    limits: &'static str,
}

const LOADS: [Load; 5] = [
    Load {
        name: "NBD write",
        words: &["ram", "--size", "1G"],
        before: &["write"],
        case: case("4K writes, 2 jobs", "randwrite", 4, 2, 16),
        limits: "",
    },
    Load {
        name: "NBD read hit",
        words: &["disk", "--origin", "FILE"],
        before: &["write", "read"],
        case: case("4K reads, 2 jobs", "randread", 4, 2, 16),
        limits: "",
    },
    Load {
        name: "spill",
        words: &["ram", "--size", "1G", "--memory", "128M", "--spill", "OTHER"],
        before: &[],
        case: case("4K writes, 2 jobs", "randwrite", 4, 2, 16),
        limits: "--buffer_compress_percentage=0",
    },
    Load {
        name: "page-cache flush",
        words: &["disk", "--origin", "FILE"],
        before: &["write"],
        case: case("4K writes, 2 jobs", "randwrite", 4, 2, 16),
        limits: "--fsync=64",
    },
    Load {
        name: "write-cache flush",
        words: &["cache", "--origin", "FILE", "--cache", "OTHER"],
        before: &[],
        case: case("4K writes, 2 jobs", "randwrite", 4, 2, 16),
        limits: "--fsync=64",
    },
];

const LARGEST: usize = 3;

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for load in &LOADS {
        rows.push(sampled(load, rounds)?);
    }
    let title =
        "Where the server's time goes: functions that samples end in, the kernel's by how it was entered";
    let head =
        ["", "thousand requests a second", "processor time, us a request", "largest", "second", "third"];
    results::show(Table { rounds: None, ..rounds.table(title, &head, rows) })
}

/// A row; the flame graph is shown beside it.
fn sampled(load: &Load, rounds: Rounds) -> Result<Vec<Cell>> {
    let disk = Folder::on_disk()?;
    let (file, other) = (disk.0.join("file"), disk.0.join("other"));
    write_zeroes(&file, 2 * JOB_BYTES)?;
    if load.words.contains(&"cache") {
        write_zeroes(&other, 2 * JOB_BYTES)?;
    }
    let mut contender = started(load, &disk.0, [&*file, &*other])?;
    for direction in load.before {
        fio(&contender, &case("before", direction, 128, 2, 4), "")?;
    }
    contender.target.extend(load.limits.split_whitespace().map(Into::into));
    let millis = rounds.pick(4000, 1000);
    let samples = disk.0.join("samples");
    let mut perf = recorder(&contender, &samples)?;
    let done = timed(&contender, &load.case, millis);
    kill_process(Pid::from_child(&perf), Signal::INT)?;
    perf.wait()?;
    let done = done?;
    let root = Frame::read(&script(&samples)?);
    let mut cells = row![
        load.name,
        once(done.requests / millis as f64, 1),
        once(done.server.context("it is a server")?.as_secs_f64() * 1e6 / done.requests, 2),
    ];
    let largest = root.largest();
    ensure!(largest.len() >= LARGEST, "perf has no samples of {}", load.name);
    cells.extend(
        largest[..LARGEST].iter().map(|(name, share)| format!("{name} {:.0} %", share * 100.0).into()),
    );
    results::flame(Flame { title: format!("{}: {}", load.name, load.words.join(" ")), root })?;
    Ok(cells)
}

fn started(load: &Load, sockets: &Path, [file, other]: [&Path; 2]) -> Result<Contender> {
    let (spillway, file, other) = (binary()?, file.to_string_lossy(), other.to_string_lossy());
    let mut words: Vec<&str> = vec![spillway.to_str().context("a path that is text")?];
    words.extend(load.words.iter().map(|word| match *word {
        "FILE" => &*file,
        "OTHER" => &*other,
        word => word,
    }));
    words.extend(["--name", "device", "--socket", "SOCKET"]);
    server("spillway", sockets, "device", &words)
}

/// Samples the processor's clock, also where there are no counters. Stacks are copied, as the program keeps no frame pointers.
fn recorder(contender: &Contender, samples: &Path) -> Result<std::process::Child> {
    let server = contender.child.as_ref().context("it is a server")?.id().to_string();
    let mut command = Command::new("perf");
    command.args(["record", "--quiet", "--freq=499", "--event=cpu-clock", "--call-graph=dwarf,16384"]);
    results::command(&command)?;
    command.args(["--pid", &server, "--output"]).arg(samples).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("perf cannot be started: install linux-perf")
}

fn script(samples: &Path) -> Result<String> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "--fields", "comm,ip,sym", "--input"]).arg(samples);
    let output = command.stdin(Stdio::null()).output().context("perf cannot be started")?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf script: {why}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
