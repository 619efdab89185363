//! Whether this user can mount by FUSE, for `--mount`: by a right of its own, or through `fusermount3`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::finding::Finding;
use super::host::Host;
use super::nodes::{Obstacle, obstacle, of_node};
use super::programs::Programs;
use crate::system::CAP_SYS_ADMIN;

const FUSE: &str = "dev/fuse";

/// The set-user-ID bit of a mode.
const SETUID: u32 = 0o4000;

/// Profiles of AppArmor that containers have, and that forbid to mount.
const PROFILES: [&str; 3] = ["docker-", "containers-", "cri-containerd"];

/// Whether this user can mount by FUSE.
pub(super) fn fuse(host: &Host, programs: &Programs) -> Finding {
    let obstacle = of_node(host, FUSE, "fuse", "fuse").or_else(|| {
        let program = programs.find("fusermount3");
        if host.has_capability("CapEff", CAP_SYS_ADMIN) {
            confined(host)
        } else {
            unprivileged(host, program)
        }
    });
    match obstacle {
        None => Finding::ok("fuse", "/dev/fuse, and this user can mount"),
        Some((found, remedy)) => Finding::note("fuse", found, format!("Only for --mount: {remedy}.")),
    }
}

/// What forbids a process to mount that has the capability.
fn confined(host: &Host) -> Option<Obstacle> {
    let profile = host.text("proc/self/attr/current")?;
    if !profile.ends_with("(enforce)") || !PROFILES.iter().any(|name| profile.starts_with(name)) {
        return None;
    }
    let found = format!("AppArmor confines this container ({profile})");
    obstacle(found, "docker --security-opt apparmor=unconfined")
}

/// What keeps a process without the capability from mounting by `fusermount3`.
fn unprivileged(host: &Host, program: Option<PathBuf>) -> Option<Obstacle> {
    if !host.has_capability("CapBnd", CAP_SYS_ADMIN) {
        return obstacle(
            "mounting is forbidden here",
            "a container needs --device /dev/fuse --cap-add SYS_ADMIN",
        );
    }
    let Some(program) = program else {
        return obstacle("fusermount3 is missing", "apt-get install fuse3");
    };
    if !host.is_root() && !is_setuid(&program) {
        return obstacle(
            format!("{} is not set-user-ID root", program.display()),
            "install fuse3 anew, outside of a file system with nosuid",
        );
    }
    let gains_none = host.status("NoNewPrivs").as_deref() == Some("1");
    if gains_none {
        return obstacle(
            "fusermount3 gains no rights here (NoNewPrivs)",
            "run without docker --security-opt no-new-privileges or systemd NoNewPrivileges=",
        );
    }
    confined(host)
}

/// Whether a program runs as root for every user.
fn is_setuid(program: &Path) -> bool {
    let of_root = fs::metadata(program).is_ok_and(|found| found.uid() == 0 && found.mode() & SETUID != 0);
    of_root && statvfs(program).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOSUID))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;

    const ROOT: &str =
        "Uid:\t0\t0\t0\t0\nNoNewPrivs:\t0\nCapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n";
    const MISC: (&str, &str) = ("proc/misc", "229 fuse\n237 loop-control\n 60 userfaultfd\n");

    fn user(privileges: &str, bounds: &str) -> String {
        format!(
            "Uid:\t1000\t1000\t1000\t1000\nNoNewPrivs:\t{privileges}\nCapEff:\t0000000000000000\nCapBnd:\t{bounds}\n"
        )
    }

    fn found(status: &str, more: &[(&str, &str)], setuid: bool) -> Finding {
        let files: Vec<_> = [("proc/self/status", status), (FUSE, ""), MISC, ("bin/fusermount3", "")]
            .into_iter()
            .filter(|(path, _)| more.iter().all(|(other, _)| other != path))
            .chain(more.iter().copied())
            .collect();
        let (host, root) = host(&files);
        let installed = if setuid { Programs::of_path() } else { Programs::within(&root.path().join("bin")) };
        fuse(&host, &installed)
    }

    #[test]
    fn who_may_mount_is_told_by_capabilities_and_the_helping_program() {
        let all = "000001ffffffffff";
        assert_eq!(found(ROOT, &[], false).status, Status::Ok);
        assert_eq!(found(&user("0", all), &[], true).status, Status::Ok, "fuse3 is installed");
        for (status, setuid, words) in [
            (user("0", all), false, "not set-user-ID root"),
            (user("1", all), true, "NoNewPrivs"),
            (user("0", "00000000a80425fb"), true, "mounting is forbidden"),
            (ROOT.replace("000001ffffffffff", "00000000a80425fb"), true, "mounting is forbidden"),
        ] {
            let finding = found(&status, &[], setuid);
            assert!(finding.status == Status::Note && finding.found.contains(words), "{finding:?}");
        }
        let regaining = ROOT.replace("CapEff:\t000001ffffffffff", "CapEff:\t0");
        assert_eq!(found(&regaining, &[], false).status, Status::Ok, "programs that root starts have it");
        let confined = found(ROOT, &[("proc/self/attr/current", "docker-default (enforce)\n")], true);
        assert!(confined.remedy.expect("a note").contains("apparmor=unconfined"));
    }

    #[test]
    fn a_node_is_not_opened_before_its_driver_is_there() {
        let status = ("proc/self/status", ROOT);
        let programs = Programs::within(Path::new("/nowhere"));
        let missing = fuse(&host(&[status, MISC]).0, &programs);
        assert!(missing.found == "there is no /dev/fuse", "{missing:?}");
        let late = fuse(&host(&[status, (FUSE, ""), ("proc/misc", "237 loop-control\n")]).0, &programs);
        assert!(late.found.contains("not loaded yet"), "{late:?}");
        let here = found(&user("0", "000001ffffffffff"), &[("proc/misc", "no list")], true);
        assert!(here.found.contains("not loaded yet"), "{here:?}");
    }
}
