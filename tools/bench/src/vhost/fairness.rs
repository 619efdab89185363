//! What a client of NBD, and a program on the mount, get beside a busy neighbour: a guest's queue, or another client of NBD.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::cases::Case;
use super::contenders::{Way, as_client, as_file, as_guest, fill_ours, start_ours};
use super::generator::lasting;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, ratio, row};
use crate::nbd::millis;
use crate::peers::mounted::appears;
use crate::peers::servers::Folder;

/// What is measured.
const BYSTANDER: Case = Case::small("4K reads, depth 16", false, 16);

/// What keeps its queue or socket full meanwhile.
const NEIGHBOURS: [Case; 2] =
    [Case::small("4K reads, depth 64", false, 64), Case::small("4K writes, depth 64", true, 64)];

/// Exports: of a server whose only worker both share, and of one with a worker for each processor.
const SERVERS: [(&str, &str, &[&str]); 2] =
    [("one", "one worker", &["--workers", "1"]), ("all", "a worker for each processor", &[])];

/// A neighbour has reached its pace after this time.
const HEAD_START: Duration = Duration::from_millis(200);

/// What the bystander has beside it.
struct Company {
    name: String,
    neighbour: Option<(Way, Case)>,
}

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let (folder, mut rows) = (Folder::new()?, Vec::new());
    for (export, name, more) in SERVERS {
        let mount = Mount::at(folder.0.join(format!("{export}-mount")))?;
        let place = mount.0.to_string_lossy().into_owned();
        let _server = start_ours(&folder.0, export, &[more, &["--mount", &place]].concat())?;
        fill_ours(&folder.0, export)?;
        let file = mount.0.join(export).join("disk");
        appears(&file)?;
        let companies = companies(&folder, export);
        let bystanders =
            [("A client of NBD", as_client(&folder.0, export)), ("A program on the mount", as_file(&file)?)];
        for (bystander, way) in bystanders {
            let figures = rounds.measure(|round| one_round(&way, &companies, round, rounds))?;
            rows.extend(shown(&format!("{bystander}, {name}"), &companies, &figures));
        }
    }
    let title = format!("{} beside a neighbour", BYSTANDER.name);
    let head = ["", "", "thousand requests a second", "of alone", "of beside NBD", "the neighbour's"];
    rounds.show(&title, &head, rows)
}

/// A folder for a mount, which goes when it is dropped.
struct Mount(PathBuf);

impl Mount {
    fn at(place: PathBuf) -> Result<Self> {
        fs::create_dir(&place)?;
        Ok(Self(place))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Nobody; then for each kind of neighbour one by vhost-user and one by NBD.
fn companies(folder: &Folder, export: &'static str) -> Vec<Company> {
    let beside = |way: &str, case: &Case, neighbour| Company {
        name: format!("beside {way}, {}", case.name),
        neighbour: Some((neighbour, *case)),
    };
    let both = |case: &Case| {
        [
            beside("vhost-user", case, as_guest(&folder.0, export, 1)),
            beside("NBD", case, as_client(&folder.0, export)),
        ]
    };
    let alone = Company { name: "alone".into(), neighbour: None };
    std::iter::once(alone).chain(NEIGHBOURS.iter().flat_map(both)).collect()
}

/// Requests a second of the bystander in each company, then of its neighbour.
fn one_round(way: &Way, companies: &[Company], round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let mut figures = vec![f64::NAN; 2 * companies.len()];
    let time = Duration::from_millis(millis(round, rounds));
    for turn in drawn_order(companies.len(), round) {
        let seed = (round * companies.len() + turn) as u64;
        let bystander = || Ok(way.generator(BYSTANDER, seed)?.drive(lasting(time))?.rate());
        match &companies[turn].neighbour {
            None => figures[turn] = bystander()?,
            Some((way, case)) => {
                let (rate, neighbour) = beside(way, *case, !seed, bystander)?;
                (figures[turn], figures[companies.len() + turn]) = (rate, neighbour);
            }
        }
    }
    Ok(figures)
}

/// What `bystander` returns while a neighbour keeps its way full, and the neighbour's requests a second.
fn beside(way: &Way, case: Case, seed: u64, bystander: impl Fn() -> Result<f64>) -> Result<(f64, f64)> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let neighbour =
            scope.spawn(|| way.generator(case, seed)?.drive(|_| !is_over.load(Ordering::Relaxed)));
        thread::sleep(HEAD_START);
        let rate = bystander();
        is_over.store(true, Ordering::Relaxed);
        let neighbour = neighbour.join().map_err(|_| anyhow!("the neighbour has panicked"))??;
        Ok((rate?, neighbour.rate()))
    })
}

fn shown(bystander: &str, companies: &[Company], figures: &[Vec<f64>]) -> Vec<Vec<Cell>> {
    let (rates, neighbours) = figures.split_at(companies.len());
    let row = |(index, company): (usize, &Company)| {
        let (rate, neighbour) = (&rates[index], figure(&neighbours[index], 1).times(1e-3));
        let of_alone = if company.neighbour.is_some() { ratio(rate, &rates[0]) } else { figure(&[], 2) };
        // The same neighbour by NBD follows the one by vhost-user.
        let is_guest = matches!(company.neighbour, Some((Way::Guest { .. }, _)));
        let to_nbd = if is_guest { ratio(rate, &rates[index + 1]) } else { figure(&[], 2) };
        row![bystander, &*company.name, figure(rate, 1).times(1e-3), of_alone, to_nbd, neighbour]
    };
    companies.iter().enumerate().map(row).collect()
}
