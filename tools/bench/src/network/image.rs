//! Large sequential transfers, small reads that miss and small reads that hit, of images through `spillway disk` and `spillway cache`, beside
//! librbd, qemu-nbd's driver for images, and the same devices over a local file.

use std::path::Path;

use anyhow::Result;

use super::rig::{BYTES, Rig, Server, address};
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, named, ratio, row};
use crate::peers::fio::{Case, Contender, Finished, case, finish, fio};

const SEQUENTIAL: [Case; 2] = [case("1M writes", "write", 1024, 1, 4), case("1M reads", "read", 1024, 1, 4)];
const RANDOM: Case = case("4K reads", "randread", 4, 1, 16);

/// Least ratios: large transfers, and small reads that miss, to librbd; small reads that miss to qemu-nbd; hits to those over a file.
const LARGE: f64 = 0.9;
const MISSES: f64 = 0.8;
const TO_QEMU: f64 = 2.5;
const HITS: f64 = 0.9;

/// Ways to an image: librbd, ours, and the peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Librbd,
    Uncached,
    Disk,
    Cache,
    Qemu,
}

const WAYS: [Way; 5] = [Way::Librbd, Way::Uncached, Way::Disk, Way::Cache, Way::Qemu];

/// Those of which large transfers are measured.
const LARGE_WAYS: usize = 4;

/// Of each: writes until a flush is acknowledged, writes until all is in the cluster, and reads.
const TRANSFERS: usize = 3;
const DRAINED: usize = 1;

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Librbd => "librbd",
            Self::Uncached => "spillway disk --page-cache none",
            Self::Disk => "spillway disk",
            Self::Cache => "spillway cache",
            Self::Qemu => "qemu-nbd --cache=none",
        }
    }

    /// Of its image.
    fn image(self) -> &'static str {
        ["direct", "uncached", "paged", "cached", "qemu"][self as usize]
    }

    fn serve<'a>(self, rig: &'a Rig, origin: &Path) -> Result<Server<'a>> {
        match self {
            Self::Cache => rig.cached(origin),
            Self::Uncached => rig.ours("disk", origin, &["--page-cache", "none"]),
            _ => rig.ours("disk", origin, &[]),
        }
    }
}

/// What is read from memory or from the cache device, over an image and over a file.
const HITTING: [Way; 2] = [Way::Disk, Way::Cache];

/// Bytes that are written to a cache so that reads hit: below the share from which it writes back.
const CACHED: u64 = 64 << 20;

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let rig = Rig::new()?;
    let direct = WAYS.into_iter().map(|way| rig.librbd(way.image())).collect::<Result<Vec<_>>>()?;
    let file = rig.file("file")?;
    let figures = rounds.measure(|round| {
        let rounds = rounds.at(round);
        let mut figures = transfers(&rig, &direct[0], round, rounds)?;
        figures.extend(misses(&rig, &direct[0], round, rounds)?);
        figures.extend(hits(&rig, &file, round, rounds)?);
        Ok(figures)
    })?;
    let (transferred, small) = figures.split_at(LARGE_WAYS * TRANSFERS);
    let (missed, hit) = small.split_at(WAYS.len());
    show_transfers(transferred, rounds)?;
    show_misses(missed, rounds)?;
    show_hits(hit, rounds)
}

/// MiB a second of each way: written until a flush is acknowledged, until all is in the cluster, and read with cold caches.
fn transfers(rig: &Rig, librbd: &Contender, round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let mut figures = vec![f64::NAN; LARGE_WAYS * TRANSFERS];
    for turn in drawn_order(LARGE_WAYS * SEQUENTIAL.len(), round) {
        let (way, case) = (WAYS[turn / SEQUENTIAL.len()], &SEQUENTIAL[turn % SEQUENTIAL.len()]);
        let (mut requests, mut seconds, mut drains) = (0.0, 0.0, 0.0);
        for _ in 0..rounds.pick(2, 1) {
            let (done, drain) = transfer(rig, librbd, way, case)?;
            (requests, seconds, drains) = (requests + done.requests, seconds + done.seconds, drains + drain);
        }
        let at = way as usize * TRANSFERS;
        if case.rw == "write" {
            (figures[at], figures[at + 1]) = (requests / seconds, requests / (seconds + drains));
        } else {
            figures[at + 2] = requests / seconds;
        }
    }
    Ok(figures)
}

/// The whole image once, a flush at the end; then the seconds until all of it is in the cluster.
fn transfer(rig: &Rig, librbd: &Contender, way: Way, case: &Case) -> Result<(Finished, f64)> {
    let whole = |contender: &Contender| finish(contender, case, "--end_fsync=1");
    if way == Way::Librbd {
        return Ok((whole(librbd)?, 0.0));
    }
    let server = way.serve(rig, &address(way.image()))?;
    let done = whole(&server.contender)?;
    let is_dirty = way == Way::Cache && case.rw == "write";
    let drain = if is_dirty { server.drain()? } else { 0.0 };
    Ok((done, drain))
}

/// Reads a second of each way with cold caches, each block once at most.
fn misses(rig: &Rig, librbd: &Contender, round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let mut figures = vec![f64::NAN; WAYS.len()];
    let limits = format!("--norandommap=0 --io_size={}M", rounds.pick(64, 32));
    for turn in drawn_order(WAYS.len(), round) {
        let way = WAYS[turn];
        let done = match way {
            Way::Librbd => finish(librbd, &RANDOM, &limits)?,
            Way::Qemu => finish(&rig.qemu(way.image())?, &RANDOM, &limits)?,
            _ => finish(&way.serve(rig, &address(way.image()))?.contender, &RANDOM, &limits)?,
        };
        figures[turn] = done.requests / done.seconds;
    }
    Ok(figures)
}

/// Reads a second that hit, of each way over an image, and over a file.
fn hits(rig: &Rig, file: &Path, round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let mut figures = vec![f64::NAN; 2 * HITTING.len()];
    for turn in drawn_order(figures.len(), round) {
        let way = HITTING[turn / 2];
        let origin = if turn % 2 == 0 { address(way.image()) } else { file.to_owned() };
        let mut server = way.serve(rig, &origin)?;
        let area = if way == Way::Cache { CACHED } else { BYTES };
        server.contender.target.push(format!("--size={area}"));
        let fill = &SEQUENTIAL[usize::from(way == Way::Disk)];
        fio(&server.contender, fill, "")?;
        let millis = rounds.pick(1000, 500);
        let requests = fio(&server.contender, &RANDOM, &format!("--time_based --runtime={millis}ms"))?;
        figures[turn] = requests * 1e3 / f64::from(millis);
    }
    Ok(figures)
}

fn show_transfers(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of: Vec<&[Vec<f64>]> = figures.chunks(TRANSFERS).collect();
    let row = |(at, way): (usize, &Way)| {
        let cells = (0..TRANSFERS).flat_map(|one| {
            let rate = figure(&of[at][one], 0);
            let to_librbd = match way {
                Way::Librbd => "-".into(),
                // It is in the cluster when it is acknowledged.
                _ if one == DRAINED && of[at][one] == of[at][0] => "-".into(),
                _ => {
                    let ratio = ratio(&of[at][one], &of[0][one]).at_least(LARGE);
                    // Of one disk here, and of several there.
                    let is_acknowledged_here = *way == Way::Cache && one == 0;
                    Cell::from(if is_acknowledged_here { ratio.no_claim() } else { ratio })
                }
            };
            [rate.into(), to_librbd]
        });
        named(way.name(), cells)
    };
    let rows = WAYS[..LARGE_WAYS].iter().enumerate().map(row).collect();
    let title = "Sequential transfers of 1 MiB, depth 4, MiB a second: written until the flush at the end is acknowledged, \
                 written until all is in the cluster, read with cold caches";
    let head = ["", "written", "of librbd", "and drained", "drained, of librbd", "read", "reads, of librbd"];
    rounds.show(title, &head, rows)
}

fn show_misses(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let (librbd, qemu) = (&figures[Way::Librbd as usize], &figures[Way::Qemu as usize]);
    let row = |(way, rates): (&Way, &Vec<f64>)| {
        let ratios = match way {
            Way::Librbd => ["-".into(), "-".into()],
            Way::Qemu => [ratio(rates, librbd).into(), "-".into()],
            _ => [
                ratio(rates, librbd).at_least(MISSES).into(),
                Cell::from(ratio(rates, qemu).at_least(TO_QEMU).no_claim()),
            ],
        };
        named(way.name(), std::iter::once(figure(rates, 1).times(1e-3).into()).chain(ratios))
    };
    let rows = WAYS.iter().zip(figures).map(row).collect();
    let title = "4 KiB random reads, depth 16, cold caches, no block twice";
    rounds.show(title, &["", "thousand a second", "to librbd", "to qemu-nbd"], rows)
}

fn show_hits(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let row = |(way, rates): (&Way, &[Vec<f64>])| {
        let [image, file] = rates else { unreachable!("two origins") };
        row![
            way.name(),
            figure(image, 1).times(1e-3),
            figure(file, 1).times(1e-3),
            ratio(image, file).at_least(HITS).of_ours()
        ]
    };
    let rows = HITTING.iter().zip(figures.chunks(2)).map(row).collect();
    let title = "4 KiB random reads that hit, depth 16, thousand a second";
    rounds.show(title, &["", "over an image", "over a file", "ratio"], rows)
}
