//! The kernel's own, which the kernel here may lack, in an emulated machine: for the shape, not for the speed.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use spillway_core::random::Random;
use spillway_fixture::emulated::{Machine, System};

use crate::nbd::Folder;
use crate::rounds::drawn_order;

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

    /// MiB a second of each of `runs`, which take turns in the order of this round, in a machine of its own. It says of each how many MiB
    /// it has written, and when: see [`rate`].
    pub(crate) fn rates(&self, system: &System, runs: &[&str], round: usize) -> Result<Vec<f64>> {
        let order = drawn_order(runs.len(), round);
        let names: Vec<&str> = order.iter().map(|&turn| runs[turn]).collect();
        let disks = self.paths.each_ref().map(PathBuf::as_path);
        let machine = Machine::boot(system, &disks, &format!("job={}", names.join(",")));
        let mut rates = vec![f64::NAN; runs.len()];
        for turn in order {
            rates[turn] = rate(&machine.says(runs[turn])).with_context(|| format!("of {}", runs[turn]))?;
        }
        machine.ends();
        Ok(rates)
    }
}

/// From "MIB BEGUN READY END", in seconds. What it took to be ready is taken off what it took from there to the end.
fn rate(said: &str) -> Result<f64> {
    let numbers: Result<Vec<f64>, _> = said.split(' ').map(str::parse).collect();
    let numbers = numbers.with_context(|| format!("numbers are wanted: {said}"))?;
    let &[mib, begun, ready, end] = &numbers[..] else { bail!("four numbers are wanted: {said}") };
    let seconds = (end - ready) - (ready - begun);
    ensure!(seconds > 0.0, "no time has passed: {said}");
    Ok(mib / seconds)
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn a_rate_is_of_the_time_without_what_was_done_twice() {
        assert!((rate("32 5.25 6.25 11.25").unwrap() - 8.0).abs() < 1e-9);
        for said in ["32 5 6 7", "32 5 5", "", "32 5 5 six"] {
            assert!(rate(said).is_err(), "{said}");
        }
    }
}
