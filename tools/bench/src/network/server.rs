//! `spillway disk` without a cache over exports of NBD servers, beside the same servers used directly. All sockets are unix sockets.
//! Writes are flushed as often on both ways.

use std::num::NonZero;
use std::path::Path;

use anyhow::Result;

use super::rig::{BYTES, FILL, text};
use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, Figure, figure, named, ratio, row};
use crate::peers::fio::{Case, Contender, JOB_BYTES, case, fio};
use crate::peers::servers::{Folder, QEMU_NBD, binary, server, socket_of};

const CASES: [Case; 4] = [
    case("4K reads", "randread", 4, 1, 16),
    case("4K writes", "randwrite", 4, 1, 16),
    case("4K reads, depth 1", "randread", 4, 1, 1),
    case("4K writes, depth 1", "randwrite", 4, 1, 1),
];

/// Two clients, of which each has a worker and, where there are two, a connection to the server.
const CLIENTS: [Case; 2] =
    [case("4K reads, 2 jobs", "randread", 4, 2, 16), case("4K writes, 2 jobs", "randwrite", 4, 2, 16)];

/// Words of writes to fio. Without a flush of the client ours makes one when its journal is half full, after 2048 writes.
const FLUSHES: &str = "--fsync=1024 --end_fsync=1";
const FLUSHED: &str = "Writes have a flush after each 1024 on both ways, of which fio queues as many as its depth, and one at the end of a \
                       run, outside its time: ours would flush by itself after 2048, of which it keeps a copy.";

/// Bounds: of the rate at depth 16, of microseconds that a request takes longer at depth 1, and of the gain by a second connection where
/// there are so many processors for it.
const AT_DEPTH: f64 = 0.9;
const LONGER: f64 = 15.0;
const GAIN: f64 = 1.6;
const PROCESSORS: usize = 4;

/// How a server is started that serves two jobs' bytes; `FILE` is the path of a file of its own.
struct Peer {
    name: &'static str,
    ours: &'static str,
    words: &'static [&'static str],
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "nbdkit memory",
        ours: "disk over nbdkit memory",
        words: &["nbdkit", "-f", "-U", "SOCKET", "memory", "512M"],
    },
    Peer {
        name: "nbdkit file",
        ours: "disk over nbdkit file",
        words: &["nbdkit", "-f", "-U", "SOCKET", "file", "FILE"],
    },
    Peer { name: "qemu-nbd", ours: "disk over qemu-nbd", words: QEMU_NBD },
];

/// Our servers are dropped before those of their origins.
struct Pair {
    ours: Contender,
    direct: Contender,
}

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let (disk, sockets, spillway) = (Folder::on_disk()?, Folder::new()?, binary()?);
    let pairs = PEERS.iter().map(|peer| {
        let direct = start(peer, &disk.0, &sockets.0)?;
        Ok::<_, anyhow::Error>(Pair { ours: over(peer, peer.ours, &spillway, &sockets.0, &[])?, direct })
    });
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    let by_one = ["--origin-connections", "1"];
    let one = over(&PEERS[0], "disk by one connection", &spillway, &sockets.0, &by_one)?;
    let figures = rounds.measure(|round| {
        let rounds = rounds.at(round);
        let mut figures = rates(&pairs, round, rounds)?;
        figures.extend(connections([&one, &pairs[0].ours], round, rounds)?);
        Ok(figures)
    })?;
    let (rates, connections) = figures.split_at(2 * pairs.len() * CASES.len());
    show(rates, rounds)?;
    show_connections(connections, rounds)
}

/// Starts a server, with content.
fn start(peer: &Peer, disk: &Path, sockets: &Path) -> Result<Contender> {
    let file = disk.join(peer.name.replace(' ', "-"));
    std::fs::File::create(&file)?.set_len(2 * BYTES)?;
    let mut words = peer.words.to_vec();
    words
        .iter_mut()
        .filter(|word| **word == "FILE")
        .try_for_each(|word| text(&file).map(|text| *word = text))?;
    let direct = server(peer.name, sockets, "", &words)?;
    for half in [0, JOB_BYTES] {
        fio(&direct, &FILL, &format!("--offset={half} --end_fsync=1"))?;
    }
    Ok(direct)
}

/// Starts ours over that server.
fn over(
    peer: &Peer,
    name: &'static str,
    spillway: &Path,
    sockets: &Path,
    more: &[&str],
) -> Result<Contender> {
    let origin = format!("nbd+unix:///?socket={}", socket_of(sockets, peer.name).display());
    let export = name.replace(' ', "-");
    let disk = [text(spillway)?, "disk", "--page-cache", "none", "--workers", "2", "--name", &export];
    let words = [&disk[..], &["--socket", "SOCKET", "--origin", &origin], more].concat();
    server(name, sockets, &export, &words)
}

fn run(contender: &Contender, case: &Case, rounds: Rounds) -> Result<f64> {
    let millis = rounds.pick(800, 300);
    let flushes = if case.rw == "randwrite" { FLUSHES } else { "" };
    let requests = fio(contender, case, &format!("--time_based --runtime={millis}ms {flushes}"))?;
    Ok(requests * 1e3 / f64::from(millis))
}

/// Requests a second of each server by itself in every case, then of ours over each.
fn rates(pairs: &[Pair], round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let direct = pairs.iter().map(|pair| &pair.direct);
    let contenders: Vec<&Contender> = direct.chain(pairs.iter().map(|pair| &pair.ours)).collect();
    all(&contenders, &CASES, round, rounds)
}

/// The same by one connection, and by two.
fn connections(ours: [&Contender; 2], round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    all(&ours, &CLIENTS, round, rounds)
}

/// Requests a second of each contender in each case, in a drawn order.
fn all(contenders: &[&Contender], cases: &[Case], round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let mut figures = vec![f64::NAN; contenders.len() * cases.len()];
    for turn in drawn_order(figures.len(), round) {
        figures[turn] = run(contenders[turn / cases.len()], &cases[turn % cases.len()], rounds)?;
    }
    Ok(figures)
}

fn show(rates: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of: Vec<&[Vec<f64>]> = rates.chunks(CASES.len()).collect();
    let (direct, ours) = of.split_at(PEERS.len());
    let cells = |at: usize| {
        CASES.iter().enumerate().flat_map(move |(case, shape)| {
            let judged = match shape.depth {
                1 => longer(&ours[at][case], &direct[at][case]).at_most(LONGER),
                _ => ratio(&ours[at][case], &direct[at][case]).at_least(AT_DEPTH),
            };
            [Cell::from(figure(&ours[at][case], 1).times(1e-3)), judged.into()]
        })
    };
    let rows = PEERS.iter().enumerate().map(|(at, peer)| named(peer.name, cells(at))).collect();
    let title = "`spillway disk --page-cache none` over a server, thousand requests a second; to that server by itself: the \
                 ratio at depth 16, and how much longer a request takes at depth 1";
    let judged = |case: &Case| format!("{}, {}", case.name, if case.depth == 1 { "longer" } else { "to it" });
    let heads = CASES.iter().flat_map(|case| [case.name.to_owned(), judged(case)]);
    let head: Vec<String> = std::iter::once("origin".to_owned()).chain(heads).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    results::show(rounds.table(title, &head, rows).note(FLUSHED))
}

/// Microseconds.
fn longer(ours: &[f64], direct: &[f64]) -> Figure {
    let longer: Vec<f64> = ours.iter().zip(direct).map(|(ours, direct)| 1e6 / ours - 1e6 / direct).collect();
    figure(&longer, 1).unit(" us")
}

fn show_connections(rates: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let [one, two] = rates.chunks(CLIENTS.len()).collect::<Vec<_>>()[..] else {
        unreachable!("one connection, and two")
    };
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let wanted = if processors < PROCESSORS { 0.0 } else { GAIN };
    let rows = CLIENTS.iter().enumerate().map(|(case, shape)| {
        let thousands = |rates: &[f64]| figure(rates, 1).times(1e-3);
        row![
            shape.name,
            thousands(&one[case]),
            thousands(&two[case]),
            ratio(&two[case], &one[case]).wanted(wanted).of_ours()
        ]
    });
    let title = format!(
        "Connections to nbdkit memory, two clients and two workers on {processors} processors, thousand requests a second"
    );
    let table = rounds.table(&title, &["", "one connection", "two", "ratio"], rows.collect());
    results::show(table.note(FLUSHED))
}
