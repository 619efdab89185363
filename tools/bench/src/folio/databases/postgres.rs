//! PostgreSQL with its defaults: a cluster in a folder of its own, run by an ordinary user, reached by a unix socket there. It is no
//! service of the system.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::measure::results;
use crate::peers::ext4::{finish, printed};

/// Below it Debian has the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Users that may run the server, which refuses to run as root: that of Debian's package, and any other.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// How long the server may take to start or to recover.
const PATIENCE: Duration = Duration::from_secs(60);

const CLIENTS: [&str; 2] = ["--client=4", "--jobs=2"];

/// Makes a cluster in `folder`, with the tables of pgbench: 15 MiB for each of `scale`.
pub(super) fn create(folder: &Path, scale: u32) -> Result<()> {
    let (user, group) = user()?;
    chown(folder, Some(user), Some(group))?;
    let mut initdb = program("initdb", folder)?;
    initdb.arg("--pgdata").arg(folder.join("data"));
    finish(initdb.args(["--auth=trust", "--username=postgres", "--locale=C", "--encoding=UTF8"]))?;
    let cluster = Cluster::start(folder)?;
    let scale = format!("--scale={scale}");
    results::command(Command::new("pgbench").args(["--initialize", &scale]))?;
    finish(cluster.pgbench()?.args(["--initialize", "--quiet", &scale, "postgres"]))
}

/// By pgbench's own script, which updates three tables and inserts into a fourth in each transaction.
pub(super) fn transactions_a_second(folder: &Path, span: Duration) -> Result<f64> {
    let cluster = Cluster::start(folder)?;
    results::command(Command::new("pgbench").args(CLIENTS))?;
    let time = format!("--time={}", span.as_secs_f64().round());
    let text = printed(cluster.pgbench()?.args(CLIENTS).args([&time, "--no-vacuum", "postgres"]))?;
    tps(&text)
}

/// From the line `tps = 123.4 (without initial connection time)`.
fn tps(text: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("tps = ")).context("pgbench prints tps")?;
    Ok(line.split_whitespace().next().context("a number")?.parse()?)
}

/// A running server, until it is dropped.
struct Cluster {
    child: Child,
    folder: PathBuf,
}

impl Cluster {
    fn start(folder: &Path) -> Result<Self> {
        let mut command = program("postgres", folder)?;
        command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).args(["-c", "listen_addresses="]);
        let log = fs::File::create(folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("postgres cannot be started")?;
        let mut cluster = Self { child, folder: folder.into() };
        cluster.until_ready()?;
        Ok(cluster)
    }

    fn until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut ready = program("pg_isready", &self.folder)?;
        ready.arg("--quiet").arg("--host").arg(&self.folder);
        while !ready.status()?.success() {
            let alive = self.child.try_wait()?.is_none() && start.elapsed() < PATIENCE;
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            ensure!(alive, "PostgreSQL does not start in {}: {}", self.folder.display(), log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn pgbench(&self) -> Result<Command> {
        let mut command = program("pgbench", &self.folder)?;
        command.arg("--host").arg(&self.folder).args(["--username", "postgres"]);
        Ok(command)
    }
}

impl Drop for Cluster {
    /// A fast shutdown: clients are disconnected, and a checkpoint makes all durable.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let _ = self.child.wait();
    }
}

/// A program of the newest version, run by an ordinary user.
fn program(name: &str, folder: &Path) -> Result<Command> {
    let entries = fs::read_dir(VERSIONS).context("PostgreSQL is missing; install the package postgresql")?;
    let version = |name: std::ffi::OsString| name.to_str().and_then(|name| name.parse::<u32>().ok());
    let newest = entries.filter_map(|entry| version(entry.ok()?.file_name())).max();
    let newest = newest.with_context(|| format!("{VERSIONS} has no version"))?;
    let mut command = Command::new(format!("{VERSIONS}/{newest}/bin/{name}"));
    let (user, group) = user()?;
    command.uid(user).gid(group).current_dir(folder).env("HOME", folder);
    Ok(command)
}

/// The user and the group that the server runs as.
fn user() -> Result<(u32, u32)> {
    let id = |user: &str, what: &str| -> Result<u32> {
        Ok(printed(Command::new("id").args([what, user]))?.trim().parse()?)
    };
    let ids = |user: &str| Some((id(user, "--user").ok()?, id(user, "--group").ok()?));
    USERS.into_iter().find_map(ids).with_context(|| format!("none of the users {USERS:?} exists"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_what_pgbench_prints() {
        let text = "number of clients: 4\nlatency average = 2.1 ms\n\
                    tps = 1899.250000 (without initial connection time)\n";
        assert!((tps(text).unwrap() - 1899.25).abs() < 1e-9);
        assert!(tps("pgbench: error").is_err());
    }
}
