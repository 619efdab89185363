//! Nodes in `/dev`: whether this process can use the driver behind one, and the block devices of `spillway attach`.
//!
//! A node is opened only if its driver is there already: opening would load the driver's module.

use std::fs::OpenOptions;

use super::finding::Finding;
use super::host::Host;

const LOOP: &str = "dev/loop-control";

/// What is in the way, and what to do.
pub(super) type Obstacle = (String, String);

/// An obstacle.
pub(super) fn obstacle(found: impl Into<String>, remedy: impl Into<String>) -> Option<Obstacle> {
    Some((found.into(), remedy.into()))
}

/// What keeps this process from a device node whose driver, of that module, has that name in `/proc/misc`.
pub(super) fn of_node(host: &Host, node: &str, driver: &str, module: &str) -> Option<Obstacle> {
    if !host.has(node) {
        let remedy = format!("modprobe {module}; a container needs --device /{node}");
        return obstacle(format!("there is no /{node}"), remedy);
    }
    let drivers = host.text("proc/misc").unwrap_or_default();
    if !drivers.lines().any(|line| line.split_whitespace().nth(1) == Some(driver)) {
        let remedy = format!("modprobe {module}, if the first use does not load it");
        return obstacle(format!("/{node}, whose driver is not loaded yet"), remedy);
    }
    let opened = OpenOptions::new().read(true).write(true).open(host.root().join(node));
    let why = opened.err()?;
    let remedy = format!("allow this user to open it; a container needs --device /{node}");
    obstacle(format!("/{node} cannot be opened ({why})"), remedy)
}

/// Whether root can make block devices of devices.
pub(super) fn loop_devices(host: &Host) -> Finding {
    let found = match of_node(host, LOOP, "loop-control", "loop") {
        None => return Finding::ok("loop devices", "can be made"),
        // The command is root's.
        Some(_) if host.has(LOOP) && !host.is_root() => {
            return Finding::ok("loop devices", "for root, who runs spillway attach");
        }
        Some(obstacle) => obstacle,
    };
    Finding::note("loop devices", found.0, format!("Only for spillway attach: {}.", found.1))
}

/// Whether the kernel has an NBD client. It loads the module by itself; asking for the client would do so.
pub(super) fn nbd_devices(host: &Host) -> Finding {
    if host.has("sys/module/nbd") {
        return Finding::ok("NBD devices", "the kernel's client is there");
    }
    let release = host.text("proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = host.text(&format!("lib/modules/{release}/modules.dep")).unwrap_or_default();
    let is_nbd = |line: &str| {
        line.split(':')
            .next()
            .and_then(|path| path.rsplit('/').next())
            .is_some_and(|name| name.starts_with("nbd.ko"))
    };
    if modules.lines().any(is_nbd) {
        return Finding::ok("NBD devices", "the kernel loads its client at the first use");
    }
    let remedy = "Only for spillway attach: it makes loop devices, which need --mount and do not outlive their server. Use a kernel with \
                  the module nbd, as Debian's have it.";
    Finding::note("NBD devices", "the kernel has no client", remedy)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    const ROOT: &str = "Uid:\t0\t0\t0\t0\n";
    const USER: &str = "Uid:\t1000\t1000\t1000\t1000\n";
    const MISC: (&str, &str) = ("proc/misc", "229 fuse\n237 loop-control\n");

    #[test]
    fn loop_devices_are_root_s() {
        let files = |status| host(&[("proc/self/status", status), MISC, (LOOP, "")]);
        assert_eq!(loop_devices(&files(ROOT).0).found, "can be made");
        let missing = loop_devices(&host(&[("proc/self/status", ROOT), MISC]).0);
        assert!(
            missing.status == Status::Note && missing.found.contains("no /dev/loop-control"),
            "{missing:?}"
        );
        let (host, _root) = host(&[("proc/self/status", USER), (LOOP, "")]);
        assert_eq!(loop_devices(&host).status, Status::Ok);
    }

    #[test]
    fn a_kernel_without_an_nbd_client_is_a_note() {
        let release = ("proc/sys/kernel/osrelease", "6.12.0-amd64\n");
        let modules = |text| ("lib/modules/6.12.0-amd64/modules.dep", text);
        let status = |files: &[(&str, &str)]| nbd_devices(&host(files).0).status;
        assert_eq!(status(&[("sys/module/nbd/version", "")]), Status::Ok);
        assert_eq!(
            status(&[release, modules("kernel/a/b.ko:\nkernel/drivers/block/nbd.ko.xz: kernel/a/b.ko.xz\n")]),
            Status::Ok
        );
        assert_eq!(status(&[release, modules("kernel/fs/nbdfs.ko: kernel/lib/nbd.ko\n")]), Status::Note);
        assert_eq!(status(&[release]), Status::Note);
    }
}
