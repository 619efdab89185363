//! fio over NBD in TLS: Spillway beside nbdkit, both of memory, on unix sockets, with certificates made for this run.
//!
//! The client is libnbd with GnuTLS in every run, which takes most of the time; so the processor time of the servers is shown too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::fio::{Case, Contender, JOB_BYTES, case, fio, timed};
use crate::nbd::{Folder, MILLIS, WARM_MILLIS, binary, server, shown};
use crate::report::{Rounds, bounded, drawn_order, median, ratio, table};

const SIZE: u64 = 512 << 20;

const CASES: [Case; 4] = [
    case("128K reads", "read", 128, 1, 16),
    case("128K writes", "write", 128, 1, 16),
    case("4K reads", "randread", 4, 1, 16),
    case("4K writes", "randwrite", 4, 1, 16),
];

/// Least ratios to nbdkit; 0 where none is wanted.
const WANTED: [f64; CASES.len()] = [0.9, 0.0, 0.0, 0.0];

pub(crate) fn run(count: usize) -> Result<()> {
    let rounds = Rounds::new(count, "tls");
    let folder = Folder::new()?;
    let contenders = start(&folder.0)?;
    let fill = case("fill", "write", 128, 2, 16);
    for contender in &contenders {
        fio(contender, &fill, &format!("--io_size={JOB_BYTES}"))?;
    }
    let figures = rounds.measure(|round| {
        eprintln!("round {round} of {count}");
        one_round(&contenders, round)
    })?;
    show(&contenders, &figures, rounds);
    Ok(())
}

/// Requests a second of each contender in every case, then its server's microseconds for each 4 KiB, in a drawn order.
fn one_round(contenders: &[Contender], round: usize) -> Result<Vec<f64>> {
    let count = contenders.len() * CASES.len();
    let mut figures = vec![f64::NAN; 2 * count];
    let millis = if round == 0 { WARM_MILLIS } else { MILLIS };
    for turn in drawn_order(count, round) {
        let (contender, case) = (&contenders[turn / CASES.len()], &CASES[turn % CASES.len()]);
        let done = timed(contender, case, millis)?;
        let time = done.server.context("each contender is a server")?;
        figures[turn] = done.requests * 1e3 / millis as f64;
        figures[count + turn] = time.as_secs_f64() * 1e6 / (done.requests * case.kib as f64 / 4.0);
    }
    Ok(figures)
}

fn show(contenders: &[Contender], figures: &[Vec<f64>], rounds: Rounds) {
    let of: Vec<&[Vec<f64>]> = figures.chunks(CASES.len()).collect();
    let (rates, micros) = of.split_at(contenders.len());
    let rows = (0..CASES.len()).map(|case| {
        let thousands = rates.iter().map(|rates| shown(median(&rates[case]) / 1e3, 1));
        let ratio = ratio(&rates[0][case], &rates[1][case]);
        let wanted = Some(WANTED[case]).filter(|wanted| *wanted > 0.0);
        let times = micros.iter().map(|micros| shown(median(&micros[case]), 2));
        let cells = thousands.chain([bounded(ratio, wanted)]).chain(times);
        [CASES[case].name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
    });
    let head = ["", "ours", "nbdkit memory", "ratio", "us for each 4 KiB, ours", "nbdkit"];
    let title = format!(
        "fio over NBD in TLS, depth 16, runs of {:.1} s, thousand requests a second",
        MILLIS as f64 / 1e3
    );
    table(&rounds.title(&title), &head, &rows.collect::<Vec<_>>());
}

fn start(folder: &Path) -> Result<Vec<Contender>> {
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
    let mut all =
        vec![server("spillway", folder, "lz4", &ours)?, server("nbdkit memory", folder, "", &nbdkit)?];
    for word in
        all.iter_mut().flat_map(|contender| &mut contender.target).filter(|word| word.starts_with("--uri="))
    {
        *word = format!("{}&tls-certificates={place}", word.replace("nbd+unix:", "nbds+unix:"));
    }
    Ok(all)
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
