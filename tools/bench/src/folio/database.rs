//! E3's database row: commits a second of SQLite on ext4, on a loop device over the file of a mount, on a page cache with folios of 64 KiB
//! over a store on which bytes cost time. With dirty blocks of 4 KiB, and with blocks as large as the folio: then all of a folio is
//! dirty with each of its bytes. As root: loop devices need it.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use spillway_core::random::Random;

use super::bytes::RATES;
use crate::fuse::Peer;
use crate::mounted::Mounted;
use crate::nbd::Folder;
use crate::results;
use crate::rounds::{Rounds, drawn_order};
use crate::table::{figure, ratio, row};

/// Bytes of a device.
const SIZE: u64 = 256 << 20;

const FOLIO: u64 = 64 << 10;

/// Bytes of a block: of those that are dirty, and of a whole folio.
const BLOCKS: [u64; 2] = [4096, FOLIO];

/// Rows of the database, and commits of a run, each of which changes one of them.
const ROWS: u64 = 20_000;
fn commits(rounds: Rounds) -> u64 {
    rounds.pick(150, 40)
}

const WANTED: f64 = 1.8;

/// A device with a file system with a database.
struct Database {
    name: String,
    /// Where the file system is.
    place: PathBuf,
    /// Below the file system.
    _device: Peer,
}

impl Database {
    fn make(server: &Mounted, name: &str) -> Result<Self> {
        let place = server.folder.0.join(name);
        let lower = Peer::over("a page cache", &server.file(name)?, None, None)?;
        fs::create_dir(&place)?;
        let at_once = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        finish(Command::new("mkfs.ext4").args(["-q", "-F", "-E", at_once]).arg(&lower.device))?;
        finish(Command::new("mount").args([&lower.device, &place]))?;
        let database = Self { name: name.into(), place, _device: lower };
        let mut words =
            String::from("create table rows (number integer primary key, content text);\nbegin;\n");
        for row in 0..ROWS {
            writeln!(words, "insert into rows values ({row}, hex(randomblob(100)));")?;
        }
        database.sqlite(&(words + "commit;\n"))?;
        Ok(database)
    }

    /// Commits a second.
    fn run(&self, seed: u64, commits: u64) -> Result<f64> {
        let (mut random, mut words) = (Random(seed), String::new());
        for _ in 0..commits {
            let row = random.below(ROWS);
            writeln!(words, "update rows set content = hex(randomblob(100)) where number = {row};")?;
        }
        let start = Instant::now();
        self.sqlite(&words)?;
        Ok(commits as f64 / start.elapsed().as_secs_f64())
    }

    /// With SQLite's defaults: a journal that is deleted with each commit, and everything synced.
    fn sqlite(&self, words: &str) -> Result<()> {
        let mut command = Command::new("sqlite3");
        results::command(command.arg("-bail"))?;
        command.arg(self.place.join("rows.db")).stdin(Stdio::piped());
        let mut child = command.spawn().context("sqlite3 cannot be started: install it")?;
        let written = child.stdin.take().context("it is piped")?.write_all(words.as_bytes());
        ensure!(child.wait()?.success(), "sqlite3 failed on {}", self.name);
        Ok(written?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.place).stderr(Stdio::null()).status();
    }
}

fn finish(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let names: Vec<_> =
        RATES.iter().flat_map(|rate| BLOCKS.map(|block| format!("r{rate}b{block}"))).collect();
    let (server, commits) = (start(&names)?, commits(rounds));
    let databases = names.iter().map(|name| Database::make(&server, name)).collect::<Result<Vec<_>>>()?;
    let figures = rounds.measure(|round| {
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
            ratio(blocks, whole).at_least(WANTED),
            figure(blocks_kib, 0),
            figure(whole_kib, 0),
        ]
    });
    let title = "E3: SQLite on ext4, folios of 64 KiB, a row a commit: commits a second, and KiB written below for each";
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
