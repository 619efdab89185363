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

use std::path::Path;

use anyhow::Result;
use spillway_export::nbd;
use spillway_io::{WorkersOptions, rbd};

use crate::cli::DoctorOptions;
use crate::exit::Exit;
use crate::memory::Memory;
use crate::runtime_folder::RuntimeFolder;
use crate::{client, system};
use finding::{Finding, Status};
use host::Host;
use programs::Programs;
use storage::Place;

/// `spillway doctor`: the exit code, a failure where no server can start.
pub(crate) fn examine(options: &DoctorOptions) -> Result<u8> {
    let places = options.paths.iter().map(|path| Place::at(path)).collect::<Result<Vec<_>>>()?;
    let host = Host::at(Path::new("/"));
    // As a server does, for whose rings there may be too few descriptors otherwise.
    system::raise_open_files();
    let mut findings = of_server(&host);
    findings.extend(of_options(&host));
    findings.extend(places.iter().flat_map(|place| place.findings(&host)));
    client::print(&if options.json { finding::json(&findings)? } else { finding::table(&findings) })?;
    let stops = findings.iter().any(|finding| finding.status == Status::Problem);
    Ok(if stops { Exit::Failed } else { Exit::Success } as u8)
}

/// What every server needs.
fn of_server(host: &Host) -> Vec<Finding> {
    let workers = WorkersOptions::default();
    let budget = Memory::choose(None, host.root());
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
fn of_options(host: &Host) -> [Finding; 8] {
    let programs = Programs::of_path();
    [
        mappings::shared_memory(host),
        fuse::fuse(host, &programs),
        fuse_conf::fuse_conf(host),
        mappings::reclaim(host),
        nodes::loop_devices(host),
        programs::qemu_img(&programs),
        programs::librbd(&rbd::load()),
        programs::attach(&programs.with_those_of_root()),
    ]
}
