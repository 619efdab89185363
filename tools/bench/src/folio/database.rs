//! E3's database row: commits a second of SQLite on ext4, on a loop device over the file of a mount, on a page cache with folios of 64 KiB
//! over a store on which bytes cost time. With dirty blocks of 4 KiB, and with blocks as large as the folio: then all of a folio is
//! dirty with each of its bytes. As root: loop devices need it.

use std::fmt::Write as _;
use std::fs;
use std::time::Instant;

use anyhow::Result;

use super::bytes::RATES;
use super::sqlite;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{figure, ratio, row};
use crate::peers::ext4::Ext4;
use crate::peers::loop_device::LoopDevice;
use crate::peers::mounted::Mounted;
use crate::peers::servers::Folder;

/// Bytes of a device.
const SIZE: u64 = 256 << 20;

const FOLIO: u64 = 64 << 10;

/// Bytes of a block: of those that are dirty, and of a whole folio.
const BLOCKS: [u64; 2] = [4096, FOLIO];

/// Commits of a run, each of which changes a row.
fn commits(rounds: Rounds) -> u64 {
    rounds.pick(150, 40)
}

const WANTED: f64 = 1.8;

/// A device with a file system with a database.
struct Database {
    name: String,
    ext4: Ext4,
    _device: LoopDevice,
}

impl Database {
    fn make(server: &Mounted, name: &str) -> Result<Self> {
        let device = LoopDevice::over(&server.file(name)?)?;
        let ext4 = Ext4::make_without_discards(&device.path, server.folder.0.join(name))?;
        sqlite::create(&ext4.place)?;
        Ok(Self { name: name.into(), ext4, _device: device })
    }

    /// Commits a second.
    fn run(&self, seed: u64, commits: u64) -> Result<f64> {
        let start = Instant::now();
        sqlite::change(&self.ext4.place, commits, seed)?;
        Ok(commits as f64 / start.elapsed().as_secs_f64())
    }
}

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let names: Vec<_> =
        RATES.iter().flat_map(|rate| BLOCKS.map(|block| format!("r{rate}b{block}"))).collect();
    let server = start(&names)?;
    let databases = names.iter().map(|name| Database::make(&server, name)).collect::<Result<Vec<_>>>()?;
    let figures = rounds.measure(|round| {
        let commits = commits(rounds.at(round));
        let mut figures = vec![0.0; 2 * databases.len()];
        for turn in drawn_order(databases.len(), round) {
            let written = || server.number(&databases[turn].name, "page_cache", "written_back_bytes");
            let before = written()?;
            figures[2 * turn] = databases[turn].run(round as u64, commits)?;
            figures[2 * turn + 1] = (written()? - before) as f64 / commits as f64 / 1024.0;
        }
        Ok(figures)
    })?;
    let rows = RATES.iter().zip(figures.chunks(2 * BLOCKS.len())).map(|(rate, figures)| {
        let [blocks, blocks_kib, whole, whole_kib] = figures else {
            unreachable!("two figures of two modes")
        };
        row![
            format!("{rate} MiB/s"),
            figure(blocks, 0),
            figure(whole, 0),
            ratio(blocks, whole).at_least(WANTED).of_ours(),
            figure(blocks_kib, 0),
            figure(whole_kib, 0),
        ]
    });
    let title = "E3: SQLite on ext4 over a store slowed down, folios of 64 KiB, a row a commit: commits a second, and KiB written below for each";
    let head = ["store", "dirty blocks", "whole folio", "ratio to whole", "KiB: dirty blocks", "whole folio"];
    rounds.show(title, &head, rows.collect())
}

/// A server with a device for each rate of the store and each size of blocks, all on tmpfs.
fn start(names: &[String]) -> Result<Mounted> {
    let folder = Folder::new()?;
    let kinds = RATES.iter().flat_map(|rate| BLOCKS.map(|block| (rate, block)));
    let mut devices = String::new();
    for (name, (rate, block)) in names.iter().zip(kinds) {
        let file = folder.0.join(name).with_extension("raw");
        fs::File::create(&file)?.set_len(SIZE)?;
        writeln!(
            devices,
            "[[device]]\nname = \"{name}\"\norigin = {{ kind = \"file\", path = \"{}\" }}\nlayers = [\n    \
             {{ kind = \"rate\", bytes_per_second = \"{rate}M\" }},\n    \
             {{ kind = \"page_cache\", page_cache_bytes_max = \"320M\", folio_size = {FOLIO}, block_size = {block} }},\n]",
            file.display()
        )?;
    }
    Mounted::start(folder, "2G", &devices)
}
