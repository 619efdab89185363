//! `spillway attach --swap`: swap on a RAM disk, where that cannot hang the host.
//!
//! To free a page, the kernel sends it to the server, which must store it without waiting for a page to be freed: of its own memory nothing
//! may be swapped out, and no memory that it asks for may wait for swap. What is checked here can be seen from outside; docs/mount.md says
//! what is left.

use std::fs;
use std::mem::replace;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::system::uname;
use signal_hook::consts::SIGKILL;
use spillway_export::control::DeviceRow;
use spillway_io::nbd_device::is_swap;

use super::file_system::expect_blank;
use crate::client::connection::Connection;
use crate::client::program::{self, run};
use crate::runtime_folder::RuntimeFolder;
use crate::system::{CAP_SYS_RESOURCE, bytes_of, has_capability, version};

/// Users from this number on are people, not services (SYS_UID_MAX of login.defs(5) is one less).
const PEOPLE_FROM: u32 = 1000;

/// The kernel never kills a process of this `oom_score_adj`.
const NEVER_KILLED: i32 = -1000;

/// The first Linux that has no wrong content where a page of swap cannot be read: before it, swapoff(8) maps what is in memory there.
const KERNEL: (u32, u32) = (5, 19);

/// Pause between two tries to swap off.
const SWAPOFF_PAUSE: Duration = Duration::from_secs(1);

/// What the kernel shows of the process of a server.
#[derive(Clone, Copy, Debug)]
struct Facts {
    user: u32,
    /// All of its memory is locked.
    locked: bool,
    oom_score_adj: i32,
    /// It may be an I/O flusher, and a server then is.
    flushes: bool,
    /// Version of Linux.
    kernel: (u32, u32),
}

/// Refuses swap that may hang the host, with the reason and the remedy.
pub(super) fn expect_safe(folder: &RuntimeFolder, row: &DeviceRow) -> Result<()> {
    let process = Connection::open(folder, &row.name)?.server();
    let facts = Facts::of(process, folder.user());
    check(
        row,
        facts.with_context(|| format!("the server of {} (pid {process}) cannot be examined", row.name))?,
    )
}

/// Makes swap and swaps to it. What is swapped in again is discarded on the device.
pub(super) fn start(device: &Path, force: bool) -> Result<()> {
    if !force {
        expect_blank(device)?;
    }
    run(Command::new("mkswap").arg("--force").arg(device))?;
    run(Command::new("swapon").arg("--discard").arg(device)).map(drop)
}

/// Swaps off. Where memory is too short to bring back what is swapped out, it is tried again until that fits.
pub(super) fn stop(device: &Path) -> Result<()> {
    let mut said = false;
    while is_swap(device) {
        let mut command = Command::new("swapoff");
        let output = command.arg(device).stdin(Stdio::null()).output().context("swapoff cannot be run")?;
        if !is_short_of_memory(output.status) {
            program::said(&command, output)?;
            continue;
        }
        if !replace(&mut said, true) {
            let device = device.display();
            tracing::warn!(
                "{device}: no memory for what is swapped out; trying again until programs that use it end"
            );
        }
        sleep(SWAPOFF_PAUSE);
    }
    Ok(())
}

/// Whether swapoff(8) has ended for this reason, or was killed for it: the kernel kills it before others.
fn is_short_of_memory(status: ExitStatus) -> bool {
    const OUT_OF_MEMORY: i32 = 2;
    status.code() == Some(OUT_OF_MEMORY) || status.signal() == Some(SIGKILL)
}

fn check(row: &DeviceRow, facts: Facts) -> Result<()> {
    let name = &row.name;
    ensure!(
        facts.user < PEOPLE_FROM,
        "{name}: its server runs as user {}, who could read the memory of every program that is swapped out; run it as root or as the user of a service",
        facts.user
    );
    ensure!(
        row.stack == "zram" && row.spill_size.is_none(),
        "{name}: swap on {} may hang this host: a page that is swapped out needs I/O there, and that needs memory; serve a RAM disk without --spill",
        if row.stack == "zram" { "a RAM disk with a spill file" } else { &row.stack }
    );
    ensure!(
        facts.kernel >= KERNEL,
        "{name}: swap needs Linux {}.{}, here is {}.{}: older ones give programs wrong memory where a server of swap has ended",
        KERNEL.0,
        KERNEL.1,
        facts.kernel.0,
        facts.kernel.1
    );
    ensure!(facts.locked, "{name}: its server may be swapped out itself; start it with --lock-memory");
    ensure!(
        facts.oom_score_adj == NEVER_KILLED,
        "{name}: the kernel may kill its server to free memory (oom_score_adj is {}), and with it every program that is swapped out; start it with \
         oom_score_adj {NEVER_KILLED} (systemd OOMScoreAdjust=)",
        facts.oom_score_adj
    );
    ensure!(
        facts.flushes,
        "{name}: memory that its server asks for may wait for a page to be swapped out to itself; start it with CAP_SYS_RESOURCE (systemd \
         AmbientCapabilities=, without PrivateUsers=)"
    );
    Ok(())
}

impl Facts {
    fn of(process: u32, user: u32) -> Result<Self> {
        ensure!(process != 0, "it is not seen from here");
        let folder = PathBuf::from(format!("/proc/{process}"));
        let status = fs::read_to_string(folder.join("status"))?;
        let adjust = fs::read_to_string(folder.join("oom_score_adj"))?;
        // Capabilities of another user namespace do not count.
        let namespace = |folder: &Path| fs::read_link(folder.join("ns/user"));
        let same = namespace(&folder)? == namespace(Path::new("/proc/self"))?;
        Ok(Self {
            user,
            locked: is_locked(&status).context("the kernel does not show its memory")?,
            oom_score_adj: adjust.trim().parse()?,
            kernel: kernel().context("the version of the kernel is not known")?,
            flushes: same && has_capability(&status, "CapEff", CAP_SYS_RESOURCE),
        })
    }
}

fn kernel() -> Option<(u32, u32)> {
    version(uname().release().to_str().ok()?)
}

/// Whether a process has locked all: what is mapped counts, of which a part is resident (proc_pid_status(5)).
fn is_locked(status: &str) -> Option<bool> {
    Some(bytes_of(status, "VmLck")? >= bytes_of(status, "VmRSS")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAFE: Facts =
        Facts { user: 0, locked: true, oom_score_adj: NEVER_KILLED, flushes: true, kernel: KERNEL };

    #[test]
    fn each_danger_is_refused_with_its_remedy() {
        let ram = DeviceRow { name: "swap0".into(), stack: "zram".into(), ..DeviceRow::default() };
        check(&ram, SAFE).unwrap();
        check(&ram, Facts { user: 999, ..SAFE }).unwrap();
        let spilling = DeviceRow { spill_size: Some(0), ..ram.clone() };
        let disk = DeviceRow { stack: "page_cache file".into(), ..ram.clone() };
        for (row, facts, words) in [
            (&ram, Facts { user: 1000, ..SAFE }, "user of a service"),
            (&spilling, SAFE, "without --spill"),
            (&disk, SAFE, "swap on page_cache file"),
            (&ram, Facts { kernel: (5, 18), ..SAFE }, "needs Linux 5.19, here is 5.18"),
            (&ram, Facts { locked: false, ..SAFE }, "--lock-memory"),
            (&ram, Facts { oom_score_adj: -999, ..SAFE }, "OOMScoreAdjust="),
            (&ram, Facts { flushes: false, ..SAFE }, "CAP_SYS_RESOURCE"),
        ] {
            let refusal = check(row, facts).unwrap_err().to_string();
            assert!(refusal.starts_with("swap0: ") && refusal.contains(words), "{refusal}");
        }
    }

    #[test]
    fn swapoff_is_tried_again_where_memory_is_short_and_not_where_it_is_refused() {
        let ended =
            |script: &str| is_short_of_memory(Command::new("sh").args(["-c", script]).status().unwrap());
        assert_eq!(
            ["exit 2", "kill -9 $$", "exit 0", "exit 4", "kill -15 $$"].map(ended),
            [true, true, false, false, false]
        );
    }

    #[test]
    fn the_status_of_a_process_is_understood() {
        let status = |locked: u64| {
            format!("Name:\tx\nVmLck:\t{locked:8} kB\nVmRSS:\t    4096 kB\nCapEff:\t0000000001000000\n")
        };
        assert_eq!(
            [0, 4095, 4096, 1 << 30].map(|kib| is_locked(&status(kib))),
            [false, false, true, true].map(Some)
        );
        assert_eq!(is_locked("Name:\tkthreadd\n"), None);
        let has = |capability| has_capability(&status(0), "CapEff", capability);
        assert!(has(24) && !has(25));
        assert_eq!(
            ["6.12.9-amd64", "6.1", "5.19-rc1", "x"].map(version),
            [Some((6, 12)), Some((6, 1)), Some((5, 19)), None]
        );
        let own = Facts::of(std::process::id(), 0).unwrap();
        assert!(!own.locked, "tests lock nothing");
    }
}
