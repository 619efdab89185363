//! fio's own account of a job, from its first request to its last: its start and its end are not in it.

use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::ext4::printed;
use crate::measure::results;

/// What jobs have done together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Account {
    /// Requests a second.
    pub(crate) requests: f64,
    /// MiB a second.
    pub(crate) mib: f64,
    /// Seconds of the processor for a GiB: user and system time of fio. Of a single job.
    pub(crate) processor: f64,
}

/// The columns that are used of fio's output in JSON.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Direction,
    write: Direction,
    /// Percent of the time of the job.
    usr_cpu: f64,
    sys_cpu: f64,
    /// Milliseconds.
    job_runtime: f64,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: f64,
    bw_bytes: f64,
    iops: f64,
}

/// Runs fio with these words, and those in `paths`.
pub(crate) fn fio(words: &[&str], paths: &[String]) -> Result<Account> {
    results::command(Command::new("fio").args(words).args(paths))?;
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--group_reporting", "--thread"]).args(words).args(paths);
    account(&printed(&mut command)?)
}

fn account(text: &str) -> Result<Account> {
    // A warning may stand in front.
    let begin = text.find('{').context("fio prints JSON")?;
    let output: Output = serde_json::from_str(&text[begin..])?;
    let job = output.jobs.first().context("fio shows a job")?;
    let seconds = (job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime / 1000.0;
    let gib = (job.read.io_bytes + job.write.io_bytes) / (1u64 << 30) as f64;
    Ok(Account {
        requests: job.read.iops + job.write.iops,
        mib: (job.read.bw_bytes + job.write.bw_bytes) / f64::from(1 << 20),
        processor: seconds / gib,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_of_both_directions() {
        let direction = |bytes: u64| format!(r#"{{"io_bytes": {bytes}, "bw_bytes": 1048576, "iops": 7.5}}"#);
        let (read, write) = (direction(0), direction(1 << 30));
        let text = format!(
            r#"note: a warning
            {{"fio version": "fio-3.33", "jobs": [{{"jobname": "x", "read": {read}, "write": {write},
            "usr_cpu": 10.0, "sys_cpu": 30.0, "job_runtime": 5000, "ctx": 1}}]}}"#
        );
        let wanted = Account { requests: 15.0, mib: 2.0, processor: 2.0 };
        assert_eq!(account(&text).unwrap(), wanted);
        assert!(account("{}").is_err());
    }
}
