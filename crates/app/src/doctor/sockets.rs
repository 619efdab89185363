//! The folder with the sockets of this user's servers.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::finding::Finding;
use super::host::Host;
use crate::runtime_folder::{RuntimeFolder, check_socket_path};

/// Name of a device that most servers have.
const NAME: &str = "ram0";

/// Whether servers can be made, and are found later.
pub(super) fn runtime_folder(host: &Host, located: &Result<RuntimeFolder>) -> Finding {
    let unusable =
        |why: &anyhow::Error| Finding::problem("runtime folder", format!("{why:#}"), "No server starts.");
    let folder = match located {
        Err(why) => return unusable(why),
        Ok(folder) => folder,
    };
    match usable(folder) {
        Err(why) => unusable(&why),
        Ok(state) => Finding::new(
            "runtime folder",
            format!("{} ({state})", folder.path().display()),
            short_lived(host, folder.path(), folder.user()),
        ),
    }
}

/// How it is, or why it cannot be used.
fn usable(folder: &RuntimeFolder) -> Result<String> {
    check_socket_path(&folder.control_socket(NAME))?;
    folder.expect_ours()?;
    match folder.path().symlink_metadata() {
        Ok(found) => {
            expect_writable(folder.path())?;
            Ok(format!("user {}, mode {:o}", found.uid(), found.mode() & 0o777))
        }
        Err(_) => {
            let above = folder.path().parent().context("a folder for sockets lies in another one")?;
            expect_writable(above)?;
            Ok("made by the first server".to_owned())
        }
    }
}

fn expect_writable(folder: &Path) -> Result<()> {
    let access = accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    access.map_err(io::Error::from).with_context(|| format!("nothing can be made in {}", folder.display()))
}

/// What removes it while servers run.
fn short_lived(host: &Host, folder: &Path, user: u32) -> Option<String> {
    let of_session = folder.starts_with("/run/user") && user != 0 && host.has("run/systemd/system");
    let name = name_of(&host.text("etc/passwd")?, user)?;
    let stays = host.has(&format!("var/lib/systemd/linger/{name}"));
    let remedy = "systemd removes this folder with the last session of the user, and commands no longer find servers in the background: \
                  loginctl enable-linger.";
    (of_session && !stays).then(|| remedy.to_owned())
}

/// The name of a user in lines `NAME:PASSWORD:ID:...`.
fn name_of(passwd: &str, user: u32) -> Option<String> {
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&user.to_string()))?;
    line.split(':').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::super::finding::Status;
    use super::super::host::tests::host;
    use super::*;
    use crate::scratch::Scratch;

    fn finding(path: &Path) -> Finding {
        runtime_folder(&host(&[]).0, &Ok(RuntimeFolder::at(path)))
    }

    #[test]
    fn a_folder_that_is_ours_or_can_be_made_is_good_and_stays_as_it_is() {
        let scratch = Scratch::new("sockets");
        let path = scratch.path().join("spillway");
        let missing = finding(&path);
        assert!(
            missing.status == Status::Ok && missing.found.contains("made by the first server"),
            "{missing:?}"
        );
        assert!(!path.exists());
        RuntimeFolder::at(&path).create().unwrap();
        let there = finding(&path);
        assert!(there.status == Status::Ok && there.found.contains("mode 700"), "{there:?}");
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_a_problem_with_its_reason() {
        let scratch = Scratch::new("unusable");
        let open = scratch.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let long = scratch.path().join("x".repeat(100));
        for (path, words) in [
            (open.as_path(), "chmod 700"),
            (&long, "107 are allowed"),
            (Path::new("/does/not/exist/spillway"), "nothing can be made in /does/not/exist"),
        ] {
            let finding = finding(path);
            assert!(finding.status == Status::Problem && finding.found.contains(words), "{finding:?}");
        }
        let nowhere = runtime_folder(&host(&[]).0, &Err(anyhow::anyhow!("not a folder of yours")));
        assert_eq!((nowhere.status, nowhere.found.as_str()), (Status::Problem, "not a folder of yours"));
    }

    #[test]
    fn a_folder_that_ends_with_the_session_is_a_note() {
        let files = [
            ("run/systemd/system/x", ""),
            ("etc/passwd", "ann:x:1000:100::/:/bin/sh\n"),
            ("var/lib/systemd/linger/bob", ""),
        ];
        let short = |more: &[(&str, &str)], path: &str, user| {
            short_lived(&host(&[&files, more].concat()).0, Path::new(path), user).is_some()
        };
        let session = "/run/user/1000/spillway";
        assert!(short(&[], session, 1000));
        assert!(!short(&[("var/lib/systemd/linger/ann", "")], session, 1000), "she lingers");
        assert!(!short(&[], "/tmp/spillway-1000", 1000) && !short(&[], "/run/user/0/spillway", 0));
    }

    #[test]
    fn users_are_found_by_their_whole_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:10:10::/:/bin/sh\nbob:x:1:1::/:/bin/sh\n";
        assert_eq!((name_of(passwd, 1).as_deref(), name_of(passwd, 100)), (Some("bob"), None));
    }
}
