//! fio against a server or device: its jobs, how many requests they have answered, and the server's processor time meanwhile.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::measure::interrupt;
use crate::measure::results;

pub(crate) const JOB_BYTES: u64 = 256 << 20;

/// A running server or device, how fio reaches it, and the cases that it takes part in.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) child: Option<Child>,
    pub(crate) target: Vec<String>,
    /// The configuration of Ceph, where fio itself is the client of a cluster.
    pub(crate) ceph_conf: Option<PathBuf>,
    pub(crate) takes: fn(&Case) -> bool,
}

impl Contender {
    pub(crate) fn only(mut self, takes: fn(&Case) -> bool) -> Self {
        self.takes = takes;
        self
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One job of fio, and how it is named in the tables.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) rw: &'static str,
    pub(crate) kib: u64,
    jobs: usize,
    pub(crate) depth: usize,
}

pub(crate) const fn case(name: &'static str, rw: &'static str, kib: u64, jobs: usize, depth: usize) -> Case {
    Case { name, rw, kib, jobs, depth }
}

/// A run of fio that has ended.
pub(crate) struct Finished {
    pub(crate) requests: f64,
    /// From its first request to its last, with the flush at its end if it has one.
    pub(crate) seconds: f64,
}

pub(crate) struct Done {
    pub(crate) requests: f64,
    /// Absent where there is no server.
    pub(crate) server: Option<Duration>,
}

pub(crate) fn timed(contender: &Contender, case: &Case, millis: u64) -> Result<Done> {
    let before = server_time(contender)?;
    let requests = fio(contender, case, &format!("--time_based --runtime={millis}ms"))?;
    let server = server_time(contender)?.zip(before).map(|(after, before)| after - before);
    Ok(Done { requests, server })
}

/// The processor time that the contender's server has taken so far.
pub(crate) fn server_time(contender: &Contender) -> Result<Option<Duration>> {
    contender.child.as_ref().map(|child| processor_time(child.id())).transpose()
}

/// The processor time that a program has taken so far.
pub(crate) fn processor_time(program: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{program}/stat"))?;
    let after_name = stat.rsplit_once(')').context("a name in /proc/PID/stat")?.1;
    let ticks: Vec<u64> =
        after_name.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    let a_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_micros(ticks.iter().sum::<u64>() * 1_000_000 / a_second))
}

/// Runs fio and returns how many requests were answered.
pub(crate) fn fio(contender: &Contender, case: &Case, limits: &str) -> Result<f64> {
    Ok(finish(contender, case, limits)?.requests)
}

/// Runs fio to its end.
pub(crate) fn finish(contender: &Contender, case: &Case, limits: &str) -> Result<Finished> {
    interrupt::check()?;
    let mut command = Command::new("fio");
    command.args(["--name=job", "--group_reporting", "--refill_buffers", "--minimal", "--thread"]);
    command.args(["--buffer_compress_percentage=50", "--norandommap", "--randrepeat=0", "--rwmixread=70"]);
    command.args([format!("--rw={}", case.rw), format!("--bs={}k", case.kib)]);
    command.args([format!("--numjobs={}", case.jobs), format!("--iodepth={}", case.depth)]);
    command.args([format!("--size={JOB_BYTES}"), format!("--offset_increment={JOB_BYTES}")]);
    results::command(command.args(limits.split_whitespace()).args(&contender.target))?;
    command.envs(contender.ceph_conf.iter().map(|conf| ("CEPH_CONF", conf)));
    let output = command.stdin(Stdio::null()).output().context("fio cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("3;"));
    let Some(line) = line.filter(|_| output.status.success()) else {
        bail!("fio failed on {}: {text}{}", contender.name, String::from_utf8_lossy(&output.stderr));
    };
    // Columns of fio's terse format, version 3: KiB read and written, and milliseconds of reads and of writes.
    let columns: Vec<f64> = [5, 46, 8, 49]
        .iter()
        .map(|column| Ok(line.split(';').nth(*column).context("a column of fio")?.parse()?))
        .collect::<Result<_>>()?;
    let requests = (columns[0] + columns[1]) / case.kib as f64;
    Ok(Finished { requests, seconds: columns[2].max(columns[3]) / 1e3 })
}
