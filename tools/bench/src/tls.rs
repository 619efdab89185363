//! nbdcopy over NBD in TLS: Spillway beside nbdkit, both of memory, on unix sockets, with certificates made for this run.
//!
//! The client is libnbd with GnuTLS, on one connection; fio's engine reads no certificates. The client takes much of the time, so the
//! processor time of the servers is shown too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{figure, ratio, row};
use crate::peers::fio::{Contender, server_time};
use crate::peers::pages;
use crate::peers::servers::{Folder, binary, server};

const SIZE: u64 = 512 << 20;

/// What is copied, and the least ratio to nbdkit; 0 where none is wanted.
const CASES: [(&str, bool, f64); 2] = [("128K reads", false, 0.9), ("128K writes", true, 0.0)];

/// A server, and its address.
struct Server {
    contender: Contender,
    uri: String,
}

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let folder = Folder::new()?;
    let content = folder.0.join("content");
    fs::write(&content, pages::half(SIZE as usize)?.bytes)?;
    let servers = start(&folder.0)?;
    let figures = rounds.measure(|round| one_round(&servers, &content, round))?;
    show(&figures, rounds)
}

/// MiB a second of each server in every case, then its microseconds for each 4 KiB, in a drawn order but that it is filled first.
fn one_round(servers: &[Server], content: &Path, round: usize) -> Result<Vec<f64>> {
    let count = servers.len() * CASES.len();
    let mut figures = vec![f64::NAN; 2 * count];
    for turn in drawn_order(servers.len(), round) {
        for case in [1, 0] {
            let at = turn * CASES.len() + case;
            (figures[at], figures[count + at]) = copied(&servers[turn], CASES[case].1, content)?;
        }
    }
    Ok(figures)
}

fn copied(server: &Server, writes: bool, content: &Path) -> Result<(f64, f64)> {
    let content = content.to_string_lossy();
    let [from, to] = if writes { [&content[..], &server.uri] } else { [&server.uri, "null:"] };
    let time = || server_time(&server.contender)?.context("it is a server");
    let (before, start) = (time()?, Instant::now());
    let mut command = Command::new("nbdcopy");
    command.args(["--connections=1", "--requests=16", "--request-size=131072", "--no-extents"]);
    results::command(&command)?;
    command.args([from, to]);
    ensure!(command.status().context("nbdcopy cannot be started")?.success(), "nbdcopy {from} {to} failed");
    let (took, spent) = (start.elapsed().as_secs_f64(), time()? - before);
    Ok(((SIZE >> 20) as f64 / took, spent.as_secs_f64() * 1e6 / (SIZE >> 12) as f64))
}

fn show(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of: Vec<&[Vec<f64>]> = figures.chunks(CASES.len()).collect();
    let [ours, nbdkit, our_time, its_time] = of[..] else { unreachable!("two servers, two figures of each") };
    let rows = CASES.iter().enumerate().map(|(case, (name, _, wanted))| {
        row![
            *name,
            figure(&ours[case], 0),
            figure(&nbdkit[case], 0),
            ratio(&ours[case], &nbdkit[case]).wanted(*wanted),
            figure(&our_time[case], 2),
            figure(&its_time[case], 2),
        ]
    });
    let head = ["", "ours, MiB/s", "nbdkit memory", "ratio", "us for each 4 KiB, ours", "nbdkit"];
    let title = "nbdcopy over NBD in TLS, one connection, 16 requests of 128K in flight";
    rounds.show(title, &head, rows.collect())
}

fn start(folder: &Path) -> Result<[Server; 2]> {
    let certificates = folder.join("certificates");
    fs::create_dir(&certificates)?;
    sign(&certificates)?;
    let (spillway, size) = (binary()?.to_string_lossy().into_owned(), SIZE.to_string());
    let place = certificates.to_string_lossy().into_owned();
    let ours = [
        &spillway,
        "ram",
        "--size",
        &size,
        "--name",
        "lz4",
        "--tls-certificates",
        &place,
        "--socket",
        "SOCKET",
    ];
    let tls = format!("--tls-certificates={place}");
    let nbdkit = ["nbdkit", "-f", "-U", "SOCKET", "--tls=require", &tls, "memory", &size];
    let in_tls = |contender: Contender| {
        let uri =
            contender.target.iter().find_map(|word| word.strip_prefix("--uri=nbd")).context("its address")?;
        let uri = format!("nbds{uri}&tls-certificates={place}");
        Ok::<_, anyhow::Error>(Server { contender, uri })
    };
    Ok([
        in_tls(server("spillway", folder, "lz4", &ours)?)?,
        in_tls(server("nbdkit memory", folder, "", &nbdkit)?)?,
    ])
}

/// Puts an authority, and what it has signed for a server and a client, into `folder`.
fn sign(folder: &Path) -> Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    fs::write(folder.join("ca-cert.pem"), params.self_signed(&key)?.pem())?;
    let authority = Issuer::new(params, key);
    for role in ["server", "client"] {
        let key = KeyPair::generate()?;
        let signed = CertificateParams::new(vec!["localhost".to_owned()])?.signed_by(&key, &authority)?;
        fs::write(folder.join(format!("{role}-cert.pem")), signed.pem())?;
        let file = folder.join(format!("{role}-key.pem"));
        fs::write(&file, key.serialize_pem())?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}
