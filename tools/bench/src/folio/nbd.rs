//! `spillway disk` over NBD on files of this machine's disk, beside qemu-nbd and nbdkit with the kernel's page cache: fio's mix of 4 KiB reads
//! and writes at random, in memory; and on four times the memory, beside `--page-cache none`.
//!
//! Each has a file of its own, written before, and flushes what it has dirtied after each run, outside the time that counts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, ratio, row};
use crate::peers::fio::{Case, Contender, case, fio, timed};
use crate::peers::servers::{Folder, QEMU_NBD, binary, server};

/// What each of the two jobs works on.
const IN_MEMORY: u64 = 256 << 20;
const FOUR_TIMES: u64 = 512 << 20;

const JOBS: usize = 2;
const MIX: Case = case("4K 70/30", "randrw", 4, JOBS, 16);

/// Memory of the server whose working set is four times as much.
const MEMORY: u64 = FOUR_TIMES * JOBS as u64 / 4;

/// Of a run: in memory; on four times the memory, where it reaches the limit of dirty blocks.
fn spans(rounds: Rounds) -> [u64; 2] {
    rounds.pick([2000, 6000], [500, 1500])
}

/// How a server is started that serves the file at the path `FILE`; ours is first. The least ratio of ours to it, 0 where none is wanted.
struct Entry {
    name: &'static str,
    words: &'static [&'static str],
    wanted: f64,
}

const PEERS: [Entry; 4] = [
    Entry { name: "spillway disk", words: &["spillway", "disk", "--origin", "FILE"], wanted: 0.0 },
    Entry { name: "qemu-nbd --cache=writeback", words: QEMU_NBD, wanted: 2.5 },
    Entry { name: "nbdkit file", words: &["nbdkit", "-f", "-U", "SOCKET", "file", "FILE"], wanted: 1.2 },
    NONE,
];

const NONE: Entry = Entry {
    name: "spillway disk --page-cache none",
    words: &["spillway", "disk", "--origin", "FILE", "--page-cache", "none", "--name", "none"],
    wanted: 0.0,
};

/// A working set that does not fit in memory.
const LARGE: [Entry; 2] = [
    Entry { name: "spillway disk", words: &["spillway", "disk", "--origin", "FILE"], wanted: 0.0 },
    Entry { wanted: 1.0, ..NONE },
];

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let [short, long] = spans(rounds);
    let title = format!(
        "4 KiB reads and writes at random, 70 to 30, over NBD on a file on the disk, depth 16, two jobs, {} MiB in memory, runs of {} ms",
        (IN_MEMORY * JOBS as u64) >> 20,
        short
    );
    race(&PEERS, IN_MEMORY, short, &[], &title, rounds)?;
    let memory = format!("{MEMORY}");
    let title = format!(
        "The same on {} MiB with --memory {}M, runs of {} ms",
        (FOUR_TIMES * JOBS as u64) >> 20,
        MEMORY >> 20,
        long
    );
    race(&LARGE, FOUR_TIMES, long, &["--memory", &memory], &title, rounds)
}

/// Each in turn, in a drawn order; `job` bytes for each job, `more` for our servers.
fn race(entries: &[Entry], job: u64, millis: u64, more: &[&str], title: &str, rounds: Rounds) -> Result<()> {
    let (disk, sockets) = (Folder::on_disk()?, Folder::new()?);
    let contenders = entries.iter().map(|entry| start(entry, &disk.0, &sockets.0, job, more));
    let contenders = contenders.collect::<Result<Vec<_>>>()?;
    let figures = rounds.measure(|round| {
        // What warms up is shorter.
        let millis = if round == 0 { millis / 4 } else { millis };
        let mut figures = vec![0.0; 2 * contenders.len()];
        for turn in drawn_order(contenders.len(), round) {
            let done = timed(&contenders[turn], &MIX, millis)?;
            let server = done.server.context("each is a server")?;
            figures[turn] = done.requests * 1e3 / millis as f64;
            figures[contenders.len() + turn] = server.as_secs_f64() * 1e6 / done.requests;
        }
        Ok(figures)
    })?;
    let (rates, micros) = figures.split_at(contenders.len());
    let row = |(at, entry): (usize, &Entry)| {
        let to_it = ratio(&rates[0], &rates[at]).wanted(entry.wanted);
        let to_it = if entry.words[0] == "spillway" { to_it.of_ours() } else { to_it };
        let to_it = if at == 0 { Cell::from("-") } else { to_it.into() };
        row![entry.name, figure(&rates[at], 1).times(1e-3), to_it, figure(&micros[at], 2)]
    };
    let rows = entries.iter().enumerate().map(row).collect();
    rounds.show(
        title,
        &["", "thousand requests a second", "ours to it", "processor time, us a request"],
        rows,
    )
}

/// Serves a file of its own, which is written first, and read into memory as far as that goes.
fn start(entry: &Entry, disk: &Path, sockets: &Path, job: u64, more: &[&str]) -> Result<Contender> {
    let file = disk.join(entry.name.replace(' ', "-"));
    fs::File::create(&file)?.set_len(job * JOBS as u64)?;
    let (file, spillway) = (text(&file)?, binary()?);
    let mut words: Vec<&str> = entry.words.to_vec();
    words.iter_mut().filter(|word| **word == "FILE").for_each(|word| *word = file);
    if words[0] == "spillway" {
        words[0] = text(&spillway)?;
        words.extend([&["--socket", "SOCKET"], more].concat());
    }
    let mut contender = server(entry.name, sockets, "", &words)?;
    let area = format!("--size={job} --offset_increment={job} --end_fsync=1");
    contender.target.extend(area.split(' ').map(str::to_owned));
    for rw in ["write", "read"] {
        fio(&contender, &case("fill", rw, 1024, JOBS, 4), "")?;
    }
    Ok(contender)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}
