//! `spillway doctor`: what of this host helps or hinders a server, each finding with its effect and its remedy. It starts no server and
//! changes nothing: probes are threads, rings, mappings and files without a name, and end with the check. `host` reads what the kernel says,
//! `finding` shows what was found, and the other files each check one part of a host; what they make of texts is tested with texts of other
//! hosts. A check that is about one option or command says which.

mod file_systems;
mod finding;
mod fuse;
mod fuse_conf;
mod host;
mod kernel;
mod limits;
mod mappings;
mod memory;
mod nodes;
mod probe;
mod programs;
mod queue;
mod sockets;
mod storage;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use spillway_export::nbd;
use spillway_io::{WorkersOptions, rbd};

use crate::cli::DoctorOptions;
use crate::exit::Exit;
use crate::memory::ServerMemory;
use crate::runtime_folder::RuntimeFolder;
use crate::{client, system};
use finding::{Finding, Status};
use host::Host;
use programs::Programs;
use storage::NamedPath;

/// How long the storage at a path may take. A file system of another host that is gone answers never; a disk may have to spin up.
const PATIENCE: Duration = Duration::from_secs(15);

/// `spillway doctor`: the exit code, a failure where no server can start.
pub(crate) fn examine(options: &DoctorOptions) -> Result<u8> {
    let of_paths = options.paths.iter().map(|path| of_path(path)).collect::<Result<Vec<_>>>()?;
    let host = Host::at(Path::new("/"));
    // As a server does, for whose rings there may be too few descriptors otherwise.
    system::raise_open_files();
    let mut findings = of_server(&host);
    findings.extend(of_options(&host));
    findings.extend(of_paths.into_iter().flatten());
    client::print(&if options.json { client::json(&findings)? } else { finding::table(&findings) })?;
    let stops = findings.iter().any(|finding| finding.status == Status::Problem);
    Ok(if stops { Exit::Failed } else { Exit::Success } as u8)
}

/// What the storage at a path allows. The thread that looks at one that does not answer ends with the program.
fn of_path(path: &Path) -> Result<Vec<Finding>> {
    let (found, findings) = channel();
    let own: PathBuf = path.to_owned();
    thread::spawn(move || {
        // Nobody waits any more for findings that come late.
        let _ = found.send(NamedPath::at(&own).map(|place| place.findings(&Host::at(Path::new("/")))));
    });
    match findings.recv_timeout(PATIENCE) {
        Ok(findings) => findings,
        Err(RecvTimeoutError::Timeout) => Ok(vec![silent().about(&path.display().to_string())]),
        Err(RecvTimeoutError::Disconnected) => unreachable!("a panic ends the program"),
    }
}

fn silent() -> Finding {
    let remedy = "A server waits for it, too, and so do requests. See whether the host, the program or the disk that serves it works.";
    Finding::note("storage", format!("no answer within {} s", PATIENCE.as_secs()), remedy)
}

/// What every server needs.
fn of_server(host: &Host) -> Vec<Finding> {
    let workers = WorkersOptions::default();
    let budget = ServerMemory::choose(None, host.root());
    let mut findings = vec![Finding::ok("spillway", env!("CARGO_PKG_VERSION")), kernel::kernel(host)];
    findings.extend(kernel::threads(host));
    findings.extend([
        limits::processors(host, workers.count),
        memory::memory(host, &budget),
        memory::swap(host),
        mappings::address_space(host),
        mappings::huge_pages(host),
        mappings::locked_memory(host, kernel::threads_of(&workers)),
    ]);
    if let Ok(memory) = &budget {
        let clients = memory.connections_max(nbd::CONNECTION_BYTES);
        findings.push(limits::open_files(host, memory, clients));
    }
    findings.push(limits::file_sizes(host));
    findings.push(sockets::runtime_folder(host, &RuntimeFolder::locate()));
    findings
}

/// What single options and commands need.
fn of_options(host: &Host) -> [Finding; 10] {
    let programs = Programs::of_path();
    [
        mappings::shared_memory(host),
        fuse::fuse(host, &programs),
        fuse_conf::fuse_conf(host),
        mappings::reclaim(host),
        mappings::locking(host),
        nodes::nbd_devices(host),
        nodes::loop_devices(host),
        programs::qemu_img(&programs),
        programs::librbd(&rbd::load()),
        programs::attach(&programs.with_those_of_root()),
    ]
}
