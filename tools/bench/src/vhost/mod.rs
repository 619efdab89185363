//! vhost-user beside NBD, the kernel's zram and qemu-storage-daemon, by one generator of our own.
//!
//! One thread keeps requests in flight over each transport with the same loop (`generator`), so that what
//! differs is the transport and the store behind it. The kernel's zram has no server in between: as it cannot
//! promise not to block, io_uring passes each request to a thread of the kernel; a system call for each request
//! keeps one in flight. The processor time of every server is measured in the same runs.

mod calls;
mod cases;
mod client;
mod contenders;
mod fairness;
mod generator;
mod guest;
mod ring;
mod tables;

use anyhow::Result;

use crate::measure::rounds::{Rounds, drawn_order};
use crate::nbd::{codec_micros, millis};
use cases::CASES;
use contenders::Field;

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    match rounds.part {
        Some("fairness") => fairness::compare(rounds),
        _ => throughput(rounds),
    }
}

fn throughput(rounds: Rounds) -> Result<()> {
    let field = Field::new()?;
    let figures = rounds.measure(|round| one_round(&field, round, rounds))?;
    let (rates, micros) = figures.split_at(figures.len() / 2);
    let codec = codec_micros(rounds)?;
    let names: Vec<&str> = field.contenders.iter().map(|contender| contender.name).collect();
    tables::show_rates(&names, rates, rounds)?;
    tables::show_processor_time(&names, micros, codec, rounds)
}

/// Requests a second of every contender in every case, then its server's microseconds for each 4 KiB, in a
/// drawn order. Not a number where a contender takes no part or has no server.
fn one_round(field: &Field, round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let count = field.contenders.len() * CASES.len();
    let mut figures = vec![f64::NAN; 2 * count];
    let millis = millis(round, rounds);
    for turn in drawn_order(count, round) {
        let (contender, case) = (&field.contenders[turn / CASES.len()], CASES[turn % CASES.len()]);
        if (contender.takes)(&case) {
            let (done, micros) = field.timed(contender, case, millis)?;
            (figures[turn], figures[count + turn]) = (done.rate(), micros);
        }
    }
    Ok(figures)
}
