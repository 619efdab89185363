//! How throughput grows with clients: connections of NBD to one device, and devices with a connection each, all of one server.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{figure, ratio, row};
use crate::nbd::millis;
use crate::peers::account;
use crate::peers::fio::{Contender, server_time};
use crate::peers::servers::{Folder, binary, server, socket_of};

const NAME: &str = "spillway";

const COUNTS: [usize; 3] = [1, 4, 16];
const MOST: usize = COUNTS[COUNTS.len() - 1];

/// MiB of a device that has one connection, and of the one that has all.
const PART: usize = 64;
const WHOLE: usize = MOST * PART;

const OPS: [&str; 2] = ["randread", "randwrite"];

/// What the connections lead to.
#[derive(Clone, Copy)]
enum To {
    OneDevice,
    OwnDevices,
}

const KINDS: [(To, &str); 2] =
    [(To::OneDevice, "connections to one device"), (To::OwnDevices, "devices, a connection each")];

/// Of a kind, a count and a direction: requests a second, and microseconds of the server for each.
const FIGURES: usize = 2;

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let folder = Folder::new()?;
    let server = start(&folder.0)?;
    for (to, _) in KINDS {
        let fill = ["--rw=write", "--bs=1m", "--iodepth=1"];
        account::fio(&[&JOB[..], &fill].concat(), &jobs(&folder.0, to, MOST))?;
    }
    let turns = KINDS.len() * COUNTS.len() * OPS.len();
    let figures = rounds.measure(|round| {
        let mut figures = vec![f64::NAN; turns * FIGURES];
        for turn in drawn_order(turns, round) {
            let (case, op) = (turn / OPS.len(), OPS[turn % OPS.len()]);
            let (to, count) = (KINDS[case / COUNTS.len()].0, COUNTS[case % COUNTS.len()]);
            let load = [format!("--rw={op}"), format!("--runtime={}ms", millis(round, rounds))];
            let load = load.each_ref().map(String::as_str);
            let small = ["--bs=4k", "--iodepth=16", "--time_based", "--norandommap"];
            let before = server_time(&server)?.context("it runs")?;
            let done = account::fio(&[&JOB[..], &load, &small].concat(), &jobs(&folder.0, to, count))?;
            let busy = server_time(&server)?.context("it runs")? - before;
            let requests = done.requests * millis(round, rounds) as f64 / 1e3;
            figures[turn * FIGURES..][..FIGURES]
                .copy_from_slice(&[done.requests, busy.as_secs_f64() * 1e6 / requests]);
        }
        Ok(figures)
    })?;
    show(&figures, rounds)
}

/// Of every run of fio.
const JOB: [&str; 3] = ["--ioengine=nbd", "--buffer_compress_percentage=50", "--refill_buffers"];

/// A job for each connection.
fn jobs(folder: &Path, to: To, count: usize) -> Vec<String> {
    let socket = socket_of(folder, NAME).display().to_string();
    let job = |number: usize| {
        let (export, offset, size) = match to {
            To::OneDevice => ("all".into(), number * WHOLE / count, WHOLE / count),
            To::OwnDevices => (format!("d{number}"), 0, PART),
        };
        [
            format!("--name={number}"),
            format!("--uri=nbd+unix:///{export}?socket={socket}"),
            format!("--offset={offset}m"),
            format!("--size={size}m"),
        ]
    };
    (0..count).flat_map(job).collect()
}

/// A server with a RAM disk for all connections, and one for each.
fn start(folder: &Path) -> Result<Contender> {
    let device = |name: &str, mib: usize| {
        format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"zram\", disksize = \"{mib}M\" }}\n")
    };
    let devices: String = (0..MOST).map(|number| device(&format!("d{number}"), PART)).collect();
    let config = folder.join("devices.toml");
    fs::write(&config, format!("memory = \"8G\"\n{}{devices}", device("all", WHOLE)))?;
    let [spillway, config] = [binary()?, config].map(|path| path.to_string_lossy().into_owned());
    server(NAME, folder, "all", &[&spillway, "serve", &config, "--socket", "SOCKET"])
}

fn show(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of_case: Vec<&[Vec<f64>]> = figures.chunks(OPS.len() * FIGURES).collect();
    let row = |(number, of_it): (usize, &&[Vec<f64>])| {
        let of_one = of_case[number / COUNTS.len() * COUNTS.len()];
        let rate = |at: usize| figure(&of_it[at], 1).times(1e-3);
        let gain = |at: usize| ratio(&of_it[at], &of_one[at]).of_ours();
        let count = COUNTS[number % COUNTS.len()].to_string();
        let [reads, writes] = [0, FIGURES];
        row![
            KINDS[number / COUNTS.len()].1,
            count,
            rate(reads),
            gain(reads),
            figure(&of_it[reads + 1], 2),
            rate(writes),
            gain(writes),
            figure(&of_it[writes + 1], 2),
        ]
    };
    let rows = of_case.iter().enumerate().map(row).collect();
    let title = "fio over NBD, 4 KiB at depth 16 each, thousand requests a second, and the server's processor time, us a request";
    let head = ["", "", "reads", "to one", "time", "writes", "to one", "time"];
    results::show(rounds.table(title, &head, rows))
}
