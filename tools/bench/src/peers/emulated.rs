//! The kernel's own, which the kernel here may lack, in an emulated machine: for the shape, not for the speed.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use spillway_core::random::Random;
use spillway_fixture::emulated::{Machine, System};

use super::servers::Folder;
use crate::measure::rounds::drawn_order;

/// Bytes of each of its disks.
const DISK: usize = 512 << 20;

/// Two disks on tmpfs, full of noise.
pub(crate) struct Disks {
    _folder: Folder,
    paths: [PathBuf; 2],
}

impl Disks {
    pub(crate) fn new() -> Result<Self> {
        let folder = Folder::new()?;
        let paths = ["vda", "vdb"].map(|name| folder.0.join(name));
        let mut noise = vec![0; DISK];
        Random(1).fill(&mut noise);
        paths.iter().try_for_each(|path| fs::write(path, &noise))?;
        Ok(Self { _folder: folder, paths })
    }

    /// MiB a second of each of `runs`, then its processor's seconds a GiB of each. They take turns in the order of this round, in a machine
    /// of its own, which says of each how many MiB it has written, and when: see [`rate`].
    pub(crate) fn rates(&self, system: &System, runs: &[&str], round: usize) -> Result<Vec<f64>> {
        let order = drawn_order(runs.len(), round);
        let names: Vec<&str> = order.iter().map(|&turn| runs[turn]).collect();
        let disks = self.paths.each_ref().map(PathBuf::as_path);
        let machine = Machine::boot(system, &disks, &format!("job={}", names.join(",")));
        let mut figures = vec![f64::NAN; 2 * runs.len()];
        for turn in order {
            let said = rate(&machine.says(runs[turn])).with_context(|| format!("of {}", runs[turn]))?;
            [figures[turn], figures[runs.len() + turn]] = said;
        }
        machine.ends();
        Ok(figures)
    }
}

/// From "MIB BEGUN READY END", each of which but the first is seconds, and hundredths of seconds that the processor worked. What it took to
/// be ready is taken off what it took from there to the end.
fn rate(said: &str) -> Result<[f64; 2]> {
    let numbers: Result<Vec<f64>, _> = said.split(' ').map(str::parse).collect();
    let numbers = numbers.with_context(|| format!("numbers are wanted: {said}"))?;
    let &[mib, begun, idle, ready, busy, end, done] = &numbers[..] else {
        bail!("seven numbers are wanted: {said}")
    };
    let (seconds, worked) = ((end - ready) - (ready - begun), (done - busy) - (busy - idle));
    ensure!(seconds > 0.0, "no time has passed: {said}");
    Ok([mib / seconds, worked / 100.0 * 1024.0 / mib])
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn a_rate_is_of_the_time_without_what_was_done_twice() {
        let [rate_of_it, worked] = rate("32 5.25 100 6.25 150 11.25 500").unwrap();
        assert!((rate_of_it - 8.0).abs() < 1e-9 && (worked - 96.0).abs() < 1e-9);
        for said in ["32 5 0 6 0 7 0", "32 5 0 5 0 6", "", "32 5 0 5 0 six 0"] {
            assert!(rate(said).is_err(), "{said}");
        }
    }
}
